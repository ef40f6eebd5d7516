"""Error feedback: a device keeps what its bits lost and adds it to its next gradient.

`u = g + memory`, sent as `C(u) = mean + scale*sign(u - mean)`; then `memory = keep*(u - C(u))`. With keep = 1
everything a device has is sent in the end: the sum of what it sent and its memory is the sum of its
gradients.

When it helps. Bits lose a fresh error every round where a rotation makes every round's errors new; its energy
is `1 - d` of the gradient's, d being the part that a sign with a scale tells (`scale^2/variance`, 2/pi for a
Gaussian). With feedback the errors of two rounds come with opposite signs and cancel in the model, but they
are larger: a memory settles at `(1 - d)*(2 - d)/d^2` times the energy of a gradient, 1.22 for a Gaussian. On
a direction of curvature c the excess loss changes by about the factor `2*step*c/d^2` (exactly:
`signfade.theory.feedback_ratio`), so feedback helps everywhere while `step < d^2/(2*L)`, about 0.2/L, with L
the smoothness of the loss (`signfade.theory.feedback_limit`), and hurts in the steepest directions beyond.
Without a rotation the bits of a gradient that stays lose the same thing again and again, whatever the step;
feedback then pays more, and for larger steps, but memories grow to about ten times a gradient's energy.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from signfade._check import check_shape
from signfade.device.bits import unpack_signs
from signfade.device.prior import check_segments, spread

__all__ = ["lost_by_bits"]


def lost_by_bits(
    u: Tensor, packed: Tensor, mean: Tensor, scale: Tensor, segments: Sequence[int] | None = None
) -> Tensor:
    """Return what a device's packet does not say of its vector: `u - (mean + scale*b)`.

    Args:
        u: What the devices wanted to send, `[K, M]`.
        packed: The bits they sent, eight to a byte as `pack_signs` makes them, uint8 `[K, ceil(M/8)]`.
        mean: Their means as the server decodes them, `[K, S]`.
        scale: Their scales as the server decodes them, `[K, S]`.
        segments: Lengths of the S layers, which sum to M; one layer if None.

    Returns:
        `[K, M]`, in u's dtype.

    Raises:
        ValueError: Shapes that do not match.

    Example:
        >>> import torch
        >>> u, packed = torch.tensor([[3.0, -1.0]]), torch.tensor([[0b10000000]], dtype=torch.uint8)
        >>> lost_by_bits(u, packed, torch.tensor([[1.0]]), torch.tensor([[1.5]]))
        tensor([[ 0.5000, -0.5000]])

    Reference: S. P. Karimireddy et al., "Error feedback fixes signSGD and other gradient compression
        schemes".
    """
    if u.ndim != 2:
        raise ValueError(f"u must have shape [K, M]; got {list(u.shape)}")
    lengths = check_segments([u.shape[1]] if segments is None else segments, u.shape[1])
    for name, value in (("mean", mean), ("scale", scale)):
        check_shape(name, value, (u.shape[0], len(lengths)))
    bits = unpack_signs(packed, u.shape[1], dtype=u.dtype).to(u.device)
    return u - spread(mean.to(u), lengths) - bits.mul_(spread(scale.to(u), lengths))
