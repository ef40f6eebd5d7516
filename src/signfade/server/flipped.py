"""Bits that are not what they should be: the same rules over an effective link.

A device that should send `s` sends `b`, right with probability `1 - p`: because it flips bits for privacy, or
because it lies. All a rule needs is the agreement `c = E[s*b] = 1 - 2p`, from -1 (always wrong, which is as
good as always right) through 0 (says nothing) to 1. With the half-LLR `l = h*y/sigma2` of b,

    E[s | y] = c*tanh(l),

so rules that read one device at a time multiply its scale by c. Rules that read all devices together take
the bit as one received over another link: `flipped_link` has the same first and second moments, `flipped_llr`
is the exact half-LLR of s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from signfade._check import check_shape
from signfade.uplink.channel import half_llr

__all__ = ["flipped_link", "flipped_llr"]


def flipped_link(h: Tensor, sigma2: Tensor, agreement: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gain and the noise variance of the link from s to y when the bit b agrees with s by c only.

    `E[s*y] = c*h`, `Var(y) = h^2 + sigma2`: a gain `c*h` in noise of variance `sigma2 + (1 - c^2)*h^2`.
    Linear rules see no difference (the noise is not Gaussian, but they know only moments).

    Args:
        h: Gains, `[K]`.
        sigma2: Variances of the real noise per symbol, `[K]`.
        agreement: c, `[K]`, from -1 to 1.

    Returns:
        `(h, sigma2)` of the effective links, float64 `[K]`.

    Raises:
        ValueError: Shapes that do not match, an agreement beyond one.

    Example:
        >>> flipped_link(torch.ones(2), torch.zeros(2), torch.tensor([-1.0, 0.5]))
        (tensor([-1.0000, 0.5000], dtype=torch.float64), tensor([0.0000, 0.7500], dtype=torch.float64))
    """
    c = _agreement(agreement, len(h))
    gain = h.detach().double()
    return c * gain, sigma2.detach().double() + (1 - c.square()) * gain.square()


def flipped_llr(y: Tensor, h: Tensor, sigma2: Tensor, agreement: Tensor) -> Tensor:
    """Return the half-LLR of s when the bit sent agrees with it by c only: `artanh(c*tanh(h*y/sigma2))`.

    Whatever takes signals over links of gain 1 in noise of variance 1 can be given this as its signal: there
    a signal is its own half-LLR.

    Args:
        y: Received signals, `[K, M]`.
        h: Gains, `[K]`.
        sigma2: Variances of the real noise per symbol, `[K]`.
        agreement: c, `[K]`, from -1 to 1.

    Returns:
        Half-LLRs, `[K, M]`, of the dtype of y; at most `artanh(|c|)` in size.

    Raises:
        ValueError: As `half_llr`, or an agreement beyond one.

    Example:
        >>> y, one = torch.tensor([[0.7]]), torch.ones(1)
        >>> torch.tanh(flipped_llr(y, one, one, 0.5 * one)) / torch.tanh(y)
        tensor([[0.5000]])
    """
    c = _agreement(agreement, len(h)).to(y)[:, None]
    # Beyond these limits tanh is one to the last digit, and the exponential would overflow.
    llr = half_llr(y, h, sigma2, limit=40.0 if y.dtype == torch.float32 else 300.0)
    size = llr.abs()
    # artanh(c*t) = log((1 + c*t)/(1 - c*t))/2 with 1 - c*t = (1 - c) + c*(1 - t), in which nothing cancels.
    short = (1 - c.abs()) + 2 * c.abs() / (1 + torch.exp(2 * size))
    return c.sign() * llr.sign() * (torch.log1p(c.abs() * torch.tanh(size)) - short.log()) / 2


def _agreement(agreement: Tensor, devices: int) -> Tensor:
    check_shape("agreement", agreement, (devices,))
    c = agreement.detach().double()
    if not bool((c.abs() <= 1).all()):  # NaN compares false
        raise ValueError(f"agreement must be from -1 to 1; its largest size is {float(c.abs().max()):g}")
    return c
