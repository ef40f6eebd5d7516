"""What a run was computed with: where the CPU and the versions differ, the last bits of a result may."""

from __future__ import annotations

import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from signfade import __version__
from signfade._text import printable
from signfade.experiments.files import os_errors, write_atomically
from signfade.experiments.metrics import parse_json

__all__ = ["describe_environment", "record_environment"]


@cache
def _cpu() -> str:
    """The model of this machine's CPU, as far as the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    entries = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    arm = " ".join(f"{key} {entries[key]}" for key in ("CPU implementer", "CPU part") if key in entries)
    return entries.get("model name") or arm or platform.processor() or platform.machine() or "unknown"


def describe_environment() -> dict[str, str]:
    """Return what the last bits of a result depend on: the CPU, what torch uses of it, and versions."""
    return {
        "cpu": printable(_cpu()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "signfade": __version__,
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


def record_environment(path: Path, round: int) -> str | None:
    """Write down that a run continues here after `round`; return a sentence if it began elsewhere, else None.

    environment.json holds a list: an entry for each change of environment, with the rounds before it.
    """
    here = describe_environment()
    with os_errors("read", path.parent):
        known = _entries(path)
    entries = [entry for entry in known if entry["round"] < round]  # later rounds are computed again
    before = {key: entries[-1].get(key) for key in here} if entries else here
    if not entries or before != here:
        entries.append({"round": round} | here)
    if entries != known:
        text = ",\n ".join(map(json.dumps, entries))
        with os_errors("write to", path.parent):
            write_atomically(path, f"[{text}]\n".encode())
    if before == here:
        return None
    differ = [key for key in here if before[key] != here[key]]
    changes = "; ".join(f"{key}: {before[key]} there, {here[key]} here" for key in differ)
    return (
        f"the rounds so far were computed elsewhere ({printable(changes)}): the run continues, but may "
        "differ in its last bits from one that is computed in one place"
    )


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of the file; none if it is not there or none of ours."""
    try:
        entries = parse_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    good = isinstance(entries, list) and all(
        isinstance(entry, dict) and type(entry.get("round")) is int for entry in entries
    )
    return entries if good else []
