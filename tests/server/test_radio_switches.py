"""Correlated fading, antennas, power control, scheduling and the downlink: predicted against simulated."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from signfade import theory
from signfade.device.bits import sign
from signfade.experiments.config import ConfigError, resolve
from signfade.keys import generator
from signfade.server import Server, sbfl
from signfade.server.scheduling import Schedule, Scheduler
from signfade.settings import CellSettings, Fading
from signfade.simulation import Experiment
from signfade.theory.rules import fading_nodes
from signfade.uplink import GaussMarkov, draw_fading, make_radio

FADINGS: list[Fading] = ["gaussian", "rayleigh", "rician", "none"]


def radio(devices: int = 8, seed: int = 3, **options: Any) -> Any:
    return make_radio(CellSettings.model_validate(options), devices, seed)


# -- fading in time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [0.9, -0.6, 0.999])
def test_the_chain_has_its_correlations(correlation: float) -> None:
    count, rounds = 20_000, [0, 1, 2, 5, 6, 37, 1000]
    z = np.stack([GaussMarkov(1, t, correlation).standard_normal(count) for t in rounds])
    for i, j in combinations(range(len(rounds)), 2):
        expected = correlation ** (rounds[j] - rounds[i])
        error = math.sqrt((1 + expected**2) / count)  # of the mean of products of two standard normals
        assert abs((z[i] * z[j]).mean() - expected) < 4 * error, (rounds[i], rounds[j])
    assert np.allclose(z.var(axis=1), 1, atol=4 * math.sqrt(2 / count))


def test_the_chain_is_markov() -> None:
    # Given its neighbour, a round says nothing more about the next but one: a partial correlation of zero.
    count, r = 20_000, 0.8
    before, now, after = (GaussMarkov(2, t, r).standard_normal(count) for t in (6, 7, 8))
    left = ((before - r * now) * (after - r * now)).mean() / (1 - r**2)
    assert abs(left) < 4 / math.sqrt(count)


def test_no_correlation_is_the_old_draw_and_full_correlation_stands_still() -> None:
    everyone = np.arange(8)
    assert torch.equal(radio().link(everyone, 5).h, draw_fading("gaussian", 8, generator(3, "fading", 5)))
    still = radio(fading_correlation=1.0, fading="rayleigh")
    assert torch.equal(still.link(everyone, 0).h, still.link(everyone, 123_456).h)
    turning = radio(fading_correlation=-1.0)
    assert torch.equal(turning.link(everyone, 0).h, -turning.link(everyone, 7).h)


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician"])
def test_doppler_sets_the_correlation_of_powers(fading: str) -> None:
    # Jakes: r = J0(2 pi f T). Powers of scattered paths are correlated by r**2, of a direct path k times as
    # strong by (r**2 + 2 k r)/(1 + 2 k).
    count, r, k = 20_000, float(special.j0(2 * math.pi * 0.1 * 1.5)), 4.0
    cell = radio(count, doppler_hz=0.1, round_s=1.5, fading=fading, snr_db=0.0, rician_k=k)
    one, two = (cell.link(np.arange(count), t).h.square().numpy() for t in (40, 41))
    expected = (r**2 + 2 * k * r) / (1 + 2 * k) if fading == "rician" else r**2
    assert abs(np.corrcoef(one, two)[0, 1] - expected) < 4 * 3 / math.sqrt(count)  # heavy tails: 3 times
    for power in (one, two):
        assert abs(power.mean() - 1) < 4 * power.std() / math.sqrt(count)


# -- antennas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("antennas", [1, 2, 3, 8])
@pytest.mark.parametrize("fading", FADINGS)
def test_nodes_have_the_moments_of_combined_powers(fading: Fading, antennas: int) -> None:
    power, weight = fading_nodes(fading, 4.0, antennas)
    variance = {"gaussian": 2.0, "rayleigh": 1.0, "rician": (1 + 2 * 4.0) / 25, "none": 0.0}[fading]
    assert weight.sum() == pytest.approx(1, rel=1e-9)
    assert weight @ power == pytest.approx(antennas, rel=1e-9)
    assert weight @ power**2 == pytest.approx(antennas**2 + antennas * variance, rel=1e-9)


@pytest.mark.parametrize("rician_k", [1e-300, 1e-9, 1e3, 1e9, 1e13])
def test_nodes_of_any_line_of_sight_have_unit_probability(rician_k: float) -> None:
    power, weight = fading_nodes("rician", rician_k, antennas=4)
    assert weight.sum() == pytest.approx(1, rel=1e-8)
    assert weight @ power == pytest.approx(4, rel=1e-8)


@pytest.mark.parametrize("antennas", [1, 2, 4])
def test_bit_errors_of_combined_rayleigh_in_closed_form(antennas: int) -> None:
    # Proakis: ((1 - mu)/2)^L sum_k C(L-1+k, k) ((1 + mu)/2)^k with mu = sqrt(c/(1 + c)), Q(sqrt(2 c p)).
    for snr in (0.1, 1.0, 30.0):
        mu = math.sqrt(snr / 2 / (1 + snr / 2))
        terms = (math.comb(antennas - 1 + k, k) * ((1 + mu) / 2) ** k for k in range(antennas))
        expected = ((1 - mu) / 2) ** antennas * sum(terms)
        power, weight = fading_nodes("rayleigh", antennas=antennas)
        assert special.ndtr(-np.sqrt(snr * power)) @ weight == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("fading", FADINGS)
def test_errors_with_antennas_are_predicted(fading: Fading) -> None:
    links, antennas, snr_db = 40_000, 3, -3.0
    cell = radio(links, fading=fading, antennas=antennas, snr_db=snr_db)
    link = cell.link(np.arange(links), 0)
    draw = torch.from_numpy(np.random.default_rng(1).normal(size=(2, links, 1)))
    y = link.h[:, None] * sign(draw[0]) + link.sigma2.sqrt()[:, None] * draw[1]
    kappa, zero = torch.full((1,), math.sqrt(2 / math.pi)).double(), torch.zeros(1).double()
    guess = torch.stack(
        [sbfl(y[k : k + 1], link.h[k : k + 1], link.sigma2[k : k + 1], zero, kappa) for k in range(3000)]
    )
    error = (guess[:, 0] - draw[0, :3000, 0]).square()
    expected = float(theory.mse("sbfl", 10 ** (snr_db / 10), fading=fading, antennas=antennas))
    assert abs(float(error.mean()) - expected) < 3 * float(error.std()) / math.sqrt(len(error))
    # Outage of the same links.
    threshold, mean = 1.2, 10 ** (snr_db / 10)
    lost = float((link.snr < threshold).double().mean())
    share = float(theory.outage(threshold, mean, fading, antennas=antennas))
    assert abs(lost - share) <= 3 * math.sqrt(share * (1 - share) / links)


def test_two_antennas_make_zero_forcing_finite() -> None:
    # E[1/p] of a gamma law with shape a and scale s is 1/(s (a - 1)).
    assert theory.mse_faded("zero_forcing", 10.0, fading="rayleigh") == math.inf
    left = 1 - 2 / math.pi
    for fading, antennas, inverse in (("rayleigh", 3, 0.5), ("gaussian", 4, 0.5)):
        found = theory.mse_faded("zero_forcing", 10.0, fading=fading, antennas=antennas)  # type: ignore[arg-type]
        assert found == pytest.approx(left + 2 / math.pi * inverse / 10, rel=1e-6)


# -- power control -------------------------------------------------------------------------------------------


def test_fractional_power_control_by_hand() -> None:
    full = radio(50)
    loss = full.propagation.loss_db
    assert full.power_dbm.tolist() == [23.0] * 50
    part = radio(50, power_control="fractional", p0_dbm=-80.0, alpha=0.7)
    assert np.array_equal(part.propagation.loss_db, loss)
    assert np.allclose(part.power_dbm, np.minimum(23, -80 + 0.7 * loss))
    assert (part.power_dbm < 23).any()
    assert np.allclose(full.mean_snr_db - part.mean_snr_db, 23 - part.power_dbm)
    # alpha = 1 inverts the channel: all arrive at p0, whose SNR is p0 less the noise, unless power runs out.
    equal = radio(50, power_control="fractional", p0_dbm=-120.0, alpha=1.0, gains_db=4.0)
    reach = equal.power_dbm < 23
    assert reach.any()
    assert np.allclose(equal.mean_snr_db[reach], -120 + 116.42246, atol=1e-4)
    # alpha = 0 is one power for all.
    assert radio(5, power_control="fractional", p0_dbm=10.0, alpha=0.0).power_dbm.tolist() == [10.0] * 5


# -- scheduling ----------------------------------------------------------------------------------------------


def scheduler(kind: str, devices: int, part: float, **cell: Any) -> Scheduler:
    tree = {f"cell.{key}": value for key, value in cell.items()} | {"cell.scheduling": kind}
    settings = resolve(
        tree | {"data.devices": devices, "data.participation": part, "method.aggregator": "sbfl"}
    )
    return Scheduler(settings, make_radio(settings.cell, devices, settings.seed))


def test_best_channels_have_the_power_of_order_statistics() -> None:
    # The i-th largest of K exponentials has the mean sum_{j=i..K} 1/j.
    devices, rounds, asked = 10, 2000, 3
    one = scheduler("best-channel", devices, 0.3, fading="rayleigh", snr_db=0.0)
    air, state = make_radio(CellSettings(fading="rayleigh", snr_db=0.0), devices, 0), one.init()
    powers = []
    for t in range(rounds):
        state, chosen = one.choose(state, t)
        assert len(chosen) == asked
        assert (np.diff(chosen) > 0).all()
        powers.append(float(air.link(chosen, t).snr.mean()))
    expected = sum(sum(1 / j for j in range(i, devices + 1)) for i in range(1, asked + 1)) / asked
    assert abs(np.mean(powers) - expected) < 3 * np.std(powers) / math.sqrt(rounds)


def test_proportional_fairness_gives_all_their_share_and_still_gains() -> None:
    devices, rounds = 6, 1500
    snr_db = [0.0, 0.0, 0.0, 20.0, 20.0, 20.0]
    counts = {}
    for kind in ("best-channel", "proportional-fair"):
        one = scheduler(kind, devices, 1 / 3, fading="rayleigh", snr_db=snr_db)
        state, counts[kind] = one.init(), np.zeros(devices)
        for t in range(rounds):
            state, chosen = one.choose(state, t)
            counts[kind][chosen] += 1
    share = counts["proportional-fair"] / rounds
    # Three devices are alike, so their shares are: within the deviation that a fair draw would have.
    for group in (share[:3], share[3:]):
        assert np.ptp(group) < 6 * math.sqrt(1 / 3 * 2 / 3 / rounds)
    assert share.min() > 0.2
    assert counts["best-channel"][:3].max() < 0.05 * rounds


def test_posterior_scheduling_finds_the_best_subset() -> None:
    devices, asked = 7, 3
    one = scheduler("posterior", devices, asked / devices, snr_db=[-9.0, -6, -3, 0, 3, 6, 9])
    scale = torch.tensor([3.0, 1.0, 0.5, 2.0, 0.3, 0.8, 0.6]).double()
    state = Schedule(torch.ones(devices).double(), scale)
    radio = make_radio(CellSettings(snr_db=[-9.0, -6, -3, 0, 3, 6, 9]), devices, 0)
    for t in range(20):
        snr = radio.link(np.arange(devices), t).snr.numpy()
        std = scale.numpy() * math.sqrt(math.pi / 2)
        known = np.asarray(theory.mse("sbfl", snr, std))
        left = {
            some: sum(known[k] if k in some else std[k] ** 2 for k in range(devices))
            for some in combinations(range(devices), asked)
        }
        chosen = one.choose(state, t)[1]
        assert left[tuple(int(k) for k in chosen)] == pytest.approx(min(left.values()), rel=1e-9)
    # Without a scale, devices are taken for the largest: everybody is asked once before the weakest again.
    new = Schedule(torch.ones(devices).double(), torch.full((devices,), -1.0).double())
    assert len(one.choose(new, 0)[1]) == asked


# -- the downlink --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fading", FADINGS)
@pytest.mark.parametrize("antennas", [1, 4])
def test_broadcasts_are_lost_as_often_as_predicted(fading: Fading, antennas: int) -> None:
    devices, rate = 20_000, 2.0
    options = {"snr_db": 5.0, "power_dbm": 23.0, "base_dbm": 20 + 10 * math.log10(devices)}
    cell = radio(devices, downlink="coded", downlink_rate=rate, fading=fading, antennas=antennas, **options)
    assert np.allclose(cell.downlink_snr_db, 2.0)  # 3 dB less power than the devices in each subchannel
    heard = cell.hears(4).mean()
    # log2(1 + SNR h^2/L) >= rate
    expected = 1 - float(theory.outage((2**rate - 1) * antennas, 10**0.2, fading, antennas=antennas))
    assert abs(heard - expected) <= 3 * math.sqrt(expected * (1 - expected) / devices)


def test_a_device_that_missed_the_model_misses_the_round() -> None:
    tree = {"rounds": 30, "data.name": "gaussian", "data.size": 50, "data.devices": 6, "threads": 1}
    tree |= {"cell.downlink": "coded", "cell.downlink_rate": 2.0, "cell.snr_db": 0.0, "cell.base_dbm": 30.0}
    settings = resolve(
        tree | {"method.aggregator": "sbfl", "server.downlink": "sign", "cell.bandwidth_hz": 1e5}
    )
    experiment, air, heard, missed, bits = (
        Experiment(settings),
        make_radio(settings.cell, 6, 0),
        [],
        [0] * 6,
        0,
    )
    for t in range(30):
        record = experiment.advance()
        heard.append(air.hears(t))
        assert record["devices"] == int(heard[-1].sum())
        for k in range(6):  # signs of missed rounds are sent again, the whole model from 32 of them on
            bits += 50 * min(missed[k], 32) if heard[-1][k] else 0
            missed[k] = 0 if heard[-1][k] else missed[k] + 1
        bits += 50 if heard[-1].any() else 0
        assert record["downlink_bits"] == bits
        assert record["downlink_s"] == pytest.approx(bits / (6 * 1e5 * 2.0))
    assert 0 < np.mean(heard) < 1


# -- what makes no sense -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"cell.doppler_hz": 1.0, "cell.fading_correlation": 0.5}, "cell.fading_correlation must be 0 where"),
        ({"cell.fading": "none", "cell.fading_correlation": 0.5}, 'cell.fading must not be "none"'),
        ({"cell.antennas": 2, "cell.csi": "pilot"}, "cell.antennas must be 1 with pilots"),
        ({"cell.antennas": 2, "cell.access": "over_the_air"}, "cell.antennas must be 1 with over_the_air"),
        (
            {"cell.power_control": "fractional", "cell.snr_db": 3.0},
            'cell.power_control must be "full" without',
        ),
        ({"cell.scheduling": "best-channel"}, "data.participation must be below 1"),
        ({"cell.downlink": "coded", "cell.perfect": True}, 'cell.downlink must be "error_free" over perfect'),
        (
            {"cell.scheduling": "posterior", "data.participation": 0.5, "method.aggregator": "signsgd"},
            'cell.scheduling must not be "posterior" with signsgd',
        ),
    ],
)
def test_nonsense_is_refused_in_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve({"method.aggregator": "sbfl", **keys})
    assert str(refused.value).startswith(sentence)


def test_defaults_keep_no_memory() -> None:
    memory = Server(resolve({}), (10,), 4).init(torch.zeros(10))
    assert memory.schedule is None
    assert memory.missed is None
