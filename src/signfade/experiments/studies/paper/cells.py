"""The paper's experiments as settings, and the records that fill a cell of its tables and figures.

What the paper does not say is decided in `rules.toml`; the number of devices, the link budget and the tie of
a vote are those of the scale, which `point.settle` fills in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    read_toml,
    tail_mean,
)
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings

__all__ = ["COLUMNS", "FULL_COLUMNS", "GOALS", "KINDS", "METHODS", "OPTIMUM", "PAIRS", "RULES", "SIGNSGD"]
__all__ += ["STEPS", "Column", "Downlink", "Group", "Method", "Pair", "best_cell", "best_pair", "cell"]
__all__ += [
    "chosen",
    "diverged_text",
    "find_column",
    "floors",
    "floors_text",
    "grid_wants",
    "ours_text",
    "pair_text",
]
__all__ += ["regression", "regression_runs", "rounds_to", "training"]

Pair = tuple[float, float]
Downlink = Literal["full", "sign"]
Group = Literal["printed", "corrected", "ours"]
RULES: dict[str, Any] = read_toml("paper/rules.toml")
# The paper's pairs (step, momentum), in the order of its Table II.
PAIRS: tuple[Pair, ...] = ((1e-2, 0.0), (1e-3, 0.0), (1e-4, 0.0), (1e-2, 0.9), (1e-3, 0.9), (1e-4, 0.9))


@dataclass(frozen=True)
class Method:
    """A column of the tables: what it is called, what it sets, and whose it is.

    Printed: to the letter of the paper's algorithms; corrected: with its slips put right; or ours.
    """

    label: str
    settings: dict[str, Any]
    group: Group = "printed"


_SBFL = {"method.aggregator": "sbfl"}
_PRINTED = _SBFL | {"method.form": "published"}
METHODS: dict[str, Method] = {
    "vote": Method("signSGD, vote", {"method.aggregator": "signsgd"}),
    "signsum": Method("signSGD, sum of signs", {"method.aggregator": "signsum"}),
    "printed-gaussian": Method("SBFL, Gaussian, printed", _PRINTED | {"method.prior": "gaussian"}),
    "printed-laplacian": Method("SBFL, Laplacian, printed", _PRINTED | {"method.prior": "laplacian"}),
    "gaussian": Method("SBFL, Gaussian, corrected", _SBFL | {"method.prior": "gaussian"}, "corrected"),
    "laplacian": Method("SBFL, Laplacian, corrected", _SBFL | {"method.prior": "laplacian"}, "corrected"),
    "rotated": Method("SBFL, rotated", _SBFL | {"method.rotation": "shared"}, "ours"),
    "best": Method("best", {"method.preset": "best"}, "ours"),
    "ideal": Method("ideal (no radio)", {"method.aggregator": "ideal"}, "ours"),
}


def _settings(
    scale: Scale, method: str, seed: int, tree: dict[str, Any], more: dict[str, Any]
) -> RunSettings:
    tree = {"name": "reproduce", "label": METHODS[method].label, "seed": seed, "method.tie": scale.tie} | tree
    tree |= {"cell.path_loss": "cost231", "cell.bandwidth_hz": scale.bandwidth_hz, "method.weights": "sum"}
    tree |= {name.replace("__", "."): value for name, value in more.items()}
    return resolve(tree | METHODS[method].settings)


@lru_cache(maxsize=8192)
def training(
    scale: Scale,
    method: str,
    pair: Pair,
    *,
    seed: int = 0,
    downlink: Downlink = "full",
    rounds: int | None = None,
    **more: Any,
) -> RunSettings:
    """Return the settings of one run of the paper's MNIST experiment, with `pair` = (step, momentum).

    Rounds are the scale's unless given; `more` are further settings, with `__` for the dot.

    >>> run = training(Scale(), "gaussian", (1e-3, 0.9), seed=1)
    >>> run.data.name, run.rounds, run.eval.every, run.server.momentum
    ('mnist', 1000, 20, 0.9)
    """
    tree: dict[str, Any] = {
        "rounds": scale.rounds if rounds is None else rounds,
        "checkpoint_every": 100,
        "data.name": scale.data,
        "data.devices": scale.devices,
        "data.standardise": scale.standardise,
        "data.split": "two-chunks",
        "data.batch": 32,
        "model.name": scale.model if scale.data == "mnist" else "small-cnn",
        "model.initial": scale.initial,
        "server.learning_rate": pair[0],
        "server.momentum": pair[1],
        "server.downlink": downlink,
        "eval.every": scale.every,
    }
    return _settings(scale, method, seed, tree, more)


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
        "data.devices": 20,
        "data.samples": 100,
        "data.size": 300,
        "data.batch": None,
        "data.heterogeneous": heterogeneous,
        "server.learning_rate": step,
        "eval.every": 10,
    }
    return _settings(scale, method, seed, tree, more)


# -- the grid behind both tables: methods times downlinks times six pairs of step and momentum ---------------


@dataclass(frozen=True)
class Column:
    """A column of Table II: its head in `paper.toml` or ours, Full or DC, a key of `METHODS`."""

    head: str
    quantity: Literal["Full", "DC"]
    method: str

    @property
    def group(self) -> Group:
        """Whether it is the printed algorithm, the corrected one, or ours."""
        return METHODS[self.method].group

    @property
    def label(self) -> str:
        """What its method is called."""
        return METHODS[self.method].label

    def downlink(self, scale: Scale) -> Downlink:
        """Return what is sent down. A vote is one bit already, Full or DC, unless its ties are zeros.

        One bit has no zero: it is sent as +1.
        """
        bit = self.quantity == "DC" or (self.method == "vote" and scale.tie != "zero")
        return "sign" if bit else "full"

    def run(self, scale: Scale, pair: Pair, seed: int) -> RunSettings:
        """Return the settings of one run of a cell; seed 0 of Table I evaluates the global training loss.

        It costs a quarter of a run, and differs from the batches' loss far less than seeds differ.
        """
        down = self.downlink(scale)
        whole = seed == 0 and (self.quantity == "Full" or self.method == "vote")
        if down == "sign" and scale.tie == "zero":  # one bit has no zero, so this is the run of a tie plus
            scale = replace(scale, tie="plus")
        return training(scale, self.method, pair, seed=seed, downlink=down, eval__training=whole)


COLUMNS: tuple[Column, ...] = (
    Column("signsgd", "Full", "vote"),
    Column("signsgd", "DC", "vote"),
    Column("gaussian", "Full", "printed-gaussian"),
    Column("gaussian", "DC", "printed-gaussian"),
    Column("laplacian", "Full", "printed-laplacian"),
    Column("laplacian", "DC", "printed-laplacian"),
    Column("gaussian", "Full", "gaussian"),
    Column("gaussian", "DC", "gaussian"),
    Column("laplacian", "Full", "laplacian"),
    Column("laplacian", "DC", "laplacian"),
    Column("rotated", "Full", "rotated"),
    Column("rotated", "DC", "rotated"),
    Column("best", "Full", "best"),
    Column("best", "DC", "best"),
    Column("ideal", "Full", "ideal"),
)
FULL_COLUMNS = tuple(column for column in COLUMNS if column.quantity == "Full")
GOALS = {"TL": "rounds_to_loss_1", "TA": "rounds_to_accuracy_09"}
# The most informative pairs first: the paper's best ones.
_ORDER: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0), (1e-3, 0.0), (1e-4, 0.9), (1e-2, 0.9), (1e-4, 0.0))
_NAMED = {("Full", method, (step, momentum)) for method, step, momentum in RULES["seeds"]["named"]}


def find_column(method: str, quantity: str = "Full") -> Column:
    """Return the column of a method."""
    (column,) = (one for one in COLUMNS if (one.method, one.quantity) == (method, quantity))
    return column


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


def best_pair(
    scale: Scale,
    records: Records,
    column: Column,
    score: Callable[[Record], float | None] = lambda record: record.accuracy,
) -> tuple[Pair | None, bool]:
    """Return the pair with the highest mean score, and whether all its rivals have all their seeds.

    Only the first seeds count, and of them those that every pair has, so that later seeds of the winner do
    not change who won; None if there is no such seed.
    """
    found: dict[Pair, dict[int, float]] = {}
    for pair in PAIRS:
        runs = records.find_all(column.run(scale, pair, seed) for seed in range(scale.seeds))
        found[pair] = {record.seed: value for record in runs if (value := score(record)) is not None}
    shared = set.intersection(*map(set, found.values()))
    if not shared:
        return None, False
    best = max(PAIRS, key=lambda pair: mean(found[pair][seed] for seed in sorted(shared)))
    return best, len(shared) == scale.seeds


def best_cell(results: Results, column: Column) -> tuple[Pair | None, list[Record]]:
    """Return a column's best pair as far as that is known, and its records."""
    pair, _ = best_pair(results.scale, results.records, column)
    return pair, [] if pair is None else cell(results, column, pair)


