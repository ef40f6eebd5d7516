"""A convolution, 2x2 max-pooling and ReLU as one layer, whose gradient visits only what pooling let pass.

A 2x2 window hands its gradient to one of its four inputs, and to none where ReLU is shut: of the
convolution's outputs at most a quarter has a gradient. Only those are visited, four at a time, each with the
k rows of k*C neighbouring numbers it saw, on channels-last arrays seen as flat. One thread works on a batch,
so results have one order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numba import uint64
from torch import Tensor, nn
from torch.nn import functional

from signfade.kernels import one_channel
from signfade.kernels.jit import is_compiled, njit
from signfade.kernels.one_channel import SHUT, largest
from signfade.kernels.winograd import conv5x5, fits

__all__ = ["PooledConv"]

# Products may be fused with sums, sums may not change places. Unsigned indices cannot be negative, which
# spares a test at every access and lets the compiler take eight numbers at a time.
_jit = njit(nogil=True, cache=True, fastmath={"contract"})


@_jit
def _pool(y, bias, z, winner):
    """Write relu(max over 2x2 + bias) of y `[N, H, W, O]` and which of the four it came from."""
    for n in range(z.shape[0]):
        for i in range(z.shape[1]):
            for j in range(z.shape[2]):
                a, b = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
                c, d = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
                best, place = z[n, i, j], winner[n, i, j]
                for o in range(bias.size):
                    best[o], place[o] = largest(a[o], b[o], c[o], d[o], bias[o])


@_jit
def _spread(g, winner, full):
    """Write the gradient before pooling, `[N, H, W, O]`; what no window covers is left alone."""
    for n in range(g.shape[0]):
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                value, place = g[n, i, j], winner[n, i, j]
                for k in range(4):
                    to = full[n, 2 * i + (k >> 1), 2 * j + (k & 1)]
                    for o in range(value.size):
                        to[o] = value[o] if place[o] == k else np.float32(0)


@_jit
def _bias_gradient(g, winner, out):
    """Add the gradient of the bias to out `[O]`."""
    for n in range(g.shape[0]):
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                value, place = g[n, i, j], winner[n, i, j]
                for o in range(out.size):
                    out[o] += value[o] if place[o] != SHUT else np.float32(0)


@_jit
def _add_patches(count, s, at, a, a_row, b, to, b_row, rows, length):
    """Add s[q] times the patch of `a` at at[q], for all q < count, to the patch of `b` at `to`.

    Four at a time, so that `b` is fetched and stored a quarter as often; the last four are filled up with
    nothing, for which `s` and `at` have room.
    """
    for q in range(count, (count + 3) // 4 * 4):
        s[q] = 0
        at[q] = at[0]
    for q in range(0, count, 4):
        s0, s1, s2, s3 = s[q], s[q + 1], s[q + 2], s[q + 3]
        i, j = uint64(at[q]), uint64(at[q + 1])
        k, m = uint64(at[q + 2]), uint64(at[q + 3])
        end = uint64(to)
        for _ in range(rows):
            for place in range(length):
                v = uint64(place)
                b[end + v] += (s0 * a[i + v] + s1 * a[j + v]) + (s2 * a[k + v] + s3 * a[m + v])
            end += uint64(b_row)
            i += uint64(a_row)
            j += uint64(a_row)
            k += uint64(a_row)
            m += uint64(a_row)


@_jit
def _weight_gradient(g, winner, x, height, width, rows, length, out):
    """Add the gradient of the weights to out `[O*rows*length]`.

    g, winner: `[N, Hp, Wp, O]`. x: the inputs, flat, `height` rows of `width` numbers per sample. A patch has
    `rows` rows of `length` numbers.
    """
    samples, across, down, channels = g.shape
    s = np.empty(across * down + 3, np.float32)
    at = np.empty(across * down + 3, np.int64)
    step = length // rows
    for n in range(samples):
        for o in range(channels):
            count = 0
            for i in range(across):
                for j in range(down):
                    k = winner[n, i, j, o]
                    if k != SHUT:
                        s[count] = g[n, i, j, o]
                        at[count] = (n * height + 2 * i + (k >> 1)) * width + (2 * j + (k & 1)) * step
                        count += 1
            _add_patches(count, s, at, x, width, out, o * rows * length, length, rows, length)


@_jit
def _input_gradient(g, winner, w, height, width, rows, length, out):
    """Add the gradient of the inputs to out `[N*height*width]`; w: `[O*rows*length]`, else as above."""
    samples, across, down, channels = g.shape
    s = np.empty((4, channels + 3), np.float32)
    at = np.empty((4, channels + 3), np.int64)
    count = np.empty(4, np.int64)
    step = length // rows
    for n in range(samples):
        for i in range(across):
            for j in range(down):
                count[:] = 0
                for o in range(channels):
                    k = winner[n, i, j, o]
                    if k != SHUT:
                        s[k, count[k]] = g[n, i, j, o]
                        at[k, count[k]] = o * rows * length
                        count[k] += 1
                for k in range(4):
                    to = (n * height + 2 * i + (k >> 1)) * width + (2 * j + (k & 1)) * step
                    _add_patches(count[k], s[k], at[k], w, length, out, to, width, rows, length)


# A patch of an image with one channel has rows of a few numbers: too short to be worth visiting one by one.
_SHORT_ROW = 32


class PooledConv(nn.Conv2d):
    """`relu(max_pool2d(conv2d(x), 2))`, the same function and the same weights as those three layers.

    On a CPU in float32 its backward pass takes about a third of the time of theirs, and 5x5 kernels half the
    time forwards. Elsewhere, in float64 and under `torch.func` it *is* those three layers; in float32 on the
    CPU it has no second derivatives.

    Example:
        >>> layer = PooledConv(1, 4, 5)
        >>> layer(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 4, 12, 12])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, padding: int = 0) -> None:
        super().__init__(in_channels, out_channels, kernel, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, C, H, W]` to `[N, O, H', W']`."""
        bias = cast(Tensor, self.bias)
        if not _fits(x, self.weight):
            y = functional.conv2d(x, self.weight, bias, padding=self.padding)
            return functional.relu(functional.max_pool2d(y, 2))
        side = cast(int, self.padding[0])
        x = functional.pad(x, (side,) * 4) if side else x
        return cast(Tensor, _PooledConv.apply(x, self.weight, bias))


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the compiled path takes these tensors: plain float32 on the CPU."""
    plain = not any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight)))
    return plain and is_compiled(x) and x.dtype == weight.dtype == torch.float32


def _last(x: Tensor) -> Tensor:
    """Return x `[N, C, H, W]` as a contiguous `[N, H, W, C]`."""
    return x.detach().permute(0, 2, 3, 1).contiguous()


class _PooledConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight = x.detach(), weight.detach()
        samples, _, height, width = x.shape
        side = weight.shape[2] - 1
        z = torch.empty(samples, (height - side) // 2, (width - side) // 2, len(weight), dtype=torch.float32)
        winner = torch.empty(z.shape, dtype=torch.uint8)
        if one_channel.takes(weight):
            one_channel.convolve_and_pool(x, weight, bias.detach(), z, winner)
        else:
            y = conv5x5(x, weight) if fits(x, weight) else _last(functional.conv2d(x, weight))
            _pool(y.numpy(), bias.detach().numpy(), z.numpy(), winner.numpy())
        ctx.save_for_backward(x, weight, winner)
        return z.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, winner = ctx.saved_tensors
        g = _last(grad)
        sent = (g.numpy(), winner.numpy())
        channels, inputs, rows = weight.shape[:3]
        _, _, height, width = x.shape
        patch = (height, width * inputs, rows, rows * inputs)
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            flat = torch.zeros(x.numel(), dtype=torch.float32)
            _input_gradient(*sent, _last(weight).view(-1).numpy(), *patch, flat.numpy())
            to_x = flat.view(len(x), height, width, inputs).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1] and one_channel.takes(weight):
            to_weight = one_channel.weight_gradient(g, winner, x, rows)
        elif ctx.needs_input_grad[1] and rows * inputs < _SHORT_ROW:
            to_weight = _dense_weight_gradient(g, winner, x, weight)
        elif ctx.needs_input_grad[1]:
            flat = torch.zeros(weight.numel(), dtype=torch.float32)
            _weight_gradient(*sent, _last(x).view(-1).numpy(), *patch, flat.numpy())
            to_weight = flat.view(channels, rows, rows, inputs).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            to_bias = torch.zeros(channels, dtype=torch.float32)
            _bias_gradient(*sent, to_bias.numpy())
        return to_x, to_weight, to_bias


def _dense_weight_gradient(g: Tensor, winner: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the weights' gradient by torch's own kernel from the gradient before"""
    samples, _, height, width = x.shape
    side = weight.shape[2] - 1
    shape = (samples, height - side, width - side, len(weight))
    whole = shape[1] % 2 == 0 and shape[2] % 2 == 0
    full = (torch.empty if whole else torch.zeros)(shape, dtype=torch.float32)
    _spread(g.numpy(), winner.numpy(), full.numpy())
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    _, result, _ = torch.ops.aten.convolution_backward(
        full.permute(0, 3, 1, 2), x, weight, None, *plain, [False, True, False]
    )
    return cast(Tensor, result)
