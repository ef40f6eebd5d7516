"""The radio of a run before anything is trained: the SNRs of its devices, and the error they cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.distance import limit_lines
from signfade.experiments.figures import cell_map, mse_curves, snr_histogram
from signfade.experiments.link_notes import bit_errors, path_loss_note, switch_notes
from signfade.experiments.style import save_figure
from signfade.server import AGGREGATORS
from signfade.settings import Fading, Family, Form, RunSettings
from signfade.theory.errors import mse, vote_nmse
from signfade.theory.rules import Rule
from signfade.uplink.radio import make_radio

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

__all__ = ["ERRORS_ARE", "LinkStudy", "link_text", "plot_errors", "plot_link", "study_link", "theory_errors"]

Array = NDArray[np.float64]

ERRORS_ARE = "Predicted squared error of a coordinate at one bit per weight, in units of its variance"
_HARD = "best hard decision"  # a vote's view of one bit; no rule by itself


def _rules() -> Iterator[tuple[str, Rule, Form]]:
    """Label, law and form of every rule that theory has a law for; the published form where it differs."""
    for law in get_args(Rule):
        names = [name for name, rule in AGGREGATORS.items() if rule.law == law]
        published = mse(law, 1.0, form="published") != mse(law, 1.0)
        for name in names or [_HARD]:
            yield name, law, "corrected"
            if published:
                yield f"{name}, published", law, "published"


RULES: tuple[tuple[str, Rule, Form], ...] = tuple(_rules())
_VOTES = [name for name, rule in AGGREGATORS.items() if rule.breaks_ties]
_VOTE = f"{_VOTES[0]}, best scale"  # of all devices together; the other rules take each device by itself
_CROWD = 2000  # users that stand for "anybody in this cell"
_ROUNDS = 200  # rounds of fading that are drawn
_LEVELS = 500  # quantiles that stand for more devices than these
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class LinkStudy:
    """The cell of a run and what theory says about it; links are None where they are perfect."""

    settings: RunSettings
    mean_snr_db: Array | None  # of the run's devices, [K]
    faded_snr_db: Array | None  # of the devices in the run's first 200 rounds, [200, K]
    crowd_snr_db: Array | None  # mean SNR of many users placed alike, [2000]; None where SNRs were given
    positions_km: Array | None  # of the devices, [K, 2]; None where SNRs were given
    errors: dict[str, float]  # of a coordinate, squared, over its variance, by label; over fading and devices


def theory_errors(
    snr_db: Array, *, family: Family = "gaussian", fading: Fading = "none", rician_k: float = 4.0
) -> dict[str, Array]:
    """Return the predicted squared error of every rule, by its label, for coordinates of variance one.

    Errors have the shape of `snr_db`, which is the mean SNR if there is fading; infinity is a link without
    noise.

    Reference: Theorem 1 and Corollary 3, corrected; docs/errata.md.
    """
    snr = 10 ** (np.asarray(snr_db, dtype=np.float64) / 10)
    return {
        label: np.asarray(mse(rule, snr, family=family, form=form, fading=fading, rician_k=rician_k))
        for label, rule, form in RULES
    }


def study_link(settings: RunSettings) -> LinkStudy:
    """Study the cell that a run with these settings would have: the same places, the same fading."""
    cell, devices = settings.cell, settings.data.devices
    plan = make_radio(cell, devices, settings.seed)
    family, tie = settings.method.family, settings.method.tie
    if plan.mean_snr_db is None:
        perfect = theory_errors(np.array(np.inf), family=family)
        means = {name: float(e) for name, e in perfect.items()}
        vote = vote_nmse(np.full(devices, np.inf), family=family, tie=tie)
        return LinkStudy(settings, None, None, None, None, means | {_VOTE: vote})
    everyone = np.arange(devices, dtype=np.int64)
    snrs = [plan.link(everyone, round).snr.double().numpy() for round in range(_ROUNDS)]
    with np.errstate(divide="ignore"):  # a gain of zero is minus infinity dB
        faded = 10 * np.log10(np.stack(snrs))
    crowd = None if plan.positions_km is None else make_radio(cell, _CROWD, settings.seed).mean_snr_db
    levels = plan.mean_snr_db
    if devices > _LEVELS:
        levels = np.quantile(levels, (np.arange(_LEVELS) + 0.5) / _LEVELS)
    errors = theory_errors(levels, family=family, fading=cell.fading, rician_k=cell.rician_k)
    means = {name: float(error.mean()) for name, error in errors.items()}
    # The vote is averaged over these rounds; how lucky they are shows in a rule whose average is known.
    luck = np.mean(mse("hard", np.stack(snrs), family=family)) - means[_HARD]
    vote = float(np.mean([vote_nmse(snr, family=family, tie=tie) for snr in snrs]) - luck)
    return LinkStudy(settings, plan.mean_snr_db, faded, crowd, plan.positions_km, means | {_VOTE: vote})


def _bars(values: Array, width: int = 40) -> str:
    """A small histogram in text, one line per bin; the last one takes the strongest hundredth."""
    low, high = np.floor(values.min()), np.ceil(np.quantile(values, 0.99))
    high = max(high, low + 1)
    count, edges = np.histogram(np.minimum(values, high), bins=min(int(high - low), 12), range=(low, high))
    lines = []
    for n, left, right in zip(count, edges, edges[1:]):
        bar = "█" * max(round(n * width / count.max()), int(n > 0))
        span = f"{left:6.1f} to {right:5.1f} dB" if right < edges[-1] else f"{left:6.1f} dB and up"
        share = "under 1 %" if 0 < n / values.size < 0.005 else f"{100 * n / values.size:.0f} %"
        lines.append(f"{span:<18}  {bar} {share}")
    return "\n".join(lines)


def link_text(study: LinkStudy, correlation: float = 0.0) -> list[RenderableType]:
    """Return what `signfade link` prints: SNRs as a table and a histogram, the rules' errors, the limit."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cell = study.settings.cell
    parts: list[Any] = []
    if study.mean_snr_db is None or study.faded_snr_db is None:
        parts.append(Text("Perfect links: no fading, no noise."))
    else:
        snrs = Table(box=box.SIMPLE)
        for name in ("", "min", "5 %", "25 %", "median", "75 %", "95 %", "max"):
            snrs.add_column(name, justify="left" if not name else "right")
        rows = [("mean, this run's devices", study.mean_snr_db)]
        rows += [(f"with {cell.fading} fading", study.faded_snr_db)] if cell.fading != "none" else []
        rows += [("mean, anybody in this cell", study.crowd_snr_db)] if study.crowd_snr_db is not None else []
        for label, values in rows:
            snrs.add_row(label, *(f"{q:.1f}" for q in np.quantile(values, _QUANTILES)))
        anybody = study.crowd_snr_db if study.crowd_snr_db is not None else study.mean_snr_db
        count = study.mean_snr_db.size
        parts += [Text(f"SNR in dB, {count} {'device' if count == 1 else 'devices'}"), snrs]
        parts += [Text("Mean SNR, share of users"), Text(_bars(anybody)), Text()]
    parts.append(Text(ERRORS_ARE))
    errors = Table(box=box.SIMPLE)
    errors.add_column("rule")
    errors.add_column("error", justify="right")
    for label, error in sorted(study.errors.items(), key=lambda item: item[1]):
        errors.add_row(label, f"{error:.3f}")
    faded = study.mean_snr_db is not None and cell.fading != "none"
    over = f"devices and {cell.fading} fading" if faded else "devices, without fading"
    text = (
        f"Averaged over {over}; {study.settings.method.family.title()} coordinates, all independent.\n"
        f"{_VOTES[0]} is the vote of all devices; the other rules take each device by itself.\n"
        "The joint rule bfl gains as far as devices are correlated, which no link shows."
    )
    if study.mean_snr_db is not None:
        wrong = bit_errors(10 ** (study.mean_snr_db / 10), cell)
        notes = [f"Bits: {100 * wrong:.1f} % arrive with the wrong sign."]
        notes += switch_notes(study.settings, study.mean_snr_db, study.faded_snr_db)
        if study.positions_km is not None:
            notes += path_loss_note(cell, study.positions_km)
        text = "\n".join([text, "", *notes])
    if lines := limit_lines(study.settings, study.faded_snr_db, correlation):
        text = "\n".join([text, "", *lines])
    return [*parts, errors, Text(text)]


