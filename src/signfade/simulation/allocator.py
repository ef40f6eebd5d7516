"""The memory allocator's part in a round.

A round's activations are a few megabytes each: glibc hands such blocks back to the kernel when they are freed
and asks for them again at the next layer, and every new page costs a fault (17,000 a round on the paper's
network). Raised thresholds make it keep them.
"""

from __future__ import annotations

import ctypes
import platform

__all__ = ["tune_allocator"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's names for mallopt's first argument


def tune_allocator(keep: int = 1 << 30) -> bool:
    """Make glibc keep freed blocks below `keep` bytes for the next allocation; do nothing elsewhere.

    Changes speed and never a result. It acts on the whole process and cannot be undone, so a program calls it
    once at its start, and no function of this library does. Returns whether the allocator took the settings.
    """
    if not 0 < keep < 1 << 31:
        raise ValueError(f"keep must be between 1 and 2^31 - 1 bytes; got {keep}")
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # a glibc look-alike without it
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    settings = ((_MMAP_THRESHOLD, keep), (_TRIM_THRESHOLD, keep), (_TOP_PAD, min(keep, 1 << 26)))
    accepted: list[int] = [mallopt(name, value) for name, value in settings]
    return min(accepted) == 1
