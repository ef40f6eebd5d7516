"""The reproduction's own folder: what is there, what is missing, what to play next, and the pages.

OUT/runs/         run folders, one a run, named by their settings
OUT/measured/     what figures worked out themselves
OUT/runs.json     the records of all finished runs
OUT/results.md    the page, its figures in OUT/results/; the same in one file: OUT/results.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from signfade.lab.folder import FolderError, why, write_atomically
from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Section, Text, write_html, write_markdown
from signfade.lab.reproduce.plan import plan, wanted
from signfade.lab.reproduce.records import Records
from signfade.lab.reproduce.setups import Scale
from signfade.lab.reproduce.verdict import RULE
from signfade.lab.train import PlannedRun
from signfade.settings import RunSettings

__all__ = ["Bench"]

TITLE = "The paper's experiments, ours beside the paper's"


class Bench:
    """A reproduction at one scale, in one folder.

    Args:
        folder: where everything is kept.
        scale: full or quick.
        docs: a folder with `results/runs.json` whose records count as well, None for none.
    """

    def __init__(self, folder: Path, scale: Scale, docs: Path | None = None) -> None:
        self.folder, self.scale, self.docs = folder, scale, docs
        self.records = Records()
        if docs is not None:
            self.records.add_file(docs / "results" / "runs.json")
        self.look()

    def look(self) -> None:
        """Take in the runs that have come to their end since."""
        self.records.add_folder(self.folder / "runs")

    def to_play(self, artefacts: Sequence[Artefact]) -> list[PlannedRun]:
        """Return the runs that the artefacts still need, in order. More may follow once these are there."""
        wants = [want for one in artefacts for want in one.wants(self.scale, self.records)]
        return plan(wants, self.records, self.folder / "runs")

    def needed(self, artefact: Artefact) -> tuple[list[RunSettings], list[RunSettings]]:
        """Return the runs that an artefact needs, and those of them that are not there yet."""
        runs = wanted(artefact.wants(self.scale, self.records))
        return runs, [settings for settings in runs if self.records.find(settings) is None]

    # -- what artefacts measure themselves -------------------------------------------------------------------

    def measurement(self, artefact: Artefact) -> dict[str, Any] | None:
        """Return what the artefact measured at this scale, None if it has not yet."""
        places = [self.folder / "measured"] + ([] if self.docs is None else [self.docs / "results"])
        for place in places:
            path = place / f"{artefact.name}.json"
            if not path.exists():
                continue
            try:
                held = json.loads(path.read_bytes())
                if held["scale"] == self._scale_of(artefact):
                    return dict(held["data"])
            except (ValueError, KeyError, TypeError) as error:
                raise FolderError(f"{path} does not hold a measurement: {error}") from error
        return None

    def measure(self, artefact: Artefact, say: Callable[[str], None]) -> None:
        """Let the artefact measure what it needs, unless that is there."""
        if artefact.measure is not None and self.measurement(artefact) is None:
            data = artefact.measure(self.scale, say)
            self._write_measurement(self.folder / "measured", artefact, data)

    def _scale_of(self, artefact: Artefact) -> dict[str, Any]:
        """The part of the scale that decides what the artefact measures."""
        return {name: getattr(self.scale, name) for name in artefact.depends}

    def _write_measurement(self, folder: Path, artefact: Artefact, data: dict[str, Any]) -> Path:
        path = folder / f"{artefact.name}.json"
        text = json.dumps({"scale": self._scale_of(artefact), "data": data}, separators=(",", ":"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (text + "\n").encode())
        except OSError as error:
            raise FolderError(f"cannot write {path}: {why(error)}") from error
        return path

    # -- pages -----------------------------------------------------------------------------------------------

    def study(self, artefacts: Sequence[Artefact]) -> Study:
        """Return what is known about the artefacts."""
        found = {one.name: self.measurement(one) for one in artefacts if one.measure is not None}
        return Study(
            self.scale, self.records, {name: data for name, data in found.items() if data is not None}
        )

    def write(self, artefacts: Sequence[Artefact]) -> list[Path]:
        """Write the page about the artefacts from what is finished, as Markdown and HTML, and the records.

        Returns:
            The pages and the data, without the figures.
        """
        study = self.study(artefacts)
        opening, sections = self._opening(), [one.section(study) for one in artefacts]
        page = [Section("", [Text(words) for words in opening]), *sections]
        rest = [Section("", [Text(words) for words in opening[1:]]), *sections]
        return [
            write_markdown(TITLE, page, self.folder / "results.md")[0],
            write_html(TITLE, opening[0], rest, self.folder / "results.html"),
            self.records.write(self.folder / "runs.json"),
        ]

    def write_docs(self, artefacts: Sequence[Artefact]) -> list[Path]:
        """Write the page about all artefacts to the docs, with all it takes to draw it again.

        Args:
            artefacts: all of them, or their sections and records would go.

        Returns:
            The page and the data, without the figures.
        """
        assert self.docs is not None
        study = self.study(artefacts)
        page = [
            Section("", [Text(words) for words in self._opening()]),
            *(one.section(study) for one in artefacts),
        ]
        wants = [want.settings for one in artefacts for want in one.wants(self.scale, self.records)]
        found = [record for settings in wants if (record := self.records.whole(settings)) is not None]
        used = {record.name: record for record in found}  # a run answers more than one want
        data = self.docs / "results"
        written = [
            write_markdown(TITLE, page, self.docs / "results.md")[0],
            self.records.write(data / "runs.json", used.values()),
        ]
        for one in artefacts:
            if (held := study.measured.get(one.name)) is not None:
                written.append(self._write_measurement(data, one, held))
        return written

    def _opening(self) -> list[str]:
        scale = self.scale
        words = [
            "Every table and figure of the paper's Section VI, run again by `signfade reproduce`, and "
            "figures of our own beside them. What is not finished is shown as missing. `signfade "
            "reproduce all --docs docs` plays what is missing and writes this page again; with `--render` "
            "it plays nothing and draws from `docs/results/*.json` and from finished runs."
        ]
        if scale.name == "quick":
            words.append(f"**{scale.words[0].upper()}{scale.words[1:]}.**")
        words.append(
            "What the paper leaves open is decided so: K = 20 devices for MNIST; the link budget "
            f"({scale.bandwidth_hz / 1e6:g} MHz a device at 23 dBm) and what Full means for signSGD, see "
            "below; a user's two chunks are dealt so that every class goes to equally many users (of 200 "
            "chunks 40 are held, a fifth of MNIST); kernels of 5 x 5 without padding (62,346 weights; the "
            "paper gives the numbers of channels only); 2 GHz, a metropolitan city; the training loss is "
            "the mean over what the devices see in a round. What we change: a device sends the sign about "
            "its mean, and SBFL has its corrected form, with the printed one beside it in some cells; test "
            f"accuracy is looked at every {scale.every} rounds. Every seed has its own split of the data, "
            "users' places, initial weights and noise, alike for all methods."
        )
        words.append(
            "Words: **Full**, the model is sent down as it is; **DC** (downlink compression), one bit a "
            "weight; **TL**, rounds to training loss 1.0; **TA**, rounds to test accuracy 0.9; **1e-3 / "
            "0.9**, step and momentum. **Rotated** SBFL is ours: all devices rotate their gradients alike "
            "at random first, which makes the Gaussian prior true; **best** is the preset that adds the "
            "joint posterior of all devices, their correlation learned from what is received "
            "([bfl.md](bfl.md)). **BLMMSE** is the best linear estimate, **EP** expectation propagation."
        )
        return [*words, RULE]
