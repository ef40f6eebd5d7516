"""Complex baseband with two bits a symbol, and why the real model covers it.

A symbol `x = (s_1 + i s_2)/sqrt(2)` has unit power. It is received as `y = h x + n` with a complex gain and
complex noise, sigma2 in each real dimension. With the phase turned away and both parts multiplied by
sqrt(2), `|h| s_1 + n_1` and `|h| s_2 + n_2` are left, with independent real noise of variance `2 sigma2`:
two symbols of the real model. A bit costs half a symbol and has half the SNR.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from signfade._check import check_shape, check_tensor

__all__ = ["qpsk_demodulate", "qpsk_modulate"]


def qpsk_modulate(signs: Tensor) -> Tensor:
    """Return symbols `(s_1 + i s_2)/sqrt(2)` of unit power; a last sign without a partner is sent twice.

    Args:
        signs: `[K, M]`, +1 or -1, float32 or float64.

    Returns:
        Complex symbols, `[K, ceil(M/2)]`.

    Example:
        >>> qpsk_modulate(torch.tensor([[1.0, -1.0, 1.0]]))
        tensor([[0.7071-0.7071j, 0.7071+0.7071j]])
    """
    check_tensor("signs", signs)
    if signs.ndim != 2 or signs.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"signs must be float32 or float64 [K, M]; got {signs.dtype} {list(signs.shape)}")
    if signs.shape[1] % 2:
        signs = torch.cat([signs, signs[:, -1:]], dim=1)
    return torch.complex(signs[:, 0::2], signs[:, 1::2]) / math.sqrt(2)


def qpsk_demodulate(y: Tensor, h: Tensor, size: int) -> Tensor:
    """Turn the phase away and return what the real model receives: `|h| s + n`, `n ~ N(0, 2 sigma2)`.

    Args:
        y: Received complex symbols, `[K, ceil(size/2)]`, with noise of variance sigma2 in each real
        dimension.
        h: Complex gains, `[K]`.
        size: Number of signs M.

    Returns:
        Real symbols `[K, M]`, to be read with the gains `|h|` and the variances `2 sigma2`.

    Example:
        >>> h = torch.tensor([0.0 + 2.0j])
        >>> x = qpsk_modulate(torch.tensor([[1.0, -1.0, -1.0]]))
        >>> qpsk_demodulate(h[:, None] * x, h, 3)
        tensor([[ 2.0000, -2.0000, -2.0000]])
    """
    check_tensor("y", y)
    check_shape("y", y, (len(y), (size + 1) // 2))
    check_shape("h", h, (len(y),))
    phase = torch.where(h == 0, torch.ones_like(h), h.conj() / h.abs().clamp_min(1e-300))
    turned = math.sqrt(2) * y * phase[:, None].to(y)
    return torch.view_as_real(turned).flatten(1)[:, :size]
