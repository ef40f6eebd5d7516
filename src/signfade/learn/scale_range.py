"""Where the grid of the scale quantiser lies: it follows the scales that the server decodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["EXPONENT_BITS", "SaturationWatch", "ScaleRange", "nearest_exponent"]

EXPONENT_BITS = 8  # of one exponent in the broadcast; -128 stands for "none yet"
_FURTHEST = 100  # exponents reach from -100 to 100, so that every level is a normal float32
_POOLED = 16  # scales that the median is taken over, at least, where so many were decoded
_MANY = 1000  # uses of a quantiser after which its share of saturated ones is worth a warning
_SHARE, _SHARE_EARLY = 0.01, 0.1


def nearest_exponent(scale: float) -> int:
    """Return the exponent e of the power of two nearest to a positive scale, within -100 to 100.

        0.75 * 2**e <= scale < 1.5 * 2**e

    Example:
        >>> [nearest_exponent(x) for x in (0.74, 0.75, 1.0, 1.49, 1.5, 1000.0, 1e-44)]
        [-1, 0, 0, 0, 1, 10, -100]
    """
    fraction, above = math.frexp(scale)
    return max(-_FURTHEST, min(_FURTHEST, above if fraction >= 0.75 else above - 1))


class ScaleRange:
    """One exponent a layer, which the server broadcasts with the model and devices divide their scales by.

    The exponent is that of the power of two nearest to the median of the scales decoded last: those of the
    last round, or of as many rounds as 16 scales take where fewer devices are heard. So fewer than half of
    them cannot move it beyond what the others report. Scales of zero do not count. A layer for which nothing
    else was decoded keeps its exponent, or begins with the median of the other layers'.

    Args:
        exponents: One a layer; None before anything was decoded, when devices use the wide grid.

    Raises:
        ValueError: An exponent outside -100 to 100.

    Example:
        >>> scale_range = ScaleRange()
        >>> scale_range.follow(torch.tensor([[900.0], [1100.0], [1000.0], [1e-30], [1e30]]))
        >>> scale_range.exponents
        (10,)
    """

    def __init__(self, exponents: Sequence[int] | None = None) -> None:
        if exponents is not None and any(abs(exponent) > _FURTHEST for exponent in exponents):
            raise ValueError(f"exponents must lie in -{_FURTHEST}..{_FURTHEST}; got {list(exponents)}")
        self.exponents = None if exponents is None else tuple(exponents)
        self._recent = torch.zeros(0, 0)

    def follow(self, scale: Tensor) -> None:
        """Take the scales that were decoded in a round, `[K, S]`, into account from the next round on."""
        if len(scale) == 0:
            return
        told = scale.detach().float()
        pool = torch.cat([self._recent, told]) if len(self._recent) else told
        self._recent = pool[-max(_POOLED, len(told)) :].clone()
        found = [_middle(column) for column in self._recent.T]
        known = sorted(exponent for exponent in found if exponent is not None)
        if self.exponents is None:
            if not known:
                return
            self.exponents = (known[(len(known) - 1) // 2],) * len(found)
        self.exponents = tuple(
            old if new is None else new for new, old in zip(found, self.exponents, strict=True)
        )

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        exponents = torch.tensor(self.exponents or (), dtype=torch.int64)
        return {"exponents": exponents, "recent": self._recent}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.exponents = tuple(state["exponents"].tolist()) or None
        self._recent = state["recent"].clone()


def _middle(scale: Tensor) -> int | None:
    """Return the exponent of the median of the positive scales, `[n]`; the lower one of two in the middle."""
    positive = scale[scale > 0].sort().values
    return nearest_exponent(float(positive[(len(positive) - 1) // 2])) if len(positive) else None


class SaturationWatch:
    """Warns once for each quantiser of a device's scalars that saturates in more than 1 % of its uses.

    It warns at the end of the run, or after 1000 uses if by then it is more than 10 %. A scale of zero never
    saturates: it means that there is nothing to send.

    Args:
        bits: `method.side_bits`, which the warning names.

    Example:
        >>> watch = SaturationWatch(bits=1)
        >>> watch.look(torch.tensor([[0, 2], [0, 0]]), uses=50, done=False)
        []
        >>> watch.look(torch.tensor([[1, 0], [0, 0]]), uses=50, done=True)
        ['the scale quantiser (method.side_bits = 1) saturated in 2.0 % of its uses: more bits reach further']
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._uses = 0
        self._saturated = [0, 0]
        self._warned = [False, False]

    def look(self, saturated: Tensor, uses: int, done: bool) -> list[str]:
        """Take the counts of a round; return warnings.

        Args:
            saturated: How many of a device's means and of its scales saturated, `[K, 2]`.
            uses: How often each of the two quantisers was used.
            done: Whether this was the last round.
        """
        self._uses += uses
        warnings = []
        advice = (
            'method.scales = "device" or method.rotation = "hadamard" keeps means within the scale',
            "more bits reach further",
        )
        for place, name in enumerate(("mean", "scale")):
            self._saturated[place] += int(saturated[:, place].sum())
            share = self._saturated[place] / max(1, self._uses)
            much = share > (_SHARE if done else _SHARE_EARLY) and (done or self._uses >= _MANY)
            if much and not self._warned[place]:
                self._warned[place] = True
                warnings.append(
                    f"the {name} quantiser (method.side_bits = {self._bits}) saturated in "
                    f"{100 * share:.1f} % of its uses: {advice[place]}"
                )
        return warnings

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        numbers = [self._uses, *self._saturated, *map(int, self._warned)]
        return {"counts": torch.tensor(numbers, dtype=torch.int64)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._uses, *rest = state["counts"].tolist()
        self._saturated, self._warned = rest[:2], [bool(flag) for flag in rest[2:]]
