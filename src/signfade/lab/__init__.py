"""Runs as folders: settings in, metrics and checkpoints on the way, tables, figures and reports out."""

from __future__ import annotations

import importlib
from typing import Any

# name -> module. Loaded when first used: a command that only prints settings need not wait for matplotlib.
_HOME = {
    "METRIC_KEYS": "metrics",
    "Checkpoint": "checkpoint",
    "FolderError": "folder",
    "Group": "group",
    "Run": "group",
    "RunFolder": "folder",
    "cell_map": "figures",
    "comparison": "table",
    "comparison_table": "table",
    "curves": "figures",
    "find_runs": "group",
    "group_runs": "group",
    "load_run": "group",
    "mse_curves": "figures",
    "save_figure": "style",
    "snr_histogram": "figures",
    "summarise": "summary",
    "write_report": "report",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is asked for from the module it lives in."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
