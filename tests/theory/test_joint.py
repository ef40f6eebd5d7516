"""Errors on correlated devices against simulation, and against the theory of independent ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade import theory
from signfade.server import majority_vote
from signfade.settings import Tie

STD = np.array([0.5, 1.0, 2.0, 1.0, 0.7])
H = np.array([1.0, -0.6, 1.5, 0.2, -1.1])
SIGMA2 = np.array([0.5, 0.3, 4.0, 0.2, 0.01])
SNR = H**2 / SIGMA2
ALPHA = np.array([1.0, 0.5, 2.0, 1.5, 1.0])


def correlation(seed: int = 0) -> np.ndarray:
    """A correlation matrix with entries of both signs."""
    mixing = np.random.default_rng(seed).standard_normal((5, 4))
    covariance = mixing @ mixing.T + 0.3 * np.eye(5)
    scale = 1 / np.sqrt(np.diag(covariance))
    return covariance * scale[:, None] * scale[None, :]


def draw(r: np.ndarray, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = STD[:, None] * (np.linalg.cholesky(r) @ rng.standard_normal((5, samples)))
    signs = np.where(g < 0, -1.0, 1.0)
    return g, H[:, None] * signs + np.sqrt(SIGMA2)[:, None] * rng.standard_normal((5, samples))


def check(found: theory.JointMoments, g: np.ndarray, estimate: np.ndarray) -> None:
    """Each moment within four and a half standard errors of its sample mean."""
    truth = ALPHA @ g
    linear = np.linalg.lstsq(g.T, estimate, rcond=None)[0] @ g
    for expected, sample in zip(found, (truth**2, truth * estimate, estimate**2, linear**2), strict=True):
        error = sample.std() / math.sqrt(len(sample))
        assert abs(sample.mean() - expected) < 4.5 * error


@pytest.mark.parametrize(
    ("rule", "form"),
    [
        ("sbfl", "corrected"),
        ("sbfl", "published"),
        ("blmmse", "corrected"),
        ("blmmse", "published"),
        ("high_snr", "corrected"),
        ("zero_forcing", "corrected"),
    ],
)
def test_moments_of_elementwise_rules_are_those_of_a_simulation(rule: str, form: str) -> None:
    r = correlation()
    assert r.min() < -0.2
    g, y = draw(r, 200_000, seed=1)
    h, s2 = H[:, None], SIGMA2[:, None]
    f = {
        ("sbfl", "corrected"): np.tanh(h * y / s2),
        ("sbfl", "published"): np.tanh(2 * h * y / s2),
        ("blmmse", "corrected"): h * y / (h**2 + s2),
        ("blmmse", "published"): h * y / ((2 / np.pi) * h**2 + s2),
        ("high_snr", "corrected"): np.sign(y / h),
        ("zero_forcing", "corrected"): y / h,
    }[rule, form]
    scale = np.array([0.3, 0.9, 1.6, 0.8, 0.5])  # not the Gaussian's: quantised, say
    found = theory.joint_moments(rule, SNR, STD, r, weights=ALPHA, scale=scale, form=form)  # type: ignore[arg-type]
    check(found, g, (ALPHA * scale) @ f)


def test_moments_of_a_linear_rule_are_those_of_a_simulation() -> None:
    r = correlation(2)
    g, y = draw(r, 200_000, seed=3)
    combine = np.array([0.2, -0.5, 0.1, 1.0, -0.7])
    found = theory.given_moments(H, H**2 + SIGMA2, STD, r, weights=ALPHA, combine=combine)
    check(found, g, combine @ y)


def test_any_weights_may_stand_before_a_rules_numbers() -> None:
    r = correlation(2)
    g, y = draw(r, 200_000, seed=5)
    combine = np.array([0.2, -0.5, 0.1, 1.0, -0.7])
    soft = theory.given_moments(*theory.moments("sbfl", SNR), STD, r, weights=ALPHA, combine=combine)
    check(soft, g, combine @ np.tanh(H[:, None] * y / SIGMA2[:, None]))


TIES: tuple[Tie, ...] = ("zero", "plus", "random")


@pytest.mark.parametrize("devices", [1, 4, 7, 40])
def test_independent_devices_are_a_special_case(devices: int) -> None:
    rng = np.random.default_rng(devices)
    snr, std, alpha = rng.exponential(size=(3, devices))
    for rule in ("sbfl", "blmmse", "high_snr"):
        joint = theory.joint_moments(rule, snr, std, np.eye(devices), weights=alpha)  # type: ignore[arg-type]
        expected = (alpha**2 * theory.mse(rule, snr, std)).sum() / (alpha**2 * std**2).sum()  # type: ignore[arg-type]
        assert joint.nmse() == pytest.approx(expected, rel=1e-12)
    if devices == 40:
        for tie in TIES:
            vote = theory.vote_moments(snr, std, np.eye(devices), weights=alpha, tie=tie)
            cosine = math.sqrt(1 - theory.vote_nmse(snr, std, alpha, tie=tie))
            assert math.sqrt(1 - vote.best_scaled_nmse()) == pytest.approx(cosine, rel=0.01)
            assert 1 - vote.power == pytest.approx(
                theory.tie_probability(devices) if tie == "zero" else 0, rel=0.01
            )


@pytest.mark.parametrize("tie", ["zero", "plus"])
@pytest.mark.parametrize("common", [0.0, 0.1, 0.5, 0.9])
def test_the_vote_on_correlated_devices_is_close(common: float, tie: Tie) -> None:
    """The cosine of vote and sum, within one percent at twenty devices however much they agree."""
    devices, samples = 20, 100_000
    rng = np.random.default_rng(5)
    snr = rng.exponential(size=devices) * 3
    g = math.sqrt(common) * rng.standard_normal(samples) + math.sqrt(1 - common) * rng.standard_normal(
        (devices, samples)
    )
    y = np.sqrt(snr)[:, None] * np.where(g < 0, -1.0, 1.0) + rng.standard_normal((devices, samples))
    vote = majority_vote(torch.from_numpy(y), torch.ones(devices), tie).numpy()
    measured = (vote * g.sum(axis=0)).mean() / math.sqrt((g.sum(axis=0) ** 2).mean() * (vote**2).mean())
    r = common + (1 - common) * np.eye(devices)
    found = theory.vote_moments(snr, np.ones(devices), r, tie=tie)
    assert found.product / math.sqrt(found.energy * found.power) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("shared", [3, 7, 20])
def test_the_vote_on_devices_that_share_few_directions_is_not_far(shared: int) -> None:
    devices, samples = 21, 60_000
    rng = np.random.default_rng(shared)
    mix = np.hstack([rng.standard_normal((devices, shared)), 0.5 * np.eye(devices)])
    g = mix @ rng.standard_normal((shared + devices, samples))
    vote = np.where(np.sign(g).sum(axis=0) < 0, -1.0, 1.0)
    measured = (vote * g.sum(axis=0)).mean() / math.sqrt((g.sum(axis=0) ** 2).mean())
    std = np.sqrt((mix**2).sum(axis=1))
    found = theory.vote_moments(np.full(devices, 1e9), std, mix @ mix.T / np.outer(std, std))
    # One standard error of the measured cosine is 0.004 at most.
    assert found.product / math.sqrt(found.energy) == pytest.approx(measured, rel=0.05, abs=0.012)


def test_a_factor_and_the_best_factor() -> None:
    moments = theory.JointMoments(energy=4.0, product=3.0, power=9.0)
    assert moments.nmse() == pytest.approx((4 - 6 + 9) / 4)
    best = 3.0 / 9.0
    assert moments.nmse(best) == pytest.approx(moments.best_scaled_nmse())
    assert moments.nmse(best) < min(moments.nmse(1.01 * best), moments.nmse(0.99 * best))


def test_a_padded_rotation_cuts_what_the_gradients_do_not_share() -> None:
    moments = theory.JointMoments(energy=4.0, product=3.0, power=9.0, aligned=2.5)
    assert moments.cut(1.0) == moments
    assert moments.cut(0.9) == theory.JointMoments(4.0, 3.0, pytest.approx(2.5 + 0.9 * 6.5), 2.5)
    # Zero forcing at infinite SNR returns the signs: of their power 2/pi is aligned, the rest is cut.
    signs = theory.joint_moments("zero_forcing", [math.inf], [1.0], [[1.0]], scale=[1.0])
    assert (signs.power, signs.aligned) == (pytest.approx(1.0), pytest.approx(2 / math.pi))


def test_devices_that_cancel_leave_nothing_to_estimate() -> None:
    opposite = [[1.0, -1.0], [-1.0, 1.0]]
    found = theory.joint_moments("sbfl", [1.0, 1.0], [1.0, 1.0], opposite)
    assert found.energy == 0
    assert math.isnan(found.nmse())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correlation": np.eye(3)}, "correlation must be"),
        ({"correlation": 2 * np.eye(5)}, "correlation must be"),
        ({"weights": [1.0]}, "weights must have shape"),
        ({"snr": [1.0, 2.0]}, "snr and sigma2 must have shape"),
        ({"std": -STD}, "std must be non-negative"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.joint_moments("sbfl", **{"snr": SNR, "std": STD, "correlation": np.eye(5), **change})  # type: ignore[arg-type]
