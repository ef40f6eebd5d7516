"""What a study is: the runs it wants, what it measures itself, and how its tables, figures and text look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

from signfade.experiments.studies.document import Block
from signfade.experiments.studies.records import Records
from signfade.settings import RunSettings

__all__ = ["FULL", "QUICK", "Measure", "Part", "Results", "Scale", "Study", "Tier", "Want"]


@dataclass(frozen=True)
class Scale:
    """How large a study is: as published in the docs (full) or small enough to take minutes (quick).

    Attributes:
        name: full or quick.
        data: the images to learn; the paper's are MNIST.
        rounds: of the paper's tables; no training run of images is longer.
        seeds: per cell of the paper's tables.
        best_seeds: of the best cell of each column.
        figure_seeds: of everything else.
        figure_rounds: of the paper's figures that are not taken from its tables.
        every: rounds between two evaluations.
        regression_rounds: of the regression.
        regression_seeds: of the regression.
        bandwidth_hz: the calibrated link budget of the paper's cell.
        draws: coordinates of a simulated error.
    """

    name: Literal["full", "quick"] = "full"
    data: Literal["mnist", "digits"] = "mnist"
    rounds: int = 1000
    seeds: int = 2
    best_seeds: int = 5
    figure_seeds: int = 3
    figure_rounds: int = 300
    every: int = 20
    regression_rounds: int = 300
    regression_seeds: int = 5
    bandwidth_hz: float = 1e6
    draws: int = 200_000

    def changed(self, seeds: int | None, rounds: int | None) -> Scale:
        """Return this scale with the given number of seeds for everything, and at most the given rounds.

        Raises:
            ValueError: a number that is not positive.
        """
        scale = self
        for name, value in (("seeds", seeds), ("rounds", rounds)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more; got {value}")
        if seeds is not None:
            scale = replace(scale, seeds=seeds, best_seeds=seeds, figure_seeds=seeds, regression_seeds=seeds)
        if rounds is not None:
            scale = replace(
                scale,
                rounds=rounds,
                figure_rounds=min(rounds, scale.figure_rounds),
                regression_rounds=min(rounds, scale.regression_rounds),
            )
        return scale

    @property
    def quick(self) -> bool:
        """Whether numbers are of other data or fewer rounds than the docs'."""
        return self.name == "quick"

    @property
    def words(self) -> str:
        """What is smaller than the paper's, for a line on every figure; empty at full size."""
        if not self.quick:
            return ""
        return (
            f"quick: {self.data} in place of MNIST, {self.rounds} rounds, "
            f"{self.seeds} seed{'s' * (self.seeds > 1)}; not to be compared with the paper"
        )


FULL = Scale()
QUICK = Scale(
    name="quick",
    data="digits",
    rounds=100,
    seeds=1,
    best_seeds=2,
    figure_seeds=1,
    figure_rounds=60,
    every=10,
    regression_rounds=150,
    regression_seeds=2,
    draws=20_000,
)


class Tier(IntEnum):
    """Which runs come first."""

    CALIBRATION = 0
    GRID = 1
    FIGURE = 2
    BEST = 3
    EXTRA = 4


@dataclass(frozen=True)
class Want:
    """A run that is needed, and how urgently: lower tiers first, then lower seeds, the paper's first."""

    settings: RunSettings
    tier: Tier = Tier.GRID
    ours: bool = False
    order: int = 0

    @property
    def rank(self) -> tuple[int, int, bool, int]:
        """Key to sort by."""
        return (self.tier, self.settings.seed, self.ours, self.order)


@dataclass(frozen=True)
class Results:
    """What is known when a part is rendered.

    Attributes:
        scale: full or quick.
        records: runs that finished or diverged.
        measured: what parts measured themselves, by name.
    """

    scale: Scale
    records: Records
    measured: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def verdict(self, word: str) -> str:
        """Return a verdict; a quick study uses other data, so its numbers are not compared."""
        return "not compared" if self.scale.quick and word != "missing" else word


Measure = Callable[[Scale, Callable[[str], None]], dict[str, Any]]


def _no_wants(scale: Scale, records: Records) -> list[Want]:
    return []


@dataclass(frozen=True)
class Part:
    """A table or figure of a study, with its text.

    Attributes:
        name: on the command line.
        title: on the page.
        place: in the paper; "ours" where the paper has nothing like it.
        render: the blocks of its section, from what is finished; what is missing is shown as missing.
        wants: the runs it needs. May depend on what is finished: the best cell is known only then.
        measure: numbers it works out itself, as JSON can hold them; its second argument reports progress.
        depends: the fields of the scale that decide what is measured.
        cost: seconds that measuring takes on one core at full size.
    """

    name: str
    title: str
    place: str
    render: Callable[[Results], list[Block]]
    wants: Callable[[Scale, Records], list[Want]] = _no_wants
    measure: Measure | None = None
    depends: tuple[str, ...] = ()
    cost: float = 0.0


def _no_opening(scale: Scale) -> list[str]:
    return []


@dataclass(frozen=True)
class Study:
    """Parts that belong on one page.

    Attributes:
        name: on the command line.
        title: of the page.
        page: name of the page that is written, without suffix.
        parts: in the order of the page.
        opening: paragraphs at the start of the page.
        host: a page of the docs written by hand, in which finished named tables and figures are replaced;
            empty if the whole page in the docs is written by the study.
    """

    name: str
    title: str
    page: str
    parts: tuple[Part, ...]
    opening: Callable[[Scale], list[str]] = _no_opening
    host: str = ""
