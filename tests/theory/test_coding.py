"""Lost codewords: information integrals against quadrature, outage against the laws of fading."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from signfade.theory.coding import block_error, block_error_faded, information, outage, threshold_snr


@pytest.mark.parametrize("snr", [0.01, 0.3, 1.0, 10.0, 100.0])
def test_information_is_the_integral_it_is_defined_by(snr: float) -> None:
    def moment(power: int) -> float:
        def integrand(z: float) -> float:
            missing = np.logaddexp(0.0, -2 * (snr + np.sqrt(snr) * z)) / np.log(2)
            return float(stats.norm.pdf(z) * missing**power)

        return integrate.quad(integrand, -12, 12, limit=500, epsabs=1e-14, points=[-np.sqrt(snr)])[0]

    capacity, dispersion = information(np.array(snr))
    assert capacity == pytest.approx(1 - moment(1), abs=1e-10)
    assert dispersion == pytest.approx(moment(2) - moment(1) ** 2, abs=1e-10)


def test_information_at_its_ends() -> None:
    """`C = gamma/(2 ln 2)` for little SNR, as without a constraint on the symbols; one bit for much."""
    capacity, dispersion = information(np.array([1e-4, 0.0, np.inf]))
    assert capacity[0] == pytest.approx(1e-4 / (2 * np.log(2)), rel=1e-3)
    assert dispersion[0] == pytest.approx(1e-4 / np.log(2) ** 2, rel=1e-3)
    assert capacity[1:] == pytest.approx([0.0, 1.0], abs=1e-12)
    assert dispersion[1:] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_the_approximation_is_its_formula_and_the_threshold_its_inverse() -> None:
    snr, bits, length = 0.7, 40, 128
    capacity, dispersion = information(np.array(snr))
    distance = (length * capacity - bits + 0.5 * np.log2(length)) / np.sqrt(length * dispersion)
    assert block_error(snr, bits, length) == pytest.approx(stats.norm.sf(distance), rel=1e-9)
    for error in (0.5, 1e-3):
        assert block_error(threshold_snr(bits, length, error), bits, length) == pytest.approx(error, rel=1e-6)
    assert block_error([0.0, np.inf], bits, length).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("x", [1e-3, 0.1, 1.0, 3.0])
def test_outage_is_the_law_of_the_fading(x: float) -> None:
    mean_snr = np.array([5.0, 50.0])
    needed = x * mean_snr
    assert outage(needed, mean_snr, "gaussian") == pytest.approx([stats.chi2.cdf(x, 1)] * 2, rel=1e-12)
    assert outage(needed, mean_snr, "rayleigh") == pytest.approx([stats.expon.cdf(x)] * 2, rel=1e-12)
    for k in (0.0, 4.0):
        scattered = np.sqrt(1 / (2 * (1 + k)))
        expected = stats.rice.cdf(np.sqrt(x), np.sqrt(2 * k), scale=scattered)
        assert outage(needed, mean_snr, "rician", k) == pytest.approx([expected] * 2, rel=1e-9)
    assert outage(needed, mean_snr, "none").tolist() == [float(x > 1)] * 2


def test_outage_at_the_ends() -> None:
    for fading in ("gaussian", "rayleigh", "rician", "none"):
        assert outage(0.0, 10.0, fading) == 0
        assert outage(1.0, [0.0, np.inf], fading).tolist() == [1.0, 0.0]


def test_a_code_that_needs_2_db() -> None:
    """The paper takes its scalars as received: at 10 dB on average three in ten are not."""
    assert outage(10**0.2, 10.0) == pytest.approx(0.309, abs=5e-4)
    assert outage(10**0.2, 100.0) == pytest.approx(0.100, abs=5e-4)


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician"])
@pytest.mark.parametrize(("bits", "length"), [(32, 128), (88, 1024)])
def test_words_lost_over_fading_are_the_average_over_fades(fading: str, bits: int, length: int) -> None:
    """A midpoint sum over 500 quantiles of `h**2`, each equally likely."""
    level = (np.arange(500) + 0.5) / 500
    law = {
        "gaussian": stats.chi2(1),
        "rayleigh": stats.expon(),
        "rician": stats.ncx2(2, 8, scale=1 / 10),
    }[fading]
    fades = law.ppf(level)
    for mean_snr in (3.0, 30.0):
        expected = np.mean(block_error(mean_snr * fades, bits, length))
        assert block_error_faded(mean_snr, bits, length, fading) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_error(1.0, 0, 10), "bits must be at least 1 and at most length; got 0 and 10"),
        (lambda: block_error(1.0, 11, 10), "got 11 and 10"),
        (lambda: block_error(-1.0, 1, 10), "snr must be non-negative"),
        (lambda: threshold_snr(5, 10, 1.0), "error must be between 0 and 1; got 1.0"),
        (lambda: outage(1.0, 1.0, "nakagami"), "fading must be one of"),
        (lambda: outage([1.0, 2.0], [1.0, 2.0, 3.0]), "broadcast"),
    ],
)
def test_nonsense_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
