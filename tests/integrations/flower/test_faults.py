"""Replies that are missing, late, failed or malformed are counted and named, and change nothing else."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from signfade.device import Encoder, Packet, make_packet
from signfade.experiments.config import resolve
from signfade.experiments.training import RunFailed
from signfade.integrations.flower.messages import Answer, Layout, Start
from signfade.integrations.flower.reply_validator import ReplyFormat
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.settings import MethodSettings, RunSettings
from signfade.simulation.run import make_task

from .grids import CallingGrid, Node, cell_of, device_node

SETTINGS = resolve(
    {"rounds": 3, "data.devices": 4, "data.batch": 8, "model.name": "linear", "cell.snr_db": 5.0}
    | {"method.aggregator": "sbfl"}
)


def strategy_for(settings: RunSettings = SETTINGS, **options: Any) -> OneBitStrategy:
    return OneBitStrategy(settings, Start.of_task(make_task(settings)), **options)


def run_strategy(grid: CallingGrid, settings: RunSettings = SETTINGS, **options: Any) -> OneBitStrategy:
    strategy = strategy_for(settings, **options)
    strategy.start(grid, timeout=0.02)
    return strategy


@pytest.fixture(scope="module")
def without_device_2() -> torch.Tensor:
    """The weights if device 2 had never been there."""
    grid = cell_of(SETTINGS)
    del grid.nodes[998]
    strategy = run_strategy(grid, min_devices=3)
    assert strategy.validator.faults == []
    return strategy.server.weights


def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Node], Node]:
    """A node that does all right and then spoils the record it sends."""

    def spoil(node: Node) -> Node:
        def answer(message: Message) -> Message:
            reply = node(message)
            assert reply is not None
            words = change(dict(reply.content["signfade"]))
            return Message(RecordDict({"signfade": ConfigRecord(words)}), reply_to=message)

        return answer

    return spoil


def packet(change: Callable[[bytes], bytes]) -> Callable[[Node], Node]:
    return changed(lambda words: words | {"packet": change(words["packet"])})


def put(at: int, what: bytes) -> Callable[[bytes], bytes]:
    """Overwrite bytes of a packet, and make the checksum right again.

    It also covers numbers that are not sent; their share of it stays as it is.
    """

    def change(data: bytes) -> bytes:
        body = data[:at] + what + data[at + len(what) : -4]
        crc = int.from_bytes(data[-4:], "big") ^ zlib.crc32(data[:-4]) ^ zlib.crc32(body)
        return body + crc.to_bytes(4, "big")

    return change


def with_scale(value: float) -> Callable[[bytes], bytes]:
    """Overwrite the float32 scale, behind the header and the mean."""
    return put(6 + 4, struct.pack(">f", value))


def another_model(data: bytes) -> bytes:
    return Packet.make(torch.ones(99), torch.zeros(1), torch.ones(1), device=2).to_bytes()


def another_method(data: bytes) -> bytes:
    """As long as the right one, but of 649 signs."""
    return Packet.make(torch.ones(649), torch.zeros(1), torch.ones(1), device=2).to_bytes()


def without(name: str) -> Callable[[Node], Node]:
    return changed(lambda words: {key: value for key, value in words.items() if key != name})


def silent(node: Node) -> Node:
    return lambda message: None


def raising(node: Node) -> Node:
    def answer(message: Message) -> Message:
        raise ZeroDivisionError("no\nbattery")

    return answer


def empty(node: Node) -> Node:
    return lambda message: Message(RecordDict(), reply_to=message)


BAD: dict[str, tuple[Callable[[Node], Node], str, str]] = {
    "garbage": (
        packet(lambda data: bytes(range(256))),
        "refused",
        "damaged: a packet of 650 signs",
    ),
    "nothing": (
        packet(lambda data: b""),
        "refused",
        "and 64 bits of scalars has 100 bytes; got 0",
    ),
    "cut": (packet(lambda data: data[:-1]), "refused", "has 100 bytes; got 99"),
    "one bit": (packet(lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:]), "refused", "CRC-32"),
    "NaN scale": (packet(with_scale(math.nan)), "refused", "scale must be finite; got NaN"),
    "infinite scale": (packet(with_scale(math.inf)), "refused", "scale must be finite"),
    "negative scale": (packet(with_scale(-1.0)), "refused", "scale must be non-negative"),
    "longer": (packet(lambda data: data + b"\0"), "refused", "has 100 bytes; got 101"),
    "filling": (packet(put(95, b"\xff")), "refused", "body must end in 6 zero bits"),
    "version 1": (packet(put(0, b"\x01")), "refused", "this reads packets of version 2; got version 1"),
    "another model": (packet(another_model), "refused", "has 100 bytes; got 31"),
    "another method": (packet(another_method), "refused", "or of another method or model"),
    "another round": (packet(put(4, b"\0\x4d")), "refused", "its packet is of round 78 (modulo 65536)"),
    "no such device": (packet(put(3, b"\x04")), "refused", "its device number must be 0 to 3; got 4"),
    "a far device": (packet(put(1, b"\xff" * 3)), "refused", "must be 0 to 3; got 16777215"),
    "no packet": (without("packet"), "refused", "it holds no packet"),
    "a text": (changed(lambda words: words | {"packet": "SFPK"}), "refused", "it holds no packet"),
    "no loss": (without("loss"), "refused", "its loss must be a finite number; got None"),
    "NaN loss": (changed(lambda words: words | {"loss": math.nan}), "refused", "must be a finite number"),
    "no samples": (changed(lambda words: words | {"examples": 0}), "refused", "must be a positive integer"),
    "half a sample": (
        changed(lambda words: words | {"examples": 0.5}),
        "refused",
        "positive integer; got 0.5",
    ),
    "no record": (empty, "refused", "it holds no record 'signfade'"),
    "an exception": (raising, "failed", "<class 'ZeroDivisionError'>:<'no battery'>"),
    "silence": (silent, "missing", "no answer in time"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_named_and_changes_nothing_else(name: str, without_device_2: torch.Tensor) -> None:
    spoil, kind, why = BAD[name]
    grid = cell_of(SETTINGS)
    # node 998 is device 2
    grid.nodes[1001] = spoil(grid.nodes.pop(998))
    strategy = run_strategy(grid)
    assert torch.equal(strategy.server.weights, without_device_2)
    counted = 1 if name == "silence" else 3  # nobody waits for a node that already owes an answer
    assert strategy.validator.counts == {kind: counted}
    first = strategy.validator.faults[0]
    assert first.startswith(f"round 1: {kind}: node 1001: ")
    assert why in first


@pytest.mark.parametrize("round", [0, 65_535, 65_536, 200_000])
def test_rounds_are_compared_modulo_65536(round: int) -> None:
    encoder, layout = Encoder(MethodSettings(), (9,)), Layout({"w": (9,)})
    sent, _ = encoder.encode(torch.linspace(-1, 2, 9).unsqueeze(0))
    reply = Answer(3, 1, packet=make_packet(encoder, sent, 0, device=3, round=round)).record()
    expected = ReplyFormat(encoder, layout, devices=4, round=round)
    assert expected.read(reply).device == 3
    for other in (round + 1, round + 65_535):
        with pytest.raises(ValueError, match=rf"its packet is of round {round % 65_536 + 1} "):
            replace(expected, round=other).read(reply)


def test_bad_once_and_good_again(without_device_2: torch.Tensor) -> None:
    """Only the round of the bad reply does without the device."""
    grid = cell_of(SETTINGS)
    good = grid.nodes[998]
    bad = packet(with_scale(math.nan))(good)
    rounds = itertools.count(1)
    grid.nodes[998] = lambda message: bad(message) if next(rounds) == 2 else good(message)
    strategy = run_strategy(grid)
    expected = (
        "round 2: refused: node 998 (device 2): its packet is damaged: scale must be finite; got NaN or"
    )
    assert strategy.validator.faults == [f"{expected} infinity"]
    reference = strategy_for()
    for number in (1, 2, 3):
        messages = list(
            reference.configure_train(number, reference.arrays(), ConfigRecord(), cell_of(SETTINGS))
        )
        asked = cell_of(SETTINGS)
        replies = [asked.nodes[m.metadata.dst_node_id](m) for m in messages]
        reference.aggregate_train(
            number,
            [reply for reply in replies if number != 2 or reply.metadata.src_node_id != 998],
        )
    assert torch.equal(strategy.server.weights, reference.server.weights)
    assert not torch.equal(strategy.server.weights, without_device_2)


def test_the_order_of_arrival_does_not_matter() -> None:
    weights = []
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 7):
        strategy, grid = strategy_for(), cell_of(SETTINGS)
        messages = list(strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid))
        replies = [grid.nodes[m.metadata.dst_node_id](m) for m in messages]
        strategy.aggregate_train(1, [replies[i] for i in order])
        weights.append(strategy.server.weights)
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_a_late_reply_is_dropped_and_its_node_asked_again() -> None:
    grid = cell_of(resolve(SETTINGS.model_dump() | {"rounds": 4}))
    good = grid.nodes[998]
    asked: list[Message] = []

    def slow(message: Message) -> Message | None:
        asked.append(message)
        if len(asked) > 1:
            return good(message)
        return None

    def other(message: Message) -> Message | None:
        if message.metadata.group_id == "2":  # by the third round the answer to the first is there
            late = asked[0]
            grid.arrive(late.metadata.message_id, good(late))
        return first(message)

    first = grid.nodes[1000]
    grid.nodes[998], grid.nodes[1000] = slow, other
    strategy = run_strategy(grid, resolve(SETTINGS.model_dump() | {"rounds": 4}))
    assert strategy.validator.faults == [
        "round 1: missing: node 998: no answer in time",
        "round 3: late: node 998: its answer came after its round",
    ]
    assert [message.metadata.group_id for message in asked] == ["1", "3", "4"]


def test_a_reply_that_flower_cannot_read_takes_no_other_with_it(without_device_2: torch.Tensor) -> None:
    grid = cell_of(SETTINGS)
    pull = grid.pull_messages

    def stumbling(ids: Any) -> Any:
        replies = list(pull(ids))
        if any(reply.metadata.src_node_id == 998 for reply in replies):
            raise ValueError("object cannot be inflated")
        return replies

    grid.pull_messages = stumbling  # type: ignore[method-assign]
    strategy = run_strategy(grid)
    assert strategy.validator.counts == {"refused": 3}
    assert "node 998: its reply cannot be read: object cannot be inflated" in strategy.validator.faults[0]
    assert torch.equal(strategy.server.weights, without_device_2)


def test_nobody_answering_makes_no_step_and_ends_the_run() -> None:
    grid = CallingGrid({k: silent(device_node(SETTINGS, k)) for k in range(4)})
    strategy = strategy_for(resolve(SETTINGS.model_dump() | {"rounds": 9}))
    before = strategy.server.weights.clone()
    with pytest.raises(RunFailed, match="round 2: no device is connected"):
        strategy.start(grid, timeout=0.02)  # all of them still owe the answer of round 1
    assert torch.equal(strategy.server.weights, before)
    failing = CallingGrid({k: raising(device_node(SETTINGS, k)) for k in range(4)})
    strategy = strategy_for(resolve(SETTINGS.model_dump() | {"rounds": 9}))
    with pytest.raises(RunFailed, match="round 3: no device has answered for 3 rounds"):
        strategy.start(failing, timeout=0.02)
    assert strategy.validator.counts == {"failed": 12}


def test_a_run_may_begin_without_some() -> None:
    grid = cell_of(SETTINGS)
    del grid.nodes[998]
    strategy = run_strategy(grid, connect_timeout=0.0)
    assert strategy.validator.faults[0] == "round 1: 3 of 4 devices are connected"
    with pytest.raises(RunFailed, match="no device is connected"):
        run_strategy(CallingGrid({}), connect_timeout=0.0)
