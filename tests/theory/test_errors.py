"""Errors of the rules: the known numbers, Monte Carlo, the order among them, and what the paper prints."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from signfade.theory import (
    bit_error,
    kappa_of,
    moments,
    mse,
    mse_faded,
    nmse,
    printed_mse,
    rho,
)
from signfade.theory.rules import soft_bit

DECIBELS = np.array([-20, -10, 0, 10, 20, 40.0])
SNR = 10 ** (DECIBELS / 10)
FAMILIES = ("gaussian", "laplacian")
RULES = [
    ("sbfl", "corrected"),
    ("sbfl", "published"),
    ("blmmse", "corrected"),
    ("blmmse", "published"),
    ("high_snr", "corrected"),
    ("hard", "corrected"),
    ("zero_forcing", "corrected"),
]


def test_the_known_numbers_at_0_db() -> None:
    assert mse("sbfl", 1.0) == pytest.approx(0.64960, abs=5e-6)
    assert mse("sbfl", 1.0, form="published") == pytest.approx(0.67053, abs=5e-6)
    assert mse("blmmse", 1.0) == pytest.approx(0.68169, abs=5e-6)
    assert mse("blmmse", 1.0, form="published") == pytest.approx(0.69738, abs=5e-6)
    # 1 + c - 2*c*(1 - 2*Q(1)) with c = 2/pi and Q(1) = 0.158655254 is 0.76739.
    assert mse("high_snr", 1.0) == pytest.approx(0.76739, abs=5e-6)
    assert mse("hard", 1.0) == pytest.approx(0.70329, abs=5e-6)
    assert mse("zero_forcing", 1.0) == pytest.approx(1.0, rel=1e-15)
    assert mse("ideal", 1.0) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_forms(family: str) -> None:
    snr, std = np.logspace(-6, 6, 61), 1.7
    kappa2 = {"gaussian": 2 / np.pi, "laplacian": 1 / 2}[family] * std**2
    right = 1 - 2 * bit_error(snr)
    expected = {
        "sbfl": std**2 - kappa2 * rho(snr),
        "blmmse": std**2 - kappa2 * snr / (1 + snr),
        "high_snr": std**2 + kappa2 - 2 * kappa2 * right,
        "hard": std**2 - kappa2 * right**2,
        "zero_forcing": std**2 - kappa2 + kappa2 / snr,
    }
    for rule, error in expected.items():
        np.testing.assert_allclose(mse(rule, snr, std, family=family), error, rtol=1e-13, err_msg=rule)


def test_laplacian_in_its_own_scale() -> None:
    scale = 0.3
    std = np.sqrt(2) * scale
    assert kappa_of(std, "laplacian") == pytest.approx(scale)
    assert mse("sbfl", 2.0, std, family="laplacian") == pytest.approx(scale**2 * (2 - rho(2.0)))


@pytest.mark.parametrize("family", FAMILIES)
def test_corrected_sbfl_is_the_minimum(family: str) -> None:
    snr = 10 ** (np.arange(-20, 41, 1.0) / 10)
    least = mse("sbfl", snr, family=family)
    slack = 1e-14  # at high SNR several rules agree to the last bit
    for rule, form in RULES:
        for stretch in np.arange(0.0, 2.01, 0.05):
            scale = stretch * kappa_of(1.0, family)
            other = mse(rule, snr, family=family, form=form, scale=scale)
            assert (other >= least - slack).all(), (rule, form, stretch)
    strictly = snr[snr <= 10]
    for rule, form in RULES[1:]:
        assert (
            mse(rule, strictly, family=family, form=form) > mse("sbfl", strictly, family=family) + 1e-8
        ).all()


def test_the_best_scale_of_the_corrected_rules_is_the_true_one() -> None:
    for rule in ("sbfl", "blmmse", "hard"):
        signal, power = moments(rule, SNR)
        np.testing.assert_allclose(
            signal, power, rtol=1e-13
        )  # the minimum over the scale is at kappa*E[sf]/E[f**2]
    for rule, form in (("sbfl", "published"), ("blmmse", "published"), ("high_snr", "corrected")):
        signal, power = moments(rule, 1.0, form)
        assert abs(signal / power - 1) > 0.02


def test_theorem_1_as_printed_is_not_the_error_of_the_printed_rule() -> None:
    snr = 10 ** (np.arange(-20, 11, 1.0) / 10)
    printed = printed_mse("theorem_1", snr)
    assert (printed < mse("sbfl", snr) - 1e-4).all()  # below the minimum: no estimator has it
    assert (printed < mse("sbfl", snr, form="published") - 1e-4).all()
    signal, power = moments("sbfl", snr, "published")
    assert (signal < power).all()  # a conditional mean would have E[s*f] = E[f**2]


def test_corollary_2_is_a_lower_bound() -> None:
    snr = np.logspace(-6, 2, 81)
    printed = printed_mse("corollary_2", snr, std=1.5)
    assert (printed <= mse("sbfl", snr, std=1.5) * (1 + 1e-15)).all()
    assert printed[0] < 0.4 * mse("sbfl", snr, std=1.5)[0]
    assert mse("high_snr", np.inf) == pytest.approx(printed_mse("corollary_2", np.inf), rel=1e-15)
    low = snr < 10
    assert (mse("high_snr", snr[low]) > 1.001 * printed_mse("corollary_2", snr[low])).all()


def test_closed_form_upper_bound() -> None:
    snr = np.logspace(-6, 6, 121)
    assert (mse("hard", snr) >= mse("sbfl", snr)).all()
    np.testing.assert_allclose(mse("hard", snr)[-10:], mse("sbfl", snr)[-10:], rtol=1e-15)


def test_corollary_3_as_printed_is_below_the_minimum() -> None:
    snr = 10 ** (np.arange(-50, 61, 1.0) / 10)
    assert (printed_mse("corollary_3", snr) < mse("sbfl", snr)).all()
    assert printed_mse("corollary_3", 1e6) < 1e-5 < mse("sbfl", 1e6)
    # Nor is it the error of the printed rule, nor does it agree with the limit printed below it.
    assert (printed_mse("corollary_3", snr) < mse("blmmse", snr, form="published")).all()
    assert printed_mse("corollary_3_limit", np.inf) - printed_mse("corollary_3", np.inf) > 0.36
    assert mse("zero_forcing", np.inf) == pytest.approx(printed_mse("corollary_3_limit", np.inf))


def test_a_two_valued_prior_keeps_its_digits_at_high_snr() -> None:
    snr = np.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(mse("sbfl", snr, 2.0, mean_abs=2.0), 4 * soft_bit(snr).power_lack, rtol=1e-14)
    np.testing.assert_allclose(mse("blmmse", 1e12, mean_abs=1.0), 1 / (1 + 1e12), rtol=1e-14)


def test_a_scale_far_too_large_keeps_its_digits_at_low_snr() -> None:
    expected = 1 + (1e18 - 2e9 * kappa_of(1.0)) * 1e-6 / (1 + 1e-6)
    assert mse("blmmse", 1e-6, scale=1e9) == pytest.approx(expected, rel=1e-14)


def test_mean_abs_overrules_the_family() -> None:
    for family in FAMILIES:
        assert mse("sbfl", 3.0, 1.0, family=family, mean_abs=0.5) == pytest.approx(1 - 0.25 * rho(3.0))
    # float32 rounding may put E|g| a hair above the standard deviation
    assert mse("sbfl", np.inf, 1.0, mean_abs=1 + 1e-7) == 0
    with pytest.raises(ValueError, match="mean_abs must not exceed std"):
        mse("sbfl", 1.0, 1.0, mean_abs=1.1)


def test_scale_zero_leaves_the_variance() -> None:
    for rule, form in RULES:
        assert mse(rule, 0.0, 3.0, form=form, scale=0.0) == 9.0


def test_shapes_broadcast() -> None:
    snr, std = np.logspace(-1, 1, 4)[:, None], np.array([1.0, 2.0, 3.0])
    for rule in ("sbfl", "zero_forcing", "ideal"):
        assert mse(rule, snr, std).shape == (4, 3)
        assert mse_faded(rule, snr, std, fading="rayleigh").shape == (4, 3)
    np.testing.assert_allclose(mse("sbfl", snr, std)[2, 1], mse("sbfl", snr[2, 0], 2.0), rtol=1e-15)
    np.testing.assert_array_equal(
        mse("sbfl", torch.ones(3), torch.tensor([1.0, 2.0, 3.0])), mse("sbfl", np.ones(3), std)
    )
    assert isinstance(mse("ideal", 1.0), float)


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician"])
def test_faded_errors_are_averages_over_the_gain(fading: str) -> None:
    rng = np.random.default_rng(7)
    size = 5_000
    scattered = rng.normal(size=(2, size)) / np.sqrt(2)
    power = {
        "gaussian": rng.normal(size=size) ** 2,
        "rayleigh": (scattered**2).sum(axis=0),
        "rician": ((scattered[0] + np.sqrt(4.0)) ** 2 + scattered[1] ** 2) / 5,
    }[fading]
    for rule, form in RULES:
        if rule == "zero_forcing":
            continue
        for mean_snr in (0.1, 1.0, 100.0):
            sample = mse(rule, mean_snr * power, form=form)
            predicted = mse_faded(rule, mean_snr, fading=fading, form=form)
            assert abs(sample.mean() - predicted) < 4.5 * sample.std() / np.sqrt(size), (rule, form, mean_snr)


def test_zero_forcing_diverges_over_fading() -> None:
    for fading in ("gaussian", "rayleigh", "rician"):
        assert mse_faded("zero_forcing", 1e6, fading=fading) == np.inf
        assert mse_faded("zero_forcing", np.inf, fading=fading) == pytest.approx(1 - 2 / np.pi)
    assert mse_faded("zero_forcing", 2.0, fading="none") == mse("zero_forcing", 2.0)
    # The mean over gains above a floor grows like 1/floor for Gaussian h.
    h = np.logspace(-9, 1, 200_001)
    density = np.sqrt(2 / np.pi) * np.exp(-(h**2) / 2) * mse("zero_forcing", h**2)
    above = [np.trapezoid(density[h >= floor], h[h >= floor]) for floor in (1e-2, 1e-4, 1e-6)]
    assert above[1] / above[0] == pytest.approx(100, rel=0.05)
    assert above[2] / above[1] == pytest.approx(100, rel=0.05)


def test_fading_is_reachable_from_mse() -> None:
    for fading in ("gaussian", "rician", "none"):
        assert mse("sbfl", 3.0, fading=fading, rician_k=2.0) == mse_faded(
            "sbfl", 3.0, fading=fading, rician_k=2.0
        )
    assert mse("blmmse", 3.0, fading="none", form="published") == mse("blmmse", 3.0, form="published")


def test_gaussian_fading_closed_form_of_high_snr() -> None:
    mean_snr = np.logspace(-6, 6, 25)
    c = 2 / np.pi
    expected = 1 + c - 2 * c * (2 / np.pi) * np.arctan(np.sqrt(mean_snr))
    np.testing.assert_allclose(mse_faded("high_snr", mean_snr), expected, rtol=1e-13)


def test_nmse_of_the_sum() -> None:
    snr, std, weights = np.array([0.5, 2.0, 30.0]), np.array([1.0, 0.2, 3.0]), np.array([0.2, 0.5, 0.3])
    errors = mse("sbfl", snr, std)
    expected = (weights**2 * errors).sum() / (weights**2 * std**2).sum()
    assert nmse("sbfl", snr, std, weights) == pytest.approx(expected, rel=1e-14)
    assert nmse("ideal", snr, std) == 0
    assert nmse("sbfl", [1.0] * 5) == pytest.approx(mse("sbfl", 1.0))


def test_a_device_without_weight_does_not_count_however_bad_its_link() -> None:
    for rule in ("sbfl", "zero_forcing"):
        alone = nmse(rule, [2.0], [3.0], [0.5])
        assert nmse(rule, [2.0, 0.0], [3.0, 1.0], [0.5, 0.0]) == pytest.approx(alone, rel=1e-14)
    assert nmse("zero_forcing", [2.0, 0.0]) == np.inf


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mse("bfl", 1.0), "rule must be one of 'sbfl'"),
        (lambda: mse("sbfl", 1.0, family="cauchy"), "family must be one of 'gaussian', 'laplacian'"),
        (lambda: mse("sbfl", 1.0, form="x"), "form must be one of"),
        (lambda: mse("sbfl", 1.0, std=-1.0), "std must be non-negative"),
        (lambda: mse("sbfl", 1.0, std=np.inf), "std must be finite"),
        (lambda: mse("sbfl", 1.0, scale=-1.0), "scale must be non-negative"),
        (lambda: mse("ideal", -1.0), "snr"),
        (lambda: mse_faded("sbfl", -1.0), "mean_snr"),
        (lambda: mse_faded("sbfl", 1.0, fading="x"), "fading"),
        (lambda: printed_mse("theorem_3", 1.0), "which must be one of 'theorem_1'"),
        (lambda: nmse("sbfl", 1.0), r"snr must have shape \[K\]"),
        (lambda: nmse("sbfl", [1.0], 0.0), "no energy"),
        (lambda: nmse("signsgd", [1.0]), "rule must be one of"),
        (lambda: mse("sbfl", [1.0, 2.0], [1.0, 2.0, 3.0]), r"snr, std must .*; got snr \[2\], std \[3\]"),
        (
            lambda: mse_faded("sbfl", [1.0, 2.0], [1.0, 2.0, 3.0]),
            "mean_snr, std must have shapes",
        ),
        (lambda: mse("sbfl", 1.0, [1.0, 2.0], scale=[1.0] * 3), r"std, scale must .*; got std \[2\], scale"),
        (lambda: mse("sbfl", 1.0, [1.0, 2.0], mean_abs=[1.0] * 3), "std, mean_abs must"),
        (lambda: nmse("sbfl", [1.0, 2.0], [1.0, 2.0, 3.0]), r"std must have shape \[2\] or be one number"),
        (lambda: nmse("sbfl", [1.0, 2.0], 1.0, [1.0]), r"weights must have shape \[2\]"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
