"""The joint posterior in training: the correlation is learned round by round, then one of four rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from signfade import theory
from signfade.device import sign
from signfade.keys import generator
from signfade.learn.predict import debias_factor
from signfade.learn.received import Received
from signfade.learn.round import Uplink
from signfade.learn.task import Devices
from signfade.learn.view import View, make_view
from signfade.server import flipped_link
from signfade.server.bfl import (
    CorrelationState,
    LowRank,
    bfl,
    factor_bfl,
    fit_factor,
    initial_correlation,
    joint_blmmse,
    joint_gain,
    joint_sbfl,
    joint_sbfl_gain,
    joint_weights,
    learn_low_rank,
    private_part,
    smooth_correlation,
)
from signfade.settings import MethodSettings

__all__ = ["JointEstimate", "JointRule"]

# Up to so many devices the pairs of all rounds are remembered; beyond, each round learns afresh.
_REMEMBERED_DEVICES = 1000
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
        self._memory = initial_correlation(population) if population <= _REMEMBERED_DEVICES else None

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
        if self._method.joint == "linear":
            gain = joint_gain(*view.linear_link, view.scale, correlation, weights)
        else:
            gain = joint_sbfl_gain(view.h, view.sigma2, view.scale, correlation, weights, view.agreement)
        estimate = self._apply(received.y, view, correlation, weights)
        factor = debias_factor(self._method, part * gain)
        expected = None
        if received.trust is None:
            expected = self._predict(uplink, received, view, correlation, weights, factor)
        return JointEstimate(estimate, factor, expected)

    def _apply(self, y: Tensor, view: View, correlation: Tensor | LowRank, weights: Tensor) -> Tensor:
        """Read signals `[K, M]`, those of the round or others over the same links."""
        if view.kept < 1:  # the weights are on noisy gradients, means are of the gradients themselves
            silent = replace(view, mean=torch.zeros_like(view.mean), kept=1.0)
            return self._apply(y, silent, correlation, weights) + view.weights.to(y) @ view.mean.to(y)
        mean, scale = view.mean, view.scale
        if self._method.joint == "linear":
            return joint_blmmse(y, *view.linear_link, mean, scale, correlation, weights)
        if self._method.joint == "soft":
            return joint_sbfl(y, view.h, view.sigma2, mean, scale, correlation, weights, view.agreement)
        if isinstance(correlation, LowRank):
            raise ValueError(f'method.joint must be "linear" or "soft" for {len(y)} devices a round')
        signals = view.posterior_link(y)
        std = math.sqrt(math.pi / 2) * scale.double()
        if self._method.joint == "ep":
            covariance = correlation * std[:, None] * std[None, :]
            return bfl(*signals, mean, covariance, weights, method="ep")
        shared = fit_factor(correlation) * std
        return factor_bfl(*signals, mean, shared, private_part(std, shared), weights)

    def _predict(
        self,
        uplink: Uplink,
        received: Received,
        view: View,
        correlation: Tensor | LowRank,
        weights: Tensor,
        factor: float,
    ) -> float | None:
        """Predict the normalised error from the true correlation, the links and the rule that was used.

        The linear rule has a formula. The others are tried on a few thousand coordinates drawn from the
        prior.
        """
        if uplink.correlation is None or uplink.sent is None:
            return None
        std = uplink.sent.std[:, 0].double()
        kept = len(uplink.truth) / received.size
        air, right = received.true_link, 1 - 2 * self._method.flip
        if self._method.joint == "linear" and view.kept == 1:
            combine = joint_weights(*view.linear_link, view.scale, correlation, weights)
            links = (combine, air.h, air.sigma2)
            if right < 1:
                links = (combine, *flipped_link(air.h, air.sigma2, torch.full_like(air.h, right)))
            moments = theory.linear_moments(*links, std, uplink.correlation, weights=received.weights)
            return moments.cut(kept).nmse(factor) if moments.energy > 0 else None
        stream = generator(int(received.keys[0]) >> 1, "prediction")
        draw = torch.from_numpy(stream.standard_normal((2, len(std), _TRIES)))
        values, vectors = torch.linalg.eigh(uplink.correlation)
        g = std[:, None] * ((vectors * values.clamp_min(0).sqrt()) @ draw[0])
        y = air.h[:, None] * self._bits(g, std, received) + air.sigma2.sqrt()[:, None] * draw[1]
        alpha = received.weights.double()
        guess = self._apply(y.float(), view, correlation, weights).double() - alpha @ received.mean.double()
        truth, shared = alpha @ g, g @ guess
        moments = theory.JointMoments(
            energy=float(truth @ truth),
            product=float(truth @ guess),
            power=float(guess @ guess),
            aligned=float(shared @ torch.linalg.pinv(g @ g.T, hermitian=True) @ shared),
        )
        return moments.cut(kept).nmse(factor) if moments.energy > 0 else None

    def _bits(self, g: Tensor, std: Tensor, received: Received) -> Tensor:
        """Draw the bits that devices would send for gradients `[K, M]`."""
        stream = generator(int(received.keys[0]) >> 1, "prediction of bits")
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
                raise ValueError('method.correlation must be "learned" when gradients do not fit in memory')
            return view.seen(told)
        links = (y, *view.linear_link)
        if self._memory is None:
            return learn_low_rank(*links)
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
