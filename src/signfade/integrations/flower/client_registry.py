"""Which node is which device, and what the server knows of each."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from flwr.serverapp import Grid

__all__ = ["ClientRegistry"]

_KEY_BYTES = 32


class ClientRegistry:
    """Device numbers and the keys that own them.

    A number belongs to the key of the first node that answers well under it, for the whole run. If two nodes
    claim a free number in the same round, neither gets it, so it does not matter who answers first.

    Attributes:
        owners: The key that owns each device number, uint8 `[N, 32]`, zeros where it is free. A checkpoint
            holds it.
        rounds: The round whose weights a node has, by node; a node that is not there needs them in full.

    Example:
        >>> registry = ClientRegistry(devices=2)
        >>> registry.claim({71: 0})
        {}
        >>> registry.claim({72: 0})
        {72: 'its device number 0 belongs to another key'}
        >>> registry.name(71)
        'node 71 (device 0)'
    """

    def __init__(self, devices: int) -> None:
        self.owners = np.zeros((devices, _KEY_BYTES), dtype=np.uint8)
        self.rounds: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}

    def connect(self, grid: Grid) -> set[int]:
        """Return the nodes that are connected, and remember their keys.

        A registered SuperNode proves that it has its key; others make a new one each time they start. On
        grids without keys a node's number takes its place.
        """
        found = {node.node_id: node.public_key for node in grid.get_nodes()}
        self._keys |= {node: hashlib.sha256(key or _stand_in(node)).digest() for node, key in found.items()}
        return set(found)

    def claim(self, claims: Mapping[int, int]) -> dict[int, str]:
        """Give nodes the device numbers they claim, all of one round; return why not, by node refused."""
        refused: dict[int, str] = {}
        by_device: dict[int, list[int]] = defaultdict(list)
        for node, device in sorted(claims.items()):
            if (why := self._why_not(node, device)) is None:
                by_device[device].append(node)
            else:
                refused[node] = why
        for device, nodes in by_device.items():
            if len(nodes) > 1:
                names = " and ".join(map(str, nodes))
                refused |= dict.fromkeys(nodes, f"device number {device} is claimed by nodes {names}")
            else:
                self.owners[device] = self._key(nodes[0])
        return refused

    def _why_not(self, node: int, device: int) -> str | None:
        before = self.device_of(node)
        if before is not None and before != device:
            return f"its device number was {before} before; got {device}"
        if before == device or not self.owners[device].any():
            return None
        owner = self.node_of(device)
        holder = "another key" if owner is None else f"another key, that of node {owner}"
        return f"its device number {device} belongs to {holder}"

    def _key(self, node: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        key = self._keys.get(node) or hashlib.sha256(_stand_in(node)).digest()
        return np.frombuffer(key, dtype=np.uint8)

    def device_of(self, node: int) -> int | None:
        """Return the device that a node is; None if it is not known yet."""
        owned = np.flatnonzero((self.owners == self._key(node)).all(axis=1))
        return int(owned[0]) if len(owned) else None

    def node_of(self, device: int) -> int | None:
        """Return the node that is a device, the newest with its key; None if it is not known yet."""
        owner = self.owners[device].tobytes()
        return next((node for node, key in reversed(self._keys.items()) if key == owner), None)

    def name(self, node: int) -> str:
        """Return what to call a node in a sentence."""
        device = self.device_of(node)
        return f"node {node}" if device is None else f"node {node} (device {device})"


def _stand_in(node: int) -> bytes:
    return b"node %d" % node
