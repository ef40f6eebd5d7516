"""Tune every method of `signfade demo` by one protocol, the ideal included.

    python benchmarks/tune_demo.py --check 8 --record docs/results/demo.json

The same grid for all: seven learning rates, without momentum and with 0.9. A point's score is the mean test
accuracy over the last six evaluations (rounds 125 to 150), 0.1 for a run that diverges. The first seed tries
every point; the three best points of each method go on with two more seeds, and the best mean over the three
seeds is chosen. `--check N` then runs the chosen points on N further seeds. The demo's own seed, 0, is not
used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from signfade.experiments.comparisons import method_settings
from signfade.experiments.config import load
from signfade.experiments.findings import difference
from signfade.experiments.folder import RunFolder
from signfade.experiments.training import PlannedRun
from signfade.experiments.workers.job_queue import Event
from signfade.experiments.workers.run_pool import run_all
from signfade.settings import RunSettings

METHODS = ("signsgd", "sbfl", "rotated-sbfl", "best", "ideal")
STEPS = (1e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 1e-1)
MOMENTA = (0.0, 0.9)
TUNING_SEEDS = (100, 101, 102)
FINALISTS = 3
LAST = 6
CHANCE = 0.1
FIRST_CHECK = 200

Point = tuple[float, float]


def planned(out: Path, demo: RunSettings, method: str, point: Point, seed: int) -> PlannedRun:
    """Return one run of the demo's cell with another step, momentum and seed."""
    step, momentum = point
    base = method_settings(demo, method)
    server = base.server.model_copy(update={"learning_rate": step, "momentum": momentum})
    settings = base.model_copy(update={"server": server, "seed": seed, "threads": 1})
    return PlannedRun(settings, out / method / f"step-{step:g}-momentum-{momentum:g}-seed-{seed}")


def score(run: PlannedRun) -> float:
    """Return the mean accuracy over the last evaluations; that of chance for a run that did not finish."""
    folder = RunFolder(run.folder)
    if not folder.finished:
        return CHANCE
    accuracies = [m["test_accuracy"] for m in folder.read_metrics() if m.get("test_accuracy") is not None]
    return fmean(accuracies[-LAST:])


def report(event: Event) -> None:
    if event.kind in ("finished", "failed"):
        print(event.run.folder, event.kind, event.text, flush=True)


def tune(out: Path, demo: RunSettings, jobs: int) -> dict[str, list[dict[str, Any]]]:
    """Return the points of each method with their scores, the chosen one first."""
    grid = [(step, momentum) for momentum in MOMENTA for step in STEPS]
    seeds = {(method, point): TUNING_SEEDS[:1] for method in METHODS for point in grid}

    def scores(method: str, point: Point) -> list[float]:
        return [round(score(planned(out, demo, method, point, s)), 4) for s in seeds[method, point]]

    def runs(which: Sequence[int]) -> list[PlannedRun]:
        return [planned(out, demo, *key, seed) for key in seeds for seed in seeds[key] if seed in which]

    run_all(runs(TUNING_SEEDS[:1]), jobs, on_event=report)
    for method in METHODS:
        for point in sorted(grid, key=lambda p: scores(method, p), reverse=True)[:FINALISTS]:
            seeds[method, point] = TUNING_SEEDS
    run_all(runs(TUNING_SEEDS[1:]), jobs, on_event=report)
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for method, point in seeds:
        rows[method].append({"step": point[0], "momentum": point[1], "scores": scores(method, point)})
    for found in rows.values():
        found.sort(key=lambda row: (len(row["scores"]), fmean(row["scores"])), reverse=True)
    return rows


def check(
    out: Path, demo: RunSettings, rows: dict[str, list[dict[str, Any]]], jobs: int, count: int
) -> dict[str, list[float]]:
    """Return the scores of the chosen points on seeds that had no part in the choice."""
    seeds = range(FIRST_CHECK, FIRST_CHECK + count)
    best = {method: (found[0]["step"], found[0]["momentum"]) for method, found in rows.items()}
    runs = {m: [planned(out, demo, m, best[m], seed) for seed in seeds] for m in METHODS}
    run_all([run for at in zip(*runs.values()) for run in at], jobs, on_event=report)
    return {method: [round(score(run), 4) for run in found] for method, found in runs.items()}


def interval(values: Sequence[float]) -> str:
    """Return mean and 95 % interval in percent, the interval of Student's t over seeds."""
    found = difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), floor=0.01)
    return f"{100 * found.mean:.1f}" + ("" if found.half is None else f" ± {100 * found.half:.1f}")


def show(rows: dict[str, list[dict[str, Any]]], checked: dict[str, list[float]]) -> None:
    """Print the choice, and the check if there is one."""
    print("| method | learning rate | momentum | tuning seeds | fresh seeds | less ideal |")
    print("|---|---|---|---|---|---|")
    for method, found in rows.items():
        best = found[0]
        cells = [f"`{method}`", f"{best['step']:g}", f"{best['momentum']:g}"]
        cells.append(f"{100 * fmean(best['scores']):.1f} %")
        if checked:
            gaps = [a - b for a, b in zip(checked[method], checked["ideal"])]
            cells += [interval(checked[method]) + " %", "" if method == "ideal" else interval(gaps)]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--record", type=Path, help="write the scores to this JSON file")
    parser.add_argument("--check", type=int, default=0, help="run the choice on this many further seeds")
    options = parser.parse_args()
    demo = load(Path(str(files("signfade.experiments") / "demo.toml")))
    rows = tune(options.out, demo, options.jobs)
    checked = check(options.out, demo, rows, options.jobs, options.check) if options.check else {}
    show(rows, checked)
    if options.record is not None:
        text = json.dumps({"tuning": rows, "check": checked}, indent=1)
        options.record.write_text(text + "\n")


if __name__ == "__main__":
    main()
