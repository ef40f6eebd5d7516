"""A sweep file: one config, the settings to try on top of it, and the seeds. Here it becomes a list of runs.

    base = "digits.toml"            # or the settings themselves, or both: the settings go on top of the base
    seeds = 3                       # from the config's own on, or a list such as [0, 7]

    [[runs]]                        # each of these ...
    "method.aggregator" = "signsgd"
    [[runs]]
    "method.preset" = "best"

    [grid]                          # ... at each point of the grid
    "server.learning_rate" = [1e-3, 1e-2]

A run's folder is named after what was tried in it, so a sweep that grows keeps the runs it has.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from signfade.experiments.config import ConfigError, flatten, overlay, parse_override, read, resolve
from signfade.experiments.files import folder_name
from signfade.experiments.group import setting_text
from signfade.experiments.toml import toml_value
from signfade.experiments.training import PlannedRun, place_run

__all__ = ["Sweep", "SweepRun", "plan_sweep", "read_sweep"]

_OWN = ("base", "seeds", "grid", "runs")  # keys of the sweep; all others are the config's
_FIXED = ("seed", "name", "out", "variants")
_LONGEST = 80  # characters of a folder's name


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    point: dict[str, Any]  # the settings that were tried, dotted key to value
    planned: PlannedRun
    title: str  # the point in words, for people


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep."""

    name: str
    folder: Path
    keys: tuple[str, ...]  # the settings that are tried, in the order of the file
    runs: tuple[SweepRun, ...]  # seeds of one point together


def read_sweep(
    path: Path, overrides: Iterable[str] | Mapping[str, Any] = (), out: str | None = None, **own: Any
) -> Sweep:
    """Return the runs that a sweep file describes; a `base` in it is looked for beside it.

    `overrides`, tables or `key=value` texts, are put on top of the config; `out` replaces the config's own;
    `own` are `grid`, `runs` and `seeds` in place of the file's.
    """
    tree = read(path) | own
    if "variants" in tree:
        raise ConfigError(
            f"{path} has [variants] and is meant for: signfade compare {path}; a sweep has [grid] or [[runs]]"
        )
    base: dict[str, Any] = {}
    if "base" in tree:
        if not isinstance(tree["base"], str):
            raise ConfigError(f"{path}: base must be the name of a TOML file; got {tree['base']!r}")
        base = read(path.parent / tree["base"])
    given = overrides if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    try:
        return plan_sweep(tree, base=base, given=given, out=out)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def plan_sweep(
    tree: Mapping[str, Any],
    *,
    base: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
    out: str | None = None,
) -> Sweep:
    """Return the runs of a sweep: each of the list at each point of the grid, with each seed.

    Args:
        tree: `seeds`, `[[runs]]`, `[grid]` and settings, as read from TOML.
        base: the config under the settings.
        given: dotted keys on top of them, under those that are tried.
        out: folder for the sweep's folder, instead of the config's.

    Example:
        >>> steps = {"grid": {"server.learning_rate": [0.1, 0.2]}, "seeds": 2, "name": "try"}
        >>> [run.planned.folder.as_posix() for run in plan_sweep(steps).runs][1:3]
        ['runs/try-sweep/learning-rate-0.1/seed-1', 'runs/try-sweep/learning-rate-0.2/seed-0']
    """
    config = overlay({}, {key: value for key, value in (base or {}).items() if key != "variants"})
    config = overlay(config, {key: value for key, value in tree.items() if key not in _OWN})
    config = overlay(config, given or {})
    settings = resolve(config)
    seeds = _seeds(tree.get("seeds", 1), settings.seed)
    points = _points(_listed(tree.get("runs", [{}])), _grid(tree.get("grid", {})))
    keys = tuple(dict.fromkeys(key for point in points for key in point.tried if key != "label"))
    folder = Path(out or settings.out) / f"{folder_name(settings.name)}-sweep"
    runs, taken = [], set()
    for point in points:
        if point.slug.casefold() in taken:
            raise ConfigError(f"two of the runs are called {point.title!r}; leave one out or give it a label")
        taken.add(point.slug.casefold())
        try:
            chosen = resolve(overlay(config, point.tried))
        except ConfigError as error:
            raise ConfigError(f"{point.title}: {error}") from None
        for seed in seeds:
            own = chosen.model_copy(update={"seed": seed, "out": out or settings.out})
            run = place_run(own, folder / point.slug / f"seed-{seed}")
            title = point.title + (f", seed {seed}" if len(seeds) > 1 else "")
            runs.append(SweepRun(point.tried, run, title))
    return Sweep(settings.name, folder, keys, tuple(runs))


