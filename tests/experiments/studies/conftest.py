"""Records of runs that were never run, for tables and figures to be drawn from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from signfade.experiments.studies.records import FULL, QUICK, Record, Scale, family_of, run_name
from signfade.settings import RunSettings

SMALL: Scale = replace(
    QUICK,
    rounds=4,
    best_seeds=1,
    figure_rounds=2,
    every=2,
    regression_rounds=10,
    regression_seeds=1,
    draws=2000,
)
__all__ = ["FULL", "SMALL", "record"]


def record(
    settings: RunSettings,
    accuracy: float | None = 0.9,
    loss_at: int | None = None,
    accuracy_at: int | None = None,
    floor: float = 0.1,
    **more: Any,
) -> Record:
    """What a run with these settings might have left: a straight line up to `accuracy`."""
    rounds = list(range(settings.eval.every, settings.rounds + 1, settings.eval.every))
    curve: dict[str, list[float | None]] = {
        "round": [float(t) for t in rounds],
        "train_loss": [1.0] * len(rounds),
    }
    if settings.data.name == "regression":
        curve["test_loss"] = [floor] * len(rounds)
    elif accuracy is not None:
        curve["accuracy"] = [accuracy * t / settings.rounds for t in rounds]
    summary = {
        "last_accuracy": accuracy,
        "rounds_to_loss_1": loss_at,
        "rounds_to_accuracy_09": accuracy_at,
        "seconds": 0.5 * settings.rounds,
    }
    return Record(
        run_name(settings), family_of(settings), settings.seed, settings.rounds, summary, curve, **more
    )
