"""The joint posterior in training: the correlation is learned round by round, then one of four rules."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.device import sign
from signfade.learn.predict import debias_factor, drawn_gradients, tried_moments
from signfade.learn.received import Received
from signfade.learn.round import PAIRED_DEVICES, Uplink
from signfade.learn.task import Devices
from signfade.learn.view import View, make_view
from signfade.server.bfl import (
    CorrelationState,
    LowRank,
    bfl,
    factor_bfl,
    fit_factor,
    initial_correlation,
    joint_sbfl_gain,
    learn_correlation,
    learn_low_rank,
    private_part,
    smooth_correlation,
)
from signfade.server.bfl.linear import add_signals, joint_fit
from signfade.server.bfl.soft import add_soft_bits, joint_sbfl_fit
from signfade.settings import MethodSettings

__all__ = ["JointEstimate", "JointRule"]

_TRIES = 4096


class JointEstimate(NamedTuple):
    """An estimate `[M]`, the factor that undoes its shrinkage, and the predicted error of their product."""

    estimate: Tensor
    factor: float
    expected: float | None


class JointRule:
    """`bfl` for a run: learns the correlation and remembers it between rounds.

    Args:
        method: Section `method` of the configuration.
        population: Number of devices in the cell.
    """

    def __init__(self, method: MethodSettings, population: int) -> None:
        self._method = method
        self._memory = initial_correlation(population) if population <= PAIRED_DEVICES else None

    def __call__(self, uplink: Uplink, received: Received) -> JointEstimate:
        """Estimate the sum from what was received.

        Args:
            uplink: The round; its true correlation is told to the rule if the method says `"genie"`, and
                predicts the error in any case.
            received: Its signals, links and priors.
        """
        view = make_view(self._method, received)
        correlation = self._correlation(received.y, view, uplink.devices, uplink.correlation)
        weights, part = view.aim(correlation)
        prior = (view.scale, correlation, weights)
        combine: Tensor | None
        if self._method.joint == "linear":
            h, sigma2 = view.linear_link
            combine, gain = joint_fit(h, sigma2, *prior)
            estimate = add_signals(received.y, combine, view.mean, view.weights)
        elif self._method.joint == "soft":
            combine, gain = joint_sbfl_fit(view.h, view.sigma2, *prior, view.agreement)
            estimate = add_soft_bits(received.y, view.h, view.sigma2, combine, view.mean, view.weights)
        else:
            combine, gain = None, joint_sbfl_gain(view.h, view.sigma2, *prior, view.agreement)
            estimate = self._posterior_mean(received.y, view, correlation, weights)
            estimate = estimate + view.weights.to(estimate) @ view.mean.to(estimate)
        factor = debias_factor(self._method, part * gain)
        expected = None
        if received.trust is None and uplink.correlation is not None and uplink.sent is not None:
            std = uplink.sent.std[:, 0].double()
            if combine is None:
                moments = self._tried(uplink.correlation, std, received, view, correlation, weights)
            else:
                moments = self._computed(uplink.correlation, std, received, view, combine)
            kept = len(uplink.truth) / received.size
            expected = moments.cut(kept).nmse(factor) if moments.energy > 0 else None
        return JointEstimate(estimate, factor, expected)

    def _posterior_mean(
        self, y: Tensor, view: View, correlation: Tensor | LowRank, weights: Tensor
    ) -> Tensor:
        """Return the centred sum's, from signals `[K, M]` of the round or of a trial over the same links."""
        if isinstance(correlation, LowRank):
            raise ValueError(
                f'method.joint must be "linear" or "soft" for more than {PAIRED_DEVICES} devices a round; '
                f"got {len(y)}"
            )
        signals, zero = view.posterior_link(y), torch.zeros_like(view.mean)
        std = math.sqrt(math.pi / 2) * view.scale.double()
        if self._method.joint == "ep":
            covariance = correlation * std[:, None] * std[None, :]
            return bfl(*signals, zero, covariance, weights, method="ep")
        shared = fit_factor(correlation) * std
        return factor_bfl(*signals, zero, shared, private_part(std, shared), weights)

    def _computed(
        self, told: Tensor, std: Tensor, received: Received, view: View, combine: Tensor
    ) -> theory.JointMoments:
        """Return the moments of a weighted sum, of signals or of their soft bits, over the true links."""
        air, right = received.true_link, 1 - 2 * self._method.flip
        if self._method.joint == "linear":
            signal, power = air.h.double().numpy(), (air.h.double().square() + air.sigma2.double()).numpy()
        elif received.air is None:
            signal, power = theory.moments("sbfl", air.snr)
        else:
            signal, power = theory.mismatched_moments("sbfl", air.h, air.sigma2, view.h, view.sigma2)
        return theory.given_moments(
            right * np.atleast_1d(signal),
            power,
            std,
            told,
            weights=received.weights,
            combine=combine,
            noise=self._method.sign_noise,
        )

    def _tried(
        self,
        told: Tensor,
        std: Tensor,
        received: Received,
        view: View,
        correlation: Tensor | LowRank,
        weights: Tensor,
    ) -> theory.JointMoments:
        """Return the moments of a rule without formulas, tried on coordinates drawn from the true prior."""
        air = received.true_link
        stream = received.trial_stream("prediction")
        draw = torch.from_numpy(stream.standard_normal((2, len(std), _TRIES)))
        g = drawn_gradients(told, std, draw[0])
        y = air.h[:, None] * self._bits(g, std, received) + air.sigma2.sqrt()[:, None] * draw[1]
        guess = self._posterior_mean(y.float(), view, correlation, weights).double()
        return tried_moments(g, received.weights, guess)

    def _bits(self, g: Tensor, std: Tensor, received: Received) -> Tensor:
        """Draw the bits that devices would send for gradients `[K, M]`."""
        stream = received.trial_stream("prediction of bits")
        if self._method.sign_noise > 0:
            noise = torch.from_numpy(stream.standard_normal(tuple(g.shape)))
            g = g + self._method.sign_noise * std[:, None] * noise
        if self._method.flip == 0:
            return sign(g)
        flipped = torch.from_numpy(stream.random(tuple(g.shape)) < self._method.flip)
        return torch.where(flipped, -sign(g), sign(g))

    def _correlation(self, y: Tensor, view: View, devices: Devices, told: Tensor | None) -> Tensor | LowRank:
        """Return the correlation between the variables whose signs are sent."""
        if self._method.correlation == "genie":
            if told is None:
                raise ValueError(
                    f'method.correlation must be "learned" for more than {PAIRED_DEVICES} devices a round, '
                    "or gradients that do not fit in memory"
                )
            return view.seen(told)
        links = (y, *view.linear_link)
        if self._memory is None:
            return (learn_correlation if len(y) <= PAIRED_DEVICES else learn_low_rank)(*links)
        correlation, self._memory = smooth_correlation(self._memory, *links, torch.from_numpy(devices))
        return correlation

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        if self._memory is None:
            return {}
        return {"bits": self._memory.bits, "evidence": self._memory.evidence}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        if self._memory is not None:
            self._memory = CorrelationState(state["bits"], state["evidence"])
