"""Interleaved timing: all candidates take turns, so that a busy machine slows all alike."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, float]


def measure(
    candidates: dict[str, Callable[[], object]], rounds: int, base: str, warm_up: int = 2
) -> dict[str, Row]:
    """Time every candidate once a round; ratios are to `base` in the same round, higher is faster."""
    for work in candidates.values():
        for _ in range(warm_up):
            work()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    cpu = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, work in candidates.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            work()
            seconds[name].append(time.perf_counter() - start)
            cpu[name] = min(cpu[name], time.process_time() - start_cpu)
    return {name: row(times, seconds[base]) | {"cpu_ms": 1e3 * cpu[name]} for name, times in seconds.items()}


def row(seconds: list[float], base: list[float]) -> Row:
    """Summarise one candidate: medians, spread and ratios."""
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "quartile_low_ms": 1e3 * quartiles[0],
        "quartile_high_ms": 1e3 * quartiles[2],
        "min_ms": 1e3 * min(seconds),
        "ratio": statistics.median(b / s for b, s in zip(base, seconds, strict=True)),
        "ratio_of_minima": min(base) / min(seconds),
    }


def show(title: str, rows: dict[str, Row]) -> None:
    """Print a table of ratios."""
    width = max(len(name) for name in rows)
    print(title)
    heads = (
        f"{'ratio':>7s} {'of minima':>9s} {'median ms':>10s} {'quartiles':>19s} {'min ms':>8s} {'cpu ms':>8s}"
    )
    print(f"  {'':{width}s} {heads}")
    for name, r in rows.items():
        quartiles = f"{r['quartile_low_ms']:.1f} .. {r['quartile_high_ms']:.1f}"
        print(
            f"  {name:{width}s} {r['ratio']:7.2f} {r['ratio_of_minima']:9.2f} {r['median_ms']:10.1f}"
            f" {quartiles:>19s} {r['min_ms']:8.1f} {r['cpu_ms']:8.1f}"
        )


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load_average": load,
    }


def write(path: str | None, results: dict[str, Any]) -> None:
    """Write results and the machine to a JSON file."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"machine": machine()} | results, indent=2) + "\n")


class PeakMemory:
    """Bytes that a block of code held at most beyond what was there before (Linux)."""

    extra = float("nan")

    def __enter__(self) -> PeakMemory:
        self._before = 0
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
            self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            self.extra = _status("VmHWM") - self._before


def peak_resident() -> int:
    """Return the largest resident set this process has had, in bytes.

    From the kernel's own mark where there is one: `ru_maxrss` starts at what the parent process had.
    """
    units = 1 if platform.system() == "Darwin" else 1024
    return _status("VmHWM") or units * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int:
    if not Path("/proc/self/status").exists():
        return 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
