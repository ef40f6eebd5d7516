"""The grid behind both tables: methods times downlinks times six pairs of step and momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from signfade.experiments.studies.paper.setups import METHODS, PAIRS, training
from signfade.experiments.studies.records import Record, Records, accuracies
from signfade.experiments.studies.study import Scale, Tier, Want
from signfade.settings import RunSettings

__all__ = [
    "COLUMNS",
    "FULL_COLUMNS",
    "FULL_READING",
    "READINGS",
    "Column",
    "Pair",
    "best_pair",
    "cell",
    "grid_wants",
    "pair_text",
]

Pair = tuple[float, float]


@dataclass(frozen=True)
class Column:
    """A column of Table II: its head in `paper.toml` or ours, Full or DC, a key of `METHODS`, downlink."""

    head: str
    quantity: Literal["Full", "DC"]
    method: str
    downlink: Literal["full", "sign"]

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
# The most informative pairs first: the paper's best ones.
_ORDER: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0), (1e-3, 0.0), (1e-4, 0.9), (1e-2, 0.9), (1e-4, 0.0))


def pair_text(pair: Pair) -> str:
    """Return a pair in words.

    Example:
        >>> pair_text((1e-3, 0.9))
        '1e-3 / 0.9'
    """
    return f"{pair[0]:.0e} / {pair[1]:g}".replace("e-0", "e-")


def cell(scale: Scale, records: Records, column: Column, pair: Pair) -> list[Record]:
    """Return the records of a cell that are there, seed by seed."""
    seeds = range(max(scale.seeds, scale.best_seeds))
    return records.find_all(column.run(scale, pair, seed) for seed in seeds)


def best_pair(scale: Scale, records: Records, column: Column) -> Pair | None:
    """Return the pair with the highest mean accuracy over the first seeds; None until all pairs have them.

    Only the seeds that every cell has count, so that later seeds of the winner do not change who won.
    """
    scores: dict[Pair, float] = {}
    for pair in PAIRS:
        found = records.find_all(column.run(scale, pair, seed) for seed in range(scale.seeds))
        values = accuracies(found)
        if len(values) < scale.seeds:
            return None
        scores[pair] = mean(values)
    return max(scores, key=lambda pair: scores[pair])


def grid_wants(scale: Scale, records: Records, columns: Sequence[Column] = COLUMNS) -> list[Want]:
    """Return the runs of the grid, and more seeds of the best cell of each column once it is known."""
    wants = []
    for position, column in enumerate(columns):
        for pair in PAIRS:
            order = _ORDER.index(pair) * len(columns) + position
            wants += [
                Want(column.run(scale, pair, seed), Tier.GRID, column.ours, order)
                for seed in range(scale.seeds)
            ]
        best = best_pair(scale, records, column)
        if best is not None:
            wants += [
                Want(column.run(scale, best, seed), Tier.BEST, column.ours, position)
                for seed in range(scale.seeds, scale.best_seeds)
            ]
    return wants
