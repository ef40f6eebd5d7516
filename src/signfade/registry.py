"""Named choices: aggregators, data sets, models, attacks and compressors, built in or a user's own.

Every kind has one `Registry`. A built-in entry registers itself where it is defined; a user's own is named by
`package.module:function` or `file.py:function` and needs no registration.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["Registry", "function_name", "hold", "is_import_path", "is_object", "load_function", "user_code"]

T = TypeVar("T")
_PACKAGE = Path(__file__).parent
_OBJECT = "object:"  # begins the name of a function that no import path leads to
_HELD: WeakValueDictionary[str, Callable[..., Any]] = WeakValueDictionary()


class Registry(Generic[T]):
    """Entries of one kind by name.

    `setting` is the setting that names an entry, for messages. `adopt` makes an entry of a user's own
    function; it is called with its import path and the function.

    Example:
        >>> shapes = Registry("shape.name", adopt=lambda path, function: function)
        >>> shapes.add("unit", lambda: 1.0)
        >>> shapes.names(), shapes.find("unit")(), shapes.find("math:hypot")(3, 4)
        (['unit'], 1.0, 5.0)
        >>> shapes.find("circle")
        Traceback (most recent call last):
        ValueError: shape.name must be one of unit, package.module:function or file.py:function; got 'circle'
    """

    def __init__(self, setting: str, adopt: Callable[[str, Callable[..., Any]], T]) -> None:
        self._setting, self._adopt = setting, adopt
        self._entries: dict[str, T] = {}
        self._unlisted: set[str] = set()

    def add(self, name: str, entry: T, *, listed: bool = True) -> None:
        """Add a built-in entry under a new name; messages do not propose one that is not `listed`."""
        if name in self._entries:
            raise ValueError(f"{self._setting} {name!r} is registered twice")
        self._entries[name] = entry
        if not listed:
            self._unlisted.add(name)

    def names(self) -> list[str]:
        """Return the names of the built-in entries, in the order in which they were added."""
        return list(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """Return the built-in entries by name."""
        return list(self._entries.items())

    def built_in(self, name: str) -> T | None:
        """Return the built-in entry of this name; None if there is none."""
        return self._entries.get(name)

    def check(self, name: str) -> None:
        """Raise a ValueError if there can be no such entry; a user's own is not loaded."""
        if name not in self._entries and not is_import_path(name):
            known = ", ".join(other for other in self._entries if other not in self._unlisted)
            raise ValueError(
                f"{self._setting} must be one of {known}, package.module:function or file.py:function; "
                f"got {name!r}"
            )

    def find(self, name: str) -> T:
        """Return an entry by its name or import path; ValueError if it is unknown or cannot be loaded."""
        self.check(name)
        return self._entries[name] if name in self._entries else self._adopt(name, load_function(name))


@contextmanager
def user_code(name: str) -> Iterator[None]:
    """Turn whatever a user's own code raises into one sentence with its name; the cause stays attached.

    The sentence ends with the last line of theirs: in no file of signfade and of no installed library.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        theirs = [
            f" ({frame.filename}:{frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if not Path(frame.filename).is_relative_to(_PACKAGE) and "site-packages" not in frame.filename
        ]
        place = theirs[-1] if theirs else ""
        raise ValueError(f"{name} failed with {type(error).__name__}: {reason}{place}") from error


def is_import_path(name: str) -> bool:
    """Tell whether `name` looks like `package.module:function` or `path/to/file.py:function`."""
    return ":" in name


def hold(name: str, function: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Make a function known to this process, for as long as somebody keeps what is returned.

    Returns the name that stands for it in settings, and the function that was held first under that name.

    Example:
        >>> path, kept = hold("twice", lambda x: 2 * x)
        >>> path, is_object(path), load_function(path)(4)
        ('object:twice', True, 8)
    """
    path = f"{_OBJECT}{name}"
    return path, _HELD.setdefault(path, function)


def function_name(path: str) -> str:
    """Return the name of a function in its import path, or of an object that is held, without its checksum.

    Example:
        >>> function_name("rules.py:mine"), function_name("object:mine-1a2b3c4d")
        ('mine', 'mine')
    """
    name = path.rpartition(":")[2]
    return name.rpartition("-")[0] or name if is_object(path) else name


def is_object(name: str) -> bool:
    """Tell whether `name` stands for an object that Python code handed over, see `hold`."""
    return name.startswith(_OBJECT)


def load_function(path: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` or `file.py:function` names.

    Example:
        >>> load_function("math:hypot")(3, 4)
        5.0
    """
    if is_object(path):
        if (held := _HELD.get(path)) is None:
            raise ValueError(
                f"{path!r} is an object that a Python program handed over; only a program that hands it over "
                "again, with signfade.run, can use it"
            )
        return held
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
