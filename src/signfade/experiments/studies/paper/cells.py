"""The paper's experiments as settings, and the records that fill a cell of its tables and figures.

What the paper does not say is decided here, once: 20 devices for MNIST, the link budget (`FULL` and the part
`calibrate`), an evaluation every 20 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean
from typing import Any, Literal

from signfade.experiments.config import resolve
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    accuracies,
    shared_seeds,
    tail_mean,
)
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings

__all__ = ["BANDWIDTHS", "COLUMNS", "FULL_COLUMNS", "FULL_READING", "GOALS", "KINDS", "METHODS", "OPTIMUM"]
__all__ += ["PAIRS"]
__all__ += ["READINGS", "SIGNSGD", "STEPS", "Column", "Downlink", "Method", "Pair", "at_bits", "best_cells"]
__all__ += ["best_pair", "cell", "chosen", "diverged_text", "floors", "grid_wants", "ours_text", "pair_text"]
__all__ += ["part_below", "quantised", "regression", "regression_runs", "rounds_to", "training"]

Pair = tuple[float, float]
Downlink = Literal["full", "sign"]
# The paper's pairs (step, momentum), in the order of its Table II.
PAIRS: tuple[Pair, ...] = ((1e-2, 0.0), (1e-3, 0.0), (1e-4, 0.0), (1e-2, 0.9), (1e-3, 0.9), (1e-4, 0.9))
# Budgets that calibration chooses from, as the bandwidth of a device's subchannel: 0, 7, 12 and 17 dB less
# than 180 kHz. Power, noise figure and antenna gains would shift the SNRs in the same way.
BANDWIDTHS = (180e3, 1e6, 3e6, 10e6)


@dataclass(frozen=True)
class Method:
    """A column of the tables: what it is called, what it sets, and whether it is the paper's."""

    label: str
    settings: dict[str, Any]
    paper: bool = True


_SBFL = {"method.aggregator": "sbfl"}
METHODS: dict[str, Method] = {
    "vote": Method("signSGD, vote", {"method.aggregator": "signsgd", "method.tie": "plus"}),
    "signsum": Method("signSGD, sum of signs", {"method.aggregator": "signsum"}),
    "gaussian": Method("SBFL, Gaussian", _SBFL | {"method.prior": "gaussian"}),
    "laplacian": Method("SBFL, Laplacian", _SBFL | {"method.prior": "laplacian"}),
    "rotated": Method("SBFL, rotated", _SBFL | {"method.rotation": "shared"}, paper=False),
    "best": Method("best", {"method.preset": "best"}, paper=False),
    "published": Method(
        "SBFL, Gaussian, tanh(2l)", _SBFL | {"method.form": "published", "method.center": True}, paper=False
    ),
    "blmmse": Method("BLMMSE", {"method.aggregator": "blmmse"}, paper=False),
    "ideal": Method("ideal", {"method.aggregator": "ideal"}, paper=False),
}


def _settings(method: str, seed: int, tree: dict[str, Any], more: dict[str, Any]) -> RunSettings:
    tree = {"name": "reproduce", "label": METHODS[method].label, "seed": seed, "data.devices": 20} | tree
    tree |= {name.replace("__", "."): value for name, value in more.items()}
    return resolve(tree | METHODS[method].settings)


@lru_cache(maxsize=4096)
def training(
    scale: Scale,
    method: str,
    pair: Pair,
    *,
    seed: int = 0,
    downlink: Downlink = "full",
    rounds: int | None = None,
    bandwidth_hz: float | None = None,
    **more: Any,
) -> RunSettings:
    """Return the settings of one run of the paper's MNIST experiment, with `pair` = (step, momentum).

    Rounds and bandwidth are the scale's unless given; `more` are further settings, with `__` for the dot.

    >>> run = training(Scale(), "gaussian", (1e-3, 0.9), seed=1)
    >>> run.data.name, run.rounds, run.eval.every, run.server.momentum
    ('mnist', 1000, 20, 0.9)
    """
    tree: dict[str, Any] = {
        "rounds": scale.rounds if rounds is None else rounds,
        "checkpoint_every": 100,
        "data.name": scale.data,
        "data.split": "two-chunks",
        "data.batch": 32,
        "model.name": "paper-cnn" if scale.data == "mnist" else "small-cnn",
        "cell.path_loss": "cost231",
        "cell.bandwidth_hz": scale.bandwidth_hz if bandwidth_hz is None else bandwidth_hz,
        "method.weights": "sum",
        "server.learning_rate": pair[0],
        "server.momentum": pair[1],
        "server.downlink": downlink,
        "eval.every": scale.every,
    }
    return _settings(method, seed, tree, more)


