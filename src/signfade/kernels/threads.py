"""Cutting a range of coordinates over threads. Kernels release the GIL, so plain Python threads do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["available_threads", "run_ranges"]

_RANGES_PER_THREAD = 8


def available_threads() -> int:
    """Return the number of cores this process may use; `OMP_NUM_THREADS` bounds it as it does torch's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="signfade")


def run_ranges(work: Callable[[int, int], None], count: int, threads: int | None) -> None:
    """Call `work(first, last)` on disjoint ranges that cover 0 ... count - 1, on up to `threads` threads.

    None is as many threads as there are cores. There are more ranges than threads, and a thread takes the
    next when it has done one, so none waits long for another that has lost its core to some other program.
    Results must not depend on the ranges.
    """
    threads = max(1, min(threads or available_threads(), count))
    if threads == 1:
        work(0, count)
        return
    parts = min(count, _RANGES_PER_THREAD * threads)
    turns = iter(range(parts))  # its next() is one step of the interpreter: no two threads get the same

    def take() -> None:
        for i in turns:
            work(count * i // parts, count * (i + 1) // parts)

    pool = _pool(os.getpid(), threads - 1)
    others = [pool.submit(take) for _ in range(threads - 1)]
    take()
    for other in others:
        other.result()
