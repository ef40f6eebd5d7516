"""Sending to nodes and waiting for them, without letting one that is slow or gone hold up the next round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["Exchange", "Replies"]


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

    A node that has not answered in time is busy until it does, or until the SuperLink gives it up: it is not
    asked again meanwhile, so nobody waits for it twice and it does not work through a queue of old rounds.

    Args:
        poll: Seconds between two looks for replies.
    """

    def __init__(self, poll: float = 0.5) -> None:
        self._poll = poll
        self._open: dict[str, int] = {}

    @property
    def busy(self) -> set[int]:
        """Nodes that still owe an answer."""
        return set(self._open.values())

    def late(self, grid: Grid) -> Replies:
        """Fetch what came since for earlier messages; their nodes are free again."""
        replies = Replies()
        self._look(grid, replies, list(self._open))
        return replies

    def send(self, grid: Grid, messages: Sequence[Message], timeout: float) -> Replies:
        """Send messages, one a node at most, and wait for the replies, at most `timeout` seconds.

        Args:
            grid: Flower's way to the nodes.
            messages: What to send.
            timeout: Seconds; the last look is after it.
        """
        replies = Replies()
        if not messages:
            return replies
        ids = list(grid.push_messages(messages)) or [""] * len(messages)
        nodes = {}
        for id, message in zip(ids, messages, strict=True):
            if id:
                nodes[id] = message.metadata.dst_node_id
            else:
                replies.unreadable[message.metadata.dst_node_id] = "the SuperLink did not take its message"
        self._open |= nodes
        end = time.monotonic() + timeout
        while True:
            waiting = [id for id in nodes if id in self._open]
            self._look(grid, replies, waiting)
            left = [id for id in waiting if id in self._open]
            if not left or time.monotonic() >= end:
                break
            time.sleep(min(self._poll, max(0.0, end - time.monotonic())))
        replies.silent = [nodes[id] for id in left]
        return replies

    def _look(self, grid: Grid, replies: Replies, ids: Iterable[str]) -> None:
        """Ask for each reply by itself: one that cannot be read must not take the others with it."""
        for id in ids:
            try:
                found = list(grid.pull_messages([id]))
            except Exception as error:  # whatever a stranger's bytes make Flower raise
                node = self._open.pop(id)
                replies.unreadable[node] = f"its reply cannot be read: {error}"
                continue
            for reply in found:
                node = self._open.pop(id, reply.metadata.src_node_id)
                replies.came.setdefault(node, reply)
