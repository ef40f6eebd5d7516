"""What the calls return: one run, several runs, or what tuning found."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from signfade.api.progress import duration
from signfade.experiments.config import ConfigError, resolve
from signfade.experiments.files import FolderError
from signfade.experiments.folder import RunFolder
from signfade.experiments.results import columns, load_run
from signfade.settings import RunSettings
from signfade.simulation.run import RunFailed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from signfade.experiments.group import Group, Run
    from signfade.experiments.tuning import Point, Protocol, Trial

__all__ = ["Place", "RunResult", "RunsResult", "TuneResult", "summary_text"]

StrPath = str | os.PathLike[str]


class Place:
    """Where results lie: a folder that is kept, or one that goes when the last result in it is gone."""

    def __init__(self, folder: StrPath | None = None) -> None:
        self._temporary = folder is None
        home = Path(mkdtemp(prefix="signfade-")) if folder is None else Path(folder)
        self.path = home / "run" if self._temporary else home
        if self._temporary:
            weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)

    @property
    def kept(self) -> Path | None:
        """The folder, if it is kept."""
        return None if self._temporary else self.path


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: its numbers, its model, its figures.

    Attributes:
        path: The run folder; of a run that is not kept, a temporary one.
        place: What keeps it there.
        objects: The Python objects that its settings name.
        ended: Its summary, if it is at hand.
    """

    path: Path
    place: Place
    objects: Sequence[Callable[..., Any]] = ()
    ended: Mapping[str, Any] | None = None

    @cached_property
    def _run(self) -> Run:
        return load_run(self.path)

    @property
    def folder(self) -> Path | None:
        """Where the run is kept; None if it is not: see `keep`."""
        return self.place.kept and self.path

    @cached_property
    def settings(self) -> RunSettings:
        """Every setting of the run."""
        return resolve({key: value for key, value in self._run.config.items() if key != "files"})

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says; of an unfinished run, what it would say now."""
        return self._run.numbers if self.ended is None else dict(self.ended)

    @cached_property
    def metrics(self) -> Any:
        """One row per round, as a pandas DataFrame; without pandas a dict of arrays.

        What was not measured in a round is NaN. The columns are those of metrics.jsonl; `snr_db.0`, `.1` and
        `.2` are the smallest, median and largest SNR.
        """
        from signfade.experiments.export import metric_rows

        rows = metric_rows([self.path])
        return as_frame([{key: row[key] for key in list(row)[3:]} for row in rows])  # all rows are this run's

    @cached_property
    def weights(self) -> Tensor:
        """The trained weights, `[M]`: with `server.averaging`, the average."""
        weights: Tensor = self._experiment.trained_weights.clone()
        return weights

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, in evaluation mode."""
        if own := self.settings.model.personal:
            names = ", ".join(own)
            raise ValueError(f"every device has its own {names}; run.weights has what they share")
        make = getattr(self._experiment.task, "module", None)
        if make is None:
            data = self.settings.data.name
            raise ValueError(f"data {data!r} trains no torch module; run.weights has what was trained")
        module: nn.Module = make(self.weights)
        return module

    @cached_property
    def _experiment(self) -> Any:
        from signfade.simulation.run import Experiment

        checkpoint = RunFolder(self.path).load_checkpoint()
        if checkpoint is None:
            raise FolderError(f"{self.path} has no checkpoint to take the weights from")
        experiment = Experiment(self.settings)
        try:
            experiment.restore(checkpoint.tensors, checkpoint.round)
        except (KeyError, RuntimeError, ValueError) as error:
            raise FolderError(f"{self.path}: its checkpoint is not that of a simulated run") from error
        return experiment

    def plot(self, path: StrPath | None = None) -> Figure:
        """Return the run's curves as a matplotlib figure; written to `path` (PNG, SVG or PDF) if given."""
        return _plot([self], self.settings.name, path)

    def report(self, path: StrPath = "report.html") -> Path:
        """Write one HTML page about the run, which needs no other file; return its path."""
        return _report([self], path)

    def keep(self, folder: StrPath) -> RunResult:
        """Copy the run to a new folder, where it can be resumed, compared and reported; return it there."""
        target = Path(folder)
        if target.exists():
            raise FolderError(f"{target} exists; choose another folder")
        shutil.copytree(self.path, target)
        return RunResult(target, Place(target), self.objects, self.ended)

    def __repr__(self) -> str:
        return f"<signfade run {summary_text(self.summary)}>"


