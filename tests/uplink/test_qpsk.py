"""Two bits a complex symbol are two symbols of the real model."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from signfade.uplink import half_llr
from signfade.uplink.qpsk import qpsk_demodulate, qpsk_modulate

GAINS = torch.tensor([0.6 - 0.8j, -1.3 + 0.2j, 0.05j], dtype=torch.complex128)


def signs(size: int) -> torch.Tensor:
    draw = torch.randint(0, 2, (3, size), generator=torch.Generator().manual_seed(0))
    return 2.0 * draw.double() - 1


def complex_noise(count: int, sigma2: float) -> torch.Tensor:
    parts = torch.randn(3, count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return math.sqrt(sigma2) * torch.view_as_complex(parts)


def test_symbols_have_unit_power() -> None:
    assert torch.allclose(qpsk_modulate(signs(9)).abs(), torch.ones(3, 5, dtype=torch.float64))


@pytest.mark.parametrize("size", [8, 7, 1])
def test_without_noise_the_real_model_receives_the_signs_times_the_gain(size: int) -> None:
    s = signs(size)
    y = qpsk_demodulate(GAINS[:, None] * qpsk_modulate(s), GAINS, size)
    assert torch.allclose(y, GAINS.abs()[:, None] * s)


def test_noise_is_white_with_twice_the_variance_of_one_dimension() -> None:
    """100,000 numbers a device: variances within four standard errors, no correlation between partners."""
    size, sigma2 = 100_000, 0.3
    n = qpsk_demodulate(complex_noise(size // 2, sigma2), GAINS, size)
    error = 4 * math.sqrt(2 / size)
    assert torch.allclose(n.var(dim=1) / (2 * sigma2), torch.ones(3, dtype=torch.float64), atol=error)
    partners = (n[:, 0::2] * n[:, 1::2]).mean(dim=1) / (2 * sigma2)
    assert float(partners.abs().max()) < 4 / math.sqrt(size / 2)


def test_llrs_are_those_of_the_complex_constellation() -> None:
    """Summing over the four points of the symbol leaves the half-LLR of the real model, for both its bits."""
    sigma2 = 0.4
    received = GAINS[:, None] * qpsk_modulate(signs(8)) + complex_noise(4, sigma2)
    points = torch.tensor(list(itertools.product((1.0, -1.0), repeat=2)), dtype=torch.float64)
    sent = GAINS[:, None] * qpsk_modulate(points)[:, 0]  # [K, 4]
    likelihood = (-(received[:, :, None] - sent[:, None]).abs().square() / (2 * sigma2)).exp()
    l_1 = (likelihood[..., :2].sum(-1) / likelihood[..., 2:].sum(-1)).log() / 2
    l_2 = (likelihood[..., 0::2].sum(-1) / likelihood[..., 1::2].sum(-1)).log() / 2
    y = qpsk_demodulate(received, GAINS, 8)
    real = half_llr(y, GAINS.abs(), torch.full((3,), 2 * sigma2, dtype=torch.float64))
    assert torch.allclose(real[:, 0::2], l_1)
    assert torch.allclose(real[:, 1::2], l_2)


def test_a_dead_gain_turns_nothing() -> None:
    y = torch.tensor([[0.3 + 0.1j]])
    assert torch.allclose(
        qpsk_demodulate(y, torch.zeros(1, dtype=torch.complex64), 2),
        math.sqrt(2) * torch.tensor([[0.3, 0.1]]),
    )


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="signs must be float32 or float64"):
        qpsk_modulate(torch.ones(3))
    with pytest.raises(ValueError, match=r"y must have shape \[3, 3\]"):
        qpsk_demodulate(torch.ones(3, 4, dtype=torch.complex64), GAINS, 5)
    with pytest.raises(ValueError, match=r"h must have shape \[3\]"):
        qpsk_demodulate(torch.ones(3, 4, dtype=torch.complex64), GAINS[:2], 8)
