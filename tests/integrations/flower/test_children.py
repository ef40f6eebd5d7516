"""No process outlives what started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from signfade.integrations.flower.children import Children, marked

# A process that starts another in a session of its own, as Flower's do; neither minds being asked to stop.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_stubborn_processes_and_their_children_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signfade.integrations.flower.children._GRACE", 0.5)
    children = Children({"COLOUR": "blue"})
    other = Children({})
    bystander = other.start([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "other")
    children.start([sys.executable, "-c", STUBBORN], tmp_path / "log")
    wait_for(lambda: len(children.alive()) == 2 and "ready" in (tmp_path / "log").read_text())
    children.stop()
    assert children.alive() == []
    assert bystander.poll() is None  # another deployment's
    other.stop()
    assert marked(other.mark) == []


def test_processes_have_our_environment_and_theirs(tmp_path: Path) -> None:
    children = Children({"COLOUR": "blue"})
    code = "import os; print(os.environ['COLOUR'], os.environ['HOME'])"
    process = children.start([sys.executable, "-c", code], tmp_path / "log")
    assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == f"blue {os.environ['HOME']}\n"


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs a kernel that tells children of their parent's end"
)
def test_processes_end_when_we_are_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from signfade.integrations.flower.children import Children
children = Children({{}})
children.start([sys.executable, "-c", "import time; time.sleep(600)"], Path({str(tmp_path / "log")!r}))
print(children.mark, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    mark = starter.stdout.readline().strip()
    assert len(marked(mark)) == 1
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    wait_for(lambda: marked(mark) == [])
