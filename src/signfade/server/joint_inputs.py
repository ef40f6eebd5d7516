"""What a joint rule works on when bits are not quite the signs of gradients: flipped or noisy.

A bit b sent for the sign s agrees with it by `c = E[s*b]`, from -1 (always wrong, which is as good as always
right) to 1, so `E[s | y] = c*tanh(l)`: rules that read one device at a time multiply its scale by c, joint
rules take the bit as one received over another link. Where devices add noise before the sign, a joint rule
knows the noisy gradients `d' = d + n`, and `E[sum_k alpha_k d_k | d'] = sum_k alpha'_k d'_k` with
`alpha' = C'^-1 C alpha`, `C = C' - diag(Var n)`. Both are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from signfade._check import check_shape
from signfade.server.joint import LowRank
from signfade.server.received import Received
from signfade.settings import MethodSettings
from signfade.uplink.channel import half_llr

__all__ = ["JointInputs", "flipped_link", "flipped_llr", "make_inputs"]


def flipped_link(h: Tensor, sigma2: Tensor, agreement: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gain and the noise variance of the link from s to y when the bit b agrees with s by c only.

    `E[s*y] = c*h`, `Var(y) = h^2 + sigma2`: a gain `c*h` in noise of variance `sigma2 + (1 - c^2)*h^2`.
    Linear rules see no difference (the noise is not Gaussian, but they know only moments).

    Example:
        >>> flipped_link(torch.ones(2), torch.zeros(2), torch.tensor([-1.0, 0.5]))
        (tensor([-1.0000, 0.5000], dtype=torch.float64), tensor([0.0000, 0.7500], dtype=torch.float64))
    """
    c = _agreement(agreement, len(h))
    gain = h.detach().double()
    return c * gain, sigma2.detach().double() + (1 - c.square()) * gain.square()


def flipped_llr(y: Tensor, h: Tensor, sigma2: Tensor, agreement: Tensor) -> Tensor:
    """Return the half-LLR of s when the bit sent agrees with it by c only: `artanh(c*tanh(h*y/sigma2))`.

    Whatever takes signals over links of gain 1 in noise of variance 1 can be given this, `[K, M]`, as its
    signal: there a signal is its own half-LLR.

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


@dataclass(frozen=True)
class JointInputs:
    """Links, priors and weights of K devices for a joint rule, `[K]` each, as the server knows them."""

    h: Tensor
    sigma2: Tensor
    agreement: Tensor | None  # of the bits with the signs they stand for; None where they are those signs
    mean: Tensor
    scale: Tensor  # `E|d'|` of the variables whose signs are sent
    weights: Tensor  # `alpha_k` of the sum that is wanted
    kept: float  # correlation between a gradient and the variable whose sign is sent, 1 without noise

    @property
    def linear_link(self) -> tuple[Tensor, Tensor]:
        """Gains and noise variances with the same first and second moments."""
        if self.agreement is None:
            return self.h, self.sigma2
        return flipped_link(self.h, self.sigma2, self.agreement)

    def posterior_link(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Signals, gains and noise variances with the same likelihood."""
        if self.agreement is None:
            return y, self.h, self.sigma2
        one = torch.ones_like(self.h)
        return flipped_llr(y, self.h, self.sigma2, self.agreement), one, one

    def noisy_correlation(self, true: Tensor) -> Tensor:
        """Return the correlation between noisy gradients from the one between gradients, `[K, K]`."""
        if self.kept == 1:
            return true
        noisy = self.kept**2 * true
        noisy.fill_diagonal_(1.0)
        return noisy

    def noisy_weights(self, correlation: Tensor | LowRank) -> tuple[Tensor, float]:
        """Return the weights on the noisy gradients and the part of the wanted sum's variance they have.

        `correlation` `[K, K]` is the one between the noisy gradients.
        """
        if self.kept == 1:
            return self.weights, 1.0
        if isinstance(correlation, LowRank):
            raise ValueError(f"method.sign_noise must be 0 with bfl for {len(self.h)} devices per round")
        std = math.sqrt(math.pi / 2) * self.scale.double()
        noisy = correlation.double() * std[:, None] * std[None, :]
        silent = std == 0
        noisy = noisy + torch.diag(silent.double())  # a device without a gradient has nothing to add
        clean = noisy - torch.diag((1 - self.kept**2) * std.square() + silent.double())
        alpha = self.weights.double()
        weights = torch.linalg.solve(noisy, clean @ alpha)
        variance = float(alpha @ clean @ alpha)
        return weights, float(weights @ noisy @ weights) / variance if variance > 0 else 1.0


def make_inputs(method: MethodSettings, received: Received) -> JointInputs:
    """Return what a joint rule needs of what was received.

    Where reliabilities are learned, the weights are already multiplied by them, and the sum that is wanted is
    that of what the devices claim, so weighted. The learned correlation knows their bits as they are sent,
    flipped or not, and a device without weight still tells what the others have in common with it.
    """
    h, sigma2 = received.h, received.sigma2
    mean, scale, weights = received.mean, received.scale, received.weights
    if method.flip == 0 and method.sign_noise == 0:
        return JointInputs(h, sigma2, None, mean, scale, weights, 1.0)
    right, kept = 1 - 2 * method.flip, 1 / math.hypot(1, method.sign_noise)
    agreement = torch.full((len(received),), right, dtype=torch.float64)
    return JointInputs(h, sigma2, agreement, mean, scale / (right * kept**2), weights, kept)
