"""Noise before the sign: its scale by quadrature for every family, its bits by their law."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from signfade.device import add_sign_noise, fit_prior, noisy_scale, sign_noise_factor
from signfade.keys import stream_keys

LAWS = {"gaussian": stats.norm(scale=1.3), "laplacian": stats.laplace(scale=0.7)}


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.3, 1.0, 4.0, 50.0])
def test_the_factor_is_the_integral(family: str, noise: float) -> None:
    law = LAWS[family]
    tau = noise * law.std()

    def right(d: float) -> float:  # E[sign(d + n)]
        return 1.0 if tau == 0 else float(special.erf(d / (math.sqrt(2) * tau)))

    edges = [0, min(10 * tau, 30), 60]  # the first piece is where the noise decides
    told = sum(
        integrate.quad(lambda d: d * right(d) * law.pdf(d), a, b, limit=400)[0] for a, b in pairwise(edges)
    )
    kappa = integrate.quad(lambda d: d * law.pdf(d), 0, 60, limit=400)[0]
    assert sign_noise_factor(noise, family) == pytest.approx(told / kappa, rel=1e-7)


@pytest.mark.parametrize("family", LAWS)
def test_the_posterior_mean_needs_only_that_number(family: str) -> None:
    """`E[d | y]` by integrating over d and the noise before its sign, against `E[d*b]*tanh(l)`."""
    law, noise, h, sigma2, y = LAWS[family], 0.9, -1.1, 0.7, 0.4
    tau = noise * law.std()

    def likelihood(d: float) -> float:
        up = stats.norm.cdf(d / tau)
        plus, minus = (float(stats.norm.pdf(y, h * bit, math.sqrt(sigma2))) for bit in (1, -1))
        return float(up * plus + (1 - up) * minus)

    def integral(f: Callable[[float], float]) -> float:
        return sum(integrate.quad(f, a, b, limit=400)[0] for a, b in ((-40, 0), (0, 40)))

    top = integral(lambda d: d * law.pdf(d) * likelihood(d))
    bottom = integral(lambda d: law.pdf(d) * likelihood(d))
    kappa = law.expect(abs) if family == "gaussian" else 0.7
    told = sign_noise_factor(noise, family) * kappa * math.tanh(h * y / sigma2)
    assert told == pytest.approx(top / bottom, rel=1e-7)


@pytest.mark.parametrize("family", ["gaussian", "laplacian", "empirical"])
def test_the_scale_sent_is_the_covariance_of_gradient_and_bit(family: str) -> None:
    """Against bits really drawn, layer by layer, within four standard errors."""
    size, noise, segments = 60_000, 0.8, [20_000, 40_000]
    law = LAWS["laplacian" if family == "laplacian" else "gaussian"]
    drawn = law.rvs((2, size), random_state=np.random.default_rng(3))
    drawn[1, 20_000:] *= 5
    g = torch.from_numpy(drawn) + 2.0
    prior = fit_prior(g, family, segments)
    scale = noisy_scale(g, prior, noise, segments)
    noisy = add_sign_noise(g, prior.std, noise, segments, stream_keys(1, "sign-noise", 0, range(2)))
    for layer, columns in enumerate((slice(0, 20_000), slice(20_000, size))):
        d = g[:, columns] - prior.mean[:, layer, None]
        b = torch.where(noisy[:, columns] < prior.mean[:, layer, None], -1.0, 1.0)
        told = (d * b).mean(dim=1)
        error = (d * b).std(dim=1) / math.sqrt(d.shape[1])
        assert ((told - scale[:, layer]).abs() < 4 * error).all()
    assert torch.equal(noisy_scale(g, prior, 0.0, segments), prior.scale)


def test_a_constant_layer_has_nothing_to_say() -> None:
    g = torch.full((1, 6), 3.0)
    prior = fit_prior(g, "empirical", [6])
    assert noisy_scale(g, prior, 0.5, [6]).item() == 0.0
    assert torch.equal(add_sign_noise(g, prior.std, 0.5, [6], stream_keys(0, "x", 0, [0])), g)


@pytest.mark.parametrize(
    ("noise", "family", "message"),
    [(-1.0, "gaussian", "noise must be 0 or more"), (1.0, "empirical", "family must be one of")],
)
def test_mistakes_are_named(noise: float, family: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sign_noise_factor(noise, family)
