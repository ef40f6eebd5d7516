"""All devices at once on one channel: how loud each is received, once its phase is turned before it sends.

Gains are measured in deviations of the one receiver's noise: device k would arrive with
`|h_k|/sqrt(sigma2_k)` times that deviation if it sent signs at full power, where sigma2 is the variance of
the real noise per symbol in units of the device's own mean received power, as everywhere in this package.
It knows its gain, turns the phase away, and sends its signs at most at full power. What is received is `y =
sum_k a_k s_k + n`, `n ~ N(0, 1)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from signfade._check import check_choice, check_positive
from signfade.uplink.channel import Link

__all__ = ["PRECODINGS", "align", "inversion_level"]

PRECODINGS = ("inversion", "phase")


def inversion_level(gain: Tensor, repeats: int = 1) -> float:
    """Return the common amplitude A that makes most of the links, if weaker devices stay silent.

    n devices received at A explain `n^2 A^2 / (n A^2 + 1/repeats)` of the energy of a sum of n signs by a
    linear rule; A is the gain of the n-th best device for the best n, or 0 if nobody is received. Gains are
    in deviations of the noise, `[K]`; each sign is sent `repeats` times, and the server takes the mean.

    Example:
        >>> gains = torch.tensor([3.0, 1.0, 0.25])
        >>> inversion_level(gains), inversion_level(gains, repeats=20)
        (1.0, 0.25)
    """
    check_positive("gain", gain, zero=True)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats}")
    level = gain.double().sort(descending=True).values
    count = torch.arange(1, len(level) + 1, dtype=torch.float64)
    explained = (count * level).square() / (count * level.square() + 1 / repeats)
    return float(level[int(explained.argmax())]) if len(level) else 0.0


def align(h: Tensor, sigma2: Tensor, precoding: str, level: float | None = None, repeats: int = 1) -> Tensor:
    """Return the amplitude at which every device is received, in deviations of the receiver's noise, `[K]`.

    | precoding | amplitude |
    |---|---|
    | `phase` | `g = abs(h)/sqrt(sigma2)`: full power, only the phase is turned |
    | `inversion` | A where `g >= A`, else the device is silent: truncated channel inversion |

    A is `level`, or the `inversion_level` of the gains if None; amplitudes are those of one of the `repeats`.

    Example:
        >>> h, sigma2 = torch.tensor([1.0, -2.0, 0.1]), torch.full((3,), 0.25)
        >>> align(h, sigma2, "phase")
        tensor([2.0000, 4.0000, 0.2000], dtype=torch.float64)
        >>> align(h, sigma2, "inversion")
        tensor([2., 2., 0.], dtype=torch.float64)

    Reference: docs/radio.md.
    """
    check_choice("precoding", precoding, PRECODINGS)
    link = Link(h, sigma2)
    check_positive("sigma2", sigma2)
    gain = link.h.double().abs() / link.sigma2.double().sqrt()
    if precoding == "phase":
        return gain
    if level is None:
        level = inversion_level(gain, repeats)
    elif not 0 < level < float("inf"):
        raise ValueError(f"level must be positive and finite; got {level!r}")
    sending = (gain >= level) & (gain > 0)
    return torch.where(sending, torch.full_like(gain, level), torch.zeros_like(gain))
