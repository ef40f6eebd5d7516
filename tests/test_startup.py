"""How long a person waits for the package and for its help, in CPU time: other programs do not enter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def cpu_seconds(arguments: list[str]) -> float:
    """The least of three starts, user and system time."""
    least = float("inf")
    for _ in range(3):
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        least = min(least, used.ru_utime + used.ru_stime)
    return least


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="CPU time of a child needs wait4")
@pytest.mark.parametrize(
    ("arguments", "limit"), [(["-c", "import signfade"], 0.3), (["-m", "signfade", "--help"], 0.5)]
)
def test_the_package_and_its_help_are_there_at_once(arguments: list[str], limit: float) -> None:
    assert cpu_seconds(arguments) < limit