def _seeds(given: Any, first: int) -> list[int]:
    """One number counts seeds, a list names them."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return list(range(first, first + given))
    if isinstance(given, list) and given and all(type(seed) is int and seed >= 0 for seed in given):
        return list(dict.fromkeys(given))
    raise ConfigError(f"seeds must be their number, 1 or more, or a list such as [0, 7]; got {given!r}")


def _listed(given: Any) -> list[dict[str, Any]]:
    """The entries of [[runs]] with dotted keys."""
    if not (isinstance(given, list) and given and all(isinstance(entry, Mapping) for entry in given)):
        raise ConfigError("runs must be tables, each under a line [[runs]]")
    return [_checked(flatten(entry), "runs") for entry in given]


def _grid(given: Any) -> dict[str, list[Any]]:
    """The axes of [grid] with dotted keys."""
    if not isinstance(given, Mapping):
        raise ConfigError("grid must be a table of lists, under a line [grid]")
    axes = _checked(flatten(given), "grid")
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid: {key} must be a list of values, such as [1, 2]; got {values!r}")
    return axes


def _checked(flat: dict[str, Any], where: str) -> dict[str, Any]:
    """Refuse what a sweep decides itself, and keys that do not exist."""
    for key in flat:
        if key.split(".")[0] in _FIXED:
            instead = "; set seeds instead" if key == "seed" else ", which all runs of a sweep share"
            raise ConfigError(f"{where} sets {key}{instead}")
    overlay({}, dict.fromkeys(flat, 0), f"{where}: ")
    return flat


def _points(listed: Sequence[dict[str, Any]], axes: Mapping[str, list[Any]]) -> list[_Point]:
    both = next((key for entry in listed for key in entry if key in axes), None)
    if both is not None:
        raise ConfigError(f"{both} is both in grid and in runs; choose one")
    corners = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    return [_Point(entry, corner) for entry in listed for corner in corners]


class _Point(NamedTuple):
    """Settings to try: an entry of the list at a corner of the grid."""

    entry: dict[str, Any]
    corner: dict[str, Any]

    @property
    def tried(self) -> dict[str, Any]:
        return self.entry | self.corner

    @property
    def named(self) -> dict[str, Any]:
        """What tells it from others: an entry's label, if it has one, stands for its settings."""
        label = {key: value for key, value in self.entry.items() if key == "label"}
        return (label or self.entry) | self.corner

    @property
    def title(self) -> str:
        """Return it in words."""
        words = [value if key == "label" else setting_text(key, value) for key, value in self.named.items()]
        return ", ".join(map(str, words)) or "as it is"

    @property
    def slug(self) -> str:
        """Return it as the name of a folder, every digit of it; a long one ends in its checksum."""
        words = []
        for key, value in self.named.items():
            text = value if isinstance(value, str) else toml_value(value)
            words.append(text if key == "label" else f"{setting_text(key, '')}{text}")
        name = folder_name("-".join(words) or "as it is")
        if len(name) <= _LONGEST:
            return name
        checksum = hashlib.sha256(repr(sorted(self.named.items())).encode()).hexdigest()
        return f"{name[: _LONGEST - 9]}-{checksum[:8]}"
