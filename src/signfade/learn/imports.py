"""Find a user's own function by its import path."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["blame", "is_import_path", "load_function"]


@contextmanager
def blame(name: str) -> Iterator[None]:
    """Turn whatever a user's own code raises into one sentence with its name; the cause stays attached."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise ValueError(f"{name} failed with {type(error).__name__}: {reason}") from error


def is_import_path(name: str) -> bool:
    """Tell whether `name` looks like `package.module:function` or `path/to/file.py:function`."""
    return ":" in name


def load_function(path: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` or `file.py:function` names.

    Example:
        >>> load_function("math:hypot")(3, 4)
        5.0

    Raises:
        ValueError: The module cannot be found or loaded, or has no such function.
    """
    where, _, name = path.rpartition(":")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # whatever its author wrote
        kind = "" if isinstance(error, ImportError | OSError) else f"{type(error).__name__}: "
        raise ValueError(f"cannot import {where!r} for {path!r}: {kind}{error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{where!r} has no function {name!r}, needed for {path!r}")
    return function  # type: ignore[no-any-return]


def _load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"no such file: {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)  # so that classes of the file can find their module
    spec.loader.exec_module(module)
    return module
