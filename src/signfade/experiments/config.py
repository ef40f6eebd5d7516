"""From a TOML file and `--set key=value` to checked settings.

A key is written with dots (`server.momentum`). Every mistake becomes a `ConfigError` of one sentence that
names the key, what it got and what is accepted. Layers are put on top of each other: the file, then `--set`,
then a variant of `compare`; a preset in one layer wins over the layers below it, but not over the other keys
of its own.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from signfade.server import AGGREGATORS
from signfade.settings import PRESET_TRAINING, PRESETS, RunSettings

__all__ = [
    "RENAMED",
    "ConfigError",
    "deciding",
    "differences",
    "flatten",
    "known_keys",
    "load",
    "overlay",
    "parse_override",
    "parse_toml",
    "plain_defaults",
    "read",
    "resolve",
]

# What can change between two sittings of one run without changing a single number in it.
_NO_RESULT = frozenset({"out", "threads", "checkpoint_every", "track"})

# Settings of version 0.1 that have another name now, and those that are gone.
RENAMED = {"server.step": "server.learning_rate", "presence": "availability"} | {
    f"presence.{key}": f"availability.{key}"
    for key in ("dropout", "late", "staleness", "limited", "backoff_db")
}
_REMOVED = {
    f"method.{key}": "the range of the scalars follows the gradients now; remove it"
    for key in ("mean_limit", "scale_low", "scale_high")
}

# Where the name goes that somebody wrote in place of a table.
_NAMES = {
    "data": "data.name",
    "model": "model.name",
    "method": "method.preset or method.aggregator",
    "attack": "attack.kind",
}
_DEPTH = 16  # tables and lists in one another; settings need four

_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list of numbers",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
}


class ConfigError(ValueError):
    """The settings cannot be used; the message is one sentence for the person who wrote them."""


@cache
def known_keys() -> Mapping[str, FieldInfo]:
    """Return every key a file may hold, with dots, in the order of the settings (`variants` aside).

    Example:
        >>> list(known_keys())[:3], known_keys()["server.learning_rate"].default
        (['name', 'label', 'seed'], 0.6)
    """
    keys: dict[str, FieldInfo] = {}
    for name, field in RunSettings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys.update({f"{name}.{inner}": info for inner, info in section.model_fields.items()})
        elif name != "variants":
            keys[name] = field
    return keys


def plain_defaults() -> dict[str, Any]:
    """Return the default of every key by itself: what it is where another key of its section is given.

    They differ from `RunSettings()` in the method, whose keys a preset decides if nothing is said.
    """
    return {key: field.default for key, field in known_keys().items()}


@cache
def _sections() -> frozenset[str]:
    return frozenset(key.split(".")[0] for key in known_keys() if "." in key)


def _check_key(key: str, where: str = "") -> None:
    """Raise unless `key` exists; `where` goes in front of it in the message."""
    known = known_keys()
    if key in known or key in _sections():
        return
    if key in RENAMED:
        raise ConfigError(f"{where}{key} is now {RENAMED[key]}")
    if key in _REMOVED:
        raise ConfigError(f"{where}{key} is no setting any more: {_REMOVED[key]}")
    # A right last part in the wrong section is nearer than any spelling.
    last = key.rsplit(".", 1)[-1]
    same_last = [name for name in known if name.rsplit(".", 1)[-1] == last]
    near = difflib.get_close_matches(key, same_last or known, n=1, cutoff=0.0)
    raise ConfigError(f"{where}unknown key {key!r}; the nearest known one is {near[0]!r}")


def _optional(field: FieldInfo) -> bool:
    return NoneType in get_args(field.annotation)


def overlay(tree: Mapping[str, Any], layer: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return `tree`, nested tables, with the values of `layer`, nested or dotted, on top; neither is changed.

    A preset in `layer` takes back what `tree` says about the keys that the preset decides, so that the later
    layer wins. `where` goes in front of an error, such as `variants.fast: `.

    Example:
        >>> overlay({"method": {"aggregator": "sbfl", "side_bits": 4}}, {"method.preset": "best", "seed": 3})
        {'method': {'side_bits': 4, 'preset': 'best'}, 'seed': 3}
    """
    result: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()
    }
    flat = flatten(layer)
    known = known_keys()
    preset = flat.get("method.preset")
    if isinstance(preset, str):
        for section, decided in {
            "method": PRESETS.get(preset, {}),
            **PRESET_TRAINING.get(preset, {}),
        }.items():
            if isinstance(table := result.get(section), dict):
                result[section] = {key: value for key, value in table.items() if key not in decided}
    if flat.get("cell.snr_db", "none") != "none" and isinstance(result.get("cell"), dict):
        result["cell"].pop("perfect", None)  # links with an SNR are not perfect any more
    for key, value in flat.items():
        _check_key(key, where)
        if value == "none" and key in known and _optional(known[key]):
            value = None
        section, dot, name = key.partition(".")
        if not dot:
            result[key] = value
            continue
        if not isinstance(result.get(section), dict):  # absent, or the short form cell = "none"
            result[section] = {}
        result[section][name] = value
    return result


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of one `key=value`; the value is TOML, or a bare word.

    Example:
        >>> parse_override("cell.snr_db=[0, 10]"), parse_override("method.aggregator=signsgd")
        (('cell.snr_db', [0, 10]), ('method.aggregator', 'signsgd'))
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise ConfigError(f"--set takes key=value, such as server.learning_rate=1e-3; got {text!r}")
    try:
        parsed = parse_toml(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    # A line break in the text could smuggle in more than one value.
    return key, parsed["value"] if parsed.keys() == {"value"} else value


def _sentence(error: ValidationError) -> str:
    """Return pydantic's first complaint as one sentence in our words."""
    details = error.errors(include_url=False)
    first = details[0]
    known, sections = known_keys(), _sections()
    path = [str(part) for part in first["loc"]]
    key = next((".".join(path[:n]) for n in (2, 1) if ".".join(path[:n]) in known), ".".join(path[:1]))
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"])
        return f"{key}.{reason}" if key in sections else reason
    if first["type"] == "string_too_short":
        return f"{key} must not be empty"
    accepted = []  # a union complains once for each of its members
    for detail in details:
        if detail["loc"][: len(key.split("."))] == first["loc"][: len(key.split("."))]:
            words = _KINDS.get(detail["type"]) or detail["msg"].removeprefix("Input should be ")
            if detail["type"] == "list_type" and key in known and known[key].annotation == list[str]:
                words = 'a list of names, ["..."]'
            if words not in accepted:
                accepted.append(words)
    got = details[-1]["input"] if len(accepted) == 1 else first["input"]
    none = ' or "none"' if key in known and _optional(known[key]) else ""
    hint = f"; a name goes to {_NAMES[key]}" if key in _NAMES and isinstance(got, str) else ""
    return f"{key} must be {' or '.join(accepted)}{none}; got {got!r}{hint}"


def resolve(tree: Mapping[str, Any]) -> RunSettings:
    """Return the settings that `tree` (nested tables or dotted keys) describes; its variants are checked too.

    Example:
        >>> resolve({"server": {"momentun": 0.1}})
        Traceback (most recent call last):
        signfade.experiments.config.ConfigError: unknown key 'server.momentun'; the nearest known one is
        'server.momentum'
    """
    rest = dict(tree)
    variants = rest.pop("variants", {})
    tables = isinstance(variants, Mapping) and all(isinstance(value, Mapping) for value in variants.values())
    if not tables:
        raise ConfigError("variants must be tables, such as [variants.fast]")
    base = overlay({}, rest)
    for name, variant in variants.items():
        where = f"variants.{name}: "
        _settings(overlay(base, variant, where), where)
    return _settings(base | {"variants": {name: flatten(table) for name, table in variants.items()}})


def _settings(tree: dict[str, Any], where: str = "") -> RunSettings:
    try:
        return RunSettings.model_validate(tree, strict=True)
    except ValidationError as error:
        raise ConfigError(where + _sentence(error)) from None


def read(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, a run's config.toml without what it recorded of the user's files."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise ConfigError(f"no such config file: {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        tree = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if isinstance(tree.get("files"), dict):
        del tree["files"]
    return tree


def load(
    source: Path | Mapping[str, Any] | None, overrides: Iterable[str] | Mapping[str, Any] = ()
) -> RunSettings:
    """Return the settings of a TOML file or of tables (none: the defaults) with overrides on top.

    Overrides are `key=value` texts, or tables.

    Example:
        >>> load(None, ["rounds=7", "data.batch=none"]).data.batch is None
        True
        >>> load({"rounds": 7}, {"data": {"batch": 5}}).data.batch
        5
    """
    tree: dict[str, Any] = {}
    if isinstance(source, Path):
        tree = read(source)
        if {"base", "grid", "runs"} & tree.keys():
            raise ConfigError(f"{source} describes many runs; use: signfade sweep {source}")
        try:
            resolve(tree)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    elif source is not None:
        resolve(source)
        plain = {key: value for key, value in source.items() if key != "variants"}
        tree = overlay({}, plain) | {"variants": source.get("variants", {})}
    given = overrides if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    variants = {name: flatten(table) for name, table in tree.pop("variants", {}).items()}
    # A variant that the overrides do not fit is no mistake before somebody asks for it.
    return resolve(overlay(tree, given)).model_copy(update={"variants": variants})


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys that decide the numbers of a run, with their values.

    Left out are `out`, `threads`, `checkpoint_every`, `track`, the variants, the folder of a data set whose
    content is known by its checksum, and ties where nobody votes.

    Example:
        >>> deciding({"seed": 1, "threads": 2, "data": {"name": "mnist", "folder": "here"}})
        {'seed': 1, 'data.name': 'mnist'}
    """
    flat = flatten({key: value for key, value in config.items() if key != "variants"})
    unused = set(_NO_RESULT)
    if flat.get("data.name") != "idx":
        unused.add("data.folder")
    rule = flat.get("method.aggregator")
    if rule not in AGGREGATORS.names() or not AGGREGATORS.find(rule).breaks_ties:
        unused.add("method.tie")
    return {key: value for key, value in flat.items() if key not in unused}


def differences(old: RunSettings, new: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two settings differ and that decide the numbers, each with both values.

    Example:
        >>> differences(load(None), load(None, ["threads=2", "seed=1"]))
        {'seed': (0, 1)}
    """
    before, after = deciding(old.model_dump()), deciding(new.model_dump())
    return {
        key: (before.get(key), after.get(key)) for key in known_keys() if before.get(key) != after.get(key)
    }


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table of dotted keys.

    Example:
        >>> flatten({"seed": 1, "server": {"learning_rate": 0.01}})
        {'seed': 1, 'server.learning_rate': 0.01}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; `TOMLDecodeError` if it is none, or nested too deeply."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
    level: list[Any] = [tree]
    for _ in range(_DEPTH):
        parts = [value.values() if isinstance(value, dict) else value for value in level]
        level = [item for part in parts for item in part if isinstance(item, dict | list)]
    if level:
        raise tomllib.TOMLDecodeError("nested too deeply")
    return tree
