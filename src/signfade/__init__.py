"""Train one model over many wireless devices at one bit per weight.

A round is a walk through three places, and the subpackages are named after them:
[`device`][signfade.device] turns a gradient into bits, [`uplink`][signfade.uplink] fades and blurs them,
[`server`][signfade.server] answers with the posterior mean of the summed gradient.
[`theory`][signfade.theory] predicts how far off that answer is.

    import signfade as sf

    run = sf.run(data="digits", method="best", rounds=100, seed=0)

trains a model and returns its metrics, its weights and its figures; see [`api`][signfade.api].
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from signfade.api import *  # noqa: F403

__version__ = "0.2.0"

_PACKAGES = ["api", "data", "device", "experiments", "server", "simulation", "theory", "uplink"]
_CALLS = ["compare", "config", "demo", "deploy", "export", "link", "load", "predict_errors"]
_CALLS += ["report", "reproduce", "run", "sweep", "tune"]
__all__ = ["__version__", *_CALLS, *_PACKAGES]


def __getattr__(name: str) -> Any:
    """Import a subpackage or a call of `signfade.api` when it is first used; torch is loaded only then."""
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _CALLS:
        return getattr(importlib.import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
