"""A cell of 10,000 devices in little memory: nothing is held that grows with the data or with pairs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The devices' data would take 240 MB and as much again to work on, their gradients 4 MB, all pairs of devices
# 400 MB. 110 MB may be resident beyond what a process with torch and compiled code has, and a few threads'
# stacks more be reserved.
CHILD = """
import resource, sys
from pathlib import Path
from signfade.data import make_regression
from signfade.simulation import Experiment
from signfade.simulation.synthetic import RegressionTask
from signfade.settings import RunSettings

METHODS = {"sbfl": {}, "best": {"preset": "best"}}

def status(name):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return 1024 * int(line.split()[1])

def play(devices):
    task = RegressionTask(make_regression(devices, 60, 100, memory=1 << 24), None, seed=0, workers=2)
    for name in sys.argv[1:]:
        data = {"name": "regression", "devices": devices, "samples": 60, "size": 100, "batch": "none"}
        settings = RunSettings.model_validate({"data": data, "method": METHODS[name], "rounds": 10})
        record = Experiment(settings, task).advance()
        assert record["devices"] == devices
        assert record["cosine"] > 0.9, record

play(1100)  # loads and compiles everything
before = status("VmRSS")
resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + 150_000_000,) * 2)
play(10_000)
print((status("VmHWM") - before) / 1e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_memory_does_not_grow_with_the_data_or_with_pairs() -> None:
    command = [sys.executable, "-c", CHILD, "sbfl", "best"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 110
