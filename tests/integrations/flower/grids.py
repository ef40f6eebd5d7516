"""Flower without processes: nodes are functions, and the grid calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from signfade.integrations.flower.deployed import train_on
from signfade.settings import RunSettings
from signfade.simulation.run import make_task

Node = Callable[[Message], Message | None]


class CallingGrid(Grid):
    """A grid whose nodes answer at once, or never; replies come in the reverse order of the node numbers."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.keys: dict[int, bytes] = {}  # public keys of nodes that have one
        self.sent: list[Message] = []
        self._replies: dict[str, Message | None] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.nodes, reverse=True)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in reversed(list(messages)):
            id = f"message-{len(self.sent):08d}"
            message.metadata.__dict__["_message_id"] = id
            self.sent.append(message)
            self._replies[id] = self._ask(message)
            ids.append(id)
        return ids[::-1]

    def _ask(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            return self.nodes[node](message)
        except Exception as error:
            return Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    def arrive(self, id: str, reply: Message) -> None:
        self._replies[id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies[id] for id in message_ids]
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        return list(self.pull_messages(self.push_messages(messages)))


def context(device: int, **node_config: Any) -> Context:
    return Context(1, 100 + device, {"partition-id": device} | node_config, RecordDict(), {})


def device_node(settings: RunSettings, device: int) -> Node:
    """A node that is a device of the simulator's task, with a memory of its own."""
    own, task = context(device), make_task(settings)
    return lambda message: train_on(message, own, settings, task)


def cell_of(settings: RunSettings) -> CallingGrid:
    """All devices of a run, the node of device k being number 1000 - k: another order than the devices'."""
    return CallingGrid({1000 - k: device_node(settings, k) for k in range(settings.data.devices)})
