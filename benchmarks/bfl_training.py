"""Training on MNIST by every rung of the ladder: how many rounds each needs, with steps tuned alike for all.

    python benchmarks/bfl_training.py --out runs/bfl --jobs 2      # hours; stop it anywhere, start it again
    python benchmarks/bfl_training.py --out runs/bfl --table       # the tables of what is there
    python benchmarks/bfl_training.py --out runs/bfl --table --page docs/bfl.md --figure a.png

Steps are tuned for each method and bandwidth on two seeds of their own, two chunks a device, 120 rounds, by
the mean accuracy at rounds 80, 100 and 120. The first seed tries 1e-3, 3e-3, 1e-2 and 3e-2, and goes on in
half decades while the best is at an end; the second decides between the two best. They are kept for the
other split, and for 100 devices divided by five where the estimate is a sum over devices. `ep` takes the step
of `linear`, whose estimate has its scale.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page import Tables

from signfade.engines.events import Event
from signfade.engines.process import play
from signfade.lab.compare import PlannedRun
from signfade.lab.config import overlay, resolve
from signfade.lab.folder import RunFolder
from signfade.lab.group import group_runs, load_run
from signfade.lab.panels import curves
from signfade.lab.style import save_figure

METHODS: dict[str, dict[str, Any]] = {
    "signsgd": {"method.aggregator": "signsgd", "method.tie": "plus"},
    "sbfl-published": {"method.aggregator": "sbfl", "method.form": "published"},
    "sbfl": {"method.aggregator": "sbfl"},
    "rotated-sbfl": {"method.aggregator": "sbfl", "method.rotation": "hadamard"},
    "linear": {"method.preset": "best", "method.joint": "linear"},
    "best": {"method.preset": "best"},
    "ep": {"method.preset": "best", "method.joint": "ep"},
    "ideal": {"method.aggregator": "ideal"},
}
NAMES = {method: method for method in METHODS} | {
    "sbfl-published": "sbfl, published",
    "linear": "rotated bfl, linear, debiased",
    "best": "best (rotated bfl, soft, debiased)",
    "ep": "rotated bfl, ep, debiased",
}
SHOWN = ("last_accuracy", "median_cosine", "median_nmse", "median_nmse_theory")
BANDWIDTHS = {"180kHz": 180e3, "1MHz": 1e6, "10MHz": 10e6}
STEPS = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
FIRST_STEPS = STEPS[4:8]
TUNING_SEEDS = (100, 101)
TUNED_AT = (80, 100, 120)
LOOKS = [*range(20, 81, 10), 120]


def settings(
    method: str, bandwidth: str, split: str, devices: int, step: float, seed: int, rounds: int
) -> Any:
    """Return the settings of one run."""
    shared: dict[str, Any] = {
        "name": f"{split}-{bandwidth}-{devices}",
        "label": method,
        "rounds": rounds,
        "seed": seed,
        "threads": 1,
        "checkpoint_every": 100,
        "data.name": "mnist",
        "data.split": split,
        "data.devices": devices,
        "model.name": "paper-cnn",
        "cell.bandwidth_hz": BANDWIDTHS[bandwidth],
        "server.step": step,
        "eval.every": 100,
        "eval.at": list(TUNED_AT if seed in TUNING_SEEDS else LOOKS),
    }
    return resolve(overlay(overlay({}, shared), METHODS[method]))


def planned(
    out: Path, method: str, bandwidth: str, split: str, devices: int, step: float, seed: int, rounds: int
) -> PlannedRun:
    """Return one run and its folder; the ideal sees no radio, so it is played once for all bandwidths."""
    bandwidth = "180kHz" if method == "ideal" else bandwidth
    chosen = settings(method, bandwidth, split, devices, step, seed, rounds)
    folder = out / f"{split}-{bandwidth}-K{devices}" / method / f"step-{step:g}-seed-{seed}-rounds-{rounds}"
    return PlannedRun(chosen, folder)


def metrics(run: PlannedRun) -> list[dict[str, Any]]:
    path = run.folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def accuracy_at(run: PlannedRun, rounds: Sequence[int]) -> float:
    """Return the mean test accuracy at these rounds; -1 for a run that failed before."""
    by_round = {m["round"]: m["test_accuracy"] for m in metrics(run)}
    values = [by_round.get(t) for t in rounds]
    return -1.0 if None in values else statistics.fmean(v for v in values if v is not None)


class Player:
    """Plays runs and says which, with the time left by the rounds still to play."""

    def __init__(self, out: Path, jobs: int) -> None:
        self.out, self.jobs = out, jobs

    def __call__(self, runs: Sequence[PlannedRun], what: str) -> None:
        """Play what is not finished."""
        started, done = time.time(), 0
        total = sum(run.settings.rounds * run.settings.data.devices for run in runs)

        def tell(event: Event) -> None:
            nonlocal done, total
            size = event.run.settings.rounds * event.run.settings.data.devices
            if event.kind == "skipped":
                total -= size
            if event.kind in ("finished", "failed"):
                done += size
                left = (time.time() - started) / done * (total - done) / 60
                name = event.run.folder.relative_to(self.out)
                print(f"{what}: {name} {event.kind} {event.text}; {left:.0f} min left", flush=True)

        play(runs, self.jobs, on_event=tell)


def tuned_steps(
    out: Path, bandwidths: Sequence[str], methods: Sequence[str], player: Player | None
) -> dict[tuple[str, str], float]:
    """Return the step of every method and bandwidth, playing what is needed if there is a player."""
    grids = {(m, b): list(FIRST_STEPS) for b in bandwidths for m in methods if m not in ("ep", "ideal")}
    if "ideal" in methods:
        grids["ideal", "180kHz"] = list(FIRST_STEPS)

    def trial(key: tuple[str, str], step: float, seed: int) -> PlannedRun:
        return planned(out, *key, "two-chunks", 20, step, seed, 120)

    def score(key: tuple[str, str], step: float, seed: int) -> float:
        return accuracy_at(trial(key, step, seed), TUNED_AT)

    first, second = TUNING_SEEDS
    growing = True
    while growing:
        growing = False
        if player is not None:
            player([trial(key, step, first) for key, steps in grids.items() for step in steps], "tuning")
        for key, steps in grids.items():
            scores = [score(key, step, first) for step in steps]
            best, here = scores.index(max(scores)), STEPS.index(steps[0])
            beyond = here - 1 if best == 0 else here + len(steps) if best == len(steps) - 1 else -1
            if not 0 <= beyond < len(STEPS):
                continue
            if player is not None or trial(key, STEPS[beyond], first).folder.exists():
                grids[key] = sorted([*steps, STEPS[beyond]])
                growing = True
    two = {key: sorted(steps, key=lambda step: -score(key, step, first))[:2] for key, steps in grids.items()}
    if player is not None:
        player([trial(key, step, second) for key, steps in two.items() for step in steps], "tuning")
    chosen = {
        key: max(steps, key=lambda step: score(key, step, first) + score(key, step, second))
        for key, steps in two.items()
    }
    for bandwidth in bandwidths:
        if "ideal" in methods:
            chosen["ideal", bandwidth] = chosen["ideal", "180kHz"]
        if "ep" in methods:
            chosen["ep", bandwidth] = chosen["linear", bandwidth]
    return chosen


def grid(out: Path, steps: dict[tuple[str, str], float]) -> dict[str, list[PlannedRun]]:
    """Return the runs of every cell of the study, by name."""

    def cell(
        split: str, bandwidth: str, devices: int, seeds: int, rounds: int, methods: Sequence[str]
    ) -> list[PlannedRun]:
        runs = []
        for seed in range(seeds):
            for method in methods:
                step = steps[method, bandwidth]
                if devices == 100 and method != "signsgd":
                    step = float(f"{step / 5:g}")
                runs.append(planned(out, method, bandwidth, split, devices, step, seed, rounds))
        return runs

    without_ep = [m for m in METHODS if m != "ep"]
    cells = {}
    for split in ("two-chunks", "iid"):
        for bandwidth in ("180kHz", "1MHz"):
            cells[f"{split} {bandwidth} K20"] = cell(split, bandwidth, 20, 3, 400, list(METHODS))
    ten = ["rotated-sbfl", "linear", "best", "ideal"]
    cells["two-chunks 10MHz K20"] = cell("two-chunks", "10MHz", 20, 3, 400, ten)
    for split in ("two-chunks", "iid"):
        for bandwidth in ("180kHz", "1MHz"):
            cells[f"{split} {bandwidth} K100"] = cell(split, bandwidth, 100, 1, 120, without_ep)
    return cells


def urgency(run: PlannedRun) -> tuple[bool, ...]:
    """Sort runs so that a study that is stopped early has said the most: False comes first."""
    settings = run.settings
    slow = settings.method_label == "ep"
    small = settings.data.devices == 20
    plain = small and settings.data.split == "two-chunks" and settings.cell.bandwidth_hz < 10e6
    first = settings.seed == 0
    return (not (plain or first), slow and not first, not plain, settings.data.split == "iid" and not small)


def finished(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return those that came to their end."""
    return [run for run in runs if RunFolder(run.folder).finished]


