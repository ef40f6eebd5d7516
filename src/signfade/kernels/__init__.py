"""Fast kernels: keyed noise and fused uplinks.

Importing this package loads neither numba nor torch; they are loaded by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from signfade.kernels.noise import standard_normal

if TYPE_CHECKING:
    from signfade.kernels.device import layer_deviations, layer_sums, pack_above
    from signfade.kernels.fused import fused_sum, received

__all__ = ["fused_sum", "layer_deviations", "layer_sums", "pack_above", "received", "standard_normal"]


def __getattr__(name: str) -> Any:
    """Import the kernels that need torch when they are first used."""
    if name in __all__:
        from signfade.kernels import device, fused

        return getattr(fused if hasattr(fused, name) else device, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
