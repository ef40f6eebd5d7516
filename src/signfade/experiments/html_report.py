"""One self-contained HTML file about several runs: it opens offline, on a phone and on paper."""

from __future__ import annotations

import io
import json
import os
import shlex
import warnings
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import median
from string import Template

from matplotlib.figure import Figure
from rich.console import Console

from signfade.experiments import panels
from signfade.experiments.device_panels import draw_device_panels
from signfade.experiments.distance import above_text
from signfade.experiments.files import FolderError, folder_name, why, write_atomically
from signfade.experiments.findings import finding, theory_finding, theory_rows
from signfade.experiments.folder import OldRunError
from signfade.experiments.group import (
    Group,
    Run,
    default_settings,
    format_value,
    group_runs,
    setting_text,
    settings_that_differ,
)
from signfade.experiments.metrics import ACCURACY_GOAL, LOSS_GOAL, SMOOTHING
from signfade.experiments.results import find_runs, load_run
from signfade.experiments.style import inline_svg, save_figure, swatch_svg
from signfade.experiments.table import Comparison, comparison, comparison_table, sent_items
from signfade.server.aggregators import is_vote

__all__ = ["render_report", "write_comparison", "write_report"]

_THEORY_PANELS = ("error", "cosine")
# setting -> what a reader calls it; shown where all runs agree on it
_FACTS = {
    "data.name": "data",
    "data.split": "split",
    "data.devices": "devices",
    "data.participation": "devices asked in a round",
    "data.batch": "batch",
    "data.groups": "groups of labels",
    "model.name": "model",
    "rounds": "rounds",
    "cell.snr_db": "mean SNR (dB)",
    "cell.radius_km": "cell radius (km)",
    "cell.bandwidth_hz": "bandwidth (kHz)",
    "cell.fading": "fading",
    "server.optimizer": "optimiser",
    "server.learning_rate": "learning rate",
    "server.momentum": "momentum",
    "server.schedule": "schedule",
    "server.downlink": "downlink",
}
_GOALS = {"accuracy": f"{100 * ACCURACY_GOAL:g} % accuracy", "loss": f"training loss {LOSS_GOAL:g}"}
# what a synthetic set does not have; with given SNRs there is no link budget
_NO_FACT = {
    "regression": {"data.split", "model.name"},
    "gaussian": {"data.split", "data.batch", "model.name"},
}
_BUDGET = {"cell.radius_km", "cell.bandwidth_hz"}


def write_report(
    run_dirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], title: str | None = None
) -> Path:
    """Write one HTML file about the runs in these folders and return its path.

    Equal runs give equal bytes, whenever and however fast they ran. The heading is, by default, the runs'
    common name. Runs of version 0.1 are left out with a warning; a damaged folder is a `FolderError`.
    """
    runs, old = [], []
    for folder in find_runs(run_dirs):
        try:
            runs.append(load_run(folder))
        except OldRunError as error:
            old.append(error)
            warnings.warn(f"left out: {error}", stacklevel=2)
    if not runs:
        raise old[0]
    groups = group_runs(runs)
    path = Path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render_report(groups, title).encode())
    except OSError as error:
        raise FolderError(f"cannot write the report {path}: {why(error)}") from error
    return path


def write_comparison(groups: Sequence[Group], folder: Path, title: str) -> list[Path]:
    """Write `table.txt`, `curves.png` and `report.html` to the folder of a comparison; return the paths."""
    table = folder / "table.txt"
    with io.StringIO() as text:
        Console(file=text, width=200).print(comparison_table(groups, title, 200))
        write_atomically(table, text.getvalue().encode())
    figure = save_figure(panels.curves(groups, title), folder / "curves", ["png"])
    runs = [run.path for group in groups for run in group.runs]
    return [table, *figure, write_report(runs, folder / "report.html")]


def render_report(groups: Sequence[Group], title: str | None = None) -> str:
    """Return the report about at least one group as HTML."""
    names = {str(run.config.get("name", "")) for group in groups for run in group.runs}
    heading = title or (names.pop() if len(names) == 1 else "") or f"{len(groups)} methods compared"
    drawn = {
        name: _figure(name, panels.PANELS[name].title, figure, groups)
        for name, figure in panels.draw_panels(groups).items()
    }
    devices = draw_device_panels(groups).items()
    drawn |= {name: _figure(name, heading, figure, groups) for name, (heading, figure) in devices}
    text = files("signfade.experiments").joinpath("report.html").read_text(encoding="utf-8")
    if not theory_rows(groups) and not any(name in drawn for name in _THEORY_PANELS):  # nothing to show there
        before, _, after = text.partition('<section aria-labelledby="theory">')
        text = before + after.partition("</section>\n")[2]
    page = Template(text)
    return page.substitute(
        title=escape(heading),
        finding=_text(finding(groups)),
        facts=_facts(groups),
        legend=_legend(groups),
        curves="\n".join(svg for name, svg in drawn.items() if name not in _THEORY_PANELS),
        curve_note=_text(_curve_note(groups)),
        table=_cards(comparison(groups), groups),
        sent=_sent(groups),
        table_note=_text(_table_note(groups)),
        theory_finding=_text(theory_finding(groups)),
        debiased=_debiased(groups),
        theory=_theory(groups),
        theory_curves="\n".join(svg for name, svg in drawn.items() if name in _THEORY_PANELS),
        rerun=_rerun(groups),
        configs=_configs(groups),
    )


