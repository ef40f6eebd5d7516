"""Compile kernels with numba, keep the result on disk where that works, and say when the compiled form runs.

A cache saves seconds at the next start and is never needed. So no trouble with it reaches a user: a folder
that cannot be written to, a full disk, an index that is truncated, damaged or foreign. Kernels are then
compiled again.
"""

# mypy: ignore-errors
# (numba's classes have no types)

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import caching
from torch import Tensor

__all__ = ["is_compiled", "njit", "plain_form"]

if numba.config.DISABLE_JIT:
    raise ValueError("NUMBA_DISABLE_JIT must be 0 or unset: the kernels of signfade only run compiled")

_plain = False


def is_compiled(x: Tensor) -> bool:
    """Tell whether the compiled form takes this tensor: on the CPU. Elsewhere the plain torch form does."""
    return x.device.type == "cpu" and not _plain


@contextmanager
def plain_form() -> Iterator[None]:
    """Use the plain torch form meanwhile, as for a tensor on an accelerator; for tests."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


class _TemporaryLocator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """A folder of this user alone in the temporary folder: whoever can write to a cache can run code."""

    def __init__(self, py_func, py_file) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        user = os.getuid() if hasattr(os, "getuid") else "user"
        self._own = Path(tempfile.gettempdir(), f"signfade-cache-{user}")

    def get_cache_path(self) -> str:
        return str(self._own / self.get_suitable_cache_subpath(self._py_file))

    def ensure_cache_path(self) -> None:
        self._own.mkdir(mode=0o700, exist_ok=True)
        found = self._own.lstat()
        ours = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
        if not (ours and stat.S_ISDIR(found.st_mode)):
            raise PermissionError(f"{self._own} is not a folder that only this user can write to")
        super().ensure_cache_path()


class _Place(caching.CompileResultCacheImpl):
    _locator_classes = (*caching.CompileResultCacheImpl._locator_classes, _TemporaryLocator)


class _Cache(caching.FunctionCache):
    """numba's cache of a function, less its errors."""

    _impl_class = _Place

    def load_overload(self, sig, target_context):
        with suppress(Exception):  # whatever a damaged pickle raises
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig, data) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:
            with suppress(Exception):  # a damaged index: start a new one
                self.flush()
                super().save_overload(sig, data)


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function as `numba.njit` does, with a cache that may fail.

    Example:
        >>> @njit(nogil=True, cache=True)
        ... def double(x):
        ...     return 2 * x
        >>> double(21)
        42
    """

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cache:
            with suppress(Exception):  # nowhere to write, or no source file
                dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled
