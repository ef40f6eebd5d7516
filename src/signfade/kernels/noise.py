"""Keyed Gaussian noise: coordinate m of stream k is a function of (keys[k], m) and of nothing else."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from signfade.kernels.table import TILE
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["standard_normal"]


def backend_of(backend: str) -> str:
    """Resolve "auto" to "numba" where it is installed and to "torch" elsewhere."""
    if backend not in ("auto", "numba", "torch"):
        raise ValueError(f"backend must be one of 'auto', 'numba', 'torch'; got {backend!r}")
    if backend == "auto":
        return "numba" if find_spec("numba") is not None else "torch"
    return backend


def check_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `keys` as a contiguous `[K]` array of uint64, or raise."""
    keys = np.asarray(keys)
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"keys must be uint64 of shape [K]; got {keys.dtype} of shape {list(keys.shape)}")
    return keys.copy()  # contiguous and writable: kernels are compiled anew for every kind of array


def standard_normal(
    keys: NDArray[np.uint64],
    size: int,
    start: int = 0,
    *,
    method: str = "table",
    backend: str = "auto",
    threads: int | None = None,
) -> NDArray[np.float32]:
    """Draw standard normal numbers from counter-based streams.

    `word(k, m) = Threefry2x32-20(keys[k], counter of m)`, `z = +-Phi^-1(1 - p/2)`, `p = (v + 1/2) / 2^31`
    with 31 bits v and one sign bit of the word. The quantile is read from a piecewise quadratic table: it is
    within 5.2e-7 of the true one (2.5e-7 where |z| < 1) up to |z| = 6.338, a tail of 2^-33 a side.
    `method="exact"` spends 64 bits a number on the float64 quantile function (tail 2^-65, then float32).

    Args:
        keys: one 64-bit key a stream, uint64 `[K]` (see `signfade.keys.stream_key`).
        size: how many coordinates.
        start: the first coordinate; coordinate m is the same number whatever `start` and `size` are.
        method: "table" or "exact".
        backend: "numba", "torch" (the same bits, slower), or "auto": numba where it is installed.
        threads: at most so many threads, by default as many as there are cores. Never changes a result.

    Returns:
        float32 `[K, size]`.

    Raises:
        ValueError: keys of another type or shape, a negative size or start, an unknown method or backend.

    Example:
        >>> keys = np.array([3, 4], dtype=np.uint64)
        >>> z = standard_normal(keys, 1000)
        >>> z.shape, bool((z[1:, 10:20] == standard_normal(keys[1:], 10, start=10)).all())
        ((2, 1000), True)

    Reference:
        Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (2011), for Threefry.
    """
    keys = check_keys(keys)
    if size < 0 or start < 0:
        raise ValueError(f"size and start must be non-negative; got {size} and {start}")
    if method not in ("table", "exact"):
        raise ValueError(f"method must be one of 'table', 'exact'; got {method!r}")
    backend = backend_of(backend)
    out: NDArray[np.float32] = np.empty((len(keys), size), dtype=np.float32)
    if out.size == 0:
        return out
    if method == "exact":
        from signfade.kernels import exact

        for k, key in enumerate(keys.tolist()):
            out[k] = exact.normal(key, size, start)
    elif backend == "torch":
        from signfade.kernels import portable

        for k, key in enumerate(keys.tolist()):
            out[k] = portable.normal(portable.words(key, size, start)).numpy()
    else:
        from signfade.kernels import compiled

        first, last = start // TILE, -(-(start + size) // TILE)

        def work(a: int, b: int) -> None:
            compiled.fill_normal(keys, start, out, first + a, first + b)

        run_ranges(work, last - first, threads or available_threads())
    return out
