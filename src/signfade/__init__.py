"""Train one model over many wireless devices at one bit per weight.

A round is a walk through three places, and the subpackages are named after them:
[`device`][signfade.device] turns a gradient into bits, [`uplink`][signfade.uplink] fades and blurs them,
[`server`][signfade.server] answers with the posterior mean of the summed gradient.
[`theory`][signfade.theory] predicts how far off that answer is.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.2.0.dev0"
__all__ = ["__version__", "data", "device", "experiments", "server", "simulation", "theory", "uplink"]


def __getattr__(name: str) -> ModuleType:
    """Import a subpackage when it is first used, so that `import signfade` does not load torch."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
