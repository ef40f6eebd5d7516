"""A limit on the bytes of a reply, kept while it is fetched: before it is read, before it is decoded.

Flower's own grid fetches a reply object by object over HTTP, whatever its size. We check the length that
each response declares before its body is read, and how often an array repeats its chunks, which can make a
small message a large one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import Array
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_body

__all__ = ["Largest", "SizeLimit", "TooLarge"]


class TooLarge(ValueError):
    """A reply is larger than it may be."""


@dataclass(frozen=True)
class Largest:
    """The most that a reply may have: bytes, as Flower serialises it, and arrays."""

    bytes: int
    arrays: int = 0

    def check(self, size: int, chunks: int = 0) -> None:
        """Raise unless a reply of this many bytes and chunks of arrays may be read.

        Raises:
            TooLarge: It may not.

        Example:
            >>> Largest(bytes=100).check(120)
            Traceback (most recent call last):
            signfade.integrations.flower.limit.TooLarge: its reply has more than 100 bytes, the most for this
            model
        """
        if size > self.bytes:
            raise TooLarge(f"its reply has more than {self.bytes} bytes, the most for this model")
        if chunks > self.arrays + self.bytes // CHUNK:
            raise TooLarge(f"its reply has more than {self.arrays} arrays, the most for this model")


class SizeLimit:
    """Watches what a grid fetches; grids without HTTP are left alone, since they hold all replies anyway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Flower fetches objects in threads
        self._most: Largest | None = None
        self._bytes, self._chunks = 0, 0
        self._watched: object = None

    @contextmanager
    def on(self, grid: Grid, most: Largest | None) -> Iterator[None]:
        """Let one reply be fetched from a grid meanwhile, of any size if `most` is None."""
        self._watch(grid)
        self._most, self._bytes, self._chunks = most, 0, 0
        try:
            yield
        finally:
            self._most = None

    def _count(self, size: int, chunks: int) -> None:
        with self._lock:
            self._bytes += size
            self._chunks += chunks
            if self._most is not None:
                self._most.check(self._bytes, self._chunks)

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
        """Count the chunks of an array, each time one is repeated."""
        if self._most is not None and content.startswith(Array.__qualname__.encode() + b" "):
            self._count(0, len(json.loads(get_object_body(content, Array))["arraychunk_ids"]))
