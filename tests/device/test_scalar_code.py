"""Means in units of decoded scales: no range to know, no gradient too small, none too uniform."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from signfade.device import LogQuantizer, ScalarCode, UniformQuantizer, decode_packets, make_packet
from signfade.device.encoder import Encoder, Keys, bit_agreement
from signfade.settings import AttackSettings, MethodSettings
from signfade.simulation.attacks import Attackers


def code(bits: int = 4, kept: float = 1.0) -> ScalarCode:
    return ScalarCode(UniformQuantizer(bits, 1.0), LogQuantizer(bits, 1e-6, 1.0), kept)


def keys(count: int) -> Keys:
    """Keys for some devices, others for the flips than for the noise."""

    def of(purpose: str) -> NDArray[np.uint64]:
        return np.arange(count, dtype=np.uint64) + np.uint64(100 * len(purpose))

    return of


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


@pytest.mark.parametrize("kept", [0.0, 1.5, -1.0])
def test_a_part_that_is_none_is_refused(kept: float) -> None:
    with pytest.raises(ValueError, match=r"kept must lie in \(0, 1\]"):
        code(kept=kept)


def test_a_scale_is_sent_as_it_is_unless_the_mean_is_beyond_reach() -> None:
    """The largest mean is 0, 2/3 or 14/15 of a unit with one, two or four bits."""
    mean, scale = torch.tensor([0.9, -3.0, 0.0]), torch.ones(3)
    for bits, top in ((1, 0.0), (2, 2 / 3), (4, 14 / 15)):
        assert torch.allclose(code(bits).sent_scale(mean, scale), torch.tensor([1, max(1, 3 / (1 + top)), 1]))
        assert torch.allclose(
            code(bits, kept=0.1).sent_scale(mean, 0.1 * scale),
            0.1 * code(bits).sent_scale(mean, scale),
        )


@pytest.mark.parametrize("value", [0.7, -3e-4])
@pytest.mark.parametrize("noise", [{}, {"flip": 0.3}, {"sign_noise": 3.0}, {"flip": 0.2, "sign_noise": 1.0}])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_layer_of_one_weight_arrives(bits: int, value: float, noise: dict[str, float]) -> None:
    """It has a mean and no deviation: mean and bit together carry it as well as a scale is carried."""
    encoder = Encoder(MethodSettings.model_validate({"side_bits": bits, **noise}), (1,))
    sent, _ = encoder.encode(torch.tensor([[value]]), keys(1))
    unit = float(sent.scale) / bit_agreement(encoder.method)
    decoded = float(sent.mean) + unit * (1 if value > 0 else -1)
    ratio, worst = decoded / value, encoder.scalar_code.scales.bound
    assert 1 / worst * (1 - 1e-5) <= ratio <= worst * (1 + 1e-5)


@pytest.mark.parametrize("prior", ["gaussian", "empirical"])
@pytest.mark.parametrize("noise", [{}, {"flip": 0.2}, {"sign_noise": 3.0}, {"flip": 0.1, "sign_noise": 1.0}])
@pytest.mark.parametrize("offset", [0.0, 0.4, 0.7])
def test_the_scale_is_the_bits_share_of_the_gradient(
    prior: str, noise: dict[str, float], offset: float
) -> None:
    """Both the one that should be sent and the one that is: `E[(g - mean)*b]`, about the decoded mean."""
    draw = torch.Generator().manual_seed(3)
    g = 1e-3 * (torch.randn(4, 200_000, generator=draw) + offset)
    method = MethodSettings.model_validate({"side_bits": 6, "prior": prior, **noise})
    encoder = Encoder(method, (200_000,))
    sent, priors = encoder.encode(g, keys(4))
    bits = sent.bits.signs()
    found = ((g - sent.mean) * bits).mean(dim=1, keepdim=True)
    error = 4 * 1.3e-3 / 200_000**0.5  # four standard errors
    assert float((found - priors.scale).abs().max()) < error
    largest = encoder.scalar_code.scales.bound * (1 + encoder.scalar_code.mean_step**2)
    ratio = sent.scale / priors.scale
    assert bool(((ratio < largest) & (ratio > 1 / largest)).all())


def test_what_attackers_send_are_words_of_the_code() -> None:
    """What an attacker is taken to send is what a packet can carry."""
    settings = AttackSettings(kind="scale-inflation", fraction=0.5, strength=3.0)
    encoder = Encoder(MethodSettings(side_bits=4), (100,))
    draw = torch.Generator().manual_seed(1)
    honest, _ = encoder.encode(0.01 * torch.randn(6, 100, generator=draw) + 0.004)
    sent = Attackers(settings, 6, seed=0).change(honest, encoder, np.arange(6), 0)
    assert not torch.equal(sent.mean, honest.mean)  # rounded beside a larger scale
    packets = [make_packet(encoder, sent, row, device=row, round=0) for row in range(6)]
    decoded = decode_packets(encoder, packets)
    assert torch.equal(decoded.mean, sent.mean)
    assert torch.equal(decoded.scale, sent.scale)


@pytest.mark.parametrize("shrink", [1.0, 1e-3])
def test_four_bits_leave_little_of_small_gradients_behind(shrink: float) -> None:
    """What a mean is rounded by is added to all weights, so it must shrink with them."""
    draw = torch.Generator().manual_seed(0)
    g = shrink * (0.3 * torch.randn(20, 10_000, generator=draw) + 0.05)
    encoder = Encoder(MethodSettings(side_bits=4), (10_000,))
    sent, priors = encoder.encode(g)
    off = (sent.mean[:, 0] - g.mean(dim=1)).abs()
    half = encoder.scalar_code.mean_step / 2
    assert float(off.max()) < half * encoder.scalar_code.scales.bound * float(priors.scale.max())
