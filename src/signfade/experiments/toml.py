"""Settings written as TOML: equal settings give equal bytes, and reading them gives the settings back."""

from __future__ import annotations

import hashlib
import inspect
import json
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from signfade.registry import is_object
from signfade.settings import RunSettings

__all__ = ["config_text", "own_names", "to_toml", "toml_value", "user_files"]


def toml_value(value: Any) -> str:
    """Return one value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    raise ValueError(f"value must be a number, a string, true, false or a list of them; got {value!r}")


def _choices(field: FieldInfo) -> str:
    """The words that a key takes, unless its description names them all."""
    words = [word for word in get_args(field.annotation) if isinstance(word, str)]
    named = field.description or ""
    return "" if all(word in named for word in words) else f"; one of {', '.join(words)}"


def _registered() -> dict[str, list[tuple[str, str]]]:
    """Names and help lines of the built-in choices, by the key that takes them."""
    # Late: these load torch, which files without comments do not need.
    from signfade.data import available
    from signfade.server import AGGREGATORS
    from signfade.simulation.attacks import ATTACKS
    from signfade.simulation.models import MODELS
    from signfade.uplink import PATH_LOSSES

    return {
        "data.name": [(entry.name, entry.description) for entry in available()],
        "model.name": [(name, _help(entry)) for name, entry in MODELS.items()],
        "cell.path_loss": [(name, entry.help) for name, entry in PATH_LOSSES.items()],
        "method.aggregator": [(name, entry.help) for name, entry in AGGREGATORS.items()],
        "attack.kind": [(name, entry.help) for name, entry in ATTACKS.items()],
    }


def _help(entry: object) -> str:
    """The help line of a registry's entry, or the first paragraph of a function's docstring."""
    text = getattr(entry, "help", None) or (inspect.getdoc(entry) or "").partition("\n\n")[0]
    return " ".join(text.split())


def _comment(text: str, indent: str = "") -> list[str]:
    width = 96 - len(indent)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [f"# {indent}{line}" for line in lines]


def _line(name: str, field: FieldInfo, value: Any, comments: bool) -> list[str]:
    text = f"{field.description or ''}{_choices(field)}" if comments else ""
    lines = _comment(text)
    if value is not None:
        return [*lines, f"{name} = {toml_value(value)}"]
    if field.default is not None:  # null is not the default, so it has to be said, by its word
        return [*lines, f'{name} = "none"']
    return [*lines, f'# {name} = "none"'] if comments else []


def to_toml(settings: RunSettings, *, comments: bool = False, given: bool = False) -> str:
    """Return all settings, defaults included, as TOML; what is not set is left out.

    With `comments`, descriptions stand above the keys, and keys without a value are commented out. With
    `given`, the keys that nobody gave are left out.
    """
    heads: list[str] = []
    sections: list[str] = []
    choices = _registered() if comments else {}
    for name, field in RunSettings.model_fields.items():
        value = getattr(settings, name)
        if name == "variants" or (given and name not in settings.model_fields_set):
            continue
        if isinstance(value, BaseModel):
            about = (type(value).__doc__ or "").strip()
            head = f"[{name}]  # {about}" if comments and about else f"[{name}]"
            sections += ["", head]
            for inner, info in type(value).model_fields.items():
                if given and inner not in value.model_fields_set:
                    continue
                for choice, help in choices.get(f"{name}.{inner}", []):
                    sections += _comment(f"{choice}: {help}", "  ")
                sections += _line(inner, info, getattr(value, inner), comments)
        else:
            heads += _line(name, field, value, comments)
    for variant, table in settings.variants.items():
        sections += ["", f"[variants.{toml_value(variant)}]"]
        sections += [f"{toml_value(key)} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(heads + sections) + "\n"


def own_names(settings: RunSettings) -> tuple[str, ...]:
    """Return the values of the settings that may name code or data of the user's."""
    method = settings.method
    return (
        method.aggregator,
        method.compressor,
        settings.attack.kind,
        settings.model.name,
        settings.data.name,
        settings.cell.path_loss,
    )


def user_files(settings: RunSettings) -> dict[str, str]:
    """Return the SHA-256 of each file that the settings name, such as `rule.py` of `rule.py:mine`."""
    found = {}
    for name in own_names(settings):
        file, colon, _ = name.rpartition(":")
        with suppress(OSError):  # a file that cannot be read is reported where it is loaded
            if colon and file.endswith(".py"):
                found[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return found


def config_text(settings: RunSettings) -> str:
    """Return config.toml of a run: its settings, and the SHA-256 of each file of the user's that it runs.

    A comment names the objects that Python code handed over, which no file can hold.
    """
    lines = [f'{toml_value(file)} = "{digest}"' for file, digest in user_files(settings).items()]
    text = to_toml(settings.model_copy(update={"variants": {}}))
    if objects := [name for name in own_names(settings) if is_object(name)]:
        about = "Handed over as Python objects, which only the program that has them can run again: "
        text = "\n".join([*_comment(about + ", ".join(objects)), text])
    return "\n".join([text, "[files]  # SHA-256 of your own code", *lines, ""]) if lines else text