def _figure(name: str, title: str, figure: Figure, groups: Sequence[Group]) -> str:
    about = f"{title}: {', '.join(group.label for group in groups)}"
    svg = inline_svg(figure, name, escape(about))
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _facts(groups: Sequence[Group]) -> str:
    """What all runs share, as far as it helps to read the figures."""
    runs = [run for group in groups for run in group.runs]
    facts = []
    flat = runs[0].flat
    without = _NO_FACT.get(str(flat.get("data.name")), set())
    if flat.get("cell.perfect"):
        without = without | _BUDGET | {"cell.snr_db", "cell.fading"}
    elif flat.get("cell.snr_db") is not None:
        without = without | _BUDGET
    for key, name in _FACTS.items():
        values = [run.flat.get(key) for run in runs]
        if key == "data.groups" and values[0] == 1:
            continue
        if key in without or values[0] in (None, "none") or any(value != values[0] for value in values):
            continue
        value = values[0]
        if key == "cell.bandwidth_hz":
            value = value / 1e3
        elif key == "data.participation":
            value = "all" if value == 1 else f"{100 * value:g} %"
        facts.append((name, format_value(value)))
    if flat.get("cell.perfect") and all(run.flat.get("cell.perfect") for run in runs):
        facts.append(("links", "perfect"))
    levels = [record["snr_db"] for run in runs for record in run.metrics if _is_snr(record.get("snr_db"))]
    if levels:
        medians = " / ".join(f"{median(level[i] for level in levels):.0f}" for i in range(3))
        facts.append(("SNR, weakest / median / strongest (dB)", medians.replace("-", "−")))
    return "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)


def _is_snr(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(x, int | float) for x in value)


def _legend(groups: Sequence[Group]) -> str:
    """The methods, their lines, and the settings that set them apart."""
    differing = settings_that_differ(groups)
    # A method's defaults go without saying; some mean nothing to it.
    unsaid = {key: value for key, value in default_settings().items() if key.startswith("method.")}
    items = []
    for index, (group, style) in enumerate(zip(groups, panels.group_styles(groups))):
        apart = [
            setting_text(key, row[index])
            for key, row in differing.items()
            if row[index] not in (None, unsaid.get(key))
            and format_value(row[index]) != group.label
            and setting_text(key, row[index]) not in group.label  # two of one name tell them there
        ]
        note = f"<small>{escape(', '.join(apart))}</small>" if apart else ""
        if not group.rounds[0]:
            continue
        items.append(f"<li>{swatch_svg(style)}<span><b>{escape(group.label)}</b> {note}</span></li>")
    return "\n".join(items)


def _curve_note(groups: Sequence[Group]) -> str:
    window = panels.smoothing_window(groups)
    parts = []
    if max(group.seeds for group in groups) > 1:
        parts.append("Lines are means over seeds, bands one sample deviation.")
    if window > 1:
        parts.append(f"Training loss, error and cosine are trailing means over {window} rounds.")
    if goals := [words for name, words in _GOALS.items() if name in panels.goals_shown(groups)]:
        parts.append(f"The thin dotted line is the goal of {' and '.join(goals)}.")
    return " ".join(parts)


def _sent(groups: Sequence[Group]) -> str:
    """What a device sent, by item; nothing for runs of older versions, which did not count them."""
    words = sent_items(groups)
    return f"<h3>What a device sent (kbit per round)</h3>{_cards(words, groups)}" if words.headers[1:] else ""


def _cards(words: Comparison, groups: Sequence[Group]) -> str:
    head = "".join(f'<th scope="col">{_text(header)}</th>' for header in words.headers)
    body = []
    for group, row, style in zip(groups, words.rows, panels.group_styles(groups)):
        line = swatch_svg(style) if group.rounds[0] else ""
        first = f'<th scope="row"><span class="method">{line}<span>{escape(row[0])}</span></span></th>'
        cells = (
            f'<td data-name="{escape(header)}"{" class=none" if cell == "–" else ""}>{_text(cell)}</td>'
            for header, cell in zip(words.headers[1:], row[1:])
        )
        body.append(f"<tr>{first}{''.join(cells)}</tr>")
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in words.notes)
    table = f"<table class=cards><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<div class=wide>{table}</div>{notes}"