def _mean(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{statistics.fmean(known):.3f}" if known else "-"


def table(tables: Tables, name: str, runs: Sequence[PlannedRun]) -> None:
    """Show what is finished."""
    tables.head(
        name,
        *("method", "step", "seeds", "rounds to 0.9", "at 120", "at the end", "cosine", "error", "predicted"),
    )
    for method, called in NAMES.items():
        mine = [r for r in runs if r.settings.method_label == method]
        done = finished(mine)
        if not done:
            continue
        short = [json.loads((r.folder / "summary.json").read_text()) for r in done]
        tables.row(
            name,
            called,
            f"{mine[0].settings.server.step:g}",
            str(len(done)),
            ", ".join(str(s["rounds_to_accuracy_09"] or "-") for s in short),
            _mean([accuracy_at(r, [120]) for r in done]),
            *(_mean([s[key] for s in short]) for key in SHOWN),
        )


def draw(path: Path, runs: Sequence[PlannedRun]) -> None:
    """Draw the curves of what is finished, the variants of the joint rule left out."""
    found = [load_run(run.folder) for run in finished(runs)]
    found = [run for run in found if run.label not in ("sbfl-published", "linear", "ep")]
    title = "MNIST, 20 devices with two classes each, 1 MHz, steps tuned alike"
    save_figure(curves(group_runs(found), title), path.with_suffix(""), [path.suffix[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bfl"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--table", action="store_true", help="play nothing, show what is there")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced, such as docs/bfl.md")
    parser.add_argument("--figure", type=Path, help="draw two classes a device at 1 MHz to this file")
    options = parser.parse_args()
    player = None if options.table else Player(options.out, options.jobs)
    steps = tuned_steps(options.out, ["180kHz", "1MHz"], list(METHODS), player)
    steps |= tuned_steps(options.out, ["10MHz"], ["rotated-sbfl", "linear", "best", "ideal"], player)
    cells = grid(options.out, steps)
    if player is not None:
        runs = {run.folder: run for cell in cells.values() for run in cell}
        player(sorted(runs.values(), key=urgency), "training")
    tables = Tables()
    for name, cell in cells.items():
        table(tables, name, cell)
    if options.page is not None:
        tables.write(options.page)
    if options.figure is not None:
        draw(options.figure, cells["two-chunks 1MHz K20"])


if __name__ == "__main__":
    main()
