"""Where the grid of the scale quantiser lies: it follows the scales that the server decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = [
    "EXPONENT_BITS",
    "RangeState",
    "SaturationState",
    "check_exponents",
    "count_saturation",
    "follow_scales",
    "nearest_exponent",
]

EXPONENT_BITS = 8  # of one exponent in the broadcast; -128 stands for "none yet"
_FURTHEST = 100  # exponents reach from -100 to 100, so that every level is a normal float32
_POOLED = 16  # scales that the median is taken over, at least, where so many were decoded
_MANY = 1000  # uses of a quantiser after which its share of saturated ones is worth a warning
_SHARE, _SHARE_EARLY = 0.01, 0.1


def nearest_exponent(scale: float) -> int:
    """Return the e in -100..100 for which a positive scale is from `0.75 * 2**e` to below `1.5 * 2**e`.

    Example:
        >>> [nearest_exponent(x) for x in (0.74, 0.75, 1.0, 1.49, 1.5, 1000.0, 1e-44)]
        [-1, 0, 0, 0, 1, 10, -100]
    """
    fraction, above = math.frexp(scale)
    return max(-_FURTHEST, min(_FURTHEST, above if fraction >= 0.75 else above - 1))


def check_exponents(exponents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the exponents, or raise a ValueError if one lies outside -100 to 100."""
    if any(abs(exponent) > _FURTHEST for exponent in exponents):
        raise ValueError(f"exponents must lie in -{_FURTHEST}..{_FURTHEST}; got {list(exponents)}")
    return exponents


@dataclass(frozen=True)
class RangeState:
    """One exponent per layer, broadcast with the model: devices divide their scales by its power of two."""

    exponents: list[int] = field(default_factory=list)  # empty before anything was decoded
    recent: Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # the scales decoded last, [n, S]


def follow_scales(state: RangeState, scale: Tensor) -> RangeState:
    """Take the scales that were decoded in a round, `[K, S]`, into account from the next round on.

    The exponent is that of the power of two nearest to the median of the scales decoded last: those of the
    last round, or of as many rounds as 16 scales take where fewer devices are received. So fewer than half of
    them cannot move it beyond what the others report. Scales of zero do not count. A layer for which nothing
    else was decoded keeps its exponent, or begins with the median of the other layers'.

    Example:
        >>> scale = torch.tensor([[900.0], [1100.0], [1000.0], [1e-30], [1e30]])
        >>> follow_scales(RangeState(), scale).exponents
        [10]
    """
    if len(scale) == 0:
        return state
    decoded = scale.detach().float()
    pool = torch.cat([state.recent, decoded]) if len(state.recent) else decoded
    recent = pool[-max(_POOLED, len(decoded)) :].clone()
    found = [_middle(column) for column in recent.T]
    known = sorted(exponent for exponent in found if exponent is not None)
    if not state.exponents and not known:
        return RangeState([], recent)
    before = state.exponents or [known[(len(known) - 1) // 2]] * len(found)
    return RangeState([old if new is None else new for new, old in zip(found, before, strict=True)], recent)


def _middle(scale: Tensor) -> int | None:
    """Return the exponent of the median of the positive scales, `[n]`; the lower one of two in the middle."""
    positive = scale[scale > 0].sort().values
    return nearest_exponent(float(positive[(len(positive) - 1) // 2])) if len(positive) else None


@dataclass(frozen=True)
class SaturationState:
    """How often the quantisers of means and scales were used and saturated, and which warnings were given."""

    uses: int = 0
    saturated: tuple[int, int] = (0, 0)
    warned: tuple[bool, bool] = (False, False)


def count_saturation(
    state: SaturationState, saturated: Tensor, uses: int, bits: int, last: bool
) -> tuple[SaturationState, list[str]]:
    """Count a round, and warn once for each quantiser that saturates in more than 1 % of its uses.

    The warning comes in the last round, or after 1000 uses if by then it is more than 10 %. A scale of zero
    never saturates: it means that there is nothing to send. `saturated` says how many of each device's means
    and of its scales did, `[K, 2]`, in `uses` uses of each quantiser; `bits` is `method.side_bits`.

    Example:
        >>> state, none = count_saturation(SaturationState(), torch.tensor([[0, 2], [0, 0]]), 50, 1, False)
        >>> count_saturation(state, torch.tensor([[1, 0], [0, 0]]), 50, 1, True)[1]
        ['the scale quantiser (method.side_bits = 1) saturated in 2.0 % of its uses: more bits reach further']
    """
    total = state.uses + uses
    counts = [before + int(now) for before, now in zip(state.saturated, saturated.sum(dim=0))]
    warned, warnings = list(state.warned), []
    advice = (
        'method.scales = "device" or method.rotation = "shared" keeps means within the scale',
        "more bits reach further",
    )
    for place, name in enumerate(("mean", "scale")):
        share = counts[place] / max(1, total)
        much = share > (_SHARE if last else _SHARE_EARLY) and (last or total >= _MANY)
        if much and not warned[place]:
            warned[place] = True
            warnings.append(
                f"the {name} quantiser (method.side_bits = {bits}) saturated in {100 * share:.1f} % of its "
                f"uses: {advice[place]}"
            )
    return SaturationState(total, (counts[0], counts[1]), (warned[0], warned[1])), warnings
