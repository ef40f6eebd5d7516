"""Fast kernels: keyed noise and fused uplinks.

Importing this package loads neither numba nor torch; they are loaded by the first call that needs them.
"""

from __future__ import annotations

from signfade.kernels.noise import standard_normal

__all__ = ["standard_normal"]
