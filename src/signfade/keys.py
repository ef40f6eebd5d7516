"""Randomness keyed by what it is for, so that no result depends on who drew first.

Every random number of a run belongs to a stream named by (seed, purpose, round, device). A device simulated
on another worker, in another order or after a restart draws the same numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["generator", "stream_key", "stream_keys"]


def stream_key(seed: int, purpose: str, round: int = 0, device: int = 0) -> int:
    """Return the 64-bit key of the stream (seed, purpose, round, device).

    A cryptographic hash, so that neighbouring rounds and devices get unrelated streams.

    Example:
        >>> stream_key(7, "noise", round=3, device=0) == stream_key(7, "noise", round=3, device=1)
        False
    """
    try:
        words = struct.pack("<qqq", seed, round, device)
    except struct.error:
        got = f"{seed!r}, {round!r} and {device!r}"
        raise ValueError(f"seed, round and device must be integers of 64 bits; got {got}") from None
    return int.from_bytes(hashlib.blake2b(words + purpose.encode(), digest_size=8).digest(), "little")


def stream_keys(seed: int, purpose: str, round: int, devices: Iterable[int]) -> NDArray[np.uint64]:
    """Return the keys of many devices' streams, `[K]`."""
    return np.array([stream_key(seed, purpose, round, int(k)) for k in devices], dtype=np.uint64)


def generator(seed: int, purpose: str, round: int = 0, device: int = 0) -> np.random.Generator:
    """Return NumPy's generator for the stream (seed, purpose, round, device).

    Example:
        >>> a = generator(7, "fading", round=3).normal()
        >>> a == generator(7, "fading", round=3).normal()
        True
    """
    return np.random.Generator(np.random.Philox(key=stream_key(seed, purpose, round, device)))
