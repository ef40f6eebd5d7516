"""Keep what `make bench` measured as the history of a release, and draw all releases in one figure.

python benchmarks/history.py            # runs/bench/*.json -> docs/bench/VERSION.json, docs/figures/bench.png
python benchmarks/history.py --draw     # the figure only

Only ratios are kept, measured in turn in one run: seconds of two machines say nothing about two releases.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from signfade import __version__
from signfade.experiments.environment import describe_environment
from signfade.experiments.style import save_figure

ROOT = Path(__file__).parents[1]
RATIO = ("ratio_quartile_low", "ratio", "ratio_quartile_high")


def find_ratios(tree: Any, name: str) -> dict[str, list[float]]:
    """Return lower quartile, median and upper quartile of every ratio to another candidate in a tree."""
    if not isinstance(tree, dict):
        return {}
    if "ratio" in tree:
        found = [round(tree[key], 3) for key in RATIO]
        return {} if found == [1.0] * 3 else {name: found}  # without the one that others are compared to
    if "quartiles" in tree:  # of round.py: the time of a round over that of its gradients alone
        low, high = tree["quartiles"]
        return {
            f"{name}, speed of bare gradients = 1": [round(1 / x, 3) for x in (high, tree["median"], low)]
        }
    parts = [find_ratios(part, name if key == "rows" else f"{name}: {key}") for key, part in tree.items()]
    return {key: value for part in parts for key, value in part.items()}


def keep(source: Path, target: Path) -> None:
    """Write one small file for this release."""
    ratios: dict[str, list[float]] = {}
    loads = []
    for path in sorted(source.glob("*.json")):
        measured = json.loads(path.read_text())
        loads.append(measured.pop("machine")["load_average"])
        ratios |= find_ratios(measured, path.stem)
    if not ratios:
        raise SystemExit(f"no ratios in {source}: run make bench first")
    where = describe_environment() | {"largest_load_average": max(loads)}
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in ratios.items())
    target.parent.mkdir(parents=True, exist_ok=True)
    head = f'{{\n  "machine": {json.dumps(where)},\n  "quartiles_and_median": {{\n'
    target.write_text(f"{head}{lines}\n  }}\n}}\n")


def draw(folder: Path, target: Path) -> list[Path]:
    """Draw the ratios of all releases, one row per candidate."""
    releases = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    names = list(dict.fromkeys(name for one in releases.values() for name in one["quartiles_and_median"]))
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.24 * len(names)), layout="constrained")
    for number, (version, release) in enumerate(releases.items()):
        found = release["quartiles_and_median"]
        rows = [names.index(name) + 0.2 * (number - (len(releases) - 1) / 2) for name in found]
        low, middle, high = zip(*found.values(), strict=True)
        spread = [[m - a for m, a in zip(middle, low)], [b - m for m, b in zip(middle, high)]]
        axes.errorbar(middle, rows, xerr=spread, fmt="o", markersize=4, capsize=2, label=version)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speed over that of its reference (median, quartiles)")
    figure.legend(loc="outside upper right", ncols=len(releases))
    return save_figure(figure, target, ["png"])


if __name__ == "__main__":
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--draw", action="store_true")
    if not parser.parse_args().draw:
        keep(ROOT / "runs" / "bench", ROOT / "docs" / "bench" / f"{__version__}.json")
    print(*draw(ROOT / "docs" / "bench", ROOT / "docs" / "figures" / "bench"))
