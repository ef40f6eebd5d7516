"""Run folders that look like real ones, made in a moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signfade.experiments.folder import RunFolder
from signfade.experiments.metrics import summarise

CONFIG = """name = "digits over one cell"
label = "{label}"
seed = {seed}
rounds = {rounds}
out = "runs"
checkpoint_every = 25

[data]
name = "digits"
split = "two-chunks"
devices = 20
batch = 32

[model]
name = "small-cnn"

[cell]
radius_km = 1.0
bandwidth_hz = 180000.0
fading = "gaussian"

[method]
aggregator = "{aggregator}"
prior = "gaussian"
form = "corrected"
rotation = "{rotation}"

[server]
learning_rate = {step}
momentum = 0.0
optimizer = "momentum"
schedule = "constant"
downlink = "full"

[eval]
every = 10
"""

# label -> how it ends, how fast, its error, what theory predicts of it, bits a weight
SHAPES: dict[str, tuple[float, float, float, float | None, int]] = {
    "signsgd": (0.87, 55.0, 0.93, None, 1),
    "sbfl": (0.945, 40.0, 0.72, 0.70, 1),
    "ideal": (0.965, 25.0, 0.0, None, 32),
}


def fake_metrics(
    label: str, seed: int, rounds: int = 200, every: int = 10, regression: bool = False
) -> list[dict[str, Any]]:
    """Curves as a run would leave them; noise from the seed."""
    noise = np.random.default_rng([seed, len(label)])
    end, pace, error, theory, bits = SHAPES.get(label, (0.92, 45.0, 0.8, 0.78, 1))
    end += noise.normal(0, 0.004)
    pace *= 1 + noise.normal(0, 0.06)
    records = []
    for t in range(1, rounds + 1):
        evaluated = t % every == 0 or t == rounds
        accuracy = end - (end - 0.1) * np.exp(-t / pace) + noise.normal(0, 0.006)
        loss = 0.18 + 2.1 * np.exp(-t / pace) + abs(noise.normal(0, 0.05))
        nmse = max(0.0, error * (1 + 0.1 * t / rounds) + noise.normal(0, 0.03)) if error else 0.0
        records.append(
            {
                "round": t,
                "train_loss": loss,
                "test_loss": loss * 1.1 if evaluated else None,
                "test_accuracy": float(np.clip(accuracy, 0, 1)) if evaluated and not regression else None,
                "nmse": nmse,
                "nmse_theory": theory and theory + noise.normal(0, 0.02),
                "cosine": 1.0 if error == 0 else float(np.sqrt(max(0.02, 1 - nmse))) + noise.normal(0, 0.02),
                "uplink_bits": 20 * t * (4810 * bits + 64),
                "downlink_bits": 32 * 4810 * t,
                "snr_db": [-14.0 + noise.normal(), 9.0 + noise.normal(), 26.0 + noise.normal()],
                "devices": 20,
                "seconds": 0.01,
            }
        )
    return records


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run() -> MakeRun:
    """Return a function that writes one run folder; `done` rounds of `rounds`, finished if all."""

    def make(
        root: Path,
        label: str = "sbfl",
        seed: int = 0,
        rounds: int = 200,
        done: int | None = None,
        aggregator: str | None = None,
        regression: bool = False,
        step: float = 0.01,
        **replaced: str,
    ) -> Path:
        text = CONFIG.format(
            label=label,
            seed=seed,
            rounds=rounds,
            step=step,
            aggregator=aggregator or (label if label in SHAPES else "sbfl"),
            rotation="shared" if label == "sbfl" else "none",
        )
        for old, new in replaced.items():
            text = text.replace(old, new)
        folder = RunFolder(root / f"{label}-{seed}-{step:g}").create(text)
        records = fake_metrics(label, seed, rounds, regression=regression)
        for record in records[:done]:
            folder.append_metrics(record)
        if done is None:
            summary = summarise(
                folder.read_metrics(), name="x", seed=seed, method=label, parameters=4810, devices=20
            )
            folder.write_summary(summary)
        return folder.path

    return make


@pytest.fixture
def runs(tmp_path: Path, make_run: MakeRun) -> list[Path]:
    """Three methods, two seeds each."""
    return [make_run(tmp_path / "runs", label, seed) for label in SHAPES for seed in (1, 2)]
