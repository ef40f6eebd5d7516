"""Sending messages to nodes and fetching replies: how long to wait, and how large a reply may be."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, Message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_body,
)

__all__ = ["Exchange", "Largest", "Patience", "Replies", "SizeLimit", "TooLarge", "message_bytes"]

_GRACE = 1.5  # a round that has enough replies waits for the rest until this many times as long has passed
_MOST_SKIPPED = 63  # rounds that a node which is always late sits out


def message_bytes(message: InflatableObject) -> int:
    """Return the bytes of a message as Flower serialises it, without HTTP and TLS."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


@dataclass(frozen=True)
class Patience:
    """How long a round waits for its devices: `timeout` seconds, whoever is missing.

    When a share `quorum` of the nodes asked has replied (nodes that were late the last time do not count), it
    waits for the rest until `deadline` seconds from its start, or half as long again as the quorum took.
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
        """Return when the round closes at the latest, in seconds from its start; None: not enough yet.

        Example:
            >>> Patience(timeout=60).closes(None), Patience(timeout=60).closes(10.0)
            (60, 15.0)
        """
        if enough_at is None:
            return self.timeout
        until = _GRACE * enough_at if self.deadline is None else max(self.deadline, enough_at)
        return min(self.timeout, until)


@dataclass
class Replies:
    """What came of some messages."""

    came: dict[int, Message] = field(default_factory=dict)  # by node, errors among them
    unreadable: dict[int, str] = field(default_factory=dict)  # why a reply could not be fetched, by node
    silent: list[int] = field(default_factory=list)  # nodes that have not answered in time


class TooLarge(ValueError):
    """A reply is larger than it may be."""


@dataclass(frozen=True)
class Largest:
    """The most that a reply may have: bytes, as Flower serialises it, and arrays."""

    bytes: int
    arrays: int = 0

    def check(self, size: int, chunks: int = 0) -> None:
        """Raise `TooLarge` unless a reply of this many bytes and chunks of arrays may be read."""
        if size > self.bytes:
            raise TooLarge(f"its reply has more than {self.bytes} bytes, the most for this model")
        if chunks > self.arrays + self.bytes // CHUNK:
            raise TooLarge(f"its reply has more than {self.arrays} arrays, the most for this model")


class SizeLimit:
    """Measures a reply while it is fetched: before it is read, before it is decoded.

    Flower's own grid fetches a reply object by object over HTTP, whatever its size. We check the length that
    each response declares before its body is read, and how often an array repeats its chunks, which can make
    a small message a large one. Grids without HTTP are left alone, since they hold all replies anyway.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Flower fetches objects in threads
        self._most: Largest | None = None
        self._bytes, self._chunks = 0, 0
        self._watched: object = None

    @contextmanager
    def on(self, grid: Grid, most: Largest | None) -> Iterator[None]:
        """Limit the size of the one reply that is fetched inside the context; None sets no limit."""
        self._watch(grid)
        self._most, self._bytes, self._chunks = most, 0, 0
        try:
            yield
        finally:
            self._most = None

    def _watch(self, grid: object) -> None:
        """Check everything that the HTTP client of a grid receives from now on."""
        client = getattr(grid, "_runtime_client", None)
        if client is None or client is self._watched:
            return
        self._watched = client
        client._client.event_hooks["response"].append(self._response)
        pull = client.PullObject

        def pull_object(request: Any) -> Any:
            response = pull(request)
            self._array(response.object_content)
            return response

        client.PullObject = pull_object

    def _response(self, response: Any) -> None:
        """Count what a response declares; httpx calls this before it reads the body."""
        if self._most is not None:
            self._count(int(response.headers.get("content-length", self._most.bytes + 1)), 0)

    def _array(self, content: bytes) -> None:
        """Count the chunks of an array; a repeated chunk counts each time."""
        if self._most is not None and content.startswith(Array.__qualname__.encode() + b" "):
            self._count(0, len(json.loads(get_object_body(content, Array))["arraychunk_ids"]))

    def _count(self, size: int, chunks: int) -> None:
        with self._lock:
            self._bytes += size
            self._chunks += chunks
            if self._most is not None:
                self._most.check(self._bytes, self._chunks)


class Exchange:
    """Messages to nodes, and which of them are still unanswered.

    A node that has not answered in time is not asked again until it does, or until the SuperLink gives it up.
    From then on rounds do not wait for it as they do for others, and it sits out 0, 1, 3, 7, ... rounds each
    time it is late again; one reply in time makes it a node like any other. So a node that is always late
    holds up one round. A node whose reply is too large is not asked again at all.

    `poll` is the number of seconds between two checks for replies; tests replace `clock` and `sleep`.
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
        """Return which nodes can be asked; those that sit out are among them only if nobody else is left."""
        owing = {node for node, _ in self._open.values()}
        able = set(nodes) - owing - self._excluded
        return {node for node in able if not self._skips[node]} or able

    def late(self, grid: Grid) -> Replies:
        """Fetch late replies to earlier messages; their nodes are free again."""
        replies = Replies()
        self._poll_replies(grid, replies, list(self._open))
        return replies

    def send(
        self, grid: Grid, messages: Sequence[Message], patience: Patience, most: Largest | None = None
    ) -> Replies:
        """Send messages, at most one per node, and wait for replies, of the size `most` at most."""
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
        for node in set(nodes.values()) - left:
            self._late.pop(node, None)
        for node in left:
            self._late[node] += 1
            self._skips[node] = min(2 ** (self._late[node] - 1) - 1, _MOST_SKIPPED)
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

    def _poll_replies(self, grid: Grid, replies: Replies, ids: Iterable[str]) -> None:
        """Fetch each reply by itself: one that cannot be read must not affect the others."""
        for id in ids:
            node, most = self._open[id]
            try:
                with self._limit.on(grid, most):
                    found = list(grid.pull_messages([id]))
                if most is not None:  # for grids that the limit cannot watch
                    for reply in found:
                        most.check(message_bytes(reply))
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
