"""5x5 convolutions of many channels with a sixth of the products (Winograd 1980; Lavin and Gray 2016).

Four outputs of a sum of five products are eight products: evaluate two polynomials at eight points, multiply,
interpolate. In two dimensions a 4x4 patch of outputs takes 64 products a channel instead of 400,

    y = A' [(G g G') * (B' d B)] A,

with an 8x8 patch d of the input, the kernel g, and the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity.
Channels are summed inside the bracket, as 64 products of matrices. The coefficients of A and B are short
binary numbers. An output's error, root mean square, is below 4e-6 of the outputs' deviation, six times that
of direct sums in float32; in trained networks it is 1e-6, not twice theirs.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["conv5x5", "fits"]

_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
# With fewer channels the transforms cost what the products save.
_LEAST_CHANNELS = 16
# Samples at a time, measured: more leave a core's cache, fewer make small products of matrices.
_SAMPLES = 16


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `conv5x5` can take these tensors and pays: 5x5 kernels, whole 4x4 patches, enough channels."""
    outputs, inputs, *kernel = weight.shape
    return (
        kernel == [5, 5]
        and min(inputs, outputs) >= _LEAST_CHANNELS
        and all(side >= 8 and side % 4 == 0 for side in x.shape[2:])
    )


def conv5x5(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of x `[N, C, H, W]` with weight `[O, C, 5, 5]`, as `[N, H-4, W-4, O]`.

    Args:
        x: float32 on the CPU, no gradient wanted; best with channels last.
        weight: as x.

    Example:
        >>> x, weight = torch.ones(1, 32, 8, 8), torch.ones(32, 32, 5, 5)
        >>> y = conv5x5(x, weight)
        >>> y.shape, bool((y - 800).abs().max() < 0.01)
        (torch.Size([1, 4, 4, 32]), True)
    """
    from signfade.kernels.compiled_winograd import transform_patches, transform_products

    samples, inputs, height, width = x.shape
    outputs = len(weight)
    kernels = _KERNELS.of(weight)
    flat = x.permute(0, 2, 3, 1).contiguous().view(samples, height * width * inputs)
    y = torch.empty(samples, height - 4, width - 4, outputs, dtype=torch.float32)
    # One tile more than there are: places a power of two apart would share a line of the cache.
    tiles = min(samples, _SAMPLES) * (height - 4) * (width - 4) // 16 + 1
    patches = torch.zeros(64, tiles, inputs, dtype=torch.float32)
    products = torch.empty(64, tiles, outputs, dtype=torch.float32)
    v, m = patches.view(-1).numpy(), products.view(-1).numpy()
    for first in range(0, samples, _SAMPLES):
        part, to = flat[first : first + _SAMPLES], y[first : first + _SAMPLES]
        transform_patches(part.reshape(-1).numpy(), len(part), height, width, inputs, tiles, v)
        torch.bmm(patches, kernels, out=products)
        transform_products(m, len(part), height - 4, width - 4, outputs, tiles, to.view(-1).numpy())
    return y


class _Kernels(threading.local):
    """The kernels a thread used last, transformed: all devices of a round have the same."""

    def __init__(self) -> None:
        self._weight = self._transformed = torch.empty(0)

    def of(self, weight: Tensor) -> Tensor:
        """Return G g G' of every kernel g as `[64, C, O]`."""
        if not torch.equal(weight, self._weight):
            self._weight = weight.clone()
            outputs, inputs = weight.shape[:2]
            flat = weight.permute(2, 3, 1, 0).reshape(25, -1)
            self._transformed = (_kernel_matrix() @ flat).view(64, inputs, outputs)
        return self._transformed


_KERNELS = _Kernels()


@cache
def _kernel_matrix() -> Tensor:
    """Return G on rows and columns at once, `[64, 25]`."""
    powers = np.vander(_POINTS, 5, increasing=True)
    others = [[p - q for q in _POINTS if q != p] for p in _POINTS]
    scale = np.prod(others, axis=1)
    scale[0] = -scale[0]  # the first row of B' is kept with a leading 1
    g = np.vstack([powers / scale[:, None], [0, 0, 0, 0, 1]])
    return torch.from_numpy(np.kron(g, g)).float()
