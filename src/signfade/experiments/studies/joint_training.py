"""Training on images by every joint rule: how many rounds each needs, with step sizes tuned alike for all.

Steps are tuned for each method and bandwidth on two seeds of their own, two chunks per device, 120 rounds, by
the mean accuracy at rounds 80, 100 and 120. The first seed tries 1e-3, 3e-3, 1e-2 and 3e-2, and continues in
half decades while the best is at an end; the second decides between the two best. The steps are kept for the
other split, and for 100 devices divided by five where the estimate is a sum over devices. `ep` takes the step
of `linear`, whose estimate has the same scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import legend_below, new_figure, training_panels
from signfade.experiments.studies.records import Record, Records, Results, Scale, Tier, Want
from signfade.experiments.studies.study import MISSING, Block, Part, Table, Text, picture_or_missing
from signfade.experiments.studies.variants import rounds_text
from signfade.experiments.style import line_style
from signfade.settings import RunSettings

__all__ = ["JOINT_TRAINING", "tune"]

# What each method is called on the page, and what it sets.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "signsgd": ("signsgd", {"method.aggregator": "signsgd", "method.tie": "plus"}),
    "sbfl-published": (
        "sbfl, published",
        {"method.aggregator": "sbfl", "method.form": "published", "method.center": True},
    ),
    "sbfl": ("sbfl", {"method.aggregator": "sbfl"}),
    "rotated-sbfl": ("rotated-sbfl", {"method.aggregator": "sbfl", "method.rotation": "shared"}),
    "linear": ("rotated bfl, linear, debiased", {"method.preset": "best", "method.joint": "linear"}),
    "best": ("best (rotated bfl, soft, debiased)", {"method.preset": "best"}),
    "ep": ("rotated bfl, ep, debiased", {"method.preset": "best", "method.joint": "ep"}),
    "ideal": ("ideal", {"method.aggregator": "ideal"}),
}
_BANDWIDTHS = {"180kHz": 180e3, "1MHz": 1e6, "10MHz": 10e6}
_STEPS = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
_FIRST_STEPS = _STEPS[4:8]
_TUNING_SEEDS = (100, 101)
_TUNED_AT = (80, 100, 120)
_EVALUATED_AT = (*range(20, 81, 10), 120)


class _Cell(NamedTuple):
    """A table of the page."""

    split: str
    bandwidth: str
    devices: int
    rounds: int
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.split} {self.bandwidth} K{self.devices}"

    @property
    def title(self) -> str:
        data = "Two classes per device" if self.split == "two-chunks" else "Data shared out evenly"
        return f"**{data}, {self.bandwidth[:-3]} {self.bandwidth[-3:]}, K = {self.devices}**"


_ALL, _WITHOUT_EP = tuple(_METHODS), tuple(method for method in _METHODS if method != "ep")
_BOTH = [(split, bandwidth) for split in ("two-chunks", "iid") for bandwidth in ("180kHz", "1MHz")]
_CELLS = (
    *(_Cell(split, bandwidth, 20, 400, _ALL) for split, bandwidth in _BOTH),
    _Cell("two-chunks", "10MHz", 20, 400, ("rotated-sbfl", "linear", "best", "ideal")),
    *(_Cell(split, bandwidth, 100, 120, _WITHOUT_EP) for split, bandwidth in _BOTH),
)


@lru_cache(maxsize=4096)
def _run(
    scale: Scale, method: str, bandwidth: str, split: str, devices: int, step: float, seed: int, rounds: int
) -> RunSettings:
    rounds = min(rounds, scale.rounds)
    evaluated = _TUNED_AT if seed in _TUNING_SEEDS else _EVALUATED_AT
    tree = {
        "name": f"{split}-{bandwidth}-{devices}",
        "label": method,
        "rounds": rounds,
        "seed": seed,
        "checkpoint_every": 100,
        "data.name": scale.data,
        "data.split": split,
        "data.devices": devices,
        "model.name": "paper-cnn" if scale.data == "mnist" else "small-cnn",
        "cell.path_loss": "cost231",
        # The ideal uses no radio, so one run serves all bandwidths.
        "cell.bandwidth_hz": _BANDWIDTHS["180kHz" if method == "ideal" else bandwidth],
        "method.weights": "sum",
        "server.learning_rate": step,
        "eval.every": 100,
        "eval.at": [t for t in evaluated if t <= rounds],
    }
    return resolve(tree | _METHODS[method][1])


def _score(records: Records, trial: RunSettings) -> float | None:
    """Mean accuracy at the rounds that count, -1 for a run that diverged; None if there is no record."""
    record = records.find(trial)
    if record is None or record.diverged is not None:
        return None if record is None else -1.0
    found = record.points("accuracy")
    return fmean(found[t] for t in trial.eval.at or [trial.rounds] if t in found)


def tune(
    scale: Scale, records: Records, method: str, bandwidth: str
) -> tuple[float | None, list[RunSettings]]:
    """Return the tuned step, None while it is not known, and the trials that decide it as far as known.

    Example:
        >>> step, trials = tune(Scale(), Records(), "best", "1MHz")
        >>> step, [trial.server.learning_rate for trial in trials]
        (None, [0.001, 0.003, 0.01, 0.03])
    """
    if method == "ep":
        return tune(scale, records, "linear", bandwidth)
    if method == "ideal":
        bandwidth = "180kHz"
    steps, (first, second) = list(_FIRST_STEPS), _TUNING_SEEDS

    def scores(steps: Sequence[float], seed: int) -> tuple[list[RunSettings], list[float] | None]:
        trials = [_run(scale, method, bandwidth, "two-chunks", 20, step, seed, 120) for step in steps]
        values = [value for trial in trials if (value := _score(records, trial)) is not None]
        return trials, values if len(values) == len(trials) else None

    while True:
        trials, found = scores(steps, first)
        if found is None:
            return None, trials
        best, here = found.index(max(found)), _STEPS.index(steps[0])
        beyond = here - 1 if best == 0 else here + len(steps) if best == len(steps) - 1 else -1
        if not 0 <= beyond < len(_STEPS):
            break
        steps = sorted([*steps, _STEPS[beyond]])
    by_step = dict(zip(steps, found))
    two = sorted(steps, key=lambda step: -by_step[step])[:2]
    more, again = scores(two, second)
    if again is None:
        return None, trials + more
    total = {step: by_step[step] + value for step, value in zip(two, again)}
    return max(two, key=lambda step: total[step]), trials + more


def _cell_runs(scale: Scale, records: Records, cell: _Cell, method: str) -> list[RunSettings]:
    """The runs of one row, none while its step is not tuned."""
    step, _ = tune(scale, records, method, cell.bandwidth)
    if step is None:
        return []
    if cell.devices == 100 and method != "signsgd":
        step = float(f"{step / 5:g}")
    seeds = range(scale.figure_seeds if cell.devices == 20 else 1)
    where = (cell.bandwidth, cell.split, cell.devices, step)
    return [_run(scale, method, *where, seed, cell.rounds) for seed in seeds]


def _wants(scale: Scale, records: Records) -> list[Want]:
    """Tuning first, then seed by seed the cells that say the most; slow rules last."""
    wants = []
    for order, cell in enumerate(_CELLS):
        for method in cell.methods:
            _, trials = tune(scale, records, method, cell.bandwidth)
            wants += [Want(trial, Tier.CALIBRATION, order=order) for trial in trials]
            runs = _cell_runs(scale, records, cell, method)
            wants += [Want(run, Tier.FIGURE, method == "ep", order) for run in runs]
    return wants


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else "-"


def _row(called: str, step: float, records: list[Record]) -> list[str]:
    shown = ("last_accuracy", "median_cosine", "median_nmse", "median_nmse_theory")
    start = [called, f"{step:g}", str(len(records)), rounds_text(records, never="-")]
    early = _mean([record.points("accuracy").get(120) for record in records])
    return [*start, early, *(_mean([record.value(key) for record in records]) for key in shown)]


def _render(results: Results) -> list[Block]:
    heads = ["method", "step", "seeds", "rounds to 0.9", "at 120", "at the end"]
    heads += ["cosine", "error", "predicted"]
    blocks: list[Block] = [Text(" ".join((__doc__ or "").partition("\n\n")[2].split()))]
    for cell in _CELLS:
        found = {}
        for method in cell.methods:
            runs = _cell_runs(results.scale, results.records, cell, method)
            records = [record for record in results.records.find_all(runs) if record.diverged is None]
            if records:
                found[method] = (runs[0].server.learning_rate, records)
        rows = [_row(_METHODS[method][0], *found[method]) for method in found]
        blocks += [Text(cell.title), Table(heads, rows, name=cell.name) if rows else MISSING]
        if cell.name == "two-chunks 1MHz K20":
            left_out = ("sbfl-published", "linear", "ep")
            curves = {method: records for method, (_, records) in found.items() if method not in left_out}
            blocks.append(_figure(results.scale, curves))
    return blocks


def _figure(scale: Scale, found: dict[str, list[Record]]) -> Block:
    """Curves of one cell without the variants of the joint rule."""
    shown = [
        (line_style(index, bound=method == "ideal"), _METHODS[method][0], records)
        for index, (method, records) in enumerate(found.items())
    ]
    with new_figure((8.4, 4.0), 1, 2) as (figure, (accuracy, loss)):
        training_panels(loss, accuracy, shown)
        legend_below(figure, accuracy)
    about = "Accuracy and loss over the rounds, steps tuned alike"
    return picture_or_missing(figure, "joint-training", about)


JOINT_TRAINING = Part("joint-training", "What it is worth in training", "ours", _render, _wants)
