"""Input checks shared by the public functions: one sentence that names the argument and what it got."""

from __future__ import annotations

import cmath
from collections.abc import Sequence

from torch import Tensor

__all__ = [
    "check_choice",
    "check_finite",
    "check_positive",
    "check_rows",
    "check_shape",
    "check_tensor",
]


def check_choice(name: str, value: str, accepted: Sequence[str]) -> None:
    """Raise unless `value` is one of the `accepted` words."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}; got {value!r}")


def check_tensor(name: str, value: object) -> None:
    """Raise unless `value` is a tensor: a number, a list or a NumPy array is not taken for one."""
    if not isinstance(value, Tensor):
        kind = type(value).__module__.partition(".")[0]
        what = f"{kind}.{type(value).__name__}" if kind != "builtins" else type(value).__name__
        raise ValueError(f"{name} must be a torch.Tensor; got {what}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise if `value` is no tensor, or holds NaN or infinity."""
    check_tensor(name, value)
    # A finite sum proves every entry finite, many times faster; an infinite one may only have overflowed.
    if not cmath.isfinite(value.sum().item()) and not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite; got NaN or infinity")


def check_positive(name: str, value: Tensor, *, zero: bool = False) -> None:
    """Raise unless every entry of `value` is positive (or zero, where `zero` allows it)."""
    if not bool(((value >= 0) if zero else (value > 0)).all()):  # NaN compares false and is refused here too
        kind = "non-negative" if zero else "positive"
        raise ValueError(f"{name} must be {kind}; its smallest entry is {float(value.min()):g}")


def check_rows(name: str, value: Tensor, words: str = "[K, M]") -> None:
    """Raise unless `value` is a tensor with the axes in `words`, and at least one device along the first."""
    check_tensor(name, value)
    if value.ndim != words.count(",") + 1 or len(value) == 0:
        raise ValueError(f"{name} must have shape {words} with K at least 1; got {list(value.shape)}")


def check_shape(name: str, value: Tensor, *accepted: tuple[int, ...]) -> None:
    """Raise unless `value` is a tensor and its shape one of the `accepted` ones."""
    check_tensor(name, value)
    if tuple(value.shape) not in accepted:
        words = " or ".join(str(list(shape)) for shape in accepted)
        raise ValueError(f"{name} must have shape {words}; got {list(value.shape)}")
