"""Any state as named tensors and back: what a checkpoint holds.

A state is a tree: dataclasses, dicts with string keys, lists and tuples inside, and at the leaves tensors,
NumPy arrays, numbers, booleans, strings or None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

__all__ = ["from_tensors", "to_tensors"]

T = TypeVar("T")


def to_tensors(state: Any) -> dict[str, Tensor]:
    """Return the leaves of a state by their paths, such as `server.momentum`.

    Numbers keep their value exactly: floats as float64, integers as int64.

    Example:
        >>> tensors = to_tensors({"round": 3, "losses": [0.5, 0.25], "memory": None})
        >>> {name: value.tolist() for name, value in tensors.items()}
        {'round': 3, 'losses.length': 2, 'losses.0': 0.5, 'losses.1': 0.25}
    """
    return dict(_leaves("", state))


def from_tensors(template: T, tensors: Mapping[str, Tensor]) -> T:
    """Return a state with the structure of `template`, a fresh state of the same run, and the saved leaves.

    Where the template is empty its size was not known before the first round: lists take the length, dicts
    without entries the entries, and tensors the lengths of dimensions of length 0 that were saved. Everything
    else must be as in the template; a ValueError names the first leaf that is not.

    Example:
        >>> from_tensors({"round": 0, "losses": []}, to_tensors({"round": 3, "losses": [0.5]}))
        {'round': 3, 'losses': [0.5]}
    """
    used: set[str] = set()
    state = _rebuilt("", template, tensors, used)
    if strange := sorted(set(tensors) - used):
        raise ValueError(f"{strange[0]} is in the checkpoint but not in this run")
    return state  # type: ignore[no-any-return]


def _join(path: str, name: str) -> str:
    if "." in name:
        raise ValueError(f"keys of a state must not contain a dot; got {name!r}")
    return f"{path}.{name}" if path else name


def _children(state: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(state):
        return [(field.name, getattr(state, field.name)) for field in dataclasses.fields(state)]
    return [(str(key), value) for key, value in state.items()]


def _leaves(path: str, state: Any) -> list[tuple[str, Tensor]]:
    if state is None:
        return []
    if isinstance(state, Tensor):
        return [(path, state)]
    if isinstance(state, np.ndarray):
        return [(path, torch.from_numpy(state.copy()))]
    if isinstance(state, bool | int | float):
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(state)]
        return [(path, torch.tensor(state, dtype=dtype))]
    if isinstance(state, str):
        return [(path, torch.frombuffer(bytearray(state.encode() or b"\0"), dtype=torch.uint8))]
    if isinstance(state, list | tuple) and not hasattr(state, "_fields"):
        found = [(_join(path, "length"), torch.tensor(len(state)))]
        return found + [leaf for i, item in enumerate(state) for leaf in _leaves(_join(path, str(i)), item)]
    if dataclasses.is_dataclass(state) or isinstance(state, dict):
        return [leaf for name, item in _children(state) for leaf in _leaves(_join(path, name), item)]
    raise ValueError(f"{path} must be made of tensors, numbers and text; got {type(state).__name__}")


def _rebuilt(path: str, template: Any, tensors: Mapping[str, Tensor], used: set[str]) -> Any:
    if template is None:
        return None
    if isinstance(template, list | tuple):
        return _rebuilt_list(path, template, tensors, used)
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        named = {name: _rebuilt(_join(path, name), item, tensors, used) for name, item in _children(template)}
        return dataclasses.replace(template, **named)
    if isinstance(template, dict):
        if not template:  # its keys were not known before the first round
            inside = {name.removeprefix(f"{path}."): name for name in tensors if name.startswith(f"{path}.")}
            saved = {key: name for key, name in inside.items() if "." not in key}
            used.update(saved.values())
            return {key: tensors[name].clone() for key, name in saved.items()}
        return {key: _rebuilt(_join(path, key), item, tensors, used) for key, item in template.items()}
    found = _take(path, tensors, used)
    if isinstance(template, str):
        return bytes(found.tolist()).decode().rstrip("\0")
    if isinstance(template, bool | int | float):
        if found.numel() != 1:
            raise ValueError(f"{path} must be one number; the checkpoint has shape {list(found.shape)}")
        return type(template)(found.item())
    expected = torch.from_numpy(template) if isinstance(template, np.ndarray) else template
    fits = found.dim() == expected.dim() and all(n in (0, m) for n, m in zip(expected.shape, found.shape))
    if not fits or found.dtype != expected.dtype:
        raise ValueError(
            f"{path} must be {expected.dtype} of shape {list(expected.shape)}; "
            f"the checkpoint has {found.dtype} of shape {list(found.shape)}"
        )
    return found.numpy().copy() if isinstance(template, np.ndarray) else found.clone()


def _rebuilt_list(path: str, template: Any, tensors: Mapping[str, Tensor], used: set[str]) -> Any:
    count = int(_take(_join(path, "length"), tensors, used).item())
    items = [_rebuilt(_join(path, str(i)), item, tensors, used) for i, item in zip(range(count), template)]
    for i in range(len(items), count):
        found = _take(_join(path, str(i)), tensors, used)
        items.append(found.item() if found.dim() == 0 else found.clone())
    return type(template)(items)


def _take(name: str, tensors: Mapping[str, Tensor], used: set[str]) -> Tensor:
    if name not in tensors:
        raise ValueError(f"{name.removesuffix('.length')} is missing from the checkpoint")
    used.add(name)
    return tensors[name]
