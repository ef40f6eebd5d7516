"""Settings of a deployment: read from an app's configuration, bounded by default, and possible at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from signfade.experiments.config import resolve
from signfade.server import AGGREGATORS
from signfade.settings import RunSettings

__all__ = ["refuse_simulated", "settings_from", "with_bounds"]

_PREFIX = "signfade."
_SIMULATED = {
    "method": ("flip", "sign_noise", "error_feedback"),
    "availability": ("dropout", "late", "limited"),
}


def settings_from(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings in a Flower app's configuration: its keys `signfade.*`, named as in a TOML file.

    The data and the model are the app's own, links are perfect unless `signfade.cell.*` says otherwise, and
    means and scales are bounded unless `signfade.defence.bound_scales` says otherwise.

    Example:
        >>> settings = settings_from({"lr": 0.1, "signfade.rounds": 9, "signfade.method.preset": "best"})
        >>> settings.rounds, settings.method.aggregator, settings.cell.perfect, settings.defence.bound_scales
        (9, 'bfl', True, True)
    """
    own = {key.removeprefix(_PREFIX): value for key, value in run_config.items() if key.startswith(_PREFIX)}
    if not any(key.partition(".")[0] == "cell" for key in own):
        own["cell.perfect"] = True
    return with_bounds(resolve({"data.name": "own", "model.name": "own"} | own))


def with_bounds(settings: RunSettings) -> RunSettings:
    """Turn `defence.bound_scales` on, unless the settings name it or their devices send no scales.

    One device can end any run without it: a scale of 3.4e38 is a float32 number like others.

    Example:
        >>> with_bounds(RunSettings()).defence.bound_scales
        True
        >>> with_bounds(resolve({"defence.bound_scales": False})).defence.bound_scales
        False
    """
    named = "defence" in settings.model_fields_set and "bound_scales" in settings.defence.model_fields_set
    if named or not AGGREGATORS.find(settings.method.aggregator).sends_scalars:
        return settings
    defence = settings.defence.model_copy(update={"bound_scales": True})
    return settings.model_copy(update={"defence": defence})


def refuse_simulated(settings: RunSettings) -> None:
    """Raise a ValueError for settings that only a simulation can follow."""
    if settings.method.correlation == "genie":
        raise ValueError('method.correlation must be "learned" on real devices: no genie is there')
    for section, keys in _SIMULATED.items():
        for key in keys:
            if (value := getattr(getattr(settings, section), key)) > 0:
                why = "must be 0 on real devices: it is simulated only"
                raise ValueError(f"{section}.{key} {why}; got {value:g}")
    if settings.attack.kind != "none":
        raise ValueError(f'attack.kind must be "none" on real devices; got "{settings.attack.kind}"')
