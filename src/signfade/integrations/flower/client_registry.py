"""Which node is which device, and what the server knows of each."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from flwr.serverapp import Grid
from torch import Tensor

__all__ = ["Roster", "keys_of"]

_KEY_BYTES = 32


def keys_of(grid: Grid) -> dict[int, bytes]:
    """Return the nodes that are connected, and of each a digest of its public key.

    A registered SuperNode proves that it has the key; others make themselves one each time they start. On
    grids without keys a node's number stands for it.
    """
    return {
        node.node_id: hashlib.sha256(node.public_key or b"node %d" % node.node_id).digest()
        for node in grid.get_nodes()
    }


class Roster:
    """Device numbers and the keys that own them.

    A number belongs to the key of the first node that answers well under it, for the whole run. If two nodes
    claim one that is nobody's in the same round, neither gets it, so it does not matter who answers first.

    Args:
        devices: Number of devices K in the cell.
        lasting: Whether owners are saved with the run: keys that nodes make themselves end with them.

    Example:
        >>> roster = Roster(devices=2)
        >>> roster.meet({71: b"a" * 32, 72: b"b" * 32})
        >>> roster.claim({71: 0})
        {}
        >>> roster.claim({72: 0})
        {72: 'its device number 0 belongs to another key, that of node 71'}
        >>> roster.name(71)
        'node 71 (device 0)'
    """

    def __init__(self, devices: int, *, lasting: bool = True) -> None:
        self._devices, self._lasting = devices, lasting
        self._owners: dict[int, bytes] = {}  # of each device, and the other way round
        self._owned: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._has_round: dict[int, int] = {}

    def meet(self, keys: Mapping[int, bytes]) -> None:
        """Take note of the nodes that are there and of their keys."""
        self._keys |= keys

    def claim(self, claims: Mapping[int, int]) -> dict[int, str]:
        """Let nodes be devices; return why not, for those that may not.

        Args:
            claims: From node to the device number it says it has, of one round.
        """
        refused: dict[int, str] = {}
        by_device: dict[int, list[int]] = defaultdict(list)
        for node, device in sorted(claims.items()):
            why = self._why_not(node, device)
            if why is None:
                by_device[device].append(node)
            else:
                refused[node] = why
        for device, nodes in by_device.items():
            if len(nodes) > 1:
                names = " and ".join(map(str, nodes))
                refused |= dict.fromkeys(nodes, f"device number {device} is claimed by nodes {names}")
            else:
                self._own(device, self._key(nodes[0]))
        return refused

    def _why_not(self, node: int, device: int) -> str | None:
        key, before = self._key(node), self.device_of(node)
        if before is not None and before != device:
            return f"its device number was {before} before; got {device}"
        if self._owners.get(device, key) == key:
            return None
        owner = self.node_of(device)
        holder = "another key" if owner is None else f"another key, that of node {owner}"
        return f"its device number {device} belongs to {holder}"

    def _own(self, device: int, key: bytes) -> None:
        self._owners[device], self._owned[key] = key, device

    def _key(self, node: int) -> bytes:
        return self._keys.get(node, hashlib.sha256(b"node %d" % node).digest())

    def device_of(self, node: int) -> int | None:
        """Return the device that a node is; None if it has not said so."""
        return self._owned.get(self._key(node))

    def node_of(self, device: int) -> int | None:
        """Return the node that is a device, the newest with its key; None if nobody has said so."""
        key = self._owners.get(device)
        return next((node for node, its in reversed(self._keys.items()) if its == key), None)

    def unknown(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have not said who they are."""
        return [node for node in nodes if self.device_of(node) is None]

    def name(self, node: int) -> str:
        """Return what to call a node in a sentence."""
        device = self.device_of(node)
        return f"node {node}" if device is None else f"node {node} (device {device})"

    def kept_up(self, node: int, round: int) -> None:
        """Note that a node has the weights of a round."""
        self._has_round[node] = round

    def lost(self, node: int) -> None:
        """Note that nobody knows what weights a node has."""
        self._has_round.pop(node, None)

    def has_round(self, node: int) -> int | None:
        """Return the round whose weights a node has; None if it needs them in full."""
        return self._has_round.get(node)

    def state(self) -> Tensor:
        """Return the owners, `[K, 32]`, zeros where there is none."""
        saved, nobody = self._owners if self._lasting else {}, bytes(_KEY_BYTES)
        rows = [list(saved.get(device, nobody)) for device in range(self._devices)]
        return torch.tensor(rows, dtype=torch.uint8)

    def restore(self, owners: Tensor) -> None:
        """Take back what `state` returned."""
        for device, row in enumerate(owners):
            if bool(row.any()):
                self._own(device, bytes(row.tolist()))