def grid_wants(scale: Scale, records: Records, columns: Sequence[Column] = COLUMNS) -> list[Want]:
    """Return the runs of the grid, and more seeds of cells a claim names and of best cells once known.

    One seed of everything comes before the next, and of a seed the printed algorithm before the others.
    """
    wants = []
    for position, column in enumerate(columns):
        best, settled = best_pair(scale, records, column)
        for pair in PAIRS:
            order = _ORDER.index(pair) * len(columns) + position
            more = (pair == best and settled) or (column.quantity, column.method, pair) in _NAMED
            for seed in range(max(scale.seeds, scale.best_seeds) if more else scale.seeds):
                tier = Tier.GRID if seed < scale.seeds else Tier.BEST
                wants.append(Want(column.run(scale, pair, seed), tier, column.group != "printed", order))
    return wants


def diverged_text(records: list[Record]) -> str:
    """Return how many of a cell's runs diverged, to follow its number of seeds; empty for none."""
    lost = sum(record.diverged is not None for record in records)
    return "" if not lost else ", diverged" if lost == len(records) else f", {lost} diverged"


def ours_text(records: list[Record]) -> str:
    """Return mean ± deviation and number of seeds, and whether runs diverged or are unsteady at the end."""
    values = accuracies(records)
    if not values:
        return "–"
    note = diverged_text(records) + (", unsteady" if any(record.unsteady for record in records) else "")
    return f"{spread_text(values, 3)} ({len(values)}{note})"


