"""What a call is given, as settings: keywords, plain dicts, a TOML file, and objects under a name.

A string for `data`, `model` or `attack` is the name in that section; for `method` it is a method as
`signfade compare` takes it. An object takes the place of a name: a data set, a module or its factory, a rule.
What can be imported is recorded by its import path, so that it works in worker processes and can be resumed
from the command line. Anything else is held by this process under a name that ends in a checksum of it.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from signfade.experiments.config import ConfigError, flatten, load
from signfade.experiments.group import setting_text
from signfade.experiments.methods import method_layer, open_tables, without_preset
from signfade.experiments.toml import own_names
from signfade.registry import hold, is_object
from signfade.settings import RunSettings

__all__ = ["Config", "Inputs", "objects_in", "read_inputs", "read_methods", "spell_out", "tables"]

Config = str | os.PathLike[str] | Mapping[str, Any] | RunSettings | None
_NAMES = {"data": "data.name", "model": "model.name", "attack": "attack.kind"}


@dataclass(frozen=True)
class Inputs:
    """Settings, and the objects they name, which live as long as this does."""

    settings: RunSettings
    objects: list[Callable[..., Any]] = field(default_factory=list)


def read_inputs(config: Config, given: Mapping[str, Any]) -> Inputs:
    """Return the settings of a call.

    Args:
        config: a TOML file, nested or dotted tables, checked settings, or None for the defaults.
        given: keywords and tables on top of it.

    Example:
        >>> read = read_inputs({"server.momentum": 0.5}, {"data": "mnist", "method": "low-rate", "rounds": 9})
        >>> read.settings.data.name, read.settings.server.momentum, read.settings.method.bits_per_weight
        ('mnist', 0.5, 0.01)
        >>> read_inputs(None, {"bandwith_hz": 1e6})
        Traceback (most recent call last):
        signfade.experiments.config.ConfigError: unknown key 'bandwith_hz'; the nearest known one is
        'cell.bandwidth_hz'
    """
    if isinstance(config, RunSettings) and not given:
        return Inputs(config)
    objects: list[Callable[..., Any]] = []
    source: Any = config
    if isinstance(config, str | os.PathLike):
        source = Path(config)
    elif isinstance(config, RunSettings):
        source = open_tables(config) | {"variants": config.variants}
    elif config is not None:
        source = tables(config, objects)
    layer = tables(given, objects)
    method = layer.pop("method", None)
    settings = load(source, layer)
    if method is not None:
        if not isinstance(method, str):
            raise ConfigError(f"method must be a name, a table or a function; got {method!r}")
        own = method_layer(settings, method)
        if method not in settings.variants and not is_object(method):
            del own["label"]  # it is called so anyway
        tree = without_preset(settings) | {"variants": settings.variants, "label": settings.label}
        settings = load(tree, own | layer)
    return Inputs(settings, objects)


def read_methods(settings: RunSettings, methods: Iterable[Any]) -> tuple[Inputs, list[str]]:
    """Return the settings of a comparison and the names of its methods.

    A method is a name, a function, or a table of settings, which becomes a variant; its `label` names it.

    Example:
        >>> read, names = read_methods(load(None), ["ideal", {"method": "best", "server.momentum": 0.5}])
        >>> names, read.settings.variants[names[1]]
        (['ideal', 'best, momentum 0.5'], {'method.preset': 'best', 'server.momentum': 0.5})
    """
    objects: list[Callable[..., Any]] = []
    variants, names = dict(settings.variants), []
    for method in methods:
        if not isinstance(method, Mapping):
            names.append(method if isinstance(method, str) else _plain("method", method, objects))
            continue
        table = tables(method, objects)
        base = table.pop("method", None)
        layer = {} if base is None else method_layer(settings, base)
        words = [layer.pop("label")] if layer else []
        label = table.pop("label", None) or ", ".join(
            [*words, *(setting_text(key, value) for key, value in table.items())]
        )
        variants[label] = layer | table
        names.append(label)
    return Inputs(settings.model_copy(update={"variants": variants}), objects), names


def spell_out(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table in which the name of a method is replaced by its settings.

    Example:
        >>> spell_out({"method": "best", "rounds": 3})
        {'method.preset': 'best', 'rounds': 3}
    """
    rest = {key: value for key, value in table.items() if key != "method"}
    if "method" not in table:
        return rest
    if not isinstance(table["method"], str):
        raise ConfigError(f"method must be a name, a table or a function; got {table['method']!r}")
    return {
        key: v for key, v in method_layer(RunSettings(), table["method"]).items() if key != "label"
    } | rest


