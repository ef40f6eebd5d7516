"""Products between all pairs of devices' signals, compiled; one thread a call."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import numpy as np

from signfade._jit import njit

CHUNK = 1024  # coordinates summed in the precision of y before they join a float64 total


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def gram_tiles(y, first, last, out):
    """Fill tiles first ... last - 1 of `out` [K, K], float64, with sums of products; K a multiple of 4.

    A tile is 4 x 4. Tiles are counted along the lower triangle, so that equal ranges are equal work, and a
    tile's value does not depend on the range it came in.
    """
    size = y.shape[1]
    rows = np.empty(last - first, np.int64)
    columns = np.empty(last - first, np.int64)
    count = 0
    i = j = 0
    for tile in range(last):
        if tile >= first:
            rows[count], columns[count] = 4 * i, 4 * j
            count += 1
        j += 1
        if j > i:
            i, j = i + 1, 0
    totals = np.zeros((count, 4, 4), np.float64)
    for begin in range(0, size, CHUNK):
        end = min(begin + CHUNK, size)
        for tile in range(count):
            r, c = rows[tile], columns[tile]
            total = totals[tile]
            c0, c1 = y[c, begin:end], y[c + 1, begin:end]
            c2, c3 = y[c + 2, begin:end], y[c + 3, begin:end]
            for a in range(4):
                x = y[r + a, begin:end]
                s0 = s1 = s2 = s3 = y.dtype.type(0)
                for m in range(end - begin):
                    s0 += x[m] * c0[m]
                    s1 += x[m] * c1[m]
                    s2 += x[m] * c2[m]
                    s3 += x[m] * c3[m]
                total[a, 0] += s0
                total[a, 1] += s1
                total[a, 2] += s2
                total[a, 3] += s3
    for tile in range(count):
        r, c = rows[tile], columns[tile]
        for a in range(4):
            for b in range(4):
                out[r + a, c + b] = totals[tile, a, b]
                out[c + b, r + a] = totals[tile, a, b]
