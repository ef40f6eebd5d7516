"""Training over a simulated cell: tasks and models, the devices, the round, and the run."""

from __future__ import annotations

from signfade.server import Received
from signfade.simulation.run import Experiment, RunFailed, make_task
from signfade.simulation.task import Evaluation, LocalGradients, Task

__all__ = ["Evaluation", "Experiment", "LocalGradients", "Received", "RunFailed", "Task", "make_task"]
