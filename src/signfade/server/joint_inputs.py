"""What a joint rule works on when bits are not quite the signs of gradients: flipped or noisy.

A joint rule knows jointly Gaussian variables by signals of their signs. Where devices add noise before the
sign, those variables are the noisy gradients, `d' = d + n` of correlation r', and the sum that is wanted is,
but for what the signals cannot tell, another sum of theirs: `E[sum_k alpha_k d_k | d'] = sum_k alpha'_k d'_k`
with `alpha' = C'^-1 C alpha`, `C = C' - diag(Var n)`. Where the bit agrees with the sign by c only, the link
is another one (`signfade.server.flipped`). Both are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from signfade.server.flipped import flipped_link, flipped_llr
from signfade.server.joint import LowRank
from signfade.server.received import Received
from signfade.settings import MethodSettings

__all__ = ["JointInputs", "make_inputs"]


@dataclass(frozen=True)
class JointInputs:
    """Links, priors and weights of K devices for a joint rule.

    Attributes:
        h: Gains as the server knows them, `[K]`.
        sigma2: Noise variances as the server knows them, `[K]`.
        agreement: Of the bits with the signs they stand for, `[K]`; None where they are those signs.
        mean: Means, `[K]`.
        scale: `E|d'|` of the variables whose signs are sent, `[K]`.
        weights: `alpha_k` of the sum that is wanted, `[K]`.
        kept: Correlation between a gradient and the variable whose sign is sent, 1 without noise.
    """

    h: Tensor
    sigma2: Tensor
    agreement: Tensor | None
    mean: Tensor
    scale: Tensor
    weights: Tensor
    kept: float

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

        Args:
            correlation: Between the noisy gradients, `[K, K]`.

        Raises:
            ValueError: With noise, a correlation that is not held as a matrix.
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

    Args:
        method: Section `method` of the configuration.
        received: Its weights are already multiplied by reliabilities where these are learned. The sum that is
            wanted is then that of what the devices claim, so weighted; the learned correlation knows their
            bits as they are sent, flipped or not, and a device without weight still tells what the others
            have in common with it.
    """
    h, sigma2 = received.h, received.sigma2
    mean, scale, weights = received.mean, received.scale, received.weights
    if method.flip == 0 and method.sign_noise == 0:
        return JointInputs(h, sigma2, None, mean, scale, weights, 1.0)
    right, kept = 1 - 2 * method.flip, 1 / math.hypot(1, method.sign_noise)
    agreement = torch.full((len(received),), right, dtype=torch.float64)
    return JointInputs(h, sigma2, agreement, mean, scale / (right * kept**2), weights, kept)