def rounds_to(records: list[Record], quantity: str) -> list[float | None]:
    """Return the rounds to training loss 1.0 (TL) or test accuracy 0.9 (TA), one per seed, None for never."""
    return [record.value(GOALS[quantity]) for record in records]


# -- Fig. 4: regression --------------------------------------------------------------------------------------

# In units of 1/L. The paper's step is 1/L, which a sign of size one cannot use: the gradient has hundreds. So
# signSGD may choose, by how it ends. Steps stand close: too short a step does not arrive in time; a longer
# one ends higher in proportion.
STEPS: dict[str, tuple[float, ...]] = {
    "vote": (200.0, 300.0, 400.0, 500.0, 700.0, 1000.0),
    "signsum": (20.0, 30.0, 40.0, 50.0, 70.0, 100.0),
}
STEPS |= dict.fromkeys(
    ("printed-gaussian", "printed-laplacian", "gaussian", "laplacian", "rotated", "best", "ideal"), (1.0,)
)
SIGNSGD = ("vote", "signsum")
OPTIMUM = 0.85  # least loss per sample, about 1 - M/(K N)
KINDS = {"homogeneous": False, "heterogeneous": True}


def regression_runs(scale: Scale, method: str, kind: str, step: float) -> list[RunSettings]:
    """Return the runs of the regression with a step, one per seed."""
    seeds = range(scale.regression_seeds)
    return [regression(scale, method, heterogeneous=KINDS[kind], step=step, seed=seed) for seed in seeds]


def floors(records: list[Record]) -> list[float]:
    """Return the mean excess loss over the last tenth of the rounds, one per seed; infinite if diverged."""
    values = [math.inf if one.diverged is not None else tail_mean(one, "test_loss") for one in records]
    return [value for value in values if value is not None]


def floors_text(records: list[Record]) -> str:
    """Return mean ± deviation of the floors and the number of seeds, and how many of them diverged."""
    finite = [value for value in floors(records) if math.isfinite(value)]
    return f"{spread_text(finite)} ({len(records)}{diverged_text(records)})"


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