def objects_in(settings: Iterable[RunSettings], *, data: bool = True) -> list[str]:
    """Return the names in settings that stand for objects of this process, with or without data sets."""
    found = {
        name: None
        for one in settings
        for name in own_names(one)
        if is_object(name) and (data or name != one.data.name)
    }
    return list(found)


def tables(given: Mapping[str, Any], objects: list[Callable[..., Any]]) -> dict[str, Any]:
    """Return one table of dotted keys and plain values; objects get names and are added to `objects`."""
    rest = {key: value for key, value in given.items() if key != "variants"}
    if _is_data(rest.get("data")):
        rest["data"] = _hold_data(rest["data"], objects)
    flat = flatten({_NAMES.get(k, k) if not isinstance(v, Mapping) else k: v for k, v in rest.items()})
    variants = {"variants": given["variants"]} if "variants" in given else {}
    return {key: _plain(key, value, objects) for key, value in flat.items()} | variants


def _is_data(value: Any) -> bool:
    """Tell a mapping of training and test data from a table of settings."""
    return isinstance(value, Mapping) and {"train", "test"} <= value.keys()


def _plain(key: str, value: Any, objects: list[Callable[..., Any]]) -> Any:
    """A value as TOML knows it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if key == "data.name":
        return _hold_data(value, objects)
    if key == "model.name":
        return _hold_model(value, objects)
    if callable(value):
        return _hold_function(value, objects)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # a number or an array of NumPy or torch
        return value.tolist()
    return list(value) if isinstance(value, tuple | range) else value


def _held(words: str, digest: Any, function: Callable[..., Any], objects: list[Callable[..., Any]]) -> str:
    name = re.sub(r"\W+", "-", words).strip("-") or "own"
    path, kept = hold(f"{name}-{digest.hexdigest()[:8]}", function)
    objects.append(kept)
    return path


def _hold_data(value: Any, objects: list[Callable[..., Any]]) -> str:
    import numpy as np  # late, as the data sets are

    from signfade.data import Dataset, as_dataset

    if callable(value) and not isinstance(value, Dataset):
        return _hold_function(value, objects)
    try:
        dataset = as_dataset(value, "data")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    arrays = dataset.arrays()
    digest = hashlib.sha256(repr((dataset.classes, *(a.shape for a in arrays.values()))).encode())
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).data)
    return _held(dataset.name, digest, lambda: dataset, objects)


def _hold_model(value: Any, objects: list[Callable[..., Any]]) -> str:
    from torch import nn

    if not isinstance(value, nn.Module):
        if not callable(value):
            raise ConfigError(
                "model must be a name, a torch.nn.Module or a function of (input_shape, classes); "
                f"got {type(value).__name__}"
            )
        return _hold_function(value, objects)
    module = copy.deepcopy(value)  # training elsewhere must not change where this run starts
    digest = hashlib.sha256(repr(module).encode())
    for key, tensor in module.state_dict().items():
        digest.update(key.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return _held(type(module).__name__, digest, lambda shape, classes: copy.deepcopy(module), objects)


def _hold_function(function: Callable[..., Any], objects: list[Callable[..., Any]]) -> str:
    """The import path of a function, or the name under which this process holds it."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if module != "__main__" and getattr(sys.modules.get(module), name or "?", None) is function:
        return f"{module}:{name}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(getattr(getattr(function, "__code__", None), "co_code", type(function)))
    words = getattr(function, "__name__", type(function).__name__)
    return _held(words, hashlib.sha256(text.encode()), lambda *inputs: function(*inputs), objects)