@lru_cache(maxsize=4096)
def regression(
    scale: Scale, method: str, *, heterogeneous: bool, step: float = 1.0, seed: int = 0, **more: Any
) -> RunSettings:
    """Return the settings of one run of the paper's regression: M = 300, K = 20, N_k = 100, full batches.

    Heterogeneous devices differ in the power of their data; the step is in units of 1/L, the paper's is 1.
    """
    tree: dict[str, Any] = {
        "rounds": scale.regression_rounds,
        "checkpoint_every": 1000,
        "data.name": "regression",
        "data.samples": 100,
        "data.size": 300,
        "data.batch": None,
        "data.heterogeneous": heterogeneous,
        "cell.path_loss": "cost231",
        "cell.bandwidth_hz": scale.bandwidth_hz,
        "method.weights": "sum",
        "server.learning_rate": step,
        "eval.every": 10,
    }
    return _settings(method, seed, tree, more)


# -- the grid behind both tables: methods times downlinks times six pairs of step and momentum ---------------


@dataclass(frozen=True)
class Column:
    """A column of Table II: its head in `paper.toml` or ours, Full or DC, a key of `METHODS`, downlink."""

    head: str
    quantity: Literal["Full", "DC"]
    method: str
    downlink: Downlink

    @property
    def ours(self) -> bool:
        """Whether the paper has no such column."""
        return not METHODS[self.method].paper

    def run(self, scale: Scale, pair: Pair, seed: int) -> RunSettings:
        """Return the settings of one run of a cell."""
        return training(scale, self.method, pair, seed=seed, downlink=self.downlink)


# Two readings of signSGD's "Full", and the one that fits (see `calibrate`). The vote is already one bit per
# weight, so its runs are those of "DC".
READINGS = {
    "sum of signs": Column("signsgd", "Full", "signsum", "full"),
    "vote": Column("signsgd", "Full", "vote", "sign"),
}
FULL_READING = "vote"
COLUMNS: tuple[Column, ...] = (
    READINGS[FULL_READING],
    Column("signsgd", "DC", "vote", "sign"),
    Column("gaussian", "Full", "gaussian", "full"),
    Column("gaussian", "DC", "gaussian", "sign"),
    Column("laplacian", "Full", "laplacian", "full"),
    Column("laplacian", "DC", "laplacian", "sign"),
    Column("rotated", "Full", "rotated", "full"),
    Column("rotated", "DC", "rotated", "sign"),
    Column("best", "Full", "best", "full"),
    Column("best", "DC", "best", "sign"),
)
FULL_COLUMNS = tuple(column for column in COLUMNS if column.quantity == "Full")
GOALS = {"TL": "rounds_to_loss_1", "TA": "rounds_to_accuracy_09"}
# The most informative pairs first: the paper's best ones.
_ORDER: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0), (1e-3, 0.0), (1e-4, 0.9), (1e-2, 0.9), (1e-4, 0.0))
# Until a column is finished, the paper's best pair for SBFL stands for its best.
_STAND_IN: dict[str, Pair] = {"Full": (1e-3, 0.9), "DC": (1e-3, 0.0)}


def pair_text(pair: Pair) -> str:
    """Return a pair in words.

    >>> pair_text((1e-3, 0.9))
    '1e-3 / 0.9'
    """
    return f"{pair[0]:.0e} / {pair[1]:g}".replace("e-0", "e-")


def cell(results: Results, column: Column, pair: Pair) -> list[Record]:
    """Return the records of a cell that are there, seed by seed."""
    seeds = range(max(results.scale.seeds, results.scale.best_seeds))
    return results.records.find_all(column.run(results.scale, pair, seed) for seed in seeds)


def best_pair(scale: Scale, records: Records, column: Column) -> Pair | None:
    """Return the pair with the highest mean accuracy over the first seeds; None until all pairs have them.

    Only the seeds that every cell has count, so that later seeds of the winner do not change who won.
    """
    scores: dict[Pair, float] = {}
    for pair in PAIRS:
        values = accuracies(records.find_all(column.run(scale, pair, seed) for seed in range(scale.seeds)))
        if len(values) < scale.seeds:
            return None
        scores[pair] = mean(values)
    return max(scores, key=lambda pair: scores[pair])


def best_cells(results: Results, quantity: str) -> list[tuple[Column, Pair, bool, list[Record]]]:
    """Return each column's best cell: the column, its pair, whether that is settled, and its records."""
    found = []
    for column in (column for column in COLUMNS if column.quantity == quantity):
        best = best_pair(results.scale, results.records, column)
        pair = best or _STAND_IN[quantity]
        found.append((column, pair, best is not None, cell(results, column, pair)))
    return found