@dataclass(frozen=True, repr=False)
class RunsResult(Sequence[RunResult]):
    """Several runs, as a sequence; `print` shows them as a table.

    Attributes:
        runs: The finished runs.
        place: Where they lie.
        name: What they are called together.
        failed: Why the others failed, by folder.
        files: What was written beside the runs, if they are kept.
    """

    runs: tuple[RunResult, ...]
    place: Place
    name: str
    failed: Mapping[Path, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: Any) -> Any:
        return self.runs[index]

    @property
    def folder(self) -> Path | None:
        """Where the runs are kept; None if they are not."""
        return self.place.kept

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The runs by method, seeds together."""
        if not self.runs:
            raise RunFailed(
                f"every run failed; the first: {next(iter(self.failed.values()), 'there is none')}"
            )
        return _groups(self.runs)

    @cached_property
    def results(self) -> Any:
        """One row per run: settings that differ, method, seed, and the numbers of its summary."""
        from signfade.experiments.group import settings_that_differ
        from signfade.experiments.metrics import SUMMARY_KEYS

        differ = settings_that_differ(self.groups)
        rows = []
        for index, group in enumerate(self.groups):
            tried = {key: values[index] for key, values in differ.items()}
            for run in group.runs:
                numbers = {key: run.numbers.get(key) for key in SUMMARY_KEYS if key not in _ASIDE}
                rows.append(tried | {"label": group.label, "seed": run.seed} | numbers)
        return as_frame(rows)

    def plot(self, path: StrPath | None = None) -> Figure:
        """Return all curves in one figure, means over seeds with bands; written to `path` if given."""
        return _plot(self.runs, self.name, path)

    def report(self, path: StrPath = "report.html") -> Path:
        """Write one HTML page about the runs, which needs no other file; return its path."""
        return _report(self.runs, path)

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console

        from signfade.experiments.table import comparison_table

        with StringIO() as text:
            Console(file=text, width=160, force_jupyter=False).print(
                comparison_table(self.groups, self.name, 160)
            )
            return text.getvalue()

    def __repr__(self) -> str:
        return f"<{len(self.runs)} signfade runs of {', '.join(group.label for group in self.groups)}>"

    def _repr_html_(self) -> str:
        from html import escape

        from signfade.experiments.table import comparison

        words = comparison(self.groups)
        head, *body = [
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in (("th", words.headers), *(("td", row) for row in words.rows))
        ]
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        notes = "".join(f"<p>{escape(note)}</p>" for note in words.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


@dataclass(frozen=True, repr=False)
class TuneResult:
    """What tuning found.

    Attributes:
        trials: Of each method, the points that were tried with their scores, the best first.
        protocol: The grid, the seeds and the score.
        place: Where the runs lie.
        files: `tuned.toml`, for `compare`, and `trials.json`.
    """

    trials: dict[str, list[Trial]]
    protocol: Protocol
    place: Place
    files: tuple[Path, ...]

    @property
    def best(self) -> dict[str, Point]:
        """The best settings of each method, ready for `run` and `compare`."""
        return {name: dict(found[0].point) for name, found in self.trials.items()}

    @property
    def folder(self) -> Path | None:
        """Where the runs are kept; None if they are not."""
        return self.place.kept

    def __repr__(self) -> str:
        return f"<signfade tuning: {self.best}>"


_ASIDE = ("name", "seed", "method", "smoothing")  # of a summary: elsewhere in a row, or the same in all


def as_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas DataFrame, or as a dict of arrays where pandas is not installed."""
    found = columns(rows)
    if importlib.util.find_spec("pandas") is None:
        return found
    return importlib.import_module("pandas").DataFrame(found)