def plot_link(study: LinkStudy, folder: Path) -> list[Path]:
    """Write `map.png`, `snr.png` and `error.png`, as far as there is something to show; return the paths."""
    if study.mean_snr_db is None or study.faded_snr_db is None:
        return []
    cell = study.settings.cell
    faded = "SNR (dB)" if cell.fading == "none" else f"SNR with {cell.fading} fading (dB)"
    figures = {"snr": snr_histogram(study.faded_snr_db, faded)}
    if study.positions_km is not None:
        figures["map"] = cell_map(study.positions_km, study.mean_snr_db, cell.radius_km)
    grid = np.linspace(study.mean_snr_db.min() - 5, study.mean_snr_db.max() + 5, 61)
    figures["error"] = plot_errors(
        grid, family=study.settings.method.family, fading=cell.fading, rician_k=cell.rician_k
    )
    return [path for stem, figure in figures.items() for path in save_figure(figure, folder / stem, ["png"])]


def plot_errors(
    snr_db: Array, *, family: Family = "gaussian", fading: Fading = "none", rician_k: float = 4.0
) -> Figure:
    """Return the curves of `theory_errors` against the SNR; the ideal rule, which has none, is left out."""
    errors = theory_errors(snr_db, family=family, fading=fading, rician_k=rician_k)
    shown = {label: error for label, error in errors.items() if error.any() and np.isfinite(error).any()}
    across = "SNR (dB)" if fading == "none" else f"mean SNR (dB), {fading} fading"
    return mse_curves(snr_db, shown, across=across)