def grid_wants(scale: Scale, records: Records, columns: Sequence[Column] = COLUMNS) -> list[Want]:
    """Return the runs of the grid, and more seeds of the best cell of each column once it is known."""
    wants = []
    for position, column in enumerate(columns):
        for pair in PAIRS:
            order = _ORDER.index(pair) * len(columns) + position
            runs = [column.run(scale, pair, seed) for seed in range(scale.seeds)]
            wants += [Want(run, Tier.GRID, column.ours, order) for run in runs]
        if (best := best_pair(scale, records, column)) is not None:
            runs = [column.run(scale, best, seed) for seed in range(scale.seeds, scale.best_seeds)]
            wants += [Want(run, Tier.BEST, column.ours, position) for run in runs]
    return wants


def diverged_text(records: list[Record]) -> str:
    """Return how many of a cell's runs diverged, to follow its number of seeds; empty for none."""
    lost = sum(record.diverged is not None for record in records)
    return "" if not lost else ", diverged" if lost == len(records) else f", {lost} diverged"


def ours_text(records: list[Record]) -> str:
    """Return mean ± deviation and number of seeds, and whether runs diverged or are unsteady at the end."""
    values = accuracies(records)
    if not values:
        return "missing"
    note = diverged_text(records) + (", unsteady" if any(record.unsteady for record in records) else "")
    return f"{spread_text(values, 3)} ({len(values)}{note})"


def rounds_to(records: list[Record], quantity: str) -> list[float | None]:
    """Return the rounds to training loss 1.0 (TL) or test accuracy 0.9 (TA), one per seed, None for never."""
    return [record.value(GOALS[quantity]) for record in records]


# -- Fig. 6: bits per scalar ---------------------------------------------------------------------------------


def quantised(scale: Scale, prior: str, bits: int | None) -> list[RunSettings]:
    """Return the runs with this many bits per scalar (None is float), with the paper's best pair for both."""
    more: dict[str, Any] = {} if bits is None else {"method__side_bits": bits}
    seeds, rounds = range(scale.figure_seeds), scale.figure_rounds
    return [training(scale, prior, (1e-3, 0.9), seed=seed, rounds=rounds, **more) for seed in seeds]


def at_bits(results: Results, prior: str, bits: int | None) -> list[Record]:
    """Return the records with this many bits per scalar, None for full precision."""
    return results.records.find_all(quantised(results.scale, prior, bits))


# -- Fig. 4: regression --------------------------------------------------------------------------------------

# In units of 1/L. The paper's step is 1/L, which a sign of size one cannot use: the gradient has hundreds. So
# signSGD may choose, by how it ends. Steps stand close: too short a step does not arrive in time; a longer
# one ends higher in proportion.
STEPS: dict[str, tuple[float, ...]] = {
    "vote": (200.0, 300.0, 400.0, 500.0, 700.0, 1000.0),
    "signsum": (20.0, 30.0, 40.0, 50.0, 70.0, 100.0),
}
STEPS |= dict.fromkeys(("gaussian", "laplacian", "published", "rotated", "best", "ideal"), (1.0,))
SIGNSGD = ("vote", "signsum")
OPTIMUM = 0.85  # least loss per sample, about 1 - M/(K N)
KINDS = {"homogeneous": False, "heterogeneous": True}


def regression_runs(scale: Scale, method: str, kind: str, step: float) -> list[RunSettings]:
    """Return the runs of the regression with a step, one per seed."""
    seeds = range(scale.regression_seeds)
    return [regression(scale, method, heterogeneous=KINDS[kind], step=step, seed=seed) for seed in seeds]


def floors(records: list[Record]) -> list[float]:
    """Return the mean excess loss over the last tenth of the rounds, one per seed."""
    return [value for record in records if (value := tail_mean(record, "test_loss")) is not None]


def chosen(results: Results, method: str, kind: str) -> tuple[float, list[Record]]:
    """Return the step with which a method ends lowest, and its records."""
    found = {}
    for step in STEPS[method]:
        records = results.records.find_all(regression_runs(results.scale, method, kind, step))
        if values := floors(records):
            found[step] = (mean(values), records)
    if not found:
        return STEPS[method][0], []
    step = min(found, key=lambda step: found[step][0])
    return step, found[step][1]


def part_below(results: Results, method: str, kind: str, reading: str) -> float | None:
    """Return by which part a method's excess loss is below signSGD's with its best step; None if unknown.

    Over the seeds that both have, for one reading of signSGD.
    """
    pair = shared_seeds(chosen(results, method, kind)[1], chosen(results, reading, kind)[1])
    ours, theirs = map(floors, pair)
    return 1 - mean(ours) / mean(theirs) if ours and theirs else None
