"""Numbers in, numbers out: what the functions of this package accept and return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Array", "Numbers", "common_shape", "non_negative", "per_device", "plain", "positive", "real"]

Array: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Union[ArrayLike, "Tensor"]


def real(name: str, value: Numbers, *, infinite: bool = False) -> Array:
    """Convert a float, a sequence, a NumPy array or a torch tensor to float64; refuse NaN and infinity.

    Args:
        name: What the caller calls it, for the error.
        value: The numbers.
        infinite: Whether infinity is accepted.
    """
    if hasattr(value, "detach"):  # a tensor: it may need a gradient, be on a device, or be a bfloat16
        value = cast("Tensor", value).detach().cpu().double().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be real numbers; got {value!r}") from None
    if np.isnan(array).any() or (not infinite and np.isinf(array).any()):
        raise ValueError(f"{name} must be {'a number' if infinite else 'finite'}; got NaN or infinity")
    return array


def non_negative(name: str, value: Numbers, *, infinite: bool = False) -> Array:
    """Convert as `real` does and refuse numbers below zero."""
    array = real(name, value, infinite=infinite)
    if (array < 0).any():
        raise ValueError(f"{name} must be non-negative; its smallest entry is {array.min():g}")
    return array


def positive(name: str, value: Numbers) -> Array:
    """Convert as `real` does and refuse zero and numbers below it."""
    array = real(name, value)
    if (array <= 0).any():
        raise ValueError(f"{name} must be positive; its smallest entry is {array.min():g}")
    return array


def common_shape(**arrays: Array) -> tuple[int, ...]:
    """Return the shape that the named arrays broadcast to, or raise with their names and shapes."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        got = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(f"{', '.join(arrays)} must have shapes that broadcast together; got {got}") from None


def per_device(name: str, value: Array, devices: int) -> Array:
    """Return one number for every device, `[K]`, from that or from one for all."""
    if value.shape not in ((), (devices,)):
        raise ValueError(f"{name} must have shape [{devices}] or be one number; got {list(value.shape)}")
    return np.broadcast_to(value, (devices,))


def plain(value: Any) -> Array:
    """Return a Python float for a single number and the array itself otherwise.

    The annotation says array, which is what it is whenever an argument was one.
    """
    array = np.asarray(value, dtype=np.float64)
    return cast(Array, float(array)) if array.ndim == 0 else array
