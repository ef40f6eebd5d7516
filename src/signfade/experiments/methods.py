"""The methods of a comparison by name: variants of the file, presets, aggregators, compressors, your own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from signfade.device.compressors import COMPRESSORS
from signfade.experiments.config import ConfigError, flatten, overlay, resolve
from signfade.experiments.files import folder_name
from signfade.registry import function_name, is_import_path, load_function
from signfade.server import AGGREGATORS
from signfade.settings import PRESET_TRAINING, PRESETS, RunSettings

__all__ = ["method_folders", "method_layer", "method_settings", "open_tables", "without_preset"]

_FIXED = ("seed", "name", "out")  # the same for all methods, or they could not be compared


def open_tables(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as tables, without variants, and without a learning rate that nobody gave.

    That one depends on the rule.
    """
    tree = settings.model_dump(exclude={"variants"})
    if "learning_rate" not in settings.server.model_fields_set:
        del tree["server"]["learning_rate"]
    return tree


def without_preset(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as tables, with what their preset or rule decided left open again."""
    tree = open_tables(settings)
    preset = settings.method.preset or ""
    for section, decided in {"method": PRESETS.get(preset, {}), **PRESET_TRAINING.get(preset, {})}.items():
        tree[section] = {key: v for key, v in tree[section].items() if decided.get(key, ...) != v}
    tree["method"]["preset"] = None
    return tree


def method_layer(settings: RunSettings, name: str) -> dict[str, Any]:
    """Return what a method of a comparison puts on top of the file, with dotted keys and its label.

    A name is looked for among variants, presets, aggregators and compressors in turn; one with a colon is
    the import path of a rule, labelled with the function's name.

    Example:
        >>> method_layer(resolve({}), "qsgd")
        {'method.aggregator': 'ideal', 'method.compressor': 'qsgd', 'label': 'qsgd'}
    """
    rivals = [rival for rival in COMPRESSORS.names() if rival != "auto"]
    if name in settings.variants:
        return {"label": name} | settings.variants[name]
    if name in PRESETS:
        return {"method.preset": name, "label": name}
    if name in AGGREGATORS.names() or is_import_path(name):
        return {"method.aggregator": name, "label": function_name(name)}
    if name in rivals:
        return {"method.aggregator": "ideal", "method.compressor": name, "label": name}
    if name.lower().replace("-", "") in ("fedavg", "fedsgd"):
        raise ConfigError(f"unknown method {name!r}: it is 'ideal', with device.local_steps for FedAvg")
    known = [*settings.variants, *PRESETS, *AGGREGATORS.names(), *rivals]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"unknown method {name!r}; the nearest known one is {near!r}, "
        "your own is package.module:function or file.py:function"
    )


def method_settings(settings: RunSettings, name: str) -> RunSettings:
    """Return the settings of one method of a comparison, labelled with its name and without variants.

    A preset or an aggregator replaces the preset of the file, also where a variant names it; apart from that
    a variant is put on top of the file.

    Example:
        >>> shared = resolve({"server.momentum": 0.5, "variants": {"slow": {"server.momentum": 0.1}}})
        >>> [method_settings(shared, name).server.momentum for name in ("signsgd", "slow")]
        [0.5, 0.1]
    """
    layer = method_layer(settings, name)
    fixed = next((key for key in _FIXED if key in layer), None)
    if fixed is not None:
        raise ConfigError(f"variants.{name} sets {fixed}, which all methods of a comparison share")
    replaced = {"method.preset", "method.aggregator"} & flatten(layer).keys()
    tree = without_preset(settings) if replaced else open_tables(settings)
    chosen = resolve(overlay(tree, layer, f"variants.{name}: "))
    if is_import_path(chosen.method.aggregator):
        load_function(chosen.method.aggregator)  # report a typing error before the first run, not after it
    return chosen


def method_folders(settings: RunSettings, methods: Sequence[str]) -> dict[str, RunSettings]:
    """Return the settings of the methods of a comparison by the names of their folders, in order."""
    found: dict[str, RunSettings] = {}
    for chosen in (method_settings(settings, name) for name in methods):
        slug = folder_name(chosen.method_label)
        if slug.casefold() in map(str.casefold, found):
            label = chosen.method_label
            raise ConfigError(f"two of the methods are called {label!r}; give one a label of its own")
        found[slug] = chosen
    return found
