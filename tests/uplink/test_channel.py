import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from signfade.keys import generator, stream_keys
from signfade.uplink import Link, draw_fading, error_probability, half_llr, transmit

KS_LIMIT = stats.kstwobign.isf(1e-4)  # exceeded by the distance times sqrt(n) once in ten thousand
SNR_DB = np.arange(-100, 151, 10)


def random_signs(devices: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    bits = torch.randint(0, 2, (devices, size), generator=torch.Generator().manual_seed(4))
    return (2 * bits - 1).to(dtype)


def source(kind: str, devices: int, seed: int = 1) -> torch.Generator | np.ndarray:
    if kind == "generator":
        return torch.Generator().manual_seed(seed)
    return stream_keys(seed, "noise", 0, np.arange(devices))


both_sources = pytest.mark.parametrize("kind", ["generator", "keys"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

# --- fading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rician_k", "law"),
    [
        ("gaussian", 4.0, stats.norm(0, 1)),
        ("rayleigh", 4.0, stats.rayleigh(scale=math.sqrt(0.5))),
        ("rician", 0.0, stats.rayleigh(scale=math.sqrt(0.5))),
        # Direct amplitude sqrt(K/(K+1)), deviation of each scattered component sqrt(1/(2(K+1))).
        ("rician", 1.0, stats.rice(math.sqrt(2), scale=0.5)),
        ("rician", 7.0, stats.rice(math.sqrt(14), scale=0.25)),
    ],
)
def test_fading_follows_its_law_with_unit_power(kind: str, rician_k: float, law: Any) -> None:
    count = 40_000
    h = draw_fading(kind, count, generator(9, "fading"), rician_k=rician_k).numpy()
    assert stats.kstest(h, law.cdf).statistic * math.sqrt(count) < KS_LIMIT
    power = h**2
    assert abs(power.mean() - 1) < 4 * power.std() / math.sqrt(count)
    assert law.moment(2) == pytest.approx(1)


def test_no_fading_and_strong_direct_path() -> None:
    assert draw_fading("none", 3, generator(1, "fading")).tolist() == [1, 1, 1]
    nearly = draw_fading("rician", 1000, generator(1, "fading"), rician_k=1e12)
    assert torch.allclose(nearly, torch.ones(1000, dtype=torch.float64), atol=6e-6)  # 8 deviations of 7e-7


@pytest.mark.parametrize("kind", ["gaussian", "rayleigh", "rician", "none"])
def test_gain_does_not_depend_on_later_devices(kind: str) -> None:
    few, many = (draw_fading(kind, count, generator(1, "fading", round=2)) for count in (4, 40))
    assert torch.equal(few, many[:4])
    assert draw_fading(kind, 0, generator(1, "fading")).shape == (0,)


# --- link ---------------------------------------------------------------------------------------------------


def test_link_snr() -> None:
    link = Link(torch.tensor([3.0, -3.0, 0.0, 1.0, 0.0]), torch.tensor([2.0, 2.0, 1.0, 0.0, 0.0]))
    assert link.snr.tolist() == [4.5, 4.5, 0, math.inf, 0]
    assert link.snr.dtype == torch.float32


def test_link_snr_survives_whole_numbers_and_half_precision() -> None:
    assert Link(torch.tensor([1]), torch.tensor([2])).snr.tolist() == [0.5]
    strong = Link(torch.ones(1, dtype=torch.float16), torch.tensor([1e-6], dtype=torch.float64))
    assert strong.snr.tolist() == [1e6]  # beyond the largest float16
    assert Link(torch.ones(1).double(), torch.ones(1)).snr.dtype == torch.float64
    with pytest.raises(ValueError, match="h must be real"):
        Link(torch.ones(1, dtype=torch.complex64), torch.ones(1))


# --- transmit -----------------------------------------------------------------------------------------------


@both_sources
@both_dtypes
def test_received_symbols_are_signs_in_real_gaussian_noise(kind: str, dtype: torch.dtype) -> None:
    size = 40_000
    signs = random_signs(4, size, dtype)
    h = torch.tensor([1.0, -2.0, 0.3, 0.0], dtype=dtype)
    sigma2 = torch.tensor([1.0, 0.01, 25.0, 4.0], dtype=dtype)
    y = transmit(signs, h, sigma2, source(kind, 4)).y
    assert y.dtype == dtype
    noise = ((y - h[:, None] * signs) / sigma2.sqrt()[:, None]).double().numpy()
    for row in noise:
        # Moments of n standard normals: mean 0 +- 1/sqrt(n), variance 1 +- sqrt(2/n),
        # third moment 0 +- sqrt(15/n), fourth 3 +- sqrt(96/n).
        for power, (value, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
            assert abs(np.mean(row**power) - value) < 4 * math.sqrt(variance / size)
        assert stats.kstest(row, stats.norm.cdf).statistic * math.sqrt(size) < KS_LIMIT
    # Noise independent between devices, and of the signs.
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 4.5 / math.sqrt(size)
    assert np.abs((noise * signs.double().numpy()).mean(axis=1)).max() < 4.5 / math.sqrt(size)


@both_sources
def test_no_noise_no_change(kind: str) -> None:
    signs = random_signs(3, 50)
    h = torch.tensor([1.5, -0.5, 0.0], dtype=torch.float64)
    assert torch.equal(transmit(signs, h, torch.zeros(3), source(kind, 3)).y, h[:, None] * signs)


def test_keyed_noise_does_not_know_the_order_of_devices() -> None:
    signs = random_signs(6, 1000)
    h = torch.linspace(-1, 2, 6, dtype=torch.float64)
    sigma2 = torch.linspace(0.1, 3, 6, dtype=torch.float64)
    keys = stream_keys(3, "noise", 8, np.arange(6))
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    straight = transmit(signs, h, sigma2, keys)
    permuted = transmit(signs[order], h[order], sigma2[order], keys[order.numpy()])
    assert torch.equal(permuted.y, straight.y[order])
    single = transmit(signs[2:3], h[2:3], sigma2[2:3], keys[2:3])
    assert torch.equal(single.y[0], straight.y[2])
    assert torch.equal(transmit(signs, h, sigma2, keys).rows(slice(2, 4)), straight.y[2:4])


@both_sources
def test_same_source_same_noise_and_inputs_untouched(kind: str) -> None:
    signs, h, sigma2 = random_signs(2, 30), torch.tensor([1.0, -1.0]), torch.tensor([0.5, 2.0])
    copies = [x.clone() for x in (signs, h, sigma2)]
    first, again = (transmit(signs, h, sigma2, source(kind, 2, seed=6)).y for _ in range(2))
    other = transmit(signs, h, sigma2, source(kind, 2, seed=7)).y
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    half_llr(first, h, sigma2)
    assert all(torch.equal(a, b) for a, b in zip(copies, (signs, h, sigma2)))


# --- half-LLR -----------------------------------------------------------------------------------------------


def test_half_llr_is_half_the_log_ratio_of_the_densities() -> None:
    h = torch.tensor([1.0, -2.0, 0.3, 0.01, 0.0], dtype=torch.float64)
    sigma2 = torch.tensor([1.0, 0.5, 9.0, 1.0, 2.0], dtype=torch.float64)
    y = torch.linspace(-6, 6, 41, dtype=torch.float64).expand(5, -1)
    sigma = sigma2.sqrt()[:, None].numpy()
    gain = h[:, None].numpy()
    plus, minus = (stats.norm.logpdf(y.numpy(), loc=s * gain, scale=sigma) for s in (1, -1))
    half = half_llr(y, h, sigma2)
    assert np.allclose(half.numpy(), (plus - minus) / 2, rtol=1e-10, atol=1e-13)
    # Bayes' rule with equally likely bits.
    posterior = np.exp(plus) / (np.exp(plus) + np.exp(minus))
    assert np.allclose(torch.sigmoid(2 * half).numpy(), posterior, rtol=1e-10)
    assert np.allclose(torch.tanh(half).numpy(), 2 * posterior - 1, rtol=0, atol=1e-12)


@both_dtypes
def test_half_llr_given_plus_one_has_mean_and_variance_snr(dtype: torch.dtype) -> None:
    size, snr = 40_000, 2.5
    h, sigma2 = torch.tensor([-1.0], dtype=dtype), torch.tensor([1 / snr], dtype=dtype)
    y = transmit(torch.ones(1, size, dtype=dtype), h, sigma2, torch.Generator().manual_seed(3)).y
    half = half_llr(y, h, sigma2).double().numpy()
    assert abs(half.mean() - snr) < 4 * math.sqrt(snr / size)
    assert abs(half.var() - snr) < 4 * snr * math.sqrt(2 / size)


@both_dtypes
def test_finite_and_right_from_minus_100_to_plus_150_db(dtype: torch.dtype) -> None:
    sigma2 = torch.tensor(10.0 ** (-SNR_DB / 10), dtype=dtype)
    h = torch.full_like(sigma2, -1.0)
    signs = random_signs(len(SNR_DB), 200, dtype)
    y = transmit(signs, h, sigma2, torch.Generator().manual_seed(2)).y
    half = half_llr(y, h, sigma2)
    assert half.dtype == dtype
    assert bool(y.isfinite().all())
    assert bool(half.isfinite().all())
    expected = h.double()[:, None] * y.double() / sigma2.double()[:, None]
    # One rounding each for h/sigma2 and the product.
    assert torch.allclose(half.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(torch.tanh(half[-1]), signs[-1])


@both_dtypes
def test_noiseless_and_dead_links(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    h = torch.tensor([0.7, -0.7, 1e-30, tiny, 0.0, 0.0], dtype=dtype)
    sigma2 = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 2.0], dtype=dtype)
    signs = random_signs(6, 20, dtype)
    y = transmit(signs, h, sigma2, torch.Generator().manual_seed(1)).y
    half = half_llr(y, h, sigma2)
    limit = torch.tensor(1e30, dtype=dtype)
    assert torch.equal(half[:4], limit * signs[:4])
    assert torch.equal(half[4:], torch.zeros(2, 20, dtype=dtype))
    assert torch.equal(half_llr(y, h, sigma2, limit=50.0)[:4], 50 * signs[:4])
    # A gain believed to be zero gives no say to whatever arrives.
    assert torch.equal(half_llr(1 + 0 * y, 0 * h, sigma2), 0 * y)


@both_dtypes
def test_overflow_lands_on_the_limit(dtype: torch.dtype) -> None:
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    y = torch.tensor([[largest, -largest, 0.0, 1e-3]], dtype=dtype)
    half = half_llr(y, torch.tensor([-largest], dtype=dtype), torch.tensor([tiny], dtype=dtype))
    assert torch.equal(half, torch.tensor([[-1e30, 1e30, 0.0, -1e30]], dtype=dtype))


def test_flipping_a_channel_changes_nothing() -> None:
    y = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    h, sigma2 = torch.tensor([0.5, 1.0, -2.0]), torch.tensor([1.0, 0.0, 0.1])
    assert torch.equal(half_llr(-y, -h, sigma2), half_llr(y, h, sigma2))


# --- hard decisions -----------------------------------------------------------------------------------------


def test_error_probability_is_the_gaussian_tail() -> None:
    snr = torch.tensor(10.0 ** (np.arange(-60, 29, 4) / 10))
    assert np.allclose(
        error_probability(snr).numpy(), stats.norm.sf(np.sqrt(snr.numpy())), rtol=1e-11, atol=0
    )
    assert error_probability(torch.tensor([0.0, math.inf])).tolist() == [0.5, 0.0]
    assert error_probability(snr.float()).dtype == torch.float32


@both_sources
def test_hard_decisions_err_as_the_formula_says(kind: str) -> None:
    size = 40_000
    h = torch.tensor([1.0, -1.0, 0.2, -3.0, 0.0], dtype=torch.float64)
    sigma2 = torch.tensor([1.0, 0.3, 4.0, 2.0, 1.0], dtype=torch.float64)
    signs = random_signs(5, size)
    p = error_probability(Link(h, sigma2).snr).numpy()
    y = transmit(signs, h, sigma2, source(kind, 5, seed=2)).y
    decided = torch.where(y * torch.where(h < 0, -1.0, 1.0)[:, None] >= 0, 1.0, -1.0)
    error = np.sqrt(p * (1 - p) / size)
    rate = (decided != signs).double().mean(dim=1).numpy()
    assert (np.abs(rate - p) < 4 * error).all()
    # Either sign of the sent bit is decided alike.
    for sent in (1.0, -1.0):
        for k in range(5):
            wrong = (decided[k] != signs[k])[signs[k] == sent].double()
            assert abs(wrong.mean().item() - p[k]) < 4 * math.sqrt(p[k] * (1 - p[k]) / len(wrong))


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [transmit, half_llr])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("h", torch.tensor([1.0, math.nan])),
        ("h", torch.tensor([1.0, math.inf])),
        ("h", torch.ones(3)),
        ("h", torch.ones(2, 1)),
        ("sigma2", torch.tensor([1.0, -0.1])),
        ("sigma2", torch.tensor([1.0, math.nan])),
        ("sigma2", torch.tensor([1.0, math.inf])),
        ("sigma2", torch.ones(1)),
        ("signs", torch.ones(2)),
        ("signs", torch.ones(2, 4, dtype=torch.int64)),
        ("signs", torch.full((2, 4), math.nan)),
    ],
)
def test_bad_input_is_named(rule: Callable[..., object], name: str, value: Tensor) -> None:
    arguments = {"signs": torch.ones(2, 4), "h": torch.ones(2), "sigma2": torch.ones(2), name: value}
    symbols, h, sigma2 = arguments.values()
    named = "y" if name == "signs" and rule is half_llr else name
    noise = () if rule is half_llr else (torch.Generator(),)
    with pytest.raises(ValueError, match=rf"^{named} "):
        rule(symbols, h, sigma2, *noise)