def _groups(runs: Sequence[RunResult]) -> tuple[Group, ...]:
    from signfade.experiments.group import group_runs

    return group_runs([run._run for run in runs])


def _plot(runs: Sequence[RunResult], title: str, path: StrPath | None) -> Figure:
    from signfade.experiments.panels import curves
    from signfade.experiments.style import save_figure

    figure = curves(_groups(runs), title)
    if path is not None:
        target = Path(path)
        kind = target.suffix.removeprefix(".").lower()
        if kind not in ("png", "svg", "pdf"):
            raise ConfigError(f"a figure's file must end in .png, .svg or .pdf; got {str(path)!r}")
        save_figure(figure, target.with_suffix(""), [kind])
    show_in_notebook()
    return figure


def show_in_notebook() -> None:
    """Let a notebook show figures that pyplot has not made, unless it has been told how."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    from matplotlib.figure import Figure

    formatters = shell.display_formatter.formatters
    if not any(Figure in formatters[kind] for kind in ("image/png", "image/svg+xml")):
        with suppress(ImportError):
            tools = importlib.import_module("IPython.core.pylabtools")
            tools.select_figure_formats(shell, {"retina"}, bbox_inches=None)


def _report(runs: Sequence[RunResult], path: StrPath) -> Path:
    from signfade.experiments.html_report import write_report

    return write_report([run.path for run in runs], path)


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the summary of a run as one line.

    Example:
        >>> summary = {"name": "a", "method": "sbfl", "seed": 0, "rounds": 20, "seconds": 4.0}
        >>> summary |= {"last_accuracy": 0.91, "best_accuracy": 0.92, "uplink_bits": 3_000_000}
        >>> summary_text(summary)
        'a, sbfl, seed 0: accuracy 0.910 (best 0.920), 20 rounds in 4.0 s, uplink 3 Mbit in all'
        >>> summary_text(summary | {"payload_bits": 2_900_000}).rpartition(", ")[2]
        'uplink 3 Mbit in all (weights and scalars 2.9 Mbit)'
    """
    parts = []
    if summary.get("last_accuracy") is not None:
        parts.append(f"accuracy {summary['last_accuracy']:.3f} (best {summary['best_accuracy']:.3f})")
    elif summary.get("last_test_loss") is not None:
        parts.append(f"excess loss {summary['last_test_loss']:.4g}")
    if summary.get("last_perplexity") is not None:
        parts.append(f"perplexity {summary['last_perplexity']:.3g}")
    if summary.get("last_device_worst") is not None:
        parts.append(f"worst tenth of devices {summary['last_device_worst']:.3f}")
    if summary.get("models") is not None:
        parts.append("1 model" if summary["models"] == 1 else f"{summary['models']} models")
    if summary.get("last_train_loss") is not None:
        parts.append(f"training loss {summary['last_train_loss']:.4g}")
    if not parts and summary.get("median_nmse") is not None:  # no data, only gradients
        predicted = summary.get("median_nmse_theory")
        against = "" if predicted is None else f" (predicted {predicted:.3f})"
        parts.append(f"median error {summary['median_nmse']:.3f}{against}")
    if summary.get("db_above_limit") is not None:
        parts.append(f"error {summary['db_above_limit']:.1f} dB above the limit")
    rounds = "1 round" if summary.get("rounds") == 1 else f"{summary.get('rounds')} rounds"
    parts.append(f"{rounds} in {duration(summary.get('seconds') or 0.0)}")
    if summary.get("uplink_bits") is not None:
        payload = summary.get("payload_bits")
        of_it = "" if payload is None else f" (weights and scalars {payload / 1e6:.3g} Mbit)"
        parts.append(f"uplink {summary['uplink_bits'] / 1e6:.3g} Mbit in all{of_it}")
    return f"{summary.get('name')}, {summary.get('method')}, seed {summary.get('seed')}: {', '.join(parts)}"
