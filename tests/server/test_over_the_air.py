"""The superposed signal: its posterior mean against enumeration, and the error of what is cheaper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from signfade.server import over_the_air, sbfl, superposed_vote
from signfade.server.superposition import AirMethod


def enumerated(y: np.ndarray, a: np.ndarray, value: np.ndarray, sigma2: float) -> np.ndarray:
    """`E[sum value*s | y]` from the definition, all 2^K patterns."""
    patterns = np.array(list(itertools.product((-1.0, 1.0), repeat=len(a))))
    exponent = -((y[:, None] - patterns @ a) ** 2) / (2 * sigma2)
    likelihood = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return likelihood @ (patterns @ value) / likelihood.sum(axis=1)


def by_fourier(y: np.ndarray, a: np.ndarray, value: np.ndarray, sigma2: float) -> np.ndarray:
    """The same for any K: densities from characteristic functions, `prod cos(a_k w) exp(-sigma2 w^2/2)`."""
    reach = a.sum() + 10 * np.sqrt(sigma2)
    w = np.pi / reach * np.arange(-int(3 * reach / np.sqrt(sigma2)) - 8, int(3 * reach / np.sqrt(sigma2)) + 9)
    cosines, sines = np.cos(np.outer(w, a)), np.sin(np.outer(w, a))
    tilt = np.exp(-sigma2 * w**2 / 2)
    others = [np.delete(cosines, k, axis=1).prod(axis=1) for k in range(len(a))]
    top = sum(value[k] * sines[:, k] * others[k] for k in range(len(a)))
    wave = np.exp(-1j * np.outer(y, w))
    return (wave @ (1j * tilt * top)).real / (wave @ (tilt * cosines.prod(axis=1))).real


def scene(devices: int, snr: float, seed: int = 0, count: int = 400) -> tuple[np.ndarray, ...]:
    """Signals, amplitudes, values, noise variance and true sums of devices heard very differently."""
    rng = np.random.default_rng(seed)
    a, value = np.exp(rng.normal(size=devices)), rng.uniform(0.1, 2.0, devices)
    sigma2 = float((a**2).mean() / snr)
    signs = np.where(rng.random((devices, count)) < 0.5, -1.0, 1.0)
    y = a @ signs + np.sqrt(sigma2) * rng.normal(size=count)
    return y, a, value, np.array(sigma2), value @ signs


def read(
    y: np.ndarray, a: np.ndarray, value: np.ndarray, sigma2: np.ndarray, method: AirMethod
) -> np.ndarray:
    zero = torch.zeros(len(a), dtype=torch.float64)
    tensors = (torch.from_numpy(y), torch.from_numpy(a))
    return over_the_air(*tensors, float(sigma2), zero, torch.from_numpy(value), method=method).numpy()


@pytest.mark.parametrize("devices", range(1, 11))
@pytest.mark.parametrize("snr", [0.03, 1.0, 30.0, 3000.0])
def test_exact_is_enumeration(devices: int, snr: float) -> None:
    y, a, value, sigma2, _ = scene(devices, snr, seed=devices)
    np.testing.assert_allclose(
        read(y, a, value, sigma2, "exact"), enumerated(y, a, value, float(sigma2)), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("devices", [1, 2, 7, 10])
def test_devices_heard_alike_are_only_counted(devices: int) -> None:
    """Equal amplitudes, unequal values, some devices silent: still enumeration."""
    rng = np.random.default_rng(devices)
    a = np.where(np.arange(devices) % 3 == 2, 0.0, 1.3)
    value, y = rng.uniform(0, 1, devices), rng.normal(size=200) * 3
    expected = enumerated(y, a, value, 0.4)
    for method in ("exact", "auto"):
        np.testing.assert_allclose(read(y, a, value, np.array(0.4), method), expected, rtol=0, atol=1e-8)


def test_many_devices_heard_alike() -> None:
    """Far in the tail and in the middle, against the density of a binomial sum."""
    a, value = np.full(150, 0.25), np.linspace(0, 1, 150)
    y = np.array([0.0, 3.0, -12.0, 60.0])
    np.testing.assert_allclose(
        read(y[:3], a, value, np.array(0.5), "exact"), by_fourier(y[:3], a, value, 0.5), rtol=1e-6, atol=1e-8
    )
    assert np.isfinite(read(y, a, value, np.array(0.5), "exact")).all()


@pytest.mark.parametrize("devices", [12, 20, 40])
@pytest.mark.parametrize("snr", [0.1, 1.0, 10.0])
def test_counting_the_strongest_is_all_but_exact(devices: int, snr: float) -> None:
    """Errors against the true sums, over its energy: at most a thousandth above the least possible."""
    y, a, value, sigma2, truth = scene(devices, snr, seed=3, count=3000)
    best = by_fourier(y, a, value, float(sigma2))
    energy = (value**2).sum()
    # The distance to the posterior mean is what an estimate loses, without the noise of the truth itself.
    assert ((read(y, a, value, sigma2, "auto") - best) ** 2).mean() / energy < 1e-3
    assert ((best - truth) ** 2).mean() / energy < 1


def test_taken_as_normal_it_is_the_best_linear_rule() -> None:
    y, a, value, sigma2, truth = scene(6, 300.0, count=20_000)
    linear = read(y, a, value, sigma2, "gaussian")
    np.testing.assert_allclose(linear, y * (value * a).sum() / ((a**2).sum() + float(sigma2)))
    fitted = (y @ truth) / (y @ y)
    assert linear[0] / y[0] == pytest.approx(fitted, rel=0.05)
    exact = read(y, a, value, sigma2, "exact")
    assert ((exact - truth) ** 2).mean() < 0.9 * ((linear - truth) ** 2).mean()


def test_one_device_is_sbfl() -> None:
    y = torch.linspace(-3, 3, 7)
    h, sigma2, mean, scale, weight = (torch.tensor([v]) for v in (1.5, 0.8, 0.2, 0.7, 3.0))
    alone = over_the_air(y, h, 0.8, mean, scale, weight)
    assert torch.allclose(alone, sbfl(y[None], h, sigma2, mean, scale, weight), atol=1e-6)


def test_means_weights_and_silence() -> None:
    """A silent device adds its mean; a weight multiplies mean and scale."""
    y = torch.tensor([0.3, -2.0], dtype=torch.float64)
    a, mean, scale, weights = (
        torch.tensor(v, dtype=torch.float64) for v in ([1.0, 0.0], [0.1, 5.0], [1.0, 9.0], [2.0, 3.0])
    )
    expected = 2 * 0.1 + 3 * 5.0 + 2 * torch.tanh(y / 0.5)
    assert torch.allclose(over_the_air(y, a, 0.5, mean, scale, weights), expected)
    none = over_the_air(y, 0 * a, 0.5, mean, scale, weights)
    assert torch.allclose(none, torch.full((2,), 15.2, dtype=torch.float64))


def test_the_vote_of_the_air() -> None:
    assert superposed_vote(torch.tensor([-0.1, 0.0, 4.0])).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.ones(2, 3)}, r"y must be float32 or float64 of shape \[M\]"),
        ({"amplitude": torch.tensor([1.0, -1.0])}, "amplitude must be non-negative"),
        ({"scale": torch.ones(3)}, r"scale must have shape \[2\]; got \[3\]"),
        ({"sigma2": 0.0}, "sigma2 must be positive and finite; got 0.0"),
        ({"method": "saddle"}, "method must be one of 'auto', 'exact', 'gaussian'"),
        ({"y": torch.tensor([float("nan")])}, "y must be finite"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    one = torch.ones(2)
    given = {"y": one, "amplitude": one, "sigma2": 1.0, "mean": one, "scale": one} | change
    with pytest.raises(ValueError, match=message):
        over_the_air(**given)  # type: ignore[arg-type]


def test_too_many_patterns_to_count_are_refused() -> None:
    many = torch.linspace(1, 2, 17)
    with pytest.raises(ValueError, match="method must be 'auto' or 'gaussian' for so many patterns"):
        over_the_air(torch.ones(1), many, 1.0, many, many, method="exact")
