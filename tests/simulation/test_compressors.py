"""A user's own compressor: what it decodes is added up, and its bits and its error are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signfade.settings import RunSettings
from signfade.simulation import Experiment, RunFailed

OWN = """
import torch


def top_half(gradients, streams):
    kept = gradients.abs() >= gradients.abs().median(dim=1, keepdim=True).values
    return gradients * kept, (32 + 10) * kept.sum(dim=1)


def nothing(gradients, streams):
    return gradients[:, :-1], 0


def noisy(gradients, streams):
    noise = torch.stack([torch.from_numpy(s.standard_normal(gradients.shape[1])) for s in streams])
    return gradients + noise, 32 * gradients.shape[1]


def rated(gradients, streams, rate):
    return gradients, round(rate * gradients.shape[1])
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return str(file)


def experiment(compressor: str, aggregator: str = "ideal") -> Experiment:
    tables: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": "gaussian", "size": 1001, "devices": 4},
        "method": {"aggregator": aggregator, "compressor": compressor},
    }
    return Experiment(RunSettings.model_validate(tables))


def test_bits_and_error_are_those_of_the_compressor(own: str) -> None:
    record = experiment(f"{own}:top_half").advance()
    assert record["uplink_bits"] == 4 * 42 * 501  # the median and all above it
    # Half of the coordinates of a normal vector, the larger ones, hold 92.8 % of its energy.
    assert record["nmse"] == pytest.approx(0.072, abs=0.015)
    assert record["nmse_theory"] is None


def test_one_with_a_rate_is_given_bits_per_weight(own: str) -> None:
    assert experiment(f"{own}:rated").advance()["uplink_bits"] == 4 * 1001


def test_without_one_ideal_sends_numbers_in_full() -> None:
    record = experiment("auto").advance()
    assert (record["nmse"], record["cosine"], record["uplink_bits"]) == (0.0, 1.0, 4 * 32 * 1001)


def test_its_randomness_belongs_to_device_and_round(own: str) -> None:
    first, again = experiment(f"{own}:noisy"), experiment(f"{own}:noisy")
    for _ in range(2):
        assert first.advance()["nmse"] == again.advance()["nmse"] > 0.5


def test_wrong_results_and_wrong_places_get_one_sentence(own: str) -> None:
    with pytest.raises(RunFailed, match=r"nothing must return values of shape \[4, 1001\]; got \[4, 1000\]"):
        experiment(f"{own}:nothing").advance()
    with pytest.raises(ValueError, match=r'method\.compressor must be "auto" with sbfl'):
        experiment(f"{own}:noisy", "sbfl")
    known = (
        r"method\.compressor must be one of auto, qsgd, topk, ef-sign, drive, eden, package\.module:function"
    )
    with pytest.raises(ValueError, match=known):
        experiment("zip")
