"""Where a device's seconds go in a round on Flower: the CPU time of each step of its process.

python benchmarks/flower_start.py [CONFIG]

Flower starts a process for every message. This does what that process does, step by step, and prints the time
that the core worked, which a busy machine does not change much.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

_last = time.process_time()


def step(name: str) -> None:
    """Print the CPU seconds since the step before."""
    global _last
    now = time.process_time()
    print(f"{name:44} {now - _last:6.2f} s, {len(sys.modules)} modules", flush=True)
    _last = now


if __name__ == "__main__":
    [program] = [one for one in entry_points(group="console_scripts") if one.name == "flwr-clientapp"]
    program.load()
    step("Flower: importing flwr-clientapp")
    import torch

    step("torch: import")
    import numba  # noqa: F401

    step("numba: import")
    from signfade.integrations.flower import deployed

    step("signfade: importing the rest")
    import numpy as np

    from signfade.experiments.config import load
    from signfade.simulation.run import make_task

    torch.set_num_threads(1)
    settings = load(Path(sys.argv[1]) if len(sys.argv) > 1 else None, ["data.devices=4"])
    assert deployed.client_app
    task = make_task(settings)
    step("signfade: data, split and model")
    local = task.local_updates(task.initial_weights(), np.array([0]), 0)
    step("signfade: one gradient")
    from signfade.device import Encoder

    encoder = Encoder(settings.method, task.segments, True, None)
    key = np.array([1], dtype=np.uint64)
    encoder.encode(encoder.rotate(local.gradients[:1], key), rotation_keys=key)
    step("signfade: rotation and bits")
