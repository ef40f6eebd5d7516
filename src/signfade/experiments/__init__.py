"""Runs as folders: settings in, metrics and checkpoints on the way, tables, figures and reports out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from signfade.experiments.checkpoint import Checkpoint
    from signfade.experiments.figures import cell_map, mse_curves
    from signfade.experiments.folder import FolderError, RunFolder
    from signfade.experiments.group import Group, Run, group_runs
    from signfade.experiments.html_report import write_report
    from signfade.experiments.metrics import METRIC_KEYS, summarise
    from signfade.experiments.panels import curves
    from signfade.experiments.results import find_runs, load_run
    from signfade.experiments.style import save_figure
    from signfade.experiments.table import comparison, comparison_table

__all__ = [
    "METRIC_KEYS",
    "Checkpoint",
    "FolderError",
    "Group",
    "Run",
    "RunFolder",
    "cell_map",
    "comparison",
    "comparison_table",
    "curves",
    "find_runs",
    "group_runs",
    "load_run",
    "mse_curves",
    "save_figure",
    "summarise",
    "write_report",
]

# The modules to look in, loaded when first used: a command that prints settings need not wait for matplotlib.
_MODULES = ["metrics", "checkpoint", "folder", "group", "results"]
_MODULES += ["table", "style", "panels", "figures", "html_report"]


def __getattr__(name: str) -> Any:
    """Import what is asked for from the module it lives in."""
    if name in __all__:
        for module in _MODULES:
            home = importlib.import_module(f"{__name__}.{module}")
            if name in home.__all__:
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
