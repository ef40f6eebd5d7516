"""Where things are computed: a run on an accelerator, and accelerators that torch does not find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from signfade.settings import RunSettings
from signfade.simulation import make_task

METHODS: list[dict[str, Any]] = [
    {"method.aggregator": "ideal"},
    {"method.preset": "rotated-sbfl"},
    {"method.preset": "best"},
    {"method.preset": "low-rate", "method.bits_per_weight": 0.1, "device.local_steps": 3},
    {"method.aggregator": "signsgd"},
    {"method.aggregator": "sbfl", "method.scales": "layer", "method.side_bits": 4},
    {"method.aggregator": "krum"},
    {"method.aggregator": "ideal", "method.compressor": "eden"},  # for the CPU
    {"model.personal": ["head"], "method.preset": "best"},
]


def test_a_run_on_an_accelerator_ends_where_that_on_the_cpu_does() -> None:
    """Gradients, rotation, bits and aggregation stay there, in plain torch: nothing mixes the two."""
    program = Path(__file__).with_name("fake_accelerator.py")
    command = [sys.executable, str(program), *map(json.dumps, METHODS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    assert len(found) == len(METHODS)
    assert max(found) < 1e-4  # float32 sums in another order


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_torch_does_not_have_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    tables = {"data": {"name": "digits"}, "compute": name}
    with pytest.raises(ValueError, match=f'compute must be "cpu" here: torch finds no {name} device'):
        make_task(RunSettings.model_validate(tables))
