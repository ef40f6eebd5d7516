"""Methods side by side: the rows that the terminal and the report share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from signfade.experiments.data_table import DataTable, TableSet
from signfade.experiments.distance import limit_notes
from signfade.experiments.group import Group
from signfade.experiments.metrics import BIT_KEYS, SUMMARY_KEYS, fall_text

__all__ = [
    "Comparison",
    "comparison",
    "comparison_table",
    "comparison_tables",
    "sent_items",
    "spread_text",
]

_DASH = "–"
_NUMBERS = [key for key in SUMMARY_KEYS if key not in ("name", "seed", "method", "version", "smoothing")]
_SHORT = {  # headers for the terminal, and what they stand for
    "rounds done": ("rounds", "rounds done of those asked for"),
    "accuracy, last (%)": ("last %", "test accuracy at the end"),
    "accuracy, best (%)": ("best %", "at its best"),
    "rounds to 90 %": ("to 90 %", "rounds to that accuracy"),
    "worst tenth of devices (%)": ("worst %", "mean over the worst tenth of the devices"),
    "models": ("models", "models at the end"),
    "excess loss, last": ("last", "excess loss at the end"),
    "excess loss, best": ("best", "at its best"),
    "uplink per device (Mbit)": ("Mbit", "sent by a device"),
    "weights and scalars alone (Mbit)": ("payload", "Mbit of weights and scalars in it"),
    "cosine": ("cosine", "of the estimate and the true sum"),
    "error, measured": ("error", "of the estimate, squared and normalised"),
    "error, predicted": ("theory", "predicts this error"),
    "dB above the limit": ("dB", "of the error above the limit for devices that are alike"),
}


@dataclass(frozen=True)
class Comparison:
    """A table of words: `rows[i][j]` belongs to group i and `headers[j]`; `notes` say what a cell cannot."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def spread_text(values: Sequence[float], digits: int = 3, scale: float = 1.0) -> str:
    """Return `mean ± sample deviation` of `scale * values`, the mean alone for one value, a dash for none.

    Numbers too small for `digits` after the point get as many significant ones, large numbers four.

    Example:
        >>> spread_text([0.94, 0.95], digits=1, scale=100), spread_text([170.0], digits=0), spread_text([])
        ('94.5 ± 0.7', '170', '–')
    """
    if not values:
        return _DASH
    centre = mean(values) * scale
    size = abs(centre)
    if size == 0 or 10.0**-digits * 5 <= size < 10 ** (5 - digits):
        style = f".{digits}f"
    elif 1e-4 <= size < 1e6:  # as many figures as tell something
        figures = digits if size < 1 else 4
        style = f".{max(0, figures - math.floor(math.log10(size)) - 1)}f"
    else:
        style = ".2e"
    text = f"{centre:{style}}"
    if len(values) > 1 and stdev(values) > 0:  # bits sent are the same for every seed
        text += f" ± {stdev(values) * abs(scale):{style}}"
    return text.replace("-", "−")


def comparison(groups: Sequence[Group], digits: int = 3) -> Comparison:
    """Return one row per group: how well it ended, how fast, what it sent, and how near its estimates came.

    Numbers are mean ± sample deviation over seeds; cosine and errors, with so many digits, are medians over
    rounds before that. Columns for which no group has a number are left out.
    """
    columns: list[tuple[str, Callable[[Group], str]]] = [
        ("method", lambda g: g.label),
        ("seeds", lambda g: str(g.seeds)),
    ]
    if any(not g.finished for g in groups):
        columns.append(("rounds done", lambda g: f"{g.rounds[0]}/{g.rounds[1]}"))
    if any(g.values("last_accuracy") for g in groups):
        columns += [
            ("accuracy, last (%)", lambda g: spread_text(g.values("last_accuracy"), 1, 100)),
            ("accuracy, best (%)", lambda g: spread_text(g.values("best_accuracy"), 1, 100)),
            ("rounds to loss 1", lambda g: _rounds_to(g, "rounds_to_loss_1")),
            ("rounds to 90 %", lambda g: _rounds_to(g, "rounds_to_accuracy_09")),
        ]
    if any(g.values("last_perplexity") for g in groups):
        columns.append(("perplexity, last", lambda g: spread_text(g.values("last_perplexity"), 2)))
    if any(_excess(g, "last_test_loss") for g in groups):
        columns += [
            ("excess loss, last", lambda g: spread_text(_excess(g, "last_test_loss"))),
            ("excess loss, best", lambda g: spread_text(_excess(g, "best_test_loss"))),
        ]
    if any(g.values("last_device_worst") for g in groups):
        columns += _device_columns(groups)
    columns += [
        ("uplink per device (Mbit)", lambda g: spread_text(_uplink_mbit(g, "uplink_bits"), 2)),
        ("weights and scalars alone (Mbit)", lambda g: spread_text(_uplink_mbit(g, "payload_bits"), 2)),
        ("cosine", lambda g: spread_text(g.values("cosine"), digits)),
        ("error, measured", lambda g: spread_text(g.values("nmse"), digits)),
        ("error, predicted", lambda g: spread_text(g.values("nmse_theory"), digits)),
        ("dB above the limit", lambda g: spread_text(g.values("db_above_limit"), 1)),
    ]
    rows = tuple(tuple(cell(group) for _, cell in columns) for group in groups)
    shown = [j for j in range(len(columns)) if j < 2 or any(row[j] != _DASH for row in rows)]
    return Comparison(
        tuple(columns[j][0] for j in shown),
        tuple(tuple(row[j] for j in shown) for row in rows),
        (*(note for group in groups for note in _notes(group)), *limit_notes(groups)),
    )


