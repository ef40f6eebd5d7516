"""Input checks shared by the public functions: one sentence that names the argument and what it got."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["check_choice", "check_finite", "check_positive", "check_shape"]


def check_choice(name: str, value: str, accepted: Sequence[str]) -> None:
    """Raise unless `value` is one of the `accepted` words."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}; got {value!r}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise if `value` holds NaN or infinity."""
    # A finite sum proves every entry finite, many times faster; an infinite one may only have overflowed.
    if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite; got NaN or infinity")


def check_positive(name: str, value: Tensor, *, zero: bool = False) -> None:
    """Raise unless every entry of `value` is positive (or zero, where `zero` allows it)."""
    if not bool(((value >= 0) if zero else (value > 0)).all()):  # NaN compares false and is refused here too
        kind = "non-negative" if zero else "positive"
        raise ValueError(f"{name} must be {kind}; its smallest entry is {float(value.min()):g}")


def check_shape(name: str, value: Tensor, *accepted: tuple[int, ...]) -> None:
    """Raise unless the shape of `value` is one of the `accepted` ones."""
    if tuple(value.shape) not in accepted:
        words = " or ".join(str(list(shape)) for shape in accepted)
        raise ValueError(f"{name} must have shape {words}; got {list(value.shape)}")
