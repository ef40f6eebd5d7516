"""What all benchmarks share: candidates that take turns, so that a busy machine slows all alike, in one
process or in one each; ratios, tables, JSON and peak memory."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "candidate:"  # engines write to standard output as they like; our lines start with this
Row = dict[str, float]


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have: --rounds and --json."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json")
    return parser


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a call takes, on the clock and of all threads' CPU time."""
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - start_cpu


def measure(
    candidates: dict[str, Callable[[], object]], rounds: int, base: str, warm_up: int = 2
) -> dict[str, Row]:
    """Time every candidate once per round; ratios are to `base` in the same round, higher is faster."""
    for work in candidates.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, work in candidates.items():
            times[name].append(timed(work))
    clock = {name: [one[0] for one in found] for name, found in times.items()}
    rows = {name: row(seconds, clock[base]) for name, seconds in clock.items()}
    return {name: rows[name] | {"cpu_ms": 1e3 * min(one[1] for one in times[name])} for name in rows}


def row(seconds: list[float], base: list[float]) -> Row:
    """Summarise one candidate: medians, spread and ratios."""
    ratios = [b / s for b, s in zip(base, seconds, strict=True)]
    low, ratio, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "min_ms": 1e3 * min(seconds),
        "ratio": ratio,
        "ratio_quartile_low": low,
        "ratio_quartile_high": high,
        "ratio_of_minima": min(base) / min(seconds),
    }


def show(title: str, rows: dict[str, Row], last: dict[str, str] | None = None) -> None:
    """Print a table of ratios; `last` has more words per row."""
    width = max(map(len, rows))
    print(title)
    print(f"  {'':{width}} {'ratio':>7} {'quartiles':>14} {'of minima':>9} {'median ms':>10} {'min ms':>8}")
    for name, r in rows.items():
        quartiles = f"{r['ratio_quartile_low']:.2f} .. {r['ratio_quartile_high']:.2f}"
        end = (last or {}).get(name, f"CPU {r['cpu_ms']:.1f} ms" if "cpu_ms" in r else "")
        print(
            f"  {name:{width}} {r['ratio']:7.2f} {quartiles:>14} {r['ratio_of_minima']:9.2f}"
            f" {r['median_ms']:10.1f} {r['min_ms']:8.1f}  {end}"
        )


def write(path: str | None, results: dict[str, Any]) -> None:
    """Write results, and the machine they were measured on, to a JSON file."""
    if path:
        import torch

        machine = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"machine": machine} | results, indent=2) + "\n")


# -- candidates in processes of their own --------------------------------------------------------------------


class Turns:
    """The candidate's side: says when it is ready, waits for its turns and answers with its seconds."""

    def ready(self, *numbers: float) -> None:
        """Say that the warm-up is over, with numbers that the first round must have led to."""
        print(MARK, *numbers, flush=True)

    def wait(self) -> bool:
        """Wait for a turn; False when there are no more."""
        return bool(sys.stdin.readline())

    def serve(self, work: Callable[[], object]) -> None:
        """Run `work` once per turn."""
        while self.wait():
            print(MARK, timed(work)[0], flush=True)


class Candidate:
    """A process that does one round per turn."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        # A pipe that nobody reads would fill and block.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._complaints}
        self._process = subprocess.Popen(command, text=True, env=os.environ | (environment or {}), **pipes)

    def numbers(self) -> list[float]:
        """Wait for the numbers that the process says next; EOFError if it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return [float(word) for word in line.removeprefix(MARK).split()]
        raise EOFError

    def run_round(self) -> float:
        """Return the seconds of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.numbers()[0]

    def end(self) -> str:
        """End the process; return the last line it complained in."""
        try:
            self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "it did not end"
        self._complaints.seek(0)
        return (self._complaints.read().strip().splitlines() or ["no reason given"])[-1]


def take_turns(candidates: dict[str, Candidate], rounds: int, base: str) -> dict[str, Row]:
    """Run rounds of all processes in turn, end them, and return a row for each."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            seconds[name].append(candidate.run_round())
    for candidate in candidates.values():
        candidate.end()
    return {name: row(times, seconds[base]) for name, times in seconds.items()}


# -- memory --------------------------------------------------------------------------------------------------


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
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