def test_there_is_no_third_sign_and_keys_must_fit() -> None:
    two = torch.ones(2)
    with pytest.raises(ValueError, match="signs"):
        transmit(torch.tensor([[1.0, 0.0], [1.0, -1.0]]), two, two, torch.Generator())
    for keys in (np.arange(3, dtype=np.uint64), np.arange(2), np.zeros((2, 1), dtype=np.uint64)):
        with pytest.raises(ValueError, match="noise"):
            transmit(torch.ones(2, 4), two, two, keys)


def test_other_bad_calls_are_named() -> None:
    two, source_ = torch.ones(2), generator(1, "fading")
    with pytest.raises(ValueError, match=r"kind .*gaussian"):
        draw_fading("nakagami", 2, source_)
    with pytest.raises(ValueError, match="count"):
        draw_fading("gaussian", -1, source_)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="rician_k"):
            draw_fading("rician", 2, source_, rician_k=bad)
    with pytest.raises(ValueError, match="snr"):
        error_probability(torch.tensor([-1.0]))
    for limit in (0.0, 1e31, math.nan):
        with pytest.raises(ValueError, match="limit"):
            half_llr(torch.ones(2, 3), two, two, limit=limit)
    for h, sigma2, name in (
        (two, torch.ones(3), "sigma2"),
        (torch.ones(2, 1), two, "h"),
        (two, -two, "sigma2"),
        (two * math.nan, two, "h"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} "):
            Link(h, sigma2)
