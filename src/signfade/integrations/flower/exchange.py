"""Sending to nodes and waiting for them, without letting one that is slow or gone hold up the next round."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from signfade.integrations.flower.limit import Largest, SizeLimit, TooLarge
from signfade.integrations.flower.wire import message_bytes

__all__ = ["Exchange", "Patience", "Replies"]

_GRACE = 1.5  # a round that has enough replies waits for the rest until this many times as long has passed
_MOST_SKIPPED = 63  # rounds that a node which is always late sits out


@dataclass(frozen=True)
class Patience:
    """How long a round waits for its devices.

    Attributes:
        timeout: Seconds after which the round closes whoever is missing.
        quorum: Share of the nodes asked whose replies are enough, in (0, 1]; nodes that were late the last
            time are not counted.
        deadline: Seconds, from the round's start, until which it waits for the rest once it has enough; by
            default half as long again as it took to have enough.
    """

    timeout: float
    quorum: float = 1.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum must be a share of the devices in (0, 1]; got {self.quorum}")
        if self.deadline is not None and not 0 <= self.deadline < math.inf:
            raise ValueError(f"deadline must be a number of seconds, 0 or more; got {self.deadline}")

    def closes(self, enough_at: float | None) -> float:
        """Return when the round closes at the latest, in seconds from its start.

        Args:
            enough_at: When it had enough replies; None if it has not yet.

        Example:
            >>> Patience(timeout=60).closes(None), Patience(timeout=60).closes(10.0)
            (60, 15.0)
            >>> Patience(timeout=60, deadline=30).closes(10.0)
            30
        """
        if enough_at is None:
            return self.timeout
        until = _GRACE * enough_at if self.deadline is None else max(self.deadline, enough_at)
        return min(self.timeout, until)


@dataclass
class Replies:
    """What came of some messages.

    Attributes:
        came: Replies by node, errors among them.
        unreadable: Why a node's reply could not even be fetched, by node.
        silent: Nodes that have not answered in time.
    """

    came: dict[int, Message] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)


class Exchange:
    """Messages to nodes, and which of them are still unanswered.

    A node that has not answered in time is not asked again until it does, or until the SuperLink gives it up.
    From then on rounds do not wait for it as they do for others, and it sits out 0, 1, 3, 7, ... rounds each
    time it is late again; one reply in time makes it a node like any other. So a node that is always late
    holds up one round. A node whose reply is too large is not asked again at all.

    Args:
        poll: Seconds between two checks for replies.
        clock: Returns seconds.
        sleep: Waits some.
    """

    def __init__(
        self,
        poll: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._poll, self._clock, self._sleep = poll, clock, sleep
        self._open: dict[str, tuple[int, Largest | None]] = {}
        self._late: Counter[int] = Counter()
        self._skips: Counter[int] = Counter()
        self._excluded: set[int] = set()
        self._limit = SizeLimit()

    def free(self, nodes: Collection[int]) -> set[int]:
        """Return who of some nodes can be asked: those that sit out only where nobody else is there."""
        owing = {node for node, _ in self._open.values()}
        able = set(nodes) - owing - self._excluded
        return {node for node in able if not self._skips[node]} or able

    def late(self, grid: Grid) -> Replies:
        """Fetch what came since for earlier messages; their nodes are free again."""
        replies = Replies()
        self._poll_replies(grid, replies, list(self._open))
        return replies

    def send(
        self, grid: Grid, messages: Sequence[Message], patience: Patience, most: Largest | None = None
    ) -> Replies:
        """Send messages, at most one per node, and wait for the replies.

        Args:
            grid: Flower's way to the nodes.
            messages: What to send.
            patience: How long to wait.
            most: How large a reply may be.
        """
        replies = Replies()
        if not messages:
            return replies
        began = self._clock()
        nodes = self._push(grid, messages, replies, most)
        self._skips -= Counter(dict.fromkeys(self._skips, 1))
        prompt = [node for node in nodes.values() if not self._late[node]] or list(nodes.values())
        needed = math.ceil(patience.quorum * len(prompt))
        enough_at: float | None = None
        while True:
            waiting = [id for id in nodes if id in self._open]
            self._poll_replies(grid, replies, waiting)
            left = {nodes[id] for id in waiting if id in self._open}
            now = self._clock() - began
            if enough_at is None and len(set(prompt) - left) >= needed:
                enough_at = now
            closes = patience.closes(enough_at)
            if not left or now >= closes:
                break
            self._sleep(min(self._poll, closes - now))
        replies.silent = sorted(left)
        self._remember(set(nodes.values()) - left, left)
        return replies

    def _push(
        self, grid: Grid, messages: Sequence[Message], replies: Replies, most: Largest | None
    ) -> dict[str, int]:
        """Send messages; return the nodes by the numbers of their messages."""
        ids = list(grid.push_messages(messages)) or [""] * len(messages)
        nodes = {}
        for id, message in zip(ids, messages, strict=True):
            if id:
                nodes[id] = message.metadata.dst_node_id
            else:
                replies.unreadable[message.metadata.dst_node_id] = "the SuperLink did not take its message"
        self._open |= {id: (node, most) for id, node in nodes.items()}
        return nodes

    def _remember(self, prompt: Iterable[int], late: Iterable[int]) -> None:
        """Note who answered in time and who did not."""
        for node in prompt:
            self._late.pop(node, None)
        for node in late:
            self._late[node] += 1
            self._skips[node] = min(2 ** (self._late[node] - 1) - 1, _MOST_SKIPPED)

    def _poll_replies(self, grid: Grid, replies: Replies, ids: Iterable[str]) -> None:
        """Ask for each reply by itself: one that cannot be read must not take the others with it."""
        for id in ids:
            node, most = self._open[id]
            try:
                found = self._fetch(grid, id, most)
            except Exception as error:  # whatever a stranger's bytes make Flower raise
                self._open.pop(id)
                replies.unreadable[node] = f"its reply cannot be read: {error}"
                if isinstance(error, TooLarge):
                    self._excluded.add(node)  # what it sent fills the SuperLink's memory
                    replies.unreadable[node] = f"{error}; it is not asked again"
                continue
            for reply in found:
                self._open.pop(id, None)
                replies.came.setdefault(node, reply)

    def _fetch(self, grid: Grid, id: str, most: Largest | None) -> list[Message]:
        with self._limit.on(grid, most):
            found = list(grid.pull_messages([id]))
        if most is not None:  # for grids that the limit cannot watch
            for reply in found:
                most.check(message_bytes(reply))
        return found
