"""A ClientApp of one's own: any model, loss and loader; what it sends is what its gradient says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from signfade.device import Packet, fit_prior, one_bit
from signfade.experiments.config import ConfigError
from signfade.integrations.flower import OneBitStrategy, reply_with_bits, settings_from
from signfade.integrations.flower.exchange import message_bytes
from signfade.integrations.flower.messages import Layout, read_tensor
from signfade.simulation.models import paper_cnn

from .grids import CallingGrid, context

LOSS = nn.CrossEntropyLoss()


def data(device: int, samples: int = 24) -> TensorDataset:
    draw = torch.Generator().manual_seed(device)
    x = torch.randn(samples, 6, generator=draw)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 2))


class Net:
    """An app of K devices with one model."""

    def __init__(self, make: Any, devices: int = 3, **options: Any) -> None:
        self.make, self.options = make, options
        self.contexts = [context(k) for k in range(devices)]
        self.grid = CallingGrid({50 + k: self.node(k) for k in range(devices)})

    def node(self, device: int) -> Any:
        def answer(message: Message) -> Message:
            loader = DataLoader(data(device), batch_size=8, shuffle=True)
            own = self.contexts[device]
            return reply_with_bits(message, own, self.make(), LOSS, loader, **self.options)

        return answer


def settings(**changes: Any) -> Any:
    base = {"signfade.data.devices": 3, "signfade.rounds": 3, "signfade.server.learning_rate": 0.1}
    base |= {} if "method__preset" in changes else {"signfade.method.aggregator": "sbfl"}
    return settings_from(
        base | {f"signfade.{key.replace('__', '.')}": value for key, value in changes.items()}
    )


def order_for(model: nn.Module, **changes: Any) -> Message:
    """The train message that a strategy sends for a model."""
    strategy = OneBitStrategy(settings(**changes), model, min_devices=1)
    grid = CallingGrid({7: lambda message: None})
    [message] = strategy.configure_train(1, strategy.arrays(), ConfigRecord({"lr": 0.5}), grid)
    return message


def flat_gradient(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    model.zero_grad()
    inputs, targets = zip(*batches, strict=True)
    LOSS(model(torch.cat(inputs)), torch.cat(targets)).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("batches", [1, 2, None])
def test_the_packet_has_the_signs_of_the_gradient(batches: int | None) -> None:
    loader = DataLoader(data(2, samples=20), batch_size=8)  # 8, 8 and 4 samples
    reply = reply_with_bits(order_for(plain()), context(2), plain(), LOSS, loader, batches=batches)
    gradient = flat_gradient(plain(), list(loader)[:batches])
    sent = reply.content["signfade"]["packet"]
    packet = Packet.from_bytes(sent, size=47, layers=1, mean_bits=32, scale_bits=32)
    prior = fit_prior(gradient.unsqueeze(0))
    assert (packet.device, packet.round) == (2, 0)
    assert torch.allclose(packet.mean, prior.mean, rtol=1e-5)
    assert torch.allclose(packet.scale, prior.scale, rtol=1e-5)
    clear = (gradient - prior.mean).abs() > 1e-6  # the sign of a rounding error is nobody's
    assert torch.equal(packet.signs[clear], one_bit(gradient.unsqueeze(0), prior.mean).signs()[0][clear])
    assert reply.content["signfade"]["examples"] == 20


def test_the_papers_model_costs_less_than_a_twentyfifth_of_its_weights() -> None:
    """As Flower serialises both replies; `benchmarks/flower_bytes.py` measures them on the socket."""
    model = paper_cnn((1, 28, 28), 10)
    order = order_for(model)
    images, labels = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    few = reply_with_bits(order, context(0), model, LOSS, [(images, labels)])
    metrics = MetricRecord({"num-examples": 4})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    many = Message(content, reply_to=order)
    assert sum(p.numel() for p in model.parameters()) == 62_346
    assert message_bytes(many) > 25 * message_bytes(few)


def test_the_model_takes_the_servers_weights() -> None:
    other = plain()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    loader = DataLoader(data(0), batch_size=24)
    replies = [
        reply_with_bits(order_for(plain()), context(0), model, LOSS, loader) for model in (plain(), other)
    ]
    assert replies[0].content["signfade"]["packet"] == replies[1].content["signfade"]["packet"]
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), plain().parameters()))


def test_shuffling_and_dropout_draw_anew_each_round_and_alike_when_repeated() -> None:
    net = Net(normalised)
    strategy = OneBitStrategy(settings(), normalised())
    state = torch.get_rng_state()
    first = list(strategy.configure_train(1, strategy.arrays(), ConfigRecord(), net.grid))
    replies = {m.metadata.dst_node_id: net.grid.nodes[m.metadata.dst_node_id](m) for m in first}
    again = net.grid.nodes[51](first[1])
    assert again.content["signfade"] == replies[51].content["signfade"]
    losses = {reply.content["signfade"]["loss"] for reply in replies.values()}
    assert len(losses) == 3
    torch.set_rng_state(state)


def test_an_app_learns_and_its_buffers_go_along() -> None:
    net = Net(normalised, batches=None)
    run = settings(rounds=30, server__momentum=0.5, eval__every=1)
    strategy = OneBitStrategy(run, normalised())
    seen = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = normalised()
        model.load_state_dict(arrays.to_torch_state_dict())  # a whole state dict, as of any strategy
        model.eval()
        x, y = (torch.cat(parts) for parts in zip(*(data(k).tensors for k in range(3)), strict=True))
        with torch.no_grad():
            seen.append(float((model(x).argmax(1) == y).float().mean()))
        return MetricRecord({"accuracy": seen[-1]})

    result = strategy.start(net.grid, timeout=60, evaluate_fn=evaluate)
    assert len(seen) == 30
    assert seen[-1] > 0.9
    assert result.evaluate_metrics_serverapp[30]["accuracy"] == seen[-1]
    final = result.arrays.to_torch_state_dict()
    assert int(final["1.num_batches_tracked"]) == 30 * 3  # three batches a round; counters take the largest


def test_buffers_are_the_mean_of_the_devices() -> None:
    net = Net(normalised)
    strategy = OneBitStrategy(settings(), normalised())
    messages = list(strategy.configure_train(1, strategy.arrays(), ConfigRecord(), net.grid))
    replies = [net.grid.nodes[m.metadata.dst_node_id](m) for m in messages]
    strategy.aggregate_train(1, replies)
    means = [read_tensor(reply.content["arrays"], "1.running_mean", (5,)) for reply in replies]
    plain = torch.stack(means).double().mean(0).float()  # nobody is far from the others
    assert torch.equal(strategy.server.buffers["1.running_mean"], plain)


def test_frozen_parameters_stay_at_home() -> None:
    def frozen() -> nn.Module:
        model = plain()
        for p in list(model.parameters())[:2]:
            p.requires_grad_(False)
        return model

    message = order_for(frozen())
    assert list(message.content["arrays"]) == ["2.weight", "2.bias"]
    reply = reply_with_bits(message, context(0), frozen(), LOSS, DataLoader(data(0), batch_size=8))
    assert len(reply.content["signfade"]["packet"]) == 10 + 8 + 2  # around it, scalars, 12 signs
    strategy = OneBitStrategy(settings(), frozen())
    assert list(strategy.arrays()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_the_apps_own_configuration_goes_with_the_order() -> None:
    message = order_for(plain())
    assert dict(message.content["config"]) == {"lr": 0.5, "server-round": 1}


def test_initial_arrays_and_number_of_rounds_may_be_given_to_start() -> None:
    other = plain()
    with torch.no_grad():
        other[0].bias.fill_(3.0)
    net = Net(plain)
    strategy = OneBitStrategy(settings(), plain())
    result = strategy.start(net.grid, ArrayRecord(other.state_dict()), num_rounds=1, timeout=60)
    sent = net.grid.sent[0].content["arrays"].to_torch_state_dict()
    assert torch.equal(sent["0.bias"], torch.full((5,), 3.0))
    assert len(net.grid.sent) == 3
    assert list(result.train_metrics_clientapp) == [1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m, c: (Message(RecordDict(), reply_to=m), c, plain()), "has no record 'signfade'"),
        (
            lambda m, c: (m, Context(1, 1, {}, RecordDict(), {}), plain()),
            "needs --node-config 'partition-id=K'",
        ),
        (lambda m, c: (m, c, nn.Linear(6, 2)), "the array 'weight' is missing"),
        (lambda m, c: (m, c, nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))), r"shape \[4, 6\]"),
        (lambda m, c: (m, c, nn.ReLU()), "no parameters to train"),
    ],
    ids=["not ours", "no number", "another model", "another shape", "no weights"],
)
def test_a_device_that_cannot_answer_says_why(change: Any, reason: str) -> None:
    message, own, model = change(order_for(plain()), context(0))
    with pytest.raises(ValueError, match=reason):
        reply_with_bits(message, own, model, LOSS, DataLoader(data(0), batch_size=8))


def test_no_batch_and_no_finite_gradient_are_errors() -> None:
    with pytest.raises(ValueError, match="loader gave no batch"):
        reply_with_bits(order_for(plain()), context(0), plain(), LOSS, [])
    x, y = data(0).tensors
    with pytest.raises(ValueError, match="gradient is not finite"):
        reply_with_bits(order_for(plain()), context(0), plain(), LOSS, [(x * torch.inf, y)])


def test_settings_of_an_app() -> None:
    found = settings_from({"lr": 1, "signfade.cell.snr_db": 3.0, "signfade.data.devices": 7})
    assert (found.data.devices, found.cell.snr_db, found.cell.perfect) == (7, 3.0, False)
    assert found.data.name == "own"
    assert found.defence.bound_scales
    assert not settings_from({"signfade.method.aggregator": "signsgd"}).defence.bound_scales  # sends none
    with pytest.raises(ConfigError, match=r"unknown key 'method\.agregator'"):
        settings_from({"signfade.method.agregator": "sbfl"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method__aggregator": "bfl", "method__correlation": "genie"}, "no genie is there"),
        ({"method__flip": 0.1}, r"method\.flip must be 0 on real devices: it is simulated only; got 0\.1"),
        ({"method__sign_noise": 1.0}, r"method\.sign_noise must be 0"),
        ({"method__error_feedback": 1.0}, r"method\.error_feedback must be 0"),
        (
            {"method__aggregator": "ideal", "method__compressor": "drive"},
            r'method\.compressor must be "auto" on real devices',
        ),
        ({"availability__dropout": 0.5}, r"availability\.dropout must be 0"),
        ({"availability__late": 0.5}, r"availability\.late must be 0"),
        ({"availability__limited": 0.5}, r"availability\.limited must be 0"),
        (
            {"attack__kind": "sign-flip", "attack__fraction": 0.5},
            r'attack\.kind must be "none" on real devices; got "sign-flip"',
        ),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OneBitStrategy(settings(**changes), plain())


def test_a_layout_reads_nothing_it_cannot_trust() -> None:
    layout = Layout.of_model(plain())
    record = layout.record(torch.arange(47.0), {})
    assert torch.equal(layout.weights(record), torch.arange(47.0))
    for spoil, reason in (
        (lambda r: r.pop("0.bias"), "the array '0.bias' is missing"),
        (
            lambda r: r.__setitem__("0.bias", r["2.bias"]),
            r"must be numbers of shape \[5\]; got float32 \[2\]",
        ),
    ):
        broken = layout.record(torch.arange(47.0), {})
        spoil(broken)
        with pytest.raises(ValueError, match=reason):
            layout.weights(broken)
    damaged = layout.record(torch.arange(47.0), {})
    damaged["0.bias"].data = b"not an array"
    with pytest.raises(ValueError, match="cannot be read"):
        layout.weights(damaged)
    with pytest.raises(ValueError, match="must be finite"):
        layout.weights(layout.record(torch.full((47,), torch.nan), {}))
