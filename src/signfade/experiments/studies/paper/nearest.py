"""Both tables at the nearest point, until the pages are there; what Full means for signSGD."""

from __future__ import annotations

from itertools import product

from signfade.experiments.intervals import mean_interval
from signfade.experiments.studies.paper.cells import (
    METHODS,
    PAIRS,
    RULES,
    Pair,
    find_column,
    grid_wants,
    ours_text,
    pair_text,
    training,
)
from signfade.experiments.studies.paper.point import at_nearest, elsewhere, here, nearest_so_far
from signfade.experiments.studies.paper.printed import read_paper, words_of
from signfade.experiments.studies.paper.tables import accuracy_blocks, gains_of, rounds_blocks
from signfade.experiments.studies.records import Missing, Records, Results, Scale, Tier, Want
from signfade.experiments.studies.study import Block, Part, Table, Text
from signfade.settings import RunSettings

__all__ = ["TABLE_NEAREST", "TABLE_READINGS"]


def _nearest(results: Results) -> list[Block]:
    there = at_nearest(results)
    words = words_of("table-nearest", scale=results.scale, point=here(there.scale).text)
    causes = Text(words_of("table-nearest", "causes"))
    return [Text(words), causes, *accuracy_blocks(there), *rounds_blocks(there)]


def _nearest_wants(scale: Scale, records: Records) -> list[Want]:
    there = elsewhere(scale, records)
    return [] if there is None else grid_wants(there, records)


TABLE_NEAREST = Part(
    "table-nearest", "Both tables at the nearest point", "ours", _nearest, _nearest_wants, early=True
)

# -- what Full means for signSGD -----------------------------------------------------------------------------

_READINGS = ("vote", "signsum")


def _reading_runs(scale: Scale, records: Records, method: str, pair: Pair) -> list[RunSettings]:
    """The runs of a reading where both tables are nearest to the paper's."""
    there, seeds = nearest_so_far(scale, records), range(RULES["seeds"]["readings"])
    if method == "vote":
        return [find_column("vote", "DC").run(there, pair, seed) for seed in seeds]
    return [training(there, method, pair, seed=seed) for seed in seeds]


def _reading_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(run, Tier.EXTRA)
        for method, pair in product(_READINGS, PAIRS)
        for run in _reading_runs(scale, records, method, pair)
    ]


def _readings(results: Results) -> list[Block]:
    scale, records = results.scale, results.records
    full, compressed = (read_paper().accuracy.column("signsgd", quantity) for quantity in ("Full", "DC"))
    rows = []
    for pair in PAIRS:
        found = [records.find_all(_reading_runs(scale, records, method, pair)) for method in _READINGS]
        if gains := gains_of(*reversed(found)):
            more = 100 * ((full[pair] or 0.0) - (compressed[pair] or 0.0))
            printed = f"{more:+.0f}".replace("-", "−")
            rows.append([pair_text(pair), printed, mean_interval(gains).short, *map(ours_text, found)])
    if not rows:
        raise Missing
    there = nearest_so_far(scale, records)
    labels = [METHODS[method].label for method in _READINGS]
    heads = ["step / momentum", "paper: Full less DC, points", "ours: sum less vote, points", *labels]
    return [Text(words_of("table-readings", scale=there, point=here(there).text)), Table(heads, rows)]


TABLE_READINGS = Part("table-readings", "What Full means for signSGD", "ours", _readings, _reading_wants)
