"""Many tasks: clusters found from bits, personal heads, related models; the tables of docs/many-tasks.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from signfade.experiments.config import resolve
from signfade.experiments.intervals import interval_text
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    read_toml,
    shared_seeds,
)
from signfade.experiments.studies.study import Block, Part, Study, Table
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment
from signfade.simulation.synthetic import RegressionTask

__all__ = ["MANY_TASKS"]

_DATA = read_toml("many_tasks.toml")
_SPLIT_RUNS = 4  # times the seeds of the other tables
_KEYS = ("device_mean", "device_min", "device_worst", "device_spread")


def _runs(scale: Scale, section: str, name: str, data: str = "digits") -> list[RunSettings]:
    tree = _DATA["base"] | _DATA["data"][data] | _DATA[section][name]
    tree |= {"label": name, "name": "many-tasks", "rounds": min(tree["rounds"], scale.rounds)}
    seeds = scale.regression_seeds * (_SPLIT_RUNS if section == "splits" else 1)
    return [resolve(tree | {"seed": seed}) for seed in range(seeds)]


def _wants(section: str, data: str = "digits") -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=list(_DATA["data"]).index(data))
        for name in _DATA[section]
        for run in _runs(scale, section, name, data)
    ]


def _gaps(ours: Sequence[Record], theirs: Sequence[Record]) -> list[float]:
    """The worst group's accuracy of ours less theirs, in points, one per seed that both have."""
    pairs = zip(*shared_seeds(ours, theirs))
    return [
        100 * min(a - b for a, b in zip(one.summary["group_scores"], other.summary["group_scores"]))
        for one, other in pairs
    ]


def _groups(data: str) -> Part:
    def render(results: Results) -> list[Block]:
        names = list(_DATA["groups"])
        found = {n: results.records.find_all(_runs(results.scale, "groups", n, data)) for n in names}
        rows = []
        for name, records in found.items():
            if not records:
                continue
            exact = sum(bool(record.summary.get("groups_recovered")) for record in records)
            known, one = (_gaps(records, found[other]) for other in ("groups known", "one model"))
            rows.append(
                [
                    name,
                    str(len(records)),
                    f"{exact} of {len(records)}" if name == "clustered" else "",
                    *(interval_text([100 * record.summary[key] for record in records]) for key in _KEYS[:2]),
                    interval_text(known) if known and name != "groups known" else "",
                    interval_text(one) if one and name != "one model" else "",
                ]
            )
        heads = ["models", "seeds", "groups found exactly", "mean of devices, %", "worst device, %"]
        heads += ["worst group against groups known, points", "worst group against one model, points"]
        return [Table(heads, rows, name=f"groups-{data}")] if rows else []

    title = f"Four groups of permuted labels, {data}"
    return Part(f"many-tasks-groups-{data}", title, "ours", render, _wants("groups", data), partial=True)


def _splits(results: Results) -> list[Block]:
    rows = []
    for name in _DATA["splits"]:
        records = results.records.find_all(_runs(results.scale, "splits", name))
        if records:
            kept = sum(record.summary.get("models") == 1 for record in records)
            accuracy = interval_text([100 * record.summary["device_mean"] for record in records])
            rows.append([name, str(len(records)), str(len(records) - kept), accuracy])
    return [Table(["data", "runs", "runs with a split", "accuracy, %"], rows, name="splits")] if rows else []


def _personal(results: Results) -> list[Block]:
    rows = []
    for name in _DATA["personal"]:
        records = results.records.find_all(_runs(results.scale, "personal", name))
        if records:
            numbers = [interval_text([100 * record.summary[key] for record in records]) for key in _KEYS]
            rows.append([name, str(len(records)), *numbers])
    heads = ["", "seeds", "mean of devices, %", "worst device, %", "worst tenth, %", "spread, points"]
    return [Table(heads, rows, name="personal")] if rows else []


# -- the mean-regularised form on a convex task --------------------------------------------------------------

_COUPLINGS = (0.0, 100.0, 1000.0, 10000.0)
_LINKS = {  # and the part of the rounds that each is given
    "exact gradients": ({"method.aggregator": "ideal"}, 1),
    "one bit, 1 MHz": ({"method.preset": "best", "server.schedule": "sqrt"}, 3),
}


def _regression_excess(tree: dict[str, Any], coupling: float, rounds: int, seed: int) -> float:
    """Excess of the multi-task objective over its closed-form minimum, in parts of that of the start."""
    settings = resolve(
        {
            "data.name": "regression",
            "data.size": 30,
            "data.batch": "none",
            "cell.bandwidth_hz": 1e6,
            "server.tasks": "related",
            "server.relations": "mean",
            "server.coupling": coupling,
            "server.learning_rate": 0.3,
            "eval.every": rounds,
            "rounds": rounds,
            "seed": seed,
            "threads": 1,
        }
        | tree
    )
    experiment = Experiment(settings)
    assert isinstance(experiment.task, RegressionTask)
    data = experiment.task.data
    least = data.multitask_loss(data.multitask_optimum(coupling), coupling)
    before = data.multitask_loss(experiment.models, coupling) - least
    while not experiment.done:
        experiment.advance()
    return (data.multitask_loss(experiment.models, coupling) - least) / before


def _measure(scale: Scale, note: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for link, (tree, part) in _LINKS.items():
        note(f"multi-task regression, {link}")
        found[link] = {
            f"{coupling:g}": [
                _regression_excess(tree, coupling, scale.regression_rounds // part, seed)
                for seed in range(scale.regression_seeds)
            ]
            for coupling in _COUPLINGS
        }
    return found


def _regression(results: Results) -> list[Block]:
    measured = results.measurement("many-tasks-regression")
    rows = [
        [link, *(f"{max(found[f'{coupling:g}']):.1e}" for coupling in _COUPLINGS)]
        for link, found in measured.items()
    ]
    heads = ["", *(f"coupling {coupling:g}" for coupling in _COUPLINGS)]
    return [Table(heads, rows, name="regression")]


MANY_TASKS = Study(
    "many-tasks",
    "Many tasks",
    "many-tasks",
    (
        *map(_groups, _DATA["data"]),
        Part(
            "many-tasks-splits",
            "No split without a conflict",
            "ours",
            _splits,
            _wants("splits"),
            partial=True,
        ),
        Part("many-tasks-personal", "Personal heads", "ours", _personal, _wants("personal"), partial=True),
        Part(
            "many-tasks-regression",
            "Related models in a convex task",
            "ours",
            _regression,
            measure=_measure,
            depends=("regression_rounds", "regression_seeds"),
            cost=60,
        ),
    ),
    host="many-tasks.md",
)
