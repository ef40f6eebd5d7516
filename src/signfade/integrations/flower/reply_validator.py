"""Which replies can be used, and names and numbers for those that cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from logging import WARNING
from typing import TypeVar

import torch
from flwr.app import Message
from flwr.supercore import log
from torch import Tensor

from signfade.integrations.flower.client_registry import Roster
from signfade.integrations.flower.exchange import Replies
from signfade.integrations.flower.replies import BadAnswer
from signfade.integrations.flower.wire import Answer, Presence, message_bytes

__all__ = ["Judge"]

Said = TypeVar("Said", Answer, Presence)
_MOST_WORDS = 300  # characters of a stranger's message that go into our log


class Judge:
    """Reads replies in the order of their nodes, so that it does not matter who answered first.

    Args:
        roster: Which node is which device.

    Attributes:
        roster: Which node is which device.
        faults: A sentence for everything that went wrong.
        counts: How many replies were `refused` (not what was asked for), `failed` (the device or the
            SuperLink says so), `missing` or `late`.
        good: How many replies were good.
        uplink_bytes: Of all replies so far, good or bad, as Flower serialises them.
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.good = 0
        self.uplink_bytes = 0

    def read(self, replies: Replies, read: Callable[[Message], Said], round: int) -> dict[int, Said]:
        """Return what is good, by node; count and name the rest.

        Args:
            replies: What came of a round's messages.
            read: From a reply to what it says; raises `BadAnswer`.
            round: Counted from 0.
        """
        said: dict[int, Said] = {}
        for node, reply in sorted(replies.came.items()):
            try:
                self.uplink_bytes += message_bytes(reply)
                if reply.has_content():
                    said[node] = read(reply)
                else:
                    self._fault("failed", node, round, reply.error.reason or "no reason given")
            except BadAnswer as error:
                self._fault("refused", node, round, str(error))
            except Exception as error:  # nothing that a stranger sends may end the run
                self._fault("refused", node, round, f"its reply cannot be read: {error}")
        claims = {node: words.device for node, words in said.items()}
        refused = self.roster.claim(claims)
        for node, why in sorted((refused | replies.unreadable).items()):
            self._fault("refused", node, round, why)
        for node in replies.silent:
            self._fault("missing", node, round, "no answer in time")
        good = {node: words for node, words in said.items() if node not in refused}
        self.good += len(good)
        return good

    def late(self, replies: Replies, round: int) -> None:
        """Drop what came after its round."""
        for node, reply in sorted(replies.came.items()):
            self.uplink_bytes += message_bytes(reply)
            why = "its answer came after its round" if reply.has_content() else reply.error.reason
            self._fault("late", node, round, why or "no reason given")
        for node, why in sorted(replies.unreadable.items()):
            self._fault("late", node, round, why)

    def say(self, sentence: str) -> None:
        """Note a sentence, here and in Flower's log."""
        self.faults.append(sentence)
        log(WARNING, sentence)

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved: who owns which number, and how many replies were good and refused."""
        replies = torch.tensor([self.good, self.counts["refused"]], dtype=torch.int64)
        return {"owners": self.roster.state(), "replies": replies}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.good, self.counts["refused"] = state["replies"].tolist()
        self.roster.restore(state["owners"])

    def _fault(self, kind: str, node: int, round: int, why: str) -> None:
        """Count and name what a node did wrong; nobody knows any more what weights it has."""
        self.roster.lost(node)
        self.counts[kind] += 1
        self.say(f"round {round + 1}: {kind}: {self.roster.name(node)}: {_short(why)}")


def _short(text: str) -> str:
    """Return a stranger's words as one line of bounded length.

    Example:
        >>> _short("two" + chr(10) + "lines" + chr(27) + "[31m")
        'two lines [31m'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}..."
