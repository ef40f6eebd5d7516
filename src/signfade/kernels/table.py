"""The table that turns uniform bits into normal numbers: a piecewise quadratic of the half-normal quantile.

A draw is a 32-bit word: its top bit is the sign, its other 31 bits are an integer v, and
`|z| = Phi^-1(1 - p/2)` with `p = (v + 1/2) / 2^31`. Cells are cut where the *floating-point* form of v + 1/2
cuts them: 32 cells in every octave, 32 octaves. So cells shrink with p, and the tail down to a
probability of 2^-33 a side (|z| = 6.338) is followed as closely as the centre. Index and position inside
a cell are plain bit fields of that float; no logarithm is taken, and every machine gets the same bits.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["CELL_BITS", "FIRST_CELL", "TILE", "quantile_table"]

TILE = 512  # coordinates that share a run of counters; a stream's bits depend on it
CELL_BITS = 18  # mantissa bits left below the 5 that choose one of an octave's 32 cells
FIRST_CELL = (127 - 1) << 5  # the cell of 0.5 = float(0 + 1/2), the smallest argument


@cache
def quantile_table() -> NDArray[np.float32]:
    """Return the coefficients `[3, 1025]` of `z = c0 + t*(c1 + t*c2)`, one column a cell.

    t is the integer position in the cell, counted from its middle (-2^17 <= t < 2^17). Every quadratic meets
    the quantile in the three Chebyshev nodes of its cell, which is close to the best one. The last cell
    holds the single argument 2^31 (v rounded up), where z = 0.

    Example:
        >>> quantile_table().shape
        (3, 1025)
    """
    cells = np.arange(32 * 32)
    start = 2.0 ** (cells // 32 - 1) * (1 + cells % 32 / 32)
    width = 2.0 ** (cells // 32 - 1) / 32
    nodes = np.cos(np.pi * np.array([1.0, 3.0, 5.0]) / 6) / 2  # in cell widths, from the middle
    upper_tail = (start + width * (nodes[:, None] + 0.5)) / 2**32
    inverse = NormalDist().inv_cdf
    z = np.array([[-inverse(p) for p in row] for row in upper_tail.tolist()])
    coefficients = np.linalg.solve(np.vander(nodes, increasing=True), z)
    coefficients *= 2.0 ** (-CELL_BITS * np.arange(3.0))[:, None]
    table: NDArray[np.float32] = np.zeros((3, 32 * 32 + 1), dtype=np.float32)
    table[:, :-1] = coefficients
    table.flags.writeable = False
    return table
