"""Notice when a training loss blows up, which sign votes never do and posterior means can."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["LossState", "watch_loss"]

_WINDOW = 5


@dataclass(frozen=True)
class LossState:
    """The last losses, the first, the lowest average so far, and whether a warning was given."""

    recent: list[float] = field(default_factory=list)
    first: float = math.nan
    lowest: float = math.inf
    warned: bool = False


def watch_loss(state: LossState, loss: float, round: int) -> tuple[LossState, str | None]:
    """Take the loss of a round, and warn once per run when most of what was learned is lost.

    The loss is averaged over the last five rounds. The line is the mean of the first loss and the lowest
    average so far, once that average has at least halved; before that, ten times the first loss.

    Example:
        >>> state = LossState()
        >>> for round, loss in enumerate([2.3] * 5 + [0.2] * 5 + [2.3] * 5, start=1):
        ...     state, warning = watch_loss(state, loss, round)
        ...     if warning:
        ...         print(warning)
        the training loss rose to 1.46 in round 13 from 0.2: try a smaller server.learning_rate or server.clip
    """
    if math.isnan(loss):
        return state, None
    first = loss if math.isnan(state.first) else state.first
    recent = [*state.recent, loss][-_WINDOW:]
    average = sum(recent) / len(recent)
    lowest = min(state.lowest, average)
    line = (first + lowest) / 2 if lowest < first / 2 else 10 * first
    if state.warned or average <= line:
        return LossState(recent, first, lowest, state.warned), None
    return (
        LossState(recent, first, lowest, True),
        f"the training loss rose to {average:.3g} in round {round} from {lowest:.3g}: "
        "try a smaller server.learning_rate or server.clip",
    )
