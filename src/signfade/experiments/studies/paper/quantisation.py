"""Fig. 6: bits for the scalars, on MNIST and on the paper's regression, each against float seed by seed."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

from signfade.experiments.intervals import ENOUGH, Interval, mean_interval
from signfade.experiments.studies.drawing import legend_below, method_style, new_figure
from signfade.experiments.studies.paper.cells import (
    KINDS,
    METHODS,
    RULES,
    floors,
    floors_text,
    ours_text,
    pair_text,
    regression,
    training,
)
from signfade.experiments.studies.paper.point import settle
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import (
    Missing,
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    accuracies,
    shared_seeds,
)
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import MUTED
from signfade.settings import RunSettings

__all__ = ["BITS", "FIG_QUANTISATION", "PRIORS", "change"]

BITS: tuple[int | None, ...] = (1, 2, 4, 8, None)  # None is float
PRIORS = ("printed-gaussian", "printed-laplacian")
_TASKS: tuple[str | None, ...] = (None, *KINDS)  # None is MNIST
_COARSE = [bits for bits in BITS if bits is not None]


def _bits(bits: int | None) -> dict[str, Any]:
    return {} if bits is None else {"method__side_bits": bits}


def _images(scale: Scale, method: str, bits: int | None) -> list[RunSettings]:
    """Return the runs with this many bits per scalar, with the pair of which the paper speaks."""
    more, rounds = _bits(bits), scale.figure_rounds
    pair, seeds = tuple(RULES["claim"]["pair"]), range(scale.regression_seeds)
    return [training(scale, method, pair, seed=seed, rounds=rounds, **more) for seed in seeds]


def _regression(scale: Scale, method: str, kind: str, bits: int | None) -> list[RunSettings]:
    """Return the runs of the regression with this many bits per scalar."""
    more, seeds = _bits(bits), range(scale.regression_seeds)
    return [regression(scale, method, heterogeneous=KINDS[kind], seed=seed, **more) for seed in seeds]


def _at(results: Results, method: str, bits: int | None, kind: str | None = None) -> list[Record]:
    """Return the records with this many bits per scalar, of MNIST or of one kind of regression."""
    scale = results.scale
    runs = _images(scale, method, bits) if kind is None else _regression(scale, method, kind, bits)
    return results.records.find_all(runs)


def _wants(scale: Scale, records: Records) -> list[Want]:
    wants = []
    for place, (method, bits) in enumerate(product(PRIORS, (None, 4, 8, 2, 1))):  # the claim's first
        runs = _images(scale, method, bits)
        runs += [run for kind in KINDS for run in _regression(scale, method, kind, bits)]
        wants += [Want(run, Tier.FIGURE, order=place) for run in runs]
    return wants


def change(results: Results, method: str, bits: int, kind: str | None) -> Interval:
    """Return what `bits` change against float: accuracy, or a part of the excess loss, over shared seeds."""
    values = accuracies if kind is None else floors
    shared = zip(*shared_seeds(_at(results, method, bits, kind), _at(results, method, None, kind)))
    ends = [end for one, other in shared if len(end := [*values([one]), *values([other])]) == 2]
    if not ends:
        raise Missing
    return mean_interval([a - b if kind is None else a / b - 1 for a, b in ends])


def _render(results: Results) -> list[Block]:
    rows = []
    with new_figure((9.6, 3.6), 1, len(_TASKS)) as (figure, panels):
        for ax, kind in zip(panels, _TASKS):
            for shift, method in zip((-0.08, 0.08), PRIORS):
                found = dict[int, Interval]()
                row = [f"{kind or results.scale.data}, {METHODS[method].label}"]
                for place, bits in enumerate(_COARSE):
                    try:
                        found[place] = change(results, method, bits, kind)
                    except Missing:
                        row.append("–")
                        continue
                    row.append(found[place].text(1, 100, " points" if kind is None else " %"))
                if not found:
                    continue
                exact = _at(results, method, None, kind)
                row.append(ours_text(exact) if kind is None else floors_text(exact))
                rows.append(row)
                draw = partial(ax.errorbar, color=(style := method_style(method)).color, marker=style.marker)
                middles = [100 * one.mean for one in found.values()]
                ends: Any = [
                    100 * (one.high - one.mean) if one.seeds >= ENOUGH else 0.0 for one in found.values()
                ]
                draw([x + shift for x in found], middles, yerr=ends, label=METHODS[method].label, capsize=3)
            ax.axhline(0, color=MUTED, linewidth=0.8)
            ax.set_xticks(range(len(_COARSE)), map(str, _COARSE))
            ax.set(
                xlabel="bits per scalar",
                title=kind.capitalize() + " regression" if kind else results.scale.data,
            )
            ax.set_ylabel("change of excess loss (%)" if kind else "change of accuracy (points)")
            ax.grid(visible=False, axis="x")
        legend_below(figure, panels[0])
    if not rows:
        raise Missing
    words = words_of("fig-quantisation", pair=pair_text(tuple(RULES["claim"]["pair"])))
    about = "What a few bits per scalar change against float, with 95 % intervals, on three tasks"
    heads = ["task", *(f"{bits} bit{'s' * (bits > 1)}" for bits in _COARSE), "float"]
    note = words_of("fig-quantisation", "note", results.scale)
    return [Text(words), Picture(figure, "fig-quantisation", about), Table(heads, rows, note)]


FIG_QUANTISATION = Part("fig-quantisation", "Bits for the scalars", "Fig. 6", _render, _wants, settle=settle)
