"""Small runs that the tests of any folder can make."""

from __future__ import annotations

from typing import Any

from signfade.settings import RunSettings
from signfade.simulation import Experiment

__all__ = ["finish", "gaussian", "settings"]


def settings(**changes: Any) -> RunSettings:
    """A run of three rounds on digits by SBFL, changed by dotted names with __ for the dot."""
    tree: dict[str, Any] = {
        "rounds": 3,
        "data": {"devices": 6},
        "model": {"name": "linear"},
        "method": {} if "method__preset" in changes else {"aggregator": "sbfl"},
        "server": {"learning_rate": 1e-2},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return RunSettings.model_validate(tree)


def gaussian(rounds: int = 30, **changes: Any) -> Experiment:
    """A run on Gaussian gradients of six devices at 5 dB."""
    defaults = {"data__name": "gaussian", "data__size": 3000, "cell__snr_db": 5.0}
    return Experiment(settings(rounds=rounds, **(defaults | changes)))


def finish(experiment: Experiment) -> list[dict[str, Any]]:
    """Run all rounds that are left and return their records, without the time they took."""
    records = []
    while not experiment.done:
        record = experiment.advance()
        record.pop("seconds")
        records.append(record)
    return records
