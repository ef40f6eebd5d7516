"""The majority vote against enumeration of all bits, exact integers and Monte Carlo."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from signfade.server import break_ties
from signfade.settings import Tie
from signfade.theory import bit_error, nmse, tie_probability, vote_nmse

TIES = ("zero", "plus", "random")


def votes_of(tally: int, tie: str) -> list[tuple[float, int]]:
    """The votes that a tally can lead to, each with its probability."""
    if tally != 0:
        return [(1.0, 1 if tally > 0 else -1)]
    return {"zero": [(1.0, 0)], "plus": [(1.0, 1)], "random": [(0.5, 1), (0.5, -1)]}[tie]


def enumerate_votes(error: np.ndarray, tie: str) -> tuple[np.ndarray, float]:
    """E[v*s_k] and E[v**2] of fair signs by going through all sent and all received bits, and all coins."""
    devices = len(error)
    correlation, power = np.zeros(devices), 0.0
    for sent in itertools.product((1, -1), repeat=devices):
        s = np.array(sent)
        for received in itertools.product((1, -1), repeat=devices):
            r = np.array(received)
            p = 0.5**devices * np.where(r == s, 1 - error, error).prod()
            for share, vote in votes_of(r.sum(), tie):
                correlation += share * p * vote * s
                power += share * p * vote**2
    return correlation, power


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5])
def test_enumeration(devices: int, tie: Tie) -> None:
    rng = np.random.default_rng(devices)
    snr = rng.exponential(size=devices)
    error = bit_error(snr)
    correlation, power = enumerate_votes(error, tie)
    np.testing.assert_allclose((1 - 2 * error) * tie_probability(devices), correlation, atol=1e-14)
    std, weights = rng.uniform(0.2, 2, devices), rng.uniform(size=devices)
    product = (weights * np.sqrt(2 / np.pi) * std * correlation).sum()
    error_left = 1 - product**2 / (power * (weights**2 * std**2).sum())
    assert vote_nmse(snr, std, weights, tie=tie) == pytest.approx(error_left, abs=1e-14)


@pytest.mark.parametrize("devices", [1, 2, 3, 10, 101, 1000, 2001])
def test_tie_probability_is_the_central_binomial(devices: int) -> None:
    half = devices // 2
    exact = Fraction(math.comb(2 * half, half), 4**half)
    assert tie_probability(devices) == pytest.approx(float(exact), rel=1e-13)


def test_one_bit_in_many() -> None:
    assert tie_probability(10**6) == pytest.approx(math.sqrt(2 / (math.pi * 10**6)), rel=1e-6)


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("devices", [4, 9])
@pytest.mark.parametrize("family", ["gaussian", "laplacian"])
def test_monte_carlo_of_the_best_scaled_error(devices: int, family: str, tie: Tie) -> None:
    rng = np.random.default_rng(11)
    size = 200_000
    std, snr = rng.uniform(0.2, 2, (devices, 1)), rng.exponential(2.0, (devices, 1))
    weights = rng.uniform(size=(devices, 1))
    draw = rng.normal if family == "gaussian" else lambda size: rng.laplace(0, np.sqrt(0.5), size)
    g = std * draw(size=(devices, size))
    received = np.sqrt(snr) * np.where(g >= 0, 1, -1) + rng.normal(size=g.shape)
    tally = torch.from_numpy(np.where(received >= 0, 1.0, -1.0).sum(axis=0))
    vote = break_ties(tally, tie, key=5).numpy()
    target = (weights * g).sum(axis=0)
    product = vote * target
    energy = (weights**2 * std**2).sum()
    predicted = vote_nmse(snr[:, 0], std[:, 0], weights[:, 0], family=family, tie=tie)
    # d(1 - m**2/(p*energy)) = -2*m/(p*energy) dm + m**2/(p**2*energy) dp
    mean, power = product.mean(), (vote**2).mean()
    change = (-2 * mean / power * product + (mean / power) ** 2 * vote**2) / energy
    assert abs(1 - mean**2 / (power * energy) - predicted) < 4.5 * change.std() / np.sqrt(size)
    # and it is the minimum over scales of the error itself
    beta = mean / power
    for stretch in (0.8, 1.2):
        assert ((target - stretch * beta * vote) ** 2).mean() > ((target - beta * vote) ** 2).mean()


def test_many_alike_and_noiseless_devices() -> None:
    # K devices: (K*kappa*c)**2/(K*nu**2) with c**2 -> 2/(pi*K) and kappa**2 = (2/pi)*nu**2
    assert vote_nmse(np.full(10**5 + 1, np.inf)) == pytest.approx(1 - (2 / np.pi) ** 2, rel=1e-5)


def test_a_lone_device_votes_its_sign() -> None:
    assert vote_nmse([np.inf], 3.0) == pytest.approx(1 - 2 / np.pi)
    assert vote_nmse([0.0]) == 1.0
    assert vote_nmse([2.0], mean_abs=1.0) == pytest.approx(1 - (1 - 2 * bit_error(2.0)) ** 2)


def test_a_vote_never_beats_the_posterior_mean() -> None:
    rng = np.random.default_rng(3)
    for devices in (1, 2, 7, 30):
        snr, std = rng.exponential(3, devices), rng.uniform(0.1, 3, devices)
        assert nmse("majority_vote", snr, std) == vote_nmse(snr, std)
        assert nmse("sbfl", snr, std) < vote_nmse(snr, std)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tie_probability(0), "devices must be at least 1"),
        (lambda: vote_nmse([]), r"snr must have shape \[K\]"),
        (lambda: vote_nmse(1.0), r"snr must have shape \[K\]"),
        (lambda: vote_nmse([1.0], tie="minus"), "tie must be one of"),
        (lambda: vote_nmse([1.0], 0.0), "no energy"),
        (lambda: vote_nmse([1.0, 2.0], [1.0] * 3), r"std must have shape \[2\] or be one number; got \[3\]"),
        (lambda: vote_nmse([1.0, 2.0], 1.0, [1.0] * 3), r"weights must have shape \[2\]"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
