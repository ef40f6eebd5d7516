"""Means in units of decoded scales: no range to know, no gradient too small, none too uniform."""

from __future__ import annotations

import pytest
import torch

from signfade.device import LogQuantizer, ScalarCode, UniformQuantizer
from signfade.learn.encode import Encoder
from signfade.settings import MethodSettings


def code(bits: int = 4, kept: float = 1.0) -> ScalarCode:
    return ScalarCode(UniformQuantizer(bits, 1.0), LogQuantizer(bits, 1e-6, 1.0), kept)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kept", [1.0, 0.2])
def test_the_mean_is_off_by_half_a_step_of_the_decoded_scale(bits: int, kept: float) -> None:
    draw = torch.Generator().manual_seed(bits)
    scale = 10 ** (-5.5 * torch.rand(1000, generator=draw, dtype=torch.float64))
    quantised = LogQuantizer(bits, 1e-6, 1.0)
    unit = quantised.decode(quantised.encode(scale), torch.float64) / kept
    mean = (2 * torch.rand(1000, generator=draw, dtype=torch.float64) - 1) * unit
    found, decoded = code(bits, kept).decode(*code(bits, kept).encode(mean, scale))
    assert torch.equal(decoded, (unit * kept).float())
    error = (found - mean).abs() / decoded
    half = code(bits, kept).mean_step / 2
    assert 0.9 * half < float(error.max()) <= half * (1 + 1e-5)


def test_a_code_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="codes must lie in"):
        code().decode(torch.tensor([15]), torch.tensor([0]))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("value", [0.7, -3e-4])
@pytest.mark.parametrize("flip", [0.0, 0.3])
def test_a_layer_of_one_weight_arrives(bits: int, value: float, flip: float) -> None:
    """It has a mean and no deviation: mean and bit together tell it as well as a scale is told."""
    encoder = Encoder(MethodSettings(side_bits=bits, flip=flip), (1,))
    keys = {"keys": lambda purpose: torch.arange(1).numpy().astype("uint64")} if flip else {}
    sent = encoder.encode(torch.tensor([[value]]), **keys)
    told = sent.mean + torch.sign(torch.tensor(value)) * sent.scale / (1 - 2 * flip)
    ratio = float(told) / value
    bound = encoder.scalar_code.scales.bound + encoder.scalar_code.mean_step
    assert 1 / bound <= ratio <= bound
    assert bits < 8 or ratio == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("shrink", [1.0, 1e-3])
def test_four_bits_leave_little_of_small_gradients_behind(shrink: float) -> None:
    """What a mean is rounded by is added to all weights, so it must shrink with them."""
    draw = torch.Generator().manual_seed(0)
    g = shrink * (0.3 * torch.randn(20, 10_000, generator=draw) + 0.05)
    encoder = Encoder(MethodSettings(side_bits=4), (10_000,))
    sent = encoder.encode(g)
    off = (sent.mean[:, 0] - g.mean(dim=1)).abs()
    half = encoder.scalar_code.mean_step / 2
    assert float(off.max()) < half * encoder.scalar_code.scales.bound * float(sent.true_scale.max())
