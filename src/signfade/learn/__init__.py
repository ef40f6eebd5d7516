"""Training over a simulated cell: a task, the round that walks from devices to server, and the loop."""

from signfade.learn.cell import CellPlan, make_cell
from signfade.learn.received import Received
from signfade.learn.run import Experiment, RunFailed
from signfade.learn.task import Task

__all__ = ["CellPlan", "Experiment", "Received", "RunFailed", "Task", "make_cell"]
