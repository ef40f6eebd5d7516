"""One round before the server reads it: who sends what, over which link, in whose noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import one_bit, rotated_size, unpack_signs
from signfade.keys import stream_keys
from signfade.simulation import make_radio
from signfade.uplink.cost import uplink_bits
from signfade.device.encoder import Encoder
from signfade.device.packets import make_packet
from signfade.simulation.availability import Diverged, Uplink, collect, rotate_back
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.settings import CellSettings, MethodSettings

SEED, SIZE = 11, 70
SOME = np.array([1, 4, 6, 9])


class Uneven(GaussianTask):
    """Gaussian gradients of devices that hold unequal shares and report their number as their loss."""

    def __init__(self) -> None:
        super().__init__(10, SIZE, SEED)
        self.shares = np.arange(1, 11) / 55
        self.segments = (20, SIZE - 20)

    def local_gradients(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        return LocalGradients(
            super().local_gradients(weights, devices, round).gradients, torch.from_numpy(devices)
        )


def gradients(round: int) -> torch.Tensor:
    return Uneven().local_gradients(torch.zeros(SIZE), SOME, round).gradients


def play(round: int = 5, **method: Any) -> tuple[Uplink, Encoder]:
    task = Uneven()
    encoder = Encoder(MethodSettings.model_validate(method), task.segments)
    cell = make_radio(CellSettings(), task.devices, SEED)
    return collect(
        task, encoder, cell, torch.zeros(SIZE), devices=SOME, round=round, seed=SEED, gram=True
    ), encoder


@pytest.mark.parametrize("round", [0, 5])
def test_links_and_noise_are_those_of_the_device_and_the_round(round: int) -> None:
    received = play(round)[0].received
    assert received is not None
    link = make_radio(CellSettings(), 10, SEED).link(SOME, round)
    assert torch.equal(received.h, link.h)
    assert torch.equal(received.sigma2, link.sigma2)
    assert received.keys.tolist() == stream_keys(SEED, "noise", round, SOME).tolist()


@pytest.mark.parametrize("weights", ["sum", "share"])
def test_the_target_is_the_weighted_sum_over_those_heard(weights: str) -> None:
    """Shares N_k/N are among those heard, so that they sum to one; losses are weighted by them always."""
    uplink, _ = play(weights=weights)
    share = torch.tensor([2.0, 5.0, 7.0, 10.0]) / 24
    alpha = share if weights == "share" else torch.ones(4)
    assert uplink.received is not None
    assert torch.allclose(uplink.received.weights, alpha)
    assert torch.allclose(uplink.truth, alpha @ gradients(5), atol=1e-5)
    assert uplink.loss == pytest.approx(float(share.double() @ torch.tensor([1.0, 4.0, 6.0, 9.0]).double()))


@pytest.mark.parametrize("rotation", ["none", "hadamard"])
@pytest.mark.parametrize("scales", ["device", "layer"])
@pytest.mark.parametrize("side_bits", [None, 4])
def test_bits_and_scalars_are_what_a_packet_carries(
    rotation: str, scales: str, side_bits: int | None
) -> None:
    """The bits counted are a packet's signs and side information, and its signs are about the sent mean."""
    uplink, encoder = play(rotation=rotation, scales=scales, side_bits=side_bits)
    received = uplink.received
    assert received is not None
    layers = received.layer_mean.shape[1]
    assert layers == (2 if (scales, rotation) == ("layer", "none") else 1)
    assert uplink.sent is not None
    packet = make_packet(encoder, uplink.sent, 0, device=0, round=0)
    bits = uplink_bits(encoder, CellSettings(perfect=True))
    assert (bits.signs, bits.scalars) == (packet.payload_bits, packet.side_bits)
    sent = encoder.rotate(gradients(5), int(rotation_key(5)))
    assert received.size == (rotated_size(SIZE) if rotation == "hadamard" else SIZE)
    assert torch.equal(
        unpack_signs(received.packed, received.size),
        one_bit(sent, received.layer_mean, encoder.segments).signs(),
    )


def rotation_key(round: int) -> np.uint64:
    return stream_keys(SEED, "rotation", round, [0])[0]


def test_signs_alone_and_exact_gradients_have_no_side_information() -> None:
    for rotation, size in (("none", SIZE), ("hadamard", rotated_size(SIZE))):
        for rule, bits in (("signsgd", size), ("ideal", 32 * SIZE)):
            encoder = play(aggregator=rule, rotation=rotation)[1]
            assert uplink_bits(encoder, CellSettings(perfect=True)).payload == bits
    uplink, _ = play(aggregator="signsgd")
    assert uplink.received is not None
    assert torch.equal(unpack_signs(uplink.received.packed, SIZE), torch.where(gradients(5) < 0, -1.0, 1.0))


def test_what_a_round_rotates_it_rotates_back() -> None:
    _, encoder = play(rotation="hadamard")
    g = gradients(5)
    rotated = encoder.rotate(g, int(rotation_key(5)))
    assert torch.allclose(rotate_back(rotated[2], encoder, SEED, 5), g[2], atol=1e-5)
    assert not torch.allclose(rotate_back(rotated[2], encoder, SEED, 6), g[2], atol=0.1)


def test_the_correlation_is_that_of_the_centred_gradients() -> None:
    uplink, _ = play()
    assert uplink.correlation is not None
    np.testing.assert_allclose(uplink.correlation.numpy(), np.corrcoef(gradients(5).numpy()), atol=1e-5)


class Exploding(Uneven):
    """Gradients that float32 holds, but not their products."""

    def local_gradients(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        local = super().local_gradients(weights, devices, round)
        return LocalGradients(1e25 * local.gradients, local.losses)


def test_gradients_too_large_to_be_multiplied_are_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.Uneven", Exploding)
    with pytest.raises(Diverged, match="too large"):
        play(rotation="hadamard")
