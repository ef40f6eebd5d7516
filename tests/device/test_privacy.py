"""Randomised response: epsilon by brute force, bits by their law, posterior mean by quadrature."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from signfade.device import bit_epsilon, composed_epsilon, randomised_response, unpack_signs
from signfade.keys import stream_keys


def delta_by_enumeration(flip: float, bits: int, epsilon: float) -> float:
    """The largest `P(A) - exp(epsilon)*P'(A)` over all events A, output by output."""
    total = 0.0
    for output in product((0, 1), repeat=bits):  # 1: the bit of one data set, 0: of its neighbour
        ours = math.prod((1 - flip) if bit else flip for bit in output)
        theirs = math.prod(flip if bit else (1 - flip) for bit in output)
        total += max(0.0, ours - math.exp(epsilon) * theirs)
    return total


@pytest.mark.parametrize("flip", [0.05, 0.25, 0.4])
@pytest.mark.parametrize("bits", [1, 2, 7])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1, 0.5])
def test_composition_is_exact_on_every_event(flip: float, bits: int, delta: float) -> None:
    epsilon = composed_epsilon(flip, bits, delta)
    assert delta_by_enumeration(flip, bits, epsilon) <= delta * (1 + 1e-6)
    if epsilon > 0:  # and no smaller epsilon will do
        assert delta_by_enumeration(flip, bits, epsilon * (1 - 1e-4)) > delta
    found = optimize.brentq(lambda e: delta_by_enumeration(flip, bits, e) - delta, -1, bits * 4)
    assert epsilon == pytest.approx(max(0.0, found), abs=1e-6)


def test_without_slack_epsilons_add_up() -> None:
    assert composed_epsilon(0.2, 1000, delta=0.0) == pytest.approx(1000 * bit_epsilon(0.2))
    assert composed_epsilon(0.2, 1, delta=0.0) == pytest.approx(math.log(4))
    assert composed_epsilon(0.5, 10**9) == 0.0
    assert composed_epsilon(0.0, 1) == math.inf
    assert composed_epsilon(0.1, 0) == 0.0


def test_many_bits_compose_like_a_gaussian() -> None:
    """Over n bits the loss has mean n*e*(1-2p) and variance 4*n*e^2*p*(1-p): the limit of the binomial."""
    flip, bits, delta = 0.45, 62_346 * 200, 1e-5
    one = bit_epsilon(flip)
    mean, deviation = bits * one * (1 - 2 * flip), 2 * one * math.sqrt(bits * flip * (1 - flip))
    found = composed_epsilon(flip, bits, delta)
    # P(L > epsilon) alone is an upper bound on delta, within a constant factor of it.
    assert mean < found < mean + deviation * stats.norm.isf(delta)
    assert found > mean + deviation * stats.norm.isf(1e3 * delta)


@pytest.mark.parametrize(("flip", "bits"), [(0.3, 5000), (0.45, 62_346), (0.001, 1000), (0.49, 62_346)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_many_bits_compose_exactly(flip: float, bits: int, delta: float) -> None:
    """Summed over the whole law of the loss, `E[max(0, 1 - exp(epsilon - L))]`, which stays within floats."""
    right = np.arange(bits + 1)
    loss = bit_epsilon(flip) * (2 * right - bits)
    law = stats.binom.pmf(right, bits, 1 - flip)

    def needed(epsilon: float) -> float:
        above = loss > epsilon
        return float(law[above] @ -np.expm1(epsilon - loss[above]))

    epsilon = composed_epsilon(flip, bits, delta)
    assert needed(epsilon * (1 + 1e-7)) <= delta
    assert needed(epsilon * (1 - 1e-7)) > delta or epsilon > loss[-1] * (1 - 1e-7)


def test_bits_are_flipped_as_often_as_said_and_by_their_own_stream() -> None:
    size, flip = 40_003, 0.3
    packed = torch.zeros(3, -(-size // 8), dtype=torch.uint8)
    keys = stream_keys(5, "flip", 0, range(3))
    sent = randomised_response(packed, size, flip, keys)
    flipped = unpack_signs(sent, size) == 1  # raises if an unused bit is set
    deviation = math.sqrt(flip * (1 - flip) / size)
    assert (flipped.double().mean(dim=1) - flip).abs().max() < 4 * deviation
    both = (flipped[0] & flipped[1]).double().mean()
    assert abs(float(both) - flip**2) < 4 * math.sqrt(flip**2 * (1 - flip**2) / size)
    assert torch.equal(sent[1:], randomised_response(packed[1:], size, flip, keys[1:]))
    # Flips do not depend on the bit: what was +1 is -1 where -1 was +1.
    ones = torch.full_like(packed, 0xFF)
    ones[:, -1] = 0b11100000
    assert torch.equal(randomised_response(ones, size, flip, keys), ones ^ sent)
    assert torch.equal(randomised_response(ones, size, 0.0, keys), ones)


@pytest.mark.parametrize("law", [stats.norm(scale=1.7), stats.laplace(scale=0.8), stats.uniform(-2, 4)])
@pytest.mark.parametrize("flip", [0.0, 0.1, 0.45])
@pytest.mark.parametrize("y", [-3.0, -0.2, 0.7])
def test_the_posterior_mean_is_the_scale_shortened(law: stats.rv_continuous, flip: float, y: float) -> None:
    """`E[d | y] = (1 - 2*flip)*E|d|*tanh(h*y/sigma2)` for any symmetric law of d."""
    h, sigma2 = 0.8, 0.6

    def seen(sign: float) -> float:
        right, wrong = (float(stats.norm.pdf(y, h * bit, math.sqrt(sigma2))) for bit in (sign, -sign))
        return (1 - flip) * right + flip * wrong

    above = integrate.quad(lambda d: d * law.pdf(d), 0, 40, limit=200)[0]
    expected = above * (seen(1) - seen(-1)) / (0.5 * seen(1) + 0.5 * seen(-1))
    kappa = 2 * above
    assert (1 - 2 * flip) * kappa * math.tanh(h * y / sigma2) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bit_epsilon(0.6), "flip must be a probability from 0 to 1/2; got 0.6"),
        (lambda: composed_epsilon(-0.1, 1), "flip must be"),
        (lambda: composed_epsilon(0.1, -1), "bits must be 0 or more; got -1"),
        (lambda: composed_epsilon(0.1, 1, 1.0), "delta must be from 0 to below 1; got 1.0"),
        (
            lambda: randomised_response(torch.zeros(2, 1, dtype=torch.uint8), 3, 0.1, np.zeros(1, np.uint64)),
            r"packed must be uint8 \[1, 1\]; got torch.uint8 \[2, 1\]",
        ),
    ],
)
def test_mistakes_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
