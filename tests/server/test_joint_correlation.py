"""The correlation learned from the air: unbiased, shrunk, valid, remembered, harmless when in the dark."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade.kernels.correlations import pair_sums
from signfade.kernels.jit import plain_form
from signfade.server.joint import (
    LowRank,
    correlation,
    fit_joint_blmmse,
    initial_correlation,
    learn_correlation,
    learn_low_rank,
    smooth_correlation,
)
from signfade.server.joint.correlation import _measure

SCALE = math.sqrt(2 / math.pi)


def equal(devices: int, value: float) -> torch.Tensor:
    return torch.full((devices, devices), value).double() + (1 - value) * torch.eye(devices).double()


def labels(devices: int, seed: int = 3) -> torch.Tensor:
    """Two of ten classes a device; devices that share none pull apart a little."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.zeros(devices, 10, dtype=torch.float64)
    for k in range(devices):
        member[k, torch.randperm(10, generator=generator)[:2]] = 1
    covariance = member @ (torch.eye(10).double() - 0.1) @ member.T + 0.5 * torch.eye(devices).double()
    root = covariance.diagonal().rsqrt()
    return covariance * root[:, None] * root[None, :]


def receive(
    correlation: torch.Tensor, h: torch.Tensor, sigma2: torch.Tensor, size: int, seed: int
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.linalg.cholesky(correlation + 1e-9 * torch.eye(len(correlation)).double()).float()
    g = root @ torch.randn(len(h), size, generator=generator)
    noise = torch.randn(len(h), size, generator=generator)
    return h[:, None] * torch.where(g >= 0, 1.0, -1.0) + sigma2.sqrt()[:, None] * noise


def error(w: torch.Tensor, correlation: torch.Tensor, h: torch.Tensor, sigma2: torch.Tensor) -> float:
    """Normalised error of the linear rule w, by the arcsine law."""
    gain = h.double()
    received = gain[:, None] * gain[None, :] * (2 / math.pi) * torch.asin(correlation.clamp(-1, 1))
    received = received + torch.diag(sigma2.double())
    cross = SCALE * correlation.sum(dim=0) * gain
    return float(1 + (w @ received @ w - 2 * w @ cross) / correlation.sum())


def test_one_entry_is_unbiased_with_the_known_variance() -> None:
    r, size, h, sigma2 = 0.4, 500, torch.tensor([1.0, -0.7]), torch.tensor([0.5, 2.0])
    samples = torch.tensor(
        [
            float(_measure(receive(equal(2, r), h, sigma2, size, seed), h, sigma2)[0][0, 1])
            for seed in range(200)
        ]
    )
    expected = 2 / math.pi * math.asin(r)
    _, precision = _measure(receive(equal(2, r), h, sigma2, size, 0), h, sigma2)
    variance = 1 / float(precision[0] * precision[1])
    assert variance == pytest.approx((1 + 0.5) * (1 + 2.0 / 0.49) / size)
    assert abs(float(samples.mean()) - expected) < 4 * math.sqrt(variance / 200)
    # The variance is exact up to -b**2/M; a sample variance has relative error sqrt(2/200).
    assert float(samples.var()) == pytest.approx(variance - expected**2 / size, rel=4 * math.sqrt(2 / 200))


@pytest.mark.parametrize("value", [-0.04, 0.0, 0.3, 0.9])
@pytest.mark.parametrize("decibel", [-10.0, 0.0, 20.0])
def test_learned_is_within_a_tenth_of_told(value: float, decibel: float) -> None:
    devices, size = 20, 20_000
    h, sigma2 = torch.ones(devices), torch.full((devices,), 10 ** (-decibel / 10))
    truth = equal(devices, value)
    learned = learn_correlation(receive(truth, h, sigma2, size, 11), h, sigma2)
    scale = torch.full((devices,), SCALE)
    known = error(fit_joint_blmmse(h, sigma2, scale, truth).combine, truth, h, sigma2)
    found = error(fit_joint_blmmse(h, sigma2, scale, learned).combine, truth, h, sigma2)
    assert known <= found * (1 + 1e-9)
    assert found < 1.1 * known


@pytest.mark.parametrize("fading", [False, True])
def test_learned_is_close_to_told_for_devices_with_labels(fading: bool) -> None:
    devices, size = 20, 60_000
    generator = torch.Generator().manual_seed(2)
    h = torch.randn(devices, generator=generator) if fading else torch.ones(devices)
    sigma2, truth = torch.full((devices,), 0.5), labels(devices)
    assert float(truth.min()) < -0.05  # some devices pull against each other
    scale = torch.full((devices,), SCALE)
    known = error(fit_joint_blmmse(h, sigma2, scale, truth).combine, truth, h, sigma2)
    apart = error(fit_joint_blmmse(h, sigma2, scale, torch.eye(devices)).combine, truth, h, sigma2)
    learned = learn_correlation(receive(truth, h, sigma2, size, 5), h, sigma2)
    found = error(fit_joint_blmmse(h, sigma2, scale, learned).combine, truth, h, sigma2)
    assert apart > 1.15 * known  # there is something to learn,
    assert found < 1.1 * known  # and it is learned,
    assert float(learned.min()) < -0.03  # negative entries included


@pytest.mark.parametrize("devices", [1, 2, 3, 20])
def test_weak_evidence_gives_the_identity_and_costs_nothing(devices: int) -> None:
    """An entry's deviation is 101/sqrt(200) = 7: a correlation of 0.3 is nowhere to be seen."""
    h, sigma2, scale = torch.ones(devices), torch.full((devices,), 100.0), torch.full((devices,), SCALE)
    truth, identity = equal(devices, 0.3), torch.eye(devices).double()
    apart = error(fit_joint_blmmse(h, sigma2, scale, identity).combine, truth, h, sigma2)
    rounds = [learn_correlation(receive(truth, h, sigma2, 200, seed), h, sigma2) for seed in range(40)]
    # Two standard deviations on one number, or an eigenvalue beyond the noise: one round in twenty or so.
    assert sum(bool((r == identity).all()) for r in rounds) >= 32
    errors = [error(fit_joint_blmmse(h, sigma2, scale, r).combine, truth, h, sigma2) for r in rounds]
    assert sum(errors) / 40 < 1.01 * apart
    dead = learn_correlation(receive(truth, h, sigma2, 200, 0), 0 * h, sigma2)
    torch.testing.assert_close(dead, identity)


def test_results_are_correlation_matrices_whatever_comes_in() -> None:
    generator = torch.Generator().manual_seed(9)
    for devices, size in ((1, 5), (2, 1), (3, 50), (12, 30), (40, 2000)):
        h = torch.randn(devices, generator=generator)
        h[0] = 0.0
        sigma2 = torch.rand(devices, generator=generator)
        sigma2[-1] = 0.0
        y = torch.randn(devices, size, generator=generator) * 3
        if devices > 2:
            y[1] = y[2]
        found = learn_correlation(y, h, sigma2)
        torch.testing.assert_close(found.diagonal(), torch.ones(devices).double())
        torch.testing.assert_close(found, found.T)
        assert float(torch.linalg.eigvalsh(found)[0]) > 0
        assert float(found.abs().max()) <= 1


def test_order_of_devices_and_sign_of_gains_do_not_matter() -> None:
    h = torch.tensor([1.0, -0.5, 2.0, 0.8, 0.3])
    sigma2 = torch.tensor([0.1, 0.2, 1.0, 0.5, 0.1])
    y = receive(equal(5, 0.5), h, sigma2, 5000, 4)
    found = learn_correlation(y, h, sigma2)
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(learn_correlation(y[order], h[order], sigma2[order]), found[order][:, order])
    torch.testing.assert_close(learn_correlation(-y, -h, sigma2), found)


def test_pair_sums_are_exact_and_blind_to_threads() -> None:
    for devices, size in ((1, 3), (5, 1025), (13, 4000)):
        y = torch.randn(devices, size, generator=torch.Generator().manual_seed(devices))
        one = pair_sums(y, threads=1)
        torch.testing.assert_close(one, y.double() @ y.double().T, rtol=1e-5, atol=1e-5 * size**0.5)
        for threads in (2, 5):
            assert torch.equal(pair_sums(y, threads=threads), one)
        torch.testing.assert_close(pair_sums(y.double()), y.double() @ y.double().T)
    with plain_form():
        torch.testing.assert_close(pair_sums(y), one, rtol=1e-5, atol=1e-3)


def test_smoothing_one_round_is_learning_it() -> None:
    h, sigma2 = torch.tensor([1.0, -0.5, 2.0, 0.8]), torch.tensor([0.1, 0.2, 1.0, 0.5])
    y = receive(equal(4, 0.5), h, sigma2, 3000, 4)
    found, _ = smooth_correlation(initial_correlation(4), y, h, sigma2)
    torch.testing.assert_close(found, learn_correlation(y, h, sigma2), rtol=0, atol=1e-5)


def test_smoothing_averages_rounds_and_remembers_who_was_heard() -> None:
    """Ten poor rounds of changing subsets are worth one with all their coordinates."""
    population, heard, size = 30, 20, 3000
    truth = labels(population)
    sigma2 = torch.full((heard,), 3.0)
    h = torch.ones(heard)
    state = initial_correlation(population)
    scale = torch.full((heard,), SCALE)
    before = state
    for t in range(15):
        who = torch.randperm(population, generator=torch.Generator().manual_seed(t))[:heard]
        part = truth[who][:, who]
        y = receive(part, h, sigma2, size, 100 + t)
        smooth, state = smooth_correlation(state, y, h, sigma2, who, drift=0.0)
    single = learn_correlation(y, h, sigma2)
    errors = [
        error(fit_joint_blmmse(h, sigma2, scale, r).combine, part, h, sigma2) for r in (part, smooth, single)
    ]
    assert errors[1] < 0.4 * errors[0] + 0.6 * errors[2]  # most of the way from one round to the truth
    assert float(before.evidence.abs().max()) == 0  # the state that went in is left alone
    off = ~torch.eye(population, dtype=torch.bool)
    assert float((state.bits - state.bits.T).abs().max()) == 0
    assert bool((state.evidence[off] > 0).all())


def test_forgetting() -> None:
    """With infinite drift only the last round counts; with some, a correlation that flips is followed."""
    h, sigma2 = torch.ones(6), torch.full((6,), 0.1)
    first, second = (receive(equal(6, value), h, sigma2, 4000, 7) for value in (0.8, -0.1))
    _, state = smooth_correlation(initial_correlation(6), first, h, sigma2)
    last, _ = smooth_correlation(state, second, h, sigma2, drift=math.inf)
    torch.testing.assert_close(last, learn_correlation(second, h, sigma2), rtol=0, atol=1e-5)
    never, _ = smooth_correlation(state, second, h, sigma2, drift=0.0)
    followed, _ = smooth_correlation(state, second, h, sigma2)
    assert float(never[0, 1]) == pytest.approx(math.sin(math.pi / 4 * (0.5903 - 0.0638)), abs=0.05)
    assert float(followed[0, 1]) == pytest.approx(-0.1, abs=0.15)


def test_low_rank_learns_what_dense_learns() -> None:
    devices, size = 150, 6000
    generator = torch.Generator().manual_seed(3)
    h, sigma2 = torch.randn(devices, generator=generator), torch.full((devices,), 0.5)
    truth, scale = labels(devices), torch.full((devices,), SCALE)
    y = receive(truth, h, sigma2, size, 6)
    known = error(fit_joint_blmmse(h, sigma2, scale, truth).combine, truth, h, sigma2)
    apart = error(fit_joint_blmmse(h, sigma2, scale, torch.eye(devices)).combine, truth, h, sigma2)
    low = learn_low_rank(y, h, sigma2, rank=12)
    assert isinstance(low, LowRank)
    assert float(torch.linalg.eigvalsh(low.dense())[0]) > 0
    found = error(fit_joint_blmmse(h, sigma2, scale, low).combine, truth, h, sigma2)
    assert found - known < 0.25 * (apart - known)
    noise = torch.randn(devices, 300, generator=generator)
    assert learn_low_rank(noise, h, 100 * sigma2).vectors.shape[1] == 0  # nothing to see: the identity


def test_bad_input_is_named() -> None:
    one, y = torch.ones(3), torch.ones(3, 4)
    with pytest.raises(ValueError, match="y must be finite"):
        learn_correlation(y * float("nan"), one, one)
    with pytest.raises(ValueError, match="h must have shape"):
        learn_correlation(y, torch.ones(2), one)
    with pytest.raises(ValueError, match="for 2001 use learn_low_rank"):
        learn_correlation(torch.ones(2001, 1), torch.ones(2001), torch.ones(2001))
    with pytest.raises(ValueError, match="devices must be 3 distinct numbers below 5"):
        smooth_correlation(initial_correlation(5), y, one, one, torch.tensor([1, 1, 2]))
    with pytest.raises(ValueError, match="devices must be 3 distinct numbers below 2"):
        smooth_correlation(initial_correlation(2), y, one, one)
    with pytest.raises(ValueError, match="drift must be non-negative"):
        smooth_correlation(initial_correlation(3), y, one, one, drift=-1.0)
    with pytest.raises(ValueError, match="population must be at least 1"):
        initial_correlation(0)
    with pytest.raises(ValueError, match="rank must be at least 1"):
        learn_low_rank(y, one, one, rank=0)


@pytest.mark.parametrize("devices", [3, 20])
def test_compiled_sweeps_are_those_of_numpy(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(devices)
    loadings = rng.standard_normal((devices, 2))
    bits = np.tanh(0.3 * loadings @ loadings.T)
    np.fill_diagonal(bits, 0.0)
    precision = rng.uniform(5, 200, devices)
    compiled = correlation.shrink_bits(bits, precision)
    assert np.abs(compiled).max() > 0.1  # something was found
    monkeypatch.setattr(correlation, "_COMPILED_LIMIT", 0)
    np.testing.assert_allclose(correlation.shrink_bits(bits, precision), compiled, rtol=0, atol=1e-12)
