"""Notice when a training loss blows up, which sign votes never do and posterior means can."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["LossWatch"]

_WINDOW = 5


class LossWatch:
    """Warns once when the loss, averaged over the last five rounds, has lost most of what was learned.

    The line is the mean of the first loss and the lowest average so far, once that average has at least
    halved; before that, ten times the first loss.

    Example:
        >>> watch = LossWatch()
        >>> for round, loss in enumerate([2.3] * 5 + [0.2] * 5 + [2.3] * 5, start=1):
        ...     if warning := watch.look(loss, round):
        ...         print(warning)
        the training loss rose to 1.46 in round 13 from 0.2: try a smaller server.step or server.clip
    """

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._first = math.nan
        self._lowest = math.inf
        self._warned = False

    def look(self, loss: float, round: int) -> str | None:
        """Take the loss of a round; return a warning, at most one a run."""
        if math.isnan(loss):
            return None
        if math.isnan(self._first):
            self._first = loss
        self._recent = [*self._recent, loss][-_WINDOW:]
        average = sum(self._recent) / len(self._recent)
        self._lowest = min(self._lowest, average)
        learned = self._lowest < self._first / 2
        line = (self._first + self._lowest) / 2 if learned else 10 * self._first
        if self._warned or average <= line:
            return None
        self._warned = True
        return (
            f"the training loss rose to {average:.3g} in round {round} from {self._lowest:.3g}: "
            "try a smaller server.step or server.clip"
        )

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        numbers = [self._first, self._lowest, float(self._warned), *self._recent]
        return {"losses": torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._first, self._lowest, warned, *self._recent = state["losses"].tolist()
        self._warned = bool(warned)
