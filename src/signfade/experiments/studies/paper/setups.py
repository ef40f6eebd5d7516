"""The paper's experiments as settings, at the paper's size or at one that takes minutes.

What the paper does not say is decided here, once: 20 devices for MNIST, the link budget (see `calibrate`),
an evaluation every 20 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from signfade.experiments.config import resolve
from signfade.experiments.studies.study import Scale
from signfade.settings import RunSettings

__all__ = ["BANDWIDTHS", "METHODS", "PAIRS", "Method", "regression", "training"]

# The paper's pairs (step, momentum), in the order of its Table II.
PAIRS: tuple[tuple[float, float], ...] = (
    (1e-2, 0.0),
    (1e-3, 0.0),
    (1e-4, 0.0),
    (1e-2, 0.9),
    (1e-3, 0.9),
    (1e-4, 0.9),
)
# Budgets that calibration chooses from, as the bandwidth of a device's subchannel: 0, 7, 12 and 17 dB less
# than 180 kHz. Power, noise figure and antenna gains would shift the SNRs in the same way.
BANDWIDTHS = (180e3, 1e6, 3e6, 10e6)


@dataclass(frozen=True)
class Method:
    """A column of the tables: what it is called, what it sets, and whether it is the paper's."""

    label: str
    settings: dict[str, Any]
    paper: bool = True


METHODS: dict[str, Method] = {
    "vote": Method("signSGD, vote", {"method.aggregator": "signsgd", "method.tie": "plus"}),
    "signsum": Method("signSGD, sum of signs", {"method.aggregator": "signsum"}),
    "gaussian": Method("SBFL, Gaussian", {"method.aggregator": "sbfl", "method.prior": "gaussian"}),
    "laplacian": Method("SBFL, Laplacian", {"method.aggregator": "sbfl", "method.prior": "laplacian"}),
    "rotated": Method(
        "SBFL, rotated", {"method.aggregator": "sbfl", "method.rotation": "hadamard"}, paper=False
    ),
    "best": Method("best", {"method.preset": "best"}, paper=False),
    "published": Method(
        "SBFL, Gaussian, as printed", {"method.aggregator": "sbfl", "method.form": "published"}, paper=False
    ),
    "blmmse": Method("BLMMSE", {"method.aggregator": "blmmse"}, paper=False),
    "ideal": Method("ideal", {"method.aggregator": "ideal"}, paper=False),
}


def _settings(method: str, seed: int, tree: dict[str, Any]) -> RunSettings:
    chosen = METHODS[method]
    return resolve({"name": "reproduce", "label": chosen.label, "seed": seed} | tree | chosen.settings)


@lru_cache(maxsize=4096)
def training(
    scale: Scale,
    method: str,
    pair: tuple[float, float],
    *,
    seed: int = 0,
    downlink: Literal["full", "sign"] = "full",
    rounds: int | None = None,
    bandwidth_hz: float | None = None,
    **more: Any,
) -> RunSettings:
    """Return the settings of one run of the paper's MNIST experiment, with `pair` = (step, momentum).

    Rounds and bandwidth are the scale's unless given; `more` are further settings, with `__` for the dot.

    Example:
        >>> run = training(Scale(), "gaussian", (1e-3, 0.9), seed=1)
        >>> run.data.name, run.rounds, run.eval.every, run.server.momentum
        ('mnist', 1000, 20, 0.9)
    """
    step, momentum = pair
    tree: dict[str, Any] = {
        "rounds": scale.rounds if rounds is None else rounds,
        "checkpoint_every": 100,
        "data.name": scale.data,
        "data.devices": 20,
        "data.split": "two-chunks",
        "data.batch": 32,
        "model.name": "paper-cnn" if scale.data == "mnist" else "small-cnn",
        "cell.bandwidth_hz": scale.bandwidth_hz if bandwidth_hz is None else bandwidth_hz,
        "server.learning_rate": step,
        "server.momentum": momentum,
        "server.downlink": downlink,
        "eval.every": scale.every,
    }
    return _settings(method, seed, tree | {name.replace("__", "."): value for name, value in more.items()})


@lru_cache(maxsize=4096)
def regression(
    scale: Scale, method: str, *, heterogeneous: bool, step: float = 1.0, seed: int = 0, **more: Any
) -> RunSettings:
    """Return the settings of one run of the paper's regression: M = 300, K = 20, N_k = 100, full batches.

    Heterogeneous devices differ in the power of their data; the step is in units of 1/L, the paper's is 1.

    Example:
        >>> run = regression(Scale(), "gaussian", heterogeneous=True)
        >>> run.data.size, run.data.samples, run.data.batch is None
        (300, 100, True)
    """
    tree: dict[str, Any] = {
        "rounds": scale.regression_rounds,
        "checkpoint_every": 1000,
        "data.name": "regression",
        "data.devices": 20,
        "data.samples": 100,
        "data.size": 300,
        "data.batch": None,
        "data.heterogeneous": heterogeneous,
        "cell.bandwidth_hz": scale.bandwidth_hz,
        "server.learning_rate": step,
        "eval.every": 10,
    }
    return _settings(method, seed, tree | {name.replace("__", "."): value for name, value in more.items()})