def _table_note(groups: Sequence[Group]) -> str:
    parts = ["Mean ± sample deviation over seeds."] if max(group.seeds for group in groups) > 1 else []
    if any(group.values("last_accuracy") for group in groups):
        parts.append(SMOOTHING)
    parts.append("Cosine and errors are medians over rounds.")
    if any(group.values("db_above_limit") for group in groups):
        parts.append("Distances to the limit are those of means over the evaluated rounds.")
    return " ".join(parts)


def _theory(groups: Sequence[Group]) -> str:
    """Measured and predicted errors side by side, and what has no prediction."""
    rows, above = theory_rows(groups), {group.label: group.values("db_above_limit") for group in groups}
    limited = any(above[row.label] for row in rows)
    lines = [
        f"<tr><th scope=row>{escape(row.label)}</th><td>{row.measured:.3f}</td><td>{row.predicted:.3f}</td>"
        f"<td>{_text(_signed(row.excess))}</td>"
        f"{f'<td>{above_text(above[row.label])}</td>' if limited else ''}</tr>"
        for row in rows
    ]
    words = ("error", "measured", "predicted", "difference", *(["above the limit"] if limited else []))
    head = "".join(f"<th scope=col>{word}</th>" for word in words)
    table = f"<table class=plain><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    votes = any(is_vote(group.runs[0].flat.get("method.aggregator")) for group in groups)
    note = "<p class=note>A vote has no scale; its error is that of the vote scaled best.</p>"
    least = "<p class=note>The limit: the least error of any scheme for devices that are all alike.</p>"
    return (table if rows else "") + (least if limited else "") + (note if votes else "")


def _debiased(groups: Sequence[Group]) -> str:
    """What an error above 1 means where estimates are right on average."""
    names = [group.label for group in groups if not group.ideal and group.runs[0].flat.get("method.debias")]
    if not names:
        return ""
    return escape(
        f" Not so for {', '.join(names)}: debiased, an estimate is noise around the right sum, also with an "
        "error above 1, and steps average the noise out."
    )


def _rerun(groups: Sequence[Group]) -> str:
    """One command per run, and one for this file."""
    lines = [_command(run, out) for run, out in _again(groups)]
    lines.append("signfade report again -o report.html")
    summaries = [run.summary for group in groups for run in group.runs if run.summary is not None]
    versions = sorted({str(summary["version"]) for summary in summaries if "version" in summary})
    made = f"<p class=note>Made with signfade {escape(', '.join(versions))}.</p>" if versions else ""
    return f"<pre>{escape(chr(10).join(lines))}</pre>{made}"


def _command(run: Run, out: str) -> str:
    """How to make a run again in the folder `out`: by simulation, or on Flower if it was made there."""
    if run.flat.get("data.name") == "own":  # an app's own data: only the app knows it
        return (
            f"flwr run . --stream --run-config {shlex.quote(f'folder={json.dumps(out)}')}  # where the app is"
        )
    command = "deploy" if any("wire_uplink_bits" in record for record in run.metrics[:1]) else "run"
    return f"signfade {command} {shlex.quote((run.path / 'config.toml').as_posix())} --out {shlex.quote(out)}"


def _again(groups: Sequence[Group]) -> list[tuple[Run, str]]:
    """The runs, each with a folder of its own to be run in again."""
    found: dict[str, Run] = {}
    for group in groups:
        for run in group.runs:
            first = name = f"again/{folder_name(group.runs[0].label)}-{run.seed}"
            number = 2
            while name in found:
                name, number = f"{first}-{number}", number + 1
            found[name] = run
    return [(run, name) for name, run in found.items()]


def _signed(excess: float) -> str:
    """A difference in per cent; none has no sign."""
    return f"{100 * excess:+.0f} %".replace("-", "−") if round(100 * excess) else "0 %"


def _configs(groups: Sequence[Group]) -> str:
    """The full config of the first run of each group; the others differ in their seed."""
    blocks = []
    for group in groups:
        seeds = ", ".join(format_value(run.seed) for run in group.runs)
        which = f"seeds {seeds}" if group.seeds > 1 else f"seed {seeds}"
        head = f"<summary><b>{escape(group.label)}</b> <small>{escape(which)}</small></summary>"
        blocks.append(f"<details>{head}<pre>{escape(group.runs[0].config_text)}</pre></details>")
    return "\n".join(blocks)


def _text(words: str) -> str:
    """Escaped, and no line ends before a per cent sign or around a plus-minus."""
    return escape(words).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
