"""The paper's tables and figures, one file each, run again and put beside the paper's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from signfade.lab.reproduce.artefacts import ARTEFACTS, choose
    from signfade.lab.reproduce.bench import Bench
    from signfade.lab.reproduce.paper import read_paper
    from signfade.lab.reproduce.setups import FULL, QUICK, Scale

__all__ = ["ARTEFACTS", "FULL", "QUICK", "Bench", "Scale", "choose", "read_paper"]

_HOMES = {
    "ARTEFACTS": "artefacts",
    "choose": "artefacts",
    "Bench": "bench",
    "read_paper": "paper",
    "FULL": "setups",
    "QUICK": "setups",
    "Scale": "setups",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for from the module it lives in: figures are slow to load."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