def _device_columns(groups: Sequence[Group]) -> list[tuple[str, Callable[[Group], str]]]:
    """How devices end on data like their own, and how many models they share."""
    percent = any(g.values("last_accuracy") for g in groups)
    unit, scale, digits = ("%", 100, 1) if percent else ("loss", 1, 3)

    def column(key: str) -> Callable[[Group], str]:
        return lambda g: spread_text(g.values(f"last_device_{key}"), digits, scale)

    return [
        (f"mean of devices ({unit})", column("mean")),
        (f"worst tenth of devices ({unit})", column("worst")),
        (f"spread of devices ({unit})", column("spread")),
        ("models", lambda g: f"{mean(g.values('models')):g}" if g.values("models") else _DASH),
    ]


def comparison_table(groups: Sequence[Group], title: str | None = None, width: int = 80) -> Table:
    """Return the comparison as a table for a terminal, with a caption that explains it.

    The same rows as in the report; of its columns, those that fit into `width` characters.
    """
    words = comparison(groups, digits=2)
    counts = {group.seeds for group in groups}
    alike = len(counts) == 1  # then the number of seeds is said once, below
    over = f"mean ± deviation over {max(counts, default=1)} seeds; " if alike and counts != {1} else ""
    names = min(12, max(len(group.label) for group in groups))
    rows = [[cell.replace(" ± ", "±") for cell in row] for row in words.rows]
    shown: list[tuple[int, str]] = []  # the column in words, and its header here
    meanings: list[str] = []
    left = width - names - 1
    for j, header in enumerate(words.headers):
        if j == 0 or (header not in _SHORT and (header != "seeds" or alike)):
            continue
        short, long = _SHORT.get(header, (header, ""))
        left -= 2 + max(len(short), *(len(row[j]) for row in rows))
        if left < 0:  # columns come in the order of what they tell
            break
        shown.append((j, short))
        meanings += [f"{short}: {long}"] if long else []
    table = Table(title=title and Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.pad_edge = table.show_edge = False
    table.caption = Text("\n".join([over + "; ".join(meanings), *words.notes]))
    table.caption_justify = "left"
    table.add_column(words.headers[0], overflow="fold", min_width=names)
    for _, header in shown:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[j]) for j in (0, *(j for j, _ in shown))))  # Text: no label is markup
    return table


def comparison_tables(groups: Sequence[Group]) -> TableSet:
    """Return the comparison for programs: every number of summary.json, by run and by method.

    `runs` has one row per run; `methods` has mean and sample deviation over seeds, `KEY_mean` and `KEY_std`,
    of the numbers that every seed has: no mean over those that reached a goal alone.
    """
    runs, methods = [], []
    for group in groups:
        for run in group.runs:
            numbers = {key: run.numbers.get(key) for key in _NUMBERS}
            about = {"method": group.label, "seed": run.seed, "finished": run.finished}
            runs.append({**about, "folder": run.path.as_posix(), **numbers})
        methods.append({"method": group.label, "seeds": group.seeds, "finished": group.finished})
        for key in _NUMBERS:
            values = group.values(key)
            whole = len(values) == group.seeds
            methods[-1][f"{key}_mean"] = mean(values) if whole else None
            methods[-1][f"{key}_std"] = stdev(values) if whole and len(values) > 1 else None
    return TableSet(
        "signfade.compare/1", {"methods": DataTable("", {}, methods), "runs": DataTable("", {}, runs)}
    )


def _uplink_mbit(group: Group, key: str) -> list[float]:
    """What a device sent, on average, in Mbit; one number per seed."""
    totals = [(run.numbers.get(key), run.devices) for run in group.runs]
    return [bits / devices / 1e6 for bits, devices in totals if isinstance(bits, int | float)]


def sent_items(groups: Sequence[Group]) -> Comparison:
    """Return what a device sent in a round, in kbit: all of it, then by item; means over rounds and seeds.

    Items that nobody sends are left out.
    """
    found = {key: [_kbit(group, key) for group in groups] for key in BIT_KEYS if key != "payload_bits"}
    shown = {key: column for key, column in found.items() if any(column)}
    words = {"uplink_bits": "all", "bits.signs": "weights"}  # signs, or a digital message about the weights
    names = [words.get(key, key.removeprefix("bits.")) for key in shown]
    if len(shown) < 2:  # no items
        return Comparison(("method",), tuple((group.label,) for group in groups), ())
    rows = [
        (group.label, *(_DASH if value is None else f"{value:.3f}" for value in values))
        for group, *values in zip(groups, *shown.values())
    ]
    return Comparison(("method", *names), tuple(rows), ())


def _kbit(group: Group, key: str) -> float | None:
    totals = [(run.numbers.get(key), run.devices * len(run.metrics)) for run in group.runs]
    values = [bits / uses / 1e3 for bits, uses in totals if isinstance(bits, int | float) and uses]
    return mean(values) if values else None


def _excess(group: Group, key: str) -> list[float]:
    """The test loss of tasks without an accuracy: the excess over the least-squares optimum."""
    return [] if group.values("last_accuracy") else group.values(key)


def _rounds_to(group: Group, key: str) -> str:
    if not group.values("last_accuracy"):
        return _DASH
    reached = group.values(key)
    if not reached:
        return "never" if group.finished else "not yet"
    text = spread_text(reached, 0)
    return text if len(reached) == group.seeds else f"{text} ({len(reached)} of {group.seeds} seeds)"


def _notes(group: Group) -> list[str]:
    found = [(run, run.failure) for run in group.runs]
    found += [(run, fall_text(run.numbers)) for run in group.runs]
    diverged = [(run, run.numbers.get("diverged_at")) for run in group.runs]
    found += [(run, f"not finite in round {round}") for run, round in diverged if round is not None]
    return [f"{group.label}, seed {run.seed}: {text}." for run, text in found if text]
