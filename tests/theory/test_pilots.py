"""The error with an estimated channel: formulas against simulated links, and one rule against another."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from signfade import server
from signfade.keys import generator, stream_keys
from signfade.theory import mse_faded, rho
from signfade.theory.pilots import PilotRule, PilotUse, pilot_mse
from signfade.uplink import Link
from signfade.uplink.pilots import refine_gain, sound

LINKS = 20_000
KAPPA = math.sqrt(2 / math.pi)
RULES = {"sbfl": server.sbfl, "blmmse": server.blmmse}


def simulated(rule: PilotRule, use: PilotUse, fading: str, sigma2: float, pilots: int) -> torch.Tensor:
    """Errors of one coordinate on each of many links, `1 + kappa**2*(f**2 - 2*s*f)`."""
    keys = stream_keys(7, "pilots", pilots, range(LINKS))
    variance = torch.full((LINKS,), sigma2, dtype=torch.float64)
    sounding = sound(fading, LINKS, variance, pilots, generator(7, "fading", pilots), keys)
    rng = torch.Generator().manual_seed(3)
    s = torch.where(torch.rand(LINKS, generator=rng) < 0.5, -1.0, 1.0).double()
    y = sounding.h * s + math.sqrt(sigma2) * torch.randn(LINKS, generator=rng, dtype=torch.float64)
    estimate = sounding.estimate(variance)
    trust = torch.ones(LINKS, dtype=torch.float64)
    if use == "naive":
        link = Link(estimate.h, variance)
    elif use == "aware":
        link = estimate.aware(variance)
    else:  # told the power that many symbols would show
        link, trust = refine_gain(estimate, sounding.h.square() + variance, variance, size=10**12)
    slope = link.h / (link.sigma2 if rule == "sbfl" else link.h**2 + link.sigma2)
    f = torch.tanh(slope * y) if rule == "sbfl" else slope * y
    # That is the server's rule: with a coordinate of its own for each device, a sum is what one device adds.
    one = torch.ones(100, dtype=torch.float64)
    served = RULES[rule](torch.diag(y[:100]), link.h[:100], link.sigma2[:100], 0 * one, one)
    assert torch.allclose(served, f[:100])
    f = trust * f
    return 1 + KAPPA**2 * (f**2 - 2 * s * f)


@pytest.mark.parametrize("rule", ["sbfl", "blmmse"])
@pytest.mark.parametrize("pilots", [1, 2, 4, 16])
def test_errors_equal_theory_and_knowing_of_the_error_helps(rule: PilotRule, pilots: int) -> None:
    """At 3 dB on average, within four standard errors; naive against aware on the same links."""
    sigma2 = 0.5
    errors = {use: simulated(rule, use, "gaussian", sigma2, pilots) for use in ("naive", "aware", "refined")}
    expected = {use: pilot_mse(rule, 1 / sigma2, pilots, use=use) for use in errors}
    for use, error in errors.items():
        assert abs(float(error.mean()) - expected[use]) < 4 * float(error.std()) / math.sqrt(LINKS)
    assert expected["refined"] < expected["aware"] < expected["naive"]
    gain = errors["naive"] - errors["aware"]
    assert float(gain.mean()) > -4 * float(gain.std()) / math.sqrt(LINKS)
    if pilots <= 2:
        assert float(gain.mean()) > 3 * float(gain.std()) / math.sqrt(LINKS)


@pytest.mark.parametrize("fading", ["rayleigh", "rician"])
@pytest.mark.parametrize("use", ["naive", "aware", "refined"])
def test_errors_equal_theory_where_the_phase_is_estimated_too(fading: str, use: PilotUse) -> None:
    error = simulated("sbfl", use, fading, 0.5, 2)
    expected = pilot_mse("sbfl", 2.0, 2, use=use, fading=fading)
    assert abs(float(error.mean()) - expected) < 4 * float(error.std()) / math.sqrt(LINKS)


@pytest.mark.parametrize("rule", ["sbfl", "blmmse"])
@pytest.mark.parametrize("mean_snr", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("fading", ["gaussian", "rayleigh"])
def test_the_ladder_holds_at_every_snr(rule: PilotRule, mean_snr: float, fading: str) -> None:
    """naive > aware > refined > a known channel, and more pilots are better."""
    known = mse_faded(rule, mean_snr, fading=fading)
    last = math.inf
    for pilots in (1, 2, 4, 16):
        naive, aware, refined = (
            pilot_mse(rule, mean_snr, pilots, use=use, fading=fading) for use in ("naive", "aware", "refined")
        )
        assert naive > aware > refined > known
        assert refined < last
        last = refined


def test_the_aware_rule_is_the_known_channel_at_another_snr() -> None:
    """`(1 - eps)/(sigma2 + eps)` instead of `1/sigma2`."""
    for mean_snr, pilots in ((1.0, 1), (10.0, 4)):
        eps = 1 / mean_snr / (pilots + 1 / mean_snr)
        assert pilot_mse("sbfl", mean_snr, pilots) == pytest.approx(
            mse_faded("sbfl", (1 - eps) / (1 / mean_snr + eps)), rel=1e-10
        )


def test_pilots_are_one_more_bit_sent_p_times() -> None:
    """`1 - (2/pi)*E[rho(gamma)*rho(P*gamma)]`, integrated over `h ~ N(0, 1)`."""
    mean_snr, pilots = 2.0, 3

    def integrand(h: float) -> float:
        snr = mean_snr * h**2
        return 2 * stats.norm.pdf(h) * rho(snr) * rho(pilots * snr)

    expected = 1 - 2 / math.pi * integrate.quad(integrand, 0, 10, limit=200)[0]
    assert pilot_mse("sbfl", mean_snr, pilots, use="refined") == pytest.approx(expected, abs=1e-8)


def test_many_pilots_are_a_known_channel_and_no_fading_needs_none() -> None:
    for fading in ("gaussian", "rayleigh", "rician"):
        known = mse_faded("sbfl", 3.0, fading=fading)
        for use in ("naive", "aware", "refined"):
            assert pilot_mse("sbfl", 3.0, 10**6, use=use, fading=fading) == pytest.approx(known, rel=1e-4)
    still = mse_faded("blmmse", 3.0, fading="none")
    for use in ("naive", "aware", "refined"):
        assert pilot_mse("blmmse", 3.0, 1, use=use, fading="none") == pytest.approx(still, rel=1e-12)


def test_size_shape_and_family() -> None:
    one = pilot_mse("sbfl", np.array([1.0, 4.0]), 2, use="naive")
    assert pilot_mse("sbfl", [1.0, 4.0], 2, std=3.0, use="naive") == pytest.approx(9 * one)
    laplacian = pilot_mse("sbfl", 1.0, 2, family="laplacian")
    assert (1 - laplacian) / 0.5 == pytest.approx((1 - pilot_mse("sbfl", 1.0, 2)) / (2 / math.pi))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "vote"}, "rule must be one of 'sbfl', 'blmmse'"),
        ({"use": "blind"}, "use must be one of 'refined', 'aware', 'naive'"),
        ({"pilots": 0}, "pilots must be at least 1; got 0"),
        ({"mean_snr": 0.0}, "mean_snr must be positive"),
        ({"fading": "nakagami"}, "fading must be one of"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], message: str) -> None:
    given = {"rule": "sbfl", "mean_snr": 1.0, "pilots": 1} | arguments
    with pytest.raises(ValueError, match=message):
        pilot_mse(**given)  # type: ignore[arg-type]
