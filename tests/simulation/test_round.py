"""One round up to what the server receives: who sends what, over which link, in whose noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import make_packet, one_bit, rotated_size
from signfade.keys import stream_key, stream_keys
from signfade.server import Received, Server, Truth
from signfade.settings import CellSettings
from signfade.simulation import Experiment, RunFailed
from signfade.simulation.metrics import correlation_of
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.uplink import make_radio
from signfade.uplink.cost import uplink_bits

from ..runs import settings

SEED, SIZE = 11, 70


class Uneven(GaussianTask):
    """Gaussian gradients of devices that hold unequal shares and report their number as their loss."""

    def __init__(self) -> None:
        super().__init__(10, SIZE, SEED)
        self.shares = np.arange(1, 11) / 55
        self.segments = (20, SIZE - 20)

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        return LocalGradients(
            super().local_updates(weights, devices, round).gradients, torch.from_numpy(devices)
        )


class Round:
    """The last of some rounds of four of the ten devices, seen through the server's and the metrics' eyes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: int = 1, **method: Any) -> None:
        changes = {f"method__{key}": value for key, value in method.items()}
        options = settings(rounds=9, seed=SEED, data__devices=10, data__participation=0.4, **changes)
        self.received: Received
        self.truth: Truth
        self.record: dict[str, Any]
        aggregate = Server.aggregate

        def spy(server: Server, memory: Any, received: Received, genie: Any = None) -> Any:
            self.received = received
            memory, estimate, metrics = aggregate(server, memory, received, genie)

            def predict(truth: Truth, factor: float) -> float | None:
                self.truth = truth
                return estimate.predict(truth, factor)

            return memory, type(estimate)(estimate.value, predict=predict), metrics

        monkeypatch.setattr(Server, "aggregate", spy)
        experiment = Experiment(options, task=Uneven())
        for _ in range(rounds):
            self.record = experiment.advance()
        self.devices, self.encoder = self.received.devices, self.received.encoder
        self.gradients = Uneven().local_updates(torch.zeros(SIZE), self.devices, rounds - 1).gradients


@pytest.mark.parametrize("rounds", [1, 6])
def test_links_and_noise_are_those_of_the_device_and_the_round(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Round(monkeypatch, rounds)
    link = make_radio(CellSettings(), 10, SEED).link(last.devices, rounds - 1)
    assert torch.equal(last.received.h, link.h)
    assert torch.equal(last.received.sigma2, link.sigma2)
    keys = stream_keys(SEED, "noise", rounds - 1, last.devices)
    assert last.received.signals.keys.tolist() == keys.tolist()


@pytest.mark.parametrize("weights", ["sum", "share"])
def test_the_target_is_the_weighted_sum_over_those_received(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares N_k/N are among those received, so that they sum to one; losses are weighted by them always."""
    last = Round(monkeypatch, weights=weights)
    share = torch.from_numpy((last.devices + 1) / (last.devices + 1).sum())
    alpha = share.float() if weights == "share" else torch.ones(4)
    assert torch.allclose(last.received.weights, alpha)
    assert torch.allclose(last.truth.total, alpha @ last.gradients, atol=1e-5)
    assert last.record["train_loss"] == pytest.approx(float(share @ torch.from_numpy(last.devices).double()))


@pytest.mark.parametrize("rotation", ["none", "shared"])
@pytest.mark.parametrize("scales", ["device", "layer"])
@pytest.mark.parametrize("side_bits", [None, 4])
def test_bits_and_scalars_are_what_a_packet_carries(
    rotation: str, scales: str, side_bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits counted are a packet's signs and scalars, and its signs are about the mean that was sent."""
    last = Round(monkeypatch, rotation=rotation, scales=scales, side_bits=side_bits)
    received, encoder = last.received, last.encoder
    assert received.layer_mean.shape[1] == (2 if (scales, rotation) == ("layer", "none") else 1)
    packet = make_packet(encoder, last.truth.message, 0, device=0, round=0)
    bits = uplink_bits(encoder, CellSettings(perfect=True))
    assert (bits.signs, bits.scalars) == (packet.size, packet.layers * sum(encoder.scalar_bits))
    sent = encoder.rotate(last.gradients, stream_key(SEED, "rotation", 0))
    assert received.size == (rotated_size(SIZE) if rotation == "shared" else SIZE)
    expected = one_bit(sent, received.layer_mean, encoder.segments)
    assert torch.equal(received.signals.bits.signs(), expected.signs())


def test_signs_and_exact_gradients_go_without_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    for rotation, size in (("none", SIZE), ("shared", rotated_size(SIZE))):
        for rule, bits in (("signsgd", size), ("ideal", 32 * SIZE)):
            options = settings(method__aggregator=rule, method__rotation=rotation, data__devices=10)
            assert Experiment(options, task=Uneven()).advance()["payload_bits"] == 10 * bits
    last = Round(monkeypatch, aggregator="signsgd")
    signs = last.received.signals.bits.signs()
    assert torch.equal(signs, torch.where(last.gradients < 0, -1.0, 1.0))


def test_what_a_round_rotates_it_rotates_back(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Round(monkeypatch, rotation="shared")
    keys = [stream_key(SEED, "rotation", t) for t in (0, 1)]
    assert (last.received.rotation_keys == keys[0]).all()
    first, second = (
        last.encoder.rotate(last.gradients, np.full(len(last.gradients), key, np.uint64))[2] for key in keys
    )
    assert torch.allclose(last.received.turned_back(first), last.gradients[2], atol=1e-5)
    assert not torch.allclose(last.received.turned_back(second), last.gradients[2], atol=0.1)


def test_the_correlation_is_that_of_the_centred_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Round(monkeypatch, rotation="shared", aggregator="bfl")
    assert last.truth.correlation is not None
    g = last.encoder.rotate(last.gradients, last.received.rotation_keys)
    np.testing.assert_allclose(last.truth.correlation.numpy(), np.corrcoef(g.numpy()), atol=1e-5)


def test_correlation_of_centred_gradients() -> None:
    g = torch.randn(4, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    g[3] = 0
    expected = np.corrcoef(g[:3].numpy())
    mean = g.mean(dim=1)
    found = correlation_of(g @ g.T, mean, mean, 200)
    assert np.allclose(found[:3, :3].numpy(), expected, atol=1e-12)
    assert torch.equal(found[3], torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    sent = torch.tensor([3.2, 2.5, 3.0, 0.0], dtype=torch.float64)  # quantised, or false
    about = (g - sent[:, None])[:3]
    norms = about.norm(dim=1)
    found = correlation_of(g @ g.T, sent, mean, 200)[:3, :3]
    assert torch.allclose(found, about @ about.T / norms[:, None] / norms, atol=1e-12)


class Exploding(Uneven):
    """Gradients that float32 holds, but not their products."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        local = super().local_updates(weights, devices, round)
        return LocalGradients(1e25 * local.gradients, local.losses)


def test_gradients_too_large_to_be_multiplied_are_a_divergence() -> None:
    experiment = Experiment(settings(data__devices=10, method__rotation="shared"), task=Exploding())
    with pytest.raises(RunFailed, match="too large to be multiplied; the model has diverged"):
        experiment.advance()
