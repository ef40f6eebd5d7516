"""The sentences of the paper's page, read from `words.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from signfade.experiments.studies.study import Scale

__all__ = ["words_of"]


@cache
def _read() -> dict[str, dict[str, str]]:
    text = files("signfade.experiments.studies.paper").joinpath("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def words_of(part: str, key: str = "text", scale: Scale | None = None, **values: Any) -> str:
    """Return a sentence of a part with the fields of the scale and `values` filled in.

    Example:
        >>> words_of("table-rounds", "TA", Scale(every=20))
        'We evaluate every 20 rounds, so ours are rounded up to a multiple of 20.'
    """
    return _read()[part][key].format(**(vars(scale or Scale()) | values))
