"""What a model costs in uplink bits: the tables and figures of docs/dial.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from signfade.device import Encoder
from signfade.experiments.config import overlay, resolve
from signfade.experiments.methods import method_settings
from signfade.experiments.studies.drawing import band, label_styles, legend_below, log_axis, new_figure
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    curve_of,
    read_toml,
)
from signfade.experiments.studies.study import Block, Part, Study, Table, picture_or_missing
from signfade.experiments.style import INK, MUTED, LineStyle
from signfade.settings import RunSettings
from signfade.theory.coding import outage
from signfade.uplink.radio import make_radio

__all__ = ["DIAL"]

_DATA = read_toml("dial.toml")
_FIRST = "Dirichlet 0.3, 1 MHz"
_SLOW = "two chunks, 1 MHz"  # all methods take longer there
_CELLS: dict[str, dict[str, Any]] = {
    _FIRST: {},
    "Dirichlet 0.3, 180 kHz": {"cell.bandwidth_hz": 180e3},
    "Dirichlet 0.3, 10 MHz": {"cell.bandwidth_hz": 10e6},
    "iid, 1 MHz": {"data.split": "iid"},
    _SLOW: {"data.split": "two-chunks"},
    "K = 100, 10 %, Dirichlet 0.3, 1 MHz": {"data.devices": 100, "data.participation": 0.1},
    "Fashion-MNIST, Dirichlet 0.3, 1 MHz": {"data.name": "fashion-mnist"},
}
_TARGETS = (0.9, 0.95)
_FASHION = (0.75, 0.8)  # set before the first run
_OURS = ("low-rate", "low-rate tuned", "one bit E = 10", "one gradient")
# Of the other cells: ours, FedAvg with the same steps, and the strongest rival of the first cell.
_ELSEWHERE = ("low-rate", "FedAvg", "EDEN at 0.01 bit")
_TEN = ("one bit E = 10", "FedAvg E = 10")  # where only the bandwidth differs
_ROUNDS = dict.fromkeys(("low-rate tuned", "FedAvg", "DRIVE", "EF-sign", "EDEN at 0.01 bit"), 12)
_ROUNDS |= {"one gradient": 100}  # 15 of all others
_LONGER = dict.fromkeys(("low-rate", "top-k at 0.03 bit"), 20)  # in the first cell


def _targets(cell: str) -> tuple[float, float]:
    return _FASHION if "Fashion" in cell else _TARGETS


def _methods(cell: str) -> tuple[str, ...]:
    if cell == _FIRST:
        return tuple(_DATA["variants"])
    return _ELSEWHERE + (_TEN if _CELLS[cell].keys() == {"cell.bandwidth_hz"} else ())


def _settings(cell: str, method: str, digits: bool = False) -> RunSettings:
    """The settings of a method in a cell; a perfect channel is the same at every bandwidth."""
    clean = _DATA["variants"][method].get("method.aggregator") == "ideal"
    layer = {key: value for key, value in _CELLS[cell].items() if not (clean and key.startswith("cell."))}
    layer |= {"data.name": "digits", "model.name": "small-cnn"} if digits else {}
    return method_settings(resolve(overlay(_DATA, layer)), method)


def _rounds(cell: str, method: str) -> int:
    if cell == _SLOW:
        return 24
    usual = _ROUNDS.get(method, 15)
    return _LONGER.get(method, usual) if cell == _FIRST else usual


def _runs(scale: Scale, cell: str, method: str) -> list[RunSettings]:
    rounds = min(_rounds(cell, method), scale.rounds)
    settings = _settings(cell, method, scale.data == "digits").model_copy(update={"rounds": rounds})
    return [settings.model_copy(update={"seed": seed}) for seed in range(scale.figure_seeds)]


def _wants(*cells: str) -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=list(_CELLS).index(cell))
        for cell in cells
        for method in _methods(cell)
        for run in _runs(scale, cell, method)
    ]


@dataclass(frozen=True)
class _Cost:
    """What the runs of a method in a cell, one per seed, cost until a target."""

    runs: Sequence[RunSettings]
    whole: Sequence[Record]  # may be longer than the runs

    @property
    def found(self) -> list[Record]:
        """The records, as long as the runs."""
        return [record.until(self.runs[0].rounds) for record in self.whole]

    @property
    def kbit(self) -> list[float]:
        """Uplink kbit that the average device sends in one round, all items counted."""
        devices = self.runs[0].data.devices
        return [(one.value("uplink_bits") or 0.0) / (1e3 * devices * one.rounds) for one in self.whole]

    def rounds(self, target: float) -> list[float | None]:
        """The first evaluated round at or above a target accuracy."""
        curves = [sorted(one.points("accuracy").items()) for one in self.found]
        return [next((t for t, value in curve if value >= target), None) for curve in curves]

    def kbit_to(self, target: float) -> list[float | None]:
        """Uplink kbit until then."""
        return [t and t * each for t, each in zip(self.rounds(target), self.kbit)]

    def by_seed(self, target: float) -> dict[int, float]:
        """The same of the seeds that reach it."""
        return {one.seed: kbit for one, kbit in zip(self.whole, self.kbit_to(target)) if kbit is not None}

    def mean_to(self, target: float) -> tuple[float, float] | None:
        """Mean kbit and rounds to a target, None unless every seed reaches it."""
        pairs = [(k, t) for k, t in zip(self.kbit_to(target), self.rounds(target)) if k and t]
        if not pairs or len(pairs) < len(self.whole):
            return None
        return fmean(kbit for kbit, _ in pairs), fmean(rounds for _, rounds in pairs)


def _cost(results: Results, cell: str, method: str) -> _Cost:
    runs = _runs(results.scale, cell, method)
    return _Cost(runs, [record for run in runs if (record := results.records.whole(run)) is not None])


def _text(values: Sequence[float | None], rounds: int) -> str:
    """Mean and deviation of a number over seeds; how many seeds do not have it within the rounds."""
    known = [value for value in values if value is not None]
    if not known:
        return f"not in {rounds} rounds"
    mean, spread = fmean(known), stdev(known) if len(known) > 1 else None
    digits = 0 if mean >= 100 else 1
    shown = f"{mean:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")
    return shown if len(known) == len(values) else f"{shown} ({len(known)} of {len(values)} seeds)"


def _row(results: Results, cell: str, method: str) -> list[str]:
    cost = _cost(results, cell, method)
    if not cost.found:
        return []
    cells, rounds = [method, str(len(cost.found))], cost.runs[0].rounds
    for target in _targets(cell):
        cells += [_text(cost.kbit_to(target), rounds), _text(cost.rounds(target), rounds)]
    end = _text([100 * record.late_accuracy(3) for record in cost.found], rounds)
    return [*cells, end, str(rounds)]


def _table(cell: str) -> Part:
    def render(results: Results) -> list[Block]:
        targets = [f"{what} to {target:g}" for target in _targets(cell) for what in ("kbit", "rounds")]
        heads = ["method", "seeds", *targets, "end, %", "rounds"]
        rows = [row for method in _methods(cell) if (row := _row(results, cell, method))]
        return [Table(heads, rows, name=cell)] if rows else []

    number = list(_CELLS).index(cell) + 1
    return Part(f"dial-{number}", cell, "ours", render, _wants(cell), partial=True)


def _summary(results: Results) -> list[Block]:
    """One line per cell: kbit to the first target of low-rate, FedAvg and the rival with the fewest bits."""
    rows = []
    for cell in _CELLS:
        target = _targets(cell)[0]
        ours, fedavg = (_cost(results, cell, method) for method in ("low-rate", "FedAvg"))
        if not ours.found or not fedavg.found:
            continue
        own, theirs = (cost.by_seed(target) for cost in (ours, fedavg))
        ratios = [theirs[seed] / own[seed] for seed in own.keys() & theirs.keys()]
        rivals = {name: _cost(results, cell, name) for name in _methods(cell) if name not in _OURS}
        costs = {name: mean[0] for name, cost in rivals.items() if (mean := cost.mean_to(target))}
        best = min(costs, key=costs.__getitem__, default="")
        columns = [_text(cost.kbit_to(target), cost.runs[0].rounds) for cost in (ours, fedavg)]
        last = _text(rivals[best].kbit_to(target), 0) + f" ({best})" if best else ""
        seeds = f"{len(ours.found)}, {len(fedavg.found)}"
        rows.append([cell, f"{target:g}", seeds, *columns, f"{fmean(ratios):,.0f}" if ratios else "", last])
    heads = ["cell", "accuracy", "seeds", "low-rate, kbit", "FedAvg, kbit", "ratio", "best rival, kbit"]
    return [Table(heads, rows, name="summary"), *_air(results), *_figures(results)] if rows else []


def _uses_per_bit(settings: RunSettings) -> float:
    """Channel uses of a bit that must arrive without error, mean over devices.

    Each device has the code rate that is best for its mean SNR, decoded whenever the capacity of the round's
    fade allows, and sends its message again until it is.
    """
    snr_db = make_radio(settings.cell, settings.data.devices, settings.seed).mean_snr_db
    rates = np.geomspace(1e-4, 10, 2000)
    goodput = rates * (1 - outage(4**rates - 1, 10 ** (np.asarray(snr_db)[:, None] / 10)))
    return float(np.mean(1 / goodput.max(axis=1)))


def _air(results: Results) -> list[Block]:
    """Thousand channel uses to the first target, what must arrive without error coded and sent again."""
    rows = []
    for cell in _CELLS:
        ours, theirs = (_cost(results, cell, method) for method in ("low-rate", "EDEN at 0.01 bit"))
        if not ours.found or not theirs.found:
            continue
        each = [_uses_per_bit(run) for run in ours.runs]
        size = int(ours.found[0].value("parameters") or 0)
        # kbit that need no code, of the average device: those that send times how many do
        signs = Encoder(ours.runs[0].method, (size,)).size * ours.runs[0].data.participation / 1e3
        texts = []
        for cost, free in ((ours, signs), (theirs, 0.0)):
            many = zip(cost.found, cost.rounds(_targets(cell)[0]), cost.kbit)
            uses = [t and t * (free + each[one.seed] * (kbit - free)) for one, t, kbit in many]
            texts.append(_text(uses, cost.runs[0].rounds))
        rows.append([cell, f"{fmean(each):.1f}", *texts])
    heads = [
        "cell",
        "uses per bit without error",
        "low-rate, thousand uses",
        "EDEN at 0.01 bit, thousand uses",
    ]
    return [Table(heads, rows, name="air")] if rows else []


def _figures(results: Results) -> list[Block]:
    """Accuracy against bits and rounds in the first cell, and the front of both."""
    costs = {method: _cost(results, _FIRST, method) for method in _methods(_FIRST)}
    styles = label_styles(costs)
    with new_figure((7.2, 4.6), 1, 2, sharey=True) as (curves, (bits, rounds)):
        for method, cost in costs.items():
            if (curve := curve_of(cost.found, "accuracy")) is not None:
                t, mean, deviation = curve
                band(bits, (fmean(cost.kbit) * t, mean, deviation), styles[method], method, (0, 1), 100)
                band(rounds, curve, styles[method], method, (0, 1), 100)
        for axes in (bits, rounds):
            axes.axhline(100 * _TARGETS[0], color=INK, linewidth=0.8, linestyle=":")
        bits.set(xscale="log", xlabel="uplink kbit per device so far", ylabel="test accuracy (%)")
        rounds.set(xlabel="round", xlim=(0, 20), ylim=(20, 100), xticks=range(0, 21, 5))
        log_axis(bits.xaxis)
        legend_below(curves, bits, 4)
    with new_figure((7.2, 4.2)) as (front, axes):
        _draw_front(axes, costs, styles)
        legend_below(front, axes, 4)
    about = f"{_FIRST}, mean over seeds"
    return [
        picture_or_missing(curves, "dial", f"Accuracy against uplink bits and rounds, {about}"),
        picture_or_missing(front, "dial-front", f"Uplink bits against rounds to 90 %, {about}"),
    ]


def _draw_front(axes: Axes, costs: dict[str, _Cost], styles: dict[str, LineStyle]) -> None:
    """Bits against rounds to the first target, and the methods that no other beats in both."""
    found = {method: mean for method, cost in costs.items() if (mean := cost.mean_to(_TARGETS[0]))}
    for method, (kbit, rounds) in found.items():
        style = styles[method]
        axes.plot(rounds, kbit, style.marker or "*", color=style.color, markersize=7, label=method)
    best = sorted((rounds, kbit) for kbit, rounds in found.values())
    least = list(accumulate((kbit for _, kbit in best), min))
    front = [point for point, low in zip(best, least) if point[1] == low]
    axes.step(*zip(*front) if front else ((), ()), where="post", color=MUTED, linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="rounds to 90 %", ylabel="uplink kbit per device to 90 %")
    for axis in (axes.xaxis, axes.yaxis):
        log_axis(axis, 100 if axis is axes.xaxis else 1e6)


_SUMMARY = Part("dial-summary", "What a model costs", "ours", _summary, _wants(*_CELLS), partial=True)
DIAL = Study("dial", "The rate dial", "dial", (_SUMMARY, *map(_table, _CELLS)), host="dial.md")
