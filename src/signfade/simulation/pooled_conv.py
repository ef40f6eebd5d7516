"""A convolution, 2x2 max-pooling and ReLU as one layer, whose gradient visits only what pooling let pass."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from signfade.kernels import pooling, winograd
from signfade.kernels.jit import is_compiled

__all__ = ["PooledConv"]

# A patch of an image with one channel has rows of a few numbers: too short to be worth visiting one by one.
_SHORT_ROW = 32


class PooledConv(nn.Conv2d):
    """`relu(max_pool2d(conv2d(x), 2))`, the same function and the same weights as those three layers.

    On a CPU in float32 its backward pass takes about a third of the time of theirs: at most one in four
    outputs of the convolution has a gradient, and no gradient passes where ReLU is shut. Forwards, 5x5
    kernels take half the time (`kernels.winograd`). Elsewhere, in float64 and under `torch.func` it *is*
    those three layers; in float32 on the CPU it has no second derivatives.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: Side of the square kernel.
        padding: Zeros around the input.

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
        return cast(Tensor, _PooledConv.apply(x, self.weight, bias))  # type: ignore[no-untyped-call]


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
        y = winograd.conv5x5(x, weight) if winograd.fits(x, weight) else _last(functional.conv2d(x, weight))
        samples, height, width, channels = y.shape
        z = torch.empty(samples, height // 2, width // 2, channels, dtype=torch.float32)
        winner = torch.empty(z.shape, dtype=torch.uint8)
        pooling.pool(y.numpy(), bias.detach().numpy(), z.numpy(), winner.numpy())
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
            pooling.input_gradient(*sent, _last(weight).view(-1).numpy(), *patch, flat.numpy())
            to_x = flat.view(len(x), height, width, inputs).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1] and rows * inputs < _SHORT_ROW:
            to_weight = _dense_weight_gradient(g, winner, x, weight)
        elif ctx.needs_input_grad[1]:
            flat = torch.zeros(weight.numel(), dtype=torch.float32)
            pooling.weight_gradient(*sent, _last(x).view(-1).numpy(), *patch, flat.numpy())
            to_weight = flat.view(channels, rows, rows, inputs).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            to_bias = torch.zeros(channels, dtype=torch.float32)
            pooling.bias_gradient(*sent, to_bias.numpy())
        return to_x, to_weight, to_bias


def _dense_weight_gradient(g: Tensor, winner: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the weights' gradient by torch's own kernel from the gradient before pooling."""
    samples, _, height, width = x.shape
    side = weight.shape[2] - 1
    shape = (samples, height - side, width - side, len(weight))
    whole = shape[1] % 2 == 0 and shape[2] % 2 == 0
    full = (torch.empty if whole else torch.zeros)(shape, dtype=torch.float32)
    pooling.spread(g.numpy(), winner.numpy(), full.numpy())
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    _, result, _ = torch.ops.aten.convolution_backward(
        full.permute(0, 3, 1, 2), x, weight, None, *plain, [False, True, False]
    )
    return cast(Tensor, result)
