"""Settings of a deployment: read from an app's configuration, bounded by default, and possible at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from signfade.experiments.config import resolve
from signfade.server import AGGREGATORS
from signfade.settings import RunSettings

__all__ = ["bounded", "refuse_simulated", "settings_from"]

_PREFIX = "signfade."
_SIMULATED = (
    "method.flip",
    "method.sign_noise",
    "method.error_feedback",
    "availability.dropout",
    "availability.late",
    "availability.limited",
)


def settings_from(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings in a Flower app's configuration: its keys `signfade.*`, named as in a TOML file.

    The data and the model are the app's own, links are perfect unless `signfade.cell.*` says otherwise, and
    means and scales are bounded unless `signfade.defence.bound_scales` says otherwise.

    Raises:
        ConfigError: An unknown key, a wrong type, a value out of range.

    Example:
        >>> settings = settings_from({"lr": 0.1, "signfade.rounds": 9, "signfade.method.preset": "best"})
        >>> settings.rounds, settings.method.aggregator, settings.cell.perfect, settings.defence.bound_scales
        (9, 'bfl', True, True)
    """
    own = {key.removeprefix(_PREFIX): value for key, value in run_config.items() if key.startswith(_PREFIX)}
    if not any(key.partition(".")[0] == "cell" for key in own):
        own["cell.perfect"] = True
    return bounded(resolve({"data.name": "own", "model.name": "own"} | own))


def bounded(settings: RunSettings) -> RunSettings:
    """Turn `defence.bound_scales` on, unless the settings name it or their devices send no scales.

    One device can end any run without it: a scale of 3.4e38 is a float32 number like others.

    Example:
        >>> bounded(RunSettings()).defence.bound_scales
        True
        >>> bounded(resolve({"defence.bound_scales": False})).defence.bound_scales
        False
        >>> bounded(resolve({"method.aggregator": "signsgd"})).defence.bound_scales
        False
    """
    named = "defence" in settings.model_fields_set and "bound_scales" in settings.defence.model_fields_set
    if named or not AGGREGATORS.find(settings.method.aggregator).sends_scalars:
        return settings
    defence = settings.defence.model_copy(update={"bound_scales": True})
    return settings.model_copy(update={"defence": defence})


def refuse_simulated(settings: RunSettings) -> None:
    """Raise a ValueError for settings that only a simulation can follow.

    Example:
        >>> refuse_simulated(resolve({"method.flip": 0.1}))
        Traceback (most recent call last):
        ValueError: method.flip must be 0 on real devices: it is simulated only; got 0.1
    """
    if settings.method.correlation == "genie":
        raise ValueError('method.correlation must be "learned" on real devices: no genie is there')
    if settings.method.compressor != "auto":
        raise ValueError('method.compressor must be "auto" on real devices: others are simulated only')
    for name in _SIMULATED:
        section, _, key = name.partition(".")
        if (value := getattr(getattr(settings, section), key)) > 0:
            raise ValueError(f"{name} must be 0 on real devices: it is simulated only; got {value:g}")
    if settings.attack.kind != "none":
        raise ValueError(f'attack.kind must be "none" on real devices; got "{settings.attack.kind}"')
