"""Which node is which device, and what the server knows of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["Roster"]


class Roster:
    """Nodes and the devices they have said they are.

    A number belongs to the first node that answers well under it, for as long as that node is there; in one
    round, to the node with the smaller number, so that it does not matter who answers first.

    Example:
        >>> roster = Roster()
        >>> roster.claim(node=71, device=0, present={71, 72})
        >>> roster.claim(node=72, device=0, present={71, 72})
        'its device number 0 belongs to node 71'
        >>> roster.claim(node=72, device=0, present={72})
        >>> roster.name(72)
        'node 72 (device 0)'
    """

    def __init__(self) -> None:
        self._device: dict[int, int] = {}
        self._has_round: dict[int, int] = {}

    def claim(self, node: int, device: int, present: Collection[int]) -> str | None:
        """Let a node be a device; return why not, if it may not.

        Args:
            node: Flower's number of the node.
            device: The number it says it has.
            present: The nodes that are connected.
        """
        if node in self._device and self._device[node] != device:
            return f"its device number was {self._device[node]} before; got {device}"
        owner = self.node_of(device)
        if owner is not None and owner != node:
            if owner in present:
                return f"its device number {device} belongs to node {owner}"
            self._forget(owner)  # a node that was started anew comes back under another number
        self._device[node] = device
        return None

    def node_of(self, device: int) -> int | None:
        """Return the node that is a device; None if nobody has said so."""
        return next((node for node, its in self._device.items() if its == device), None)

    def unknown(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have not said who they are."""
        return [node for node in nodes if node not in self._device]

    def name(self, node: int) -> str:
        """Return what to call a node in a sentence."""
        return f"node {node} (device {self._device[node]})" if node in self._device else f"node {node}"

    def kept_up(self, node: int, round: int) -> None:
        """Note that a node has the weights of a round."""
        self._has_round[node] = round

    def lost(self, node: int) -> None:
        """Note that nobody knows what weights a node has."""
        self._has_round.pop(node, None)

    def has_round(self, node: int) -> int | None:
        """Return the round whose weights a node has; None if it needs them in full."""
        return self._has_round.get(node)

    def _forget(self, node: int) -> None:
        self._device.pop(node, None)
        self.lost(node)
