"""Who is waited for, and how long: quorum, deadline, and nodes that are always late."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from signfade.integrations.flower.exchange import Exchange, Largest, Patience, Replies

from .grids import CallingGrid


class SlowGrid(CallingGrid):
    """A grid whose nodes take some seconds each, by a clock that goes on only where somebody waits."""

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__(dict.fromkeys(seconds, self._answer))
        self.seconds, self.now = seconds, 0.0
        self._ready: dict[str, float] = {}

    @staticmethod
    def _answer(message: Message) -> Message:
        return Message(RecordDict(), reply_to=message)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = list(super().push_messages(sent))
        for id, message in zip(ids, sent, strict=True):
            self._ready[id] = self.now + self.seconds[message.metadata.dst_node_id]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([id for id in message_ids if self._ready[id] <= self.now])

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Rounds:
    """Rounds of an exchange over a slow grid."""

    def __init__(self, seconds: dict[int, float], patience: Patience) -> None:
        self.grid, self.patience = SlowGrid(seconds), patience
        self.exchange = Exchange(poll=0.25, clock=lambda: self.grid.now, sleep=self.grid.sleep)
        self.asked: list[set[int]] = []

    def run(self) -> tuple[float, Replies]:
        """Run one round; return how long it took, and what came."""
        self.exchange.late(self.grid)
        nodes = self.exchange.free(self.grid.nodes)
        self.asked.append(nodes)
        content = RecordDict({"signfade": ConfigRecord()})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in sorted(nodes)]
        began = self.grid.now
        replies = self.exchange.send(self.grid, messages, self.patience)
        return self.grid.now - began, replies


def test_all_in_time_close_a_round_at_once() -> None:
    rounds = Rounds({1: 2.0, 2: 3.0, 3: 5.0}, Patience(timeout=100.0))
    for _ in range(3):
        took, replies = rounds.run()
        assert took == 5.0
        assert (set(replies.came), replies.silent) == ({1, 2, 3}, [])


@pytest.mark.parametrize("slow", [101.0, 130.0, 1000.0])
def test_a_node_that_is_always_late_holds_up_one_round(slow: float) -> None:
    """The others take 10 s; it is asked again, but waited for 5 s at most, and each time more rarely."""
    rounds = Rounds({1: 10.0, 2: 10.0, 3: slow}, Patience(timeout=100.0))
    took = [rounds.run()[0] for _ in range(200)]
    assert took[0] == 100.0
    assert max(took[1:]) <= 15.0
    asked = sum(3 in nodes for nodes in rounds.asked)
    assert 2 <= asked <= 10  # late k times, it sits out 2^(k-1) - 1 rounds
    assert sum(took) < 100 + 10 * 199 + 5 * asked + 1


def test_one_reply_in_time_makes_it_a_node_like_others() -> None:
    rounds = Rounds({1: 10.0, 2: 10.0, 3: 120.0}, Patience(timeout=100.0))
    rounds.run()
    rounds.grid.seconds[3] = 12.0  # slower than the others all the same
    while 3 not in rounds.run()[1].came:
        assert len(rounds.asked) < 20
    assert rounds.run()[0] == 12.0
    assert rounds.run()[0] == 12.0


def test_all_late_are_all_asked_again() -> None:
    rounds = Rounds({1: 120.0, 2: 130.0}, Patience(timeout=100.0))
    assert rounds.run()[0] == 100.0
    rounds.grid.now += 100.0
    rounds.grid.seconds.update({1: 10.0, 2: 20.0})
    took, replies = rounds.run()
    assert (took, set(replies.came)) == (20.0, {1, 2})


@pytest.mark.parametrize(
    ("patience", "took", "came"),
    [
        (Patience(100.0, quorum=0.5), 6.0, {1, 2}),  # enough after 4 s, and half as long again
        (Patience(100.0, quorum=0.5, deadline=30.0), 30.0, {1, 2, 3}),
        (Patience(100.0, quorum=0.5, deadline=0.0), 4.0, {1, 2}),
        (Patience(100.0, quorum=0.51, deadline=10.0), 20.0, {1, 2, 3}),  # three of four
        (Patience(100.0, quorum=1.0, deadline=10.0), 80.0, {1, 2, 3, 4}),
        (Patience(50.0, quorum=1.0), 50.0, {1, 2, 3}),
    ],
)
def test_a_quorum_closes_a_round_after_its_deadline(patience: Patience, took: float, came: set[int]) -> None:
    rounds = Rounds({1: 2.0, 2: 4.0, 3: 20.0, 4: 80.0}, patience)
    seconds, replies = rounds.run()
    assert (seconds, set(replies.came), set(replies.silent)) == (took, came, {1, 2, 3, 4} - came)


def test_a_reply_that_is_too_large_is_refused_and_its_node_not_asked_again() -> None:
    grid = CallingGrid({1: SlowGrid._answer, 2: SlowGrid._answer})
    filled = RecordDict({"signfade": ConfigRecord({"packet": bytes(5000)})})
    grid.nodes[2] = lambda message: Message(filled, reply_to=message)
    exchange = Exchange(poll=0.01)
    content = RecordDict({"signfade": ConfigRecord()})
    messages = [Message(content, dst_node_id=node, message_type="train") for node in (1, 2)]
    replies = exchange.send(grid, messages, Patience(1.0), Largest(4000))
    assert set(replies.came) == {1}
    why = "its reply has more than 4000 bytes, the most for this model; it is not asked again"
    assert replies.unreadable == {2: why}
    assert exchange.free({1, 2}) == {1}
