"""Pilots: the estimate and its error are what Bayes says, and the data add the magnitude."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade.keys import generator, stream_keys
from signfade.uplink import draw_fading
from signfade.uplink.pilots import GainEstimate, Sounding, fit_levels, refine_gain, sound

MANY = 20_000


def listen(fading: str, sigma2: float, pilots: int, devices: int = MANY, rician_k: float = 4.0) -> Sounding:
    keys = stream_keys(5, "pilots", 0, range(devices))
    variance = torch.full((devices,), sigma2, dtype=torch.float64)
    return sound(fading, devices, variance, pilots, generator(5, "fading"), keys, rician_k)


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician"])
@pytest.mark.parametrize(("sigma2", "pilots"), [(1.0, 1), (0.1, 4)])
def test_the_error_is_as_large_as_claimed_and_orthogonal_to_the_estimate(
    fading: str, sigma2: float, pilots: int
) -> None:
    """Over 20,000 links: `h - hhat` has mean zero, variance eps, is Gaussian, and does not go with hhat."""
    sounding = listen(fading, sigma2, pilots)
    estimate = sounding.estimate(torch.full((MANY,), sigma2, dtype=torch.float64))
    error = ((sounding.h - estimate.h) / estimate.error.sqrt()).numpy()
    se = 1 / math.sqrt(MANY)
    assert abs(error.mean()) < 4 * se
    assert abs((error**2).mean() - 1) < 4 * math.sqrt(2) * se
    assert abs((error**4).mean() - 3) < 4 * math.sqrt(96) * se
    centred = (estimate.h - estimate.h.mean()).numpy()
    assert abs((error * centred).mean() / centred.std()) < 4 * se


def test_the_formula_of_the_paper_model() -> None:
    """`hhat = sum(pilots)/(P + sigma2)`, `eps = sigma2/(P + sigma2)` for gaussian fading."""
    sounding = listen("gaussian", 0.5, 3, devices=10)
    estimate = sounding.estimate(torch.full((10,), 0.5, dtype=torch.float64))
    assert torch.allclose(estimate.h, 3 * sounding.pilot / 3.5)
    assert torch.allclose(estimate.error, torch.full((10,), 0.5 / 3.5, dtype=torch.float64))


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician", "none"])
def test_without_noise_the_gain_is_that_of_the_fading(fading: str) -> None:
    sounding = listen(fading, 0.0, 2, devices=50)
    gain = draw_fading(fading, 50, generator(5, "fading"))
    assert torch.allclose(sounding.h, gain)
    estimate = sounding.estimate(torch.zeros(50, dtype=torch.float64))
    assert torch.allclose(estimate.h, gain)
    assert not bool(estimate.error.any())


def test_a_phase_that_is_missed_costs_gain() -> None:
    """The real gain after a wrong turn is never above the magnitude."""
    sounding = listen("rayleigh", 1.0, 1, devices=1000)
    magnitude = draw_fading("rayleigh", 1000, generator(5, "fading"))
    assert bool((sounding.h <= magnitude + 1e-12).all())
    assert float((sounding.h / magnitude).mean()) < 0.95


def test_a_device_sounds_the_same_whoever_else_does() -> None:
    some = np.array([1, 7, 20])
    for fading in ("gaussian", "rician"):
        everyone = listen(fading, 0.3, 4, devices=30)
        keys = stream_keys(5, "pilots", 0, some)
        variance = torch.full((3,), 0.3, dtype=torch.float64)
        few = sound(fading, 30, variance, 4, generator(5, "fading"), keys, chosen=some)
        assert torch.equal(few.h, everyone.h[some])
        assert torch.equal(few.pilot, everyone.pilot[some])


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh"])
def test_a_device_short_of_power_sends_weaker_pilots_and_signs(fading: str) -> None:
    """Without noise the estimate is the gain at that power; with noise the noise stays what it was."""
    keys, zero = stream_keys(5, "pilots", 0, range(50)), torch.zeros(50, dtype=torch.float64)
    quarter = torch.full((50,), 0.25, dtype=torch.float64)
    weak = sound(fading, 50, zero, 2, generator(5, "fading"), keys, amplitude=quarter)
    assert torch.allclose(weak.estimate(zero).h, draw_fading(fading, 50, generator(5, "fading")) / 4)
    assert torch.allclose(weak.h, weak.pilot)
    noise = torch.full((50,), 0.3, dtype=torch.float64)
    loud, weak = (
        sound("gaussian", 50, noise, 2, generator(5, "fading"), keys, amplitude=a) for a in (None, quarter)
    )
    assert torch.allclose(weak.pilot - weak.h, loud.pilot - loud.h)


def test_more_pilots_of_the_same_stream_only_add() -> None:
    """Noise of the mean pilot falls as 1/P."""
    for pilots in (1, 16):
        sounding = listen("gaussian", 1.0, pilots)
        noise = (sounding.pilot - sounding.h) * math.sqrt(pilots)
        assert abs(float(noise.square().mean()) - 1) < 4 * math.sqrt(2 / MANY)


def test_trust_is_the_chance_that_the_sign_is_right() -> None:
    """Told the magnitude exactly, `E[sign(h)*sign(hhat)]` in every bin of trust is that trust."""
    sigma2 = torch.full((MANY,), 1.0, dtype=torch.float64)
    sounding = listen("gaussian", 1.0, 1)
    estimate = sounding.estimate(sigma2)
    refined = refine_gain(estimate, sounding.h.square() + 1.0, sigma2, size=10**12)
    assert torch.allclose(refined.link.h.abs(), sounding.h.abs(), atol=1e-4)
    right = (refined.link.h.sign() * sounding.h.sign()).numpy()
    trust = refined.trust.numpy()
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (trust >= low) & (trust < low + 0.25)
        excess = right[inside] - trust[inside]
        assert inside.sum() > 1000
        assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(inside.sum())


def test_a_doubtful_sign_as_noise_keeps_mean_and_power() -> None:
    refined = refine_gain(
        GainEstimate(torch.tensor([0.3, -0.2]), torch.tensor([0.4, 0.1])),
        torch.tensor([1.5, 0.6]),
        torch.tensor([0.5, 0.5]),
        size=1000,
    )
    link = refined.effective()
    assert torch.allclose(link.h, refined.trust * refined.link.h)
    assert torch.allclose(link.h**2 + link.sigma2, refined.link.h**2 + refined.link.sigma2)


def test_the_magnitude_weighs_pilots_and_data_by_what_they_know() -> None:
    """Over many links the joined estimate of `h**2` is closer than either alone; a few symbols, one pilot."""
    sigma2, size = torch.full((MANY,), 0.5, dtype=torch.float64), 8
    sounding = listen("gaussian", 0.5, 1)
    estimate = sounding.estimate(sigma2)
    draw = torch.randn(MANY, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    power = (sounding.h[:, None] + math.sqrt(0.5) * draw).square().mean(dim=1)
    joined = refine_gain(estimate, power, sigma2, size).link.h.square()
    truth = sounding.h.square()

    def miss(guess: torch.Tensor) -> float:
        return float((guess - truth).square().mean())

    assert miss(joined) < 0.8 * miss(estimate.h.square() + estimate.error)
    assert miss(joined) < 0.8 * miss(power - 0.5)


def test_a_gain_that_is_known_stays_and_is_trusted() -> None:
    known = GainEstimate(torch.ones(2), torch.zeros(2))
    refined = refine_gain(known, torch.tensor([3.0, 0.1]), torch.tensor([0.5, 0.5]), size=10)
    assert refined.link.h.tolist() == [1.0, 1.0]
    assert refined.trust.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("snr_db", [-3.0, 0.0, 10.0, 30.0])
def test_noise_is_measured_without_knowing_the_bits(snr_db: float) -> None:
    """100 devices with 4000 symbols each: the mean estimate is within 2 %, each is close to its bound.

    Knowing the bits, the deviation of a variance is sqrt(2/M) = 2.2 %; at 10 dB the bits are all but known.
    """
    sigma2 = 10 ** (-snr_db / 10)
    rng = torch.Generator().manual_seed(0)
    signs = torch.where(torch.rand(100, 4000, generator=rng) < 0.5, -1.0, 1.0)
    gain, noise = fit_levels(signs + math.sqrt(sigma2) * torch.randn(100, 4000, generator=rng))
    ratio = noise / sigma2
    assert abs(float(ratio.mean()) - 1) < 0.02
    assert float(ratio.std()) < (0.027 if snr_db >= 10 else 0.1)
    assert abs(float(gain.mean()) - 1) < 0.02


def test_the_fit_is_a_maximum_of_the_likelihood() -> None:
    rng = torch.Generator().manual_seed(1)
    y = torch.where(torch.rand(1, 3000, generator=rng) < 0.5, -1.0, 1.0).double()
    y += torch.randn(1, 3000, generator=rng, dtype=torch.float64) * 0.8

    def likelihood(gain: float, sigma2: float) -> float:
        exponent = torch.stack([-((y - gain) ** 2), -((y + gain) ** 2)]) / (2 * sigma2)
        return float(torch.logsumexp(exponent, dim=0).sum() - y.numel() / 2 * math.log(sigma2))

    gain, sigma2 = (float(value) for value in fit_levels(y))
    best = likelihood(gain, sigma2)
    for factor in (0.97, 1.03):
        assert likelihood(gain * factor, sigma2) < best
        assert likelihood(gain, sigma2 * factor) < best


def test_levels_at_the_ends() -> None:
    """No noise, and no signal at all."""
    gain, sigma2 = fit_levels(torch.tensor([[2.0, -2.0, 2.0], [0.0, 0.0, 0.0]]))
    assert gain.tolist() == pytest.approx([2.0, 0.0])
    assert sigma2.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_nonsense_is_refused() -> None:
    estimate = GainEstimate(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="pilots must be at least 1; got 0"):
        listen("gaussian", 1.0, 0, devices=3)
    with pytest.raises(ValueError, match="fading must be one of"):
        listen("nakagami", 1.0, 1, devices=3)
    with pytest.raises(ValueError, match="size must be at least 1"):
        refine_gain(estimate, torch.ones(2), torch.ones(2), 0)
    with pytest.raises(ValueError, match=r"power must have shape \[2\]"):
        refine_gain(estimate, torch.ones(3), torch.ones(2), 5)
    with pytest.raises(ValueError, match=r"y must have shape \[K, M\]"):
        fit_levels(torch.ones(3))
