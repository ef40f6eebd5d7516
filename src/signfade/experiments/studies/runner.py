"""Runs studies in one folder: what is there, what is missing, what to run next, and the pages.

OUT/runs/         run folders, one per run, named by their settings
OUT/measured/     what parts measured themselves
OUT/runs.json     the records of all finished runs
OUT/PAGE.md       one page per study, its figures in OUT/results/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from signfade.experiments.config import deciding, resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import WINDOW, summarise, trailing_mean
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Want,
    family_of,
    rounded,
    run_name,
    write_text,
)
from signfade.experiments.studies.study import Block, Part, Study, Text, update_page, write_markdown
from signfade.experiments.training import PlannedRun
from signfade.settings import RunSettings

__all__ = ["Runner", "estimate_seconds", "plan", "read_folder", "read_folders", "wanted"]

_KEPT = ["last_accuracy", "best_accuracy", "last_test_loss", "last_train_loss", "median_nmse"]
_KEPT += ["median_nmse_theory", "median_cosine", "rounds_to_loss_1", "rounds_to_accuracy_09", "uplink_bits"]
_KEPT += ["payload_bits", "channel_uses", "downlink_bits", "parameters", "devices", "seconds", "version"]
# Of the last round, where every device is evaluated.
_DEVICES_KEPT = ["device_mean", "device_min", "device_worst", "device_spread", "models"]
_DEVICES_KEPT += ["groups_recovered", "group_scores"]


def read_folder(path: Path) -> Record | None:
    """Return the record of a run folder; None while the run has not finished or diverged."""
    folder = RunFolder(path)
    if not folder.config_path.exists():
        return None
    summary, failure = folder.read_summary(), folder.failure()
    lost = summary is None and failure is not None and "diverged" in failure
    if summary is None and not lost:
        return None
    decided = deciding(folder.config()).items()
    # Hashes of files of one's own are recorded beside the settings.
    settings = resolve({key: value for key, value in decided if not key.startswith("files.")})
    metrics = folder.read_metrics()
    if summary is None:
        summary = summarise(metrics, name="", seed=0, method="", parameters=0, devices=0)
    summary |= {"channel_uses": metrics[-1].get("channel_uses") if metrics else None}
    kept = {key: rounded(summary.get(key)) for key in _KEPT if key != "channel_uses" or summary[key]}
    last = metrics[-1] if metrics else {}
    kept |= {key: rounded(last[key]) for key in _DEVICES_KEPT if last.get(key) is not None}
    smooth = trailing_mean([m.get("train_loss") for m in metrics], min(WINDOW, max(1, len(metrics))))
    at = [i for i, m in enumerate(metrics) if m.get("test_loss") is not None]  # evaluated
    curve: dict[str, list[float | None]] = {"round": [metrics[i]["round"] for i in at]}
    accuracy, loss = ([m.get(key) for m in metrics] for key in ("test_accuracy", "test_loss"))
    whole = [m.get("global_train_loss") for m in metrics]
    curves = (
        ("accuracy", accuracy),
        ("train_loss", smooth),
        ("global_train_loss", whole),
        ("test_loss", loss),
    )
    for name, values in curves:
        if any(values[i] is not None for i in at) and not (name == "test_loss" and "accuracy" in curve):
            curve[name] = [rounded(values[i]) for i in at]
    end = len(metrics) + 1 if lost else None
    return Record(path.name, family_of(settings), settings.seed, settings.rounds, kept, curve, end)


def read_folders(path: Path) -> list[Record]:
    """Return the records of all runs in the folders inside `path` that finished or diverged."""
    folders = sorted(path.iterdir()) if path.is_dir() else []
    return [record for folder in folders if (record := read_folder(folder)) is not None]


def wanted(wants: Iterable[Want]) -> list[RunSettings]:
    """Return the runs that satisfy all wants, each once, the most urgent first.

    Parts share runs: a run wanted twice is run once, and the longest answers for the shorter ones.
    """
    runs: dict[tuple[str, int], RunSettings] = {}
    for want in sorted(wants, key=lambda want: want.rank):
        key = (family_of(want.settings), want.settings.seed)
        there = runs.get(key)
        if there is None or there.rounds < want.settings.rounds:
            runs[key] = want.settings  # a dict keeps the place of its first want
    return list(runs.values())


def plan(wants: Iterable[Want], records: Records, folder: Path) -> list[PlannedRun]:
    """Return the runs without a record, in order, each with its own folder inside `folder`."""
    return [
        PlannedRun(settings, folder / run_name(settings))
        for settings in wanted(wants)
        if records.find(settings) is None
    ]


# Seconds per round of 20 devices on one core, until runs on the same data have been timed here.
_DEVICES = 20
_SECONDS = {"mnist": 0.4, "digits": 0.03, "regression": 0.004}


def estimate_seconds(runs: Iterable[RunSettings], records: Records) -> float:
    """Return about how long the runs take on one core, from the times of finished ones on the same data."""
    timed: dict[str, list[float]] = {}
    for record in records:
        seconds = record.value("seconds")
        if seconds and record.diverged is None:
            share = _DEVICES / (record.value("devices") or _DEVICES)
            timed.setdefault(record.name.split("-")[0], []).append(share * seconds / record.rounds)
    total = 0.0
    for settings in runs:
        known = timed.get(settings.data.name)
        each = sorted(known)[len(known) // 2] if known else _SECONDS.get(settings.data.name, 0.1)
        gradients = settings.data.devices * settings.data.participation * settings.device.local_steps
        total += settings.rounds * each * gradients / _DEVICES
    return total


class Runner:
    """Studies at one scale, in one folder; records in `docs`/results/runs.json count as well."""

    def __init__(self, folder: Path, scale: Scale, docs: Path | None = None) -> None:
        self.folder, self.scale, self.docs = folder, scale, docs
        self.records = Records()
        if docs is not None:
            self.records.add_file(docs / "results" / "runs.json")
        self._published = {record.name for record in self.records}
        self.refresh()

    def refresh(self) -> None:
        """Add the records of runs that have finished since."""
        for record in read_folders(self.folder / "runs"):
            self.records.add(record)

    def missing(self, parts: Sequence[Part]) -> list[PlannedRun]:
        """Return the runs that the parts still need, in order. More may follow once these are there."""
        wants = [want for part in parts for want in part.needs(self.scale, self.records)]
        return plan(wants, self.records, self.folder / "runs")

    def needed(self, part: Part) -> tuple[list[RunSettings], list[RunSettings]]:
        """Return the runs that a part needs, and those of them that are not there yet."""
        runs = wanted(part.needs(self.scale, self.records))
        return runs, [settings for settings in runs if self.records.find(settings) is None]

    def complete(self, part: Part) -> bool:
        """Whether everything the part needs is there."""
        measured = [one for one in part.members if one.measure is not None]
        return all(self.measurement(one) is not None for one in measured) and not self.needed(part)[1]

    def run(
        self,
        parts: Sequence[Part],
        execute: Callable[[list[PlannedRun]], Mapping[Path, str]],
        note: Callable[[str], None],
    ) -> dict[Path, str]:
        """Measure and run what is missing until nothing is; return why runs failed, by folder.

        `execute` runs what it is given and returns why runs failed; a run that diverged has not failed.
        """
        failed: dict[Path, str] = {}
        for group in ([part for part in parts if part.early], parts):
            for one in dict.fromkeys(member for part in group for member in part.members):
                if one.measure is not None and self.measurement(one) is None:
                    data = one.measure(one.settle(self.scale, self.records), note)
                    self._write_measurement(self.folder / "measured", one, data)
            while runs := [run for run in self.missing(group) if run.folder not in failed]:
                reasons = execute(runs)
                self.refresh()
                lost = [run.folder for run in runs if self.records.find(run.settings) is None]
                failed |= {folder: reasons.get(folder, "the run left no record") for folder in lost}
        return failed

    # -- what parts measure themselves -----------------------------------------------------------------------

    def measurement(self, part: Part) -> dict[str, Any] | None:
        """Return what the part measured at this scale, None if it has not yet."""
        places = [self.folder / "measured"] + ([] if self.docs is None else [self.docs / "results"])
        for path in (place / f"{part.name}.json" for place in places):
            if not path.exists():
                continue
            try:
                held = json.loads(path.read_bytes())
                if held["scale"] == self._scale_of(part):
                    return dict(held["data"])
            except (ValueError, KeyError, TypeError) as error:
                raise FolderError(f"{path} does not hold a measurement: {error}") from error
        return None

    def _scale_of(self, part: Part) -> dict[str, Any]:
        """The fields of the scale that decide what the part measures."""
        scale = part.settle(self.scale, self.records)
        return {name: getattr(scale, name) for name in part.depends}

    def _write_measurement(self, folder: Path, part: Part, data: dict[str, Any]) -> Path:
        text = json.dumps({"scale": self._scale_of(part), "data": data}, separators=(",", ":"))
        return write_text(folder / f"{part.name}.json", text + "\n")

    # -- pages -----------------------------------------------------------------------------------------------

    def results(self, parts: Sequence[Part]) -> Results:
        """Return what is known about the parts."""
        measured = dict.fromkeys(one for part in parts for one in part.members if one.measure is not None)
        found = {part.name: self.measurement(part) for part in measured}
        return Results(
            self.scale, self.records, {name: data for name, data in found.items() if data is not None}
        )

    def _page(self, study: Study, parts: Sequence[Part], folder: Path) -> Path:
        results = self.results(study.parts)
        found = {part: part.render(results) for part in parts}
        sections = {f"{part.title} ({part.place})": blocks for part, blocks in found.items() if blocks}
        absent = [part for part, blocks in found.items() if not blocks and self._to_do(part)]
        if absent:
            lines = [f"- {part.title} ({part.place}): `signfade reproduce {part.name}`" for part in absent]
            sections["Not run yet"] = [Text("\n".join(lines))]
        return write_markdown(study.title, study.opening(results), sections, folder / f"{study.page}.md")

    def _to_do(self, part: Part) -> bool:
        """Whether a part has anything to run or to measure: one may wait for what another decides."""
        return part.measure is not None or bool(part.needs(self.scale, self.records))

    def write(self, studies: Sequence[Study], parts: Sequence[Part]) -> list[Path]:
        """Write one page per study about its parts among `parts`, and the records; return their paths."""
        chosen = [(study, [part for part in study.parts if part in parts]) for study in studies]
        pages = [self._page(study, mine, self.folder) for study, mine in chosen if mine]
        return [*pages, self.records.write(self.folder / "runs.json")]

    def write_docs(self, studies: Sequence[Study]) -> list[Path]:
        """Write the tables and figures of all studies to the docs, with the data to draw them again."""
        assert self.docs is not None
        data, written = self.docs / "results", []
        for study in studies:
            if not study.host:
                written.append(self._page(study, study.parts, self.docs))
                continue
            results, blocks = self.results(study.parts), list[Block]()
            for part in study.parts:
                blocks += part.render(results) if part.partial or self.complete(part) else []
            if blocks and (self.docs / study.host).exists():
                written += update_page(self.docs / study.host, blocks)
        parts = [part for study in studies for part in study.parts]
        wants = [want.settings for part in parts for want in part.needs(self.scale, self.records)]
        found = [record for settings in wants if (record := self.records.whole(settings)) is not None]
        # What was published stays, whatever is wanted now.
        found += [record for record in self.records if record.name in self._published]
        used = {record.name: record for record in found}  # a run answers more than one want
        written.append(self.records.write(data / "runs.json", used.values()))
        measured = self.results(parts).measured
        return written + [
            self._write_measurement(data, part, measured[part.name])
            for part in parts
            if part.name in measured
        ]
