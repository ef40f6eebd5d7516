"""The allocator setting is accepted where there is one to set, and only speed may depend on it."""

import subprocess
import sys

import pytest

from signfade.simulation.allocator import tune_allocator

FAULTS = """
import resource, torch
from signfade.simulation.allocator import tune_allocator
took = {tune} and tune_allocator()
torch.ones(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(1 << 20), torch.ones(1 << 23)
print(int(took), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(tune: bool) -> tuple[bool, int]:
    code = FAULTS.format(tune=tune)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, count = map(int, run.stdout.split())
    return bool(took), count


def test_pages_are_kept() -> None:
    took, tuned = faults(True)
    if not took:
        pytest.skip("not glibc")
    _, default = faults(False)
    assert tuned < 0.2 * default  # 20 blocks of 36 MB: each mapped anew by default, only the first when tuned


@pytest.mark.parametrize("keep", [0, -1, 1 << 31])
def test_refuses_sizes_that_mallopt_cannot_take(keep: int) -> None:
    with pytest.raises(ValueError, match="keep must be between"):
        tune_allocator(keep)
