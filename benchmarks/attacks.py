"""Attacks against defences on digits: the tables of docs/attacks.md.

Every run is kept as a line of a JSON file, so the command may be stopped and given again; `--show` plays
nothing. A run that diverges counts as the accuracy of a guess, 0.1.

    python benchmarks/attacks.py --out runs/attacks.jsonl --page docs/attacks.md
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from page import Tables

from signfade.lab.config import load
from signfade.learn import Experiment, RunFailed

GUESS = 0.1
LOOKS = 4  # at the end, averaged
MLP = ["rounds=100", "model.name=mlp", "server.step=0.2", "server.schedule=sqrt"]
ROTATED = ["method.aggregator=sbfl", "method.rotation=hadamard"]
METHODS = {
    "sbfl": [*MLP, *ROTATED],
    "best": [*MLP, "method.preset=best"],
    "cnn": ["rounds=150", "server.step=3e-2", *ROTATED],
}
BOUND, RELY = "defence.bound_scales=true", "defence.reliability=true"
DEFENCES = {
    "none": [],
    "bound": [BOUND],
    "reliability": [RELY],
    "both": [BOUND, RELY],
    "Krum": ["method.aggregator=krum"],
    "multi-Krum": ["method.aggregator=multi_krum"],
    "trimmed mean": ["method.aggregator=trimmed_mean"],
    "median": ["method.aggregator=median"],
}
OURS = ("none", "bound", "reliability", "both")
CNN = (
    "sign-flip",
    "ones",
    "mean-shift, 10",
)  # after a rotation the last two move one weight, here a filter's
ATTACKS = {
    "sign-flip": ["attack.kind=sign-flip"],
    "ones": ["attack.kind=ones"],
    "random-bits": ["attack.kind=random-bits"],
    "random-bits, colluding": ["attack.kind=random-bits", "attack.collude=true"],
    "mean-shift, 10": ["attack.kind=mean-shift", "attack.strength=10"],
    "scale-inflation, 1000": ["attack.kind=scale-inflation", "attack.strength=1000"],
    "scale-collusion, 1000": ["attack.kind=scale-collusion", "attack.strength=1000"],
    "below-bound": ["attack.kind=below-bound"],
    "mixed, 3": ["attack.kind=mixed", "attack.strength=3"],
}

Cell = tuple[str, str, float, str]


def cells() -> list[Cell]:
    """All (method, attack, fraction, defence), the most wanted first; `best` is its own rule."""
    rest = [name for name in DEFENCES if name not in OURS]
    found: list[Cell] = [("sbfl", "none", 0.0, name) for name in DEFENCES]
    found += [("best", "none", 0.0, name) for name in OURS]
    found += [("sbfl", attack, 0.3, name) for attack, name in product(ATTACKS, OURS)]
    found += [("cnn", attack, 0.3, name) for attack, name in product(CNN, OURS)]
    found += [("sbfl", attack, 0.45, name) for attack, name in product(ATTACKS, OURS)]
    for part in (0.3, 0.45):
        found += [("best", attack, part, name) for attack, name in product(ATTACKS, OURS)]
    for part in (0.3, 0.45):
        found += [("sbfl", attack, part, name) for attack, name in product(ATTACKS, rest)]
    for method, names in (("sbfl", DEFENCES), ("best", OURS)):
        found += [(method, attack, 0.1, name) for attack, name in product(ATTACKS, names)]
    return found


def settings_of(cell: Cell, seed: int) -> list[str]:
    """The `--set` words of a run."""
    method, attack, fraction, defence = cell
    words = [*METHODS[method], *DEFENCES[defence], f"seed={seed}", "threads=1"]
    if attack != "none":
        words += [*ATTACKS[attack], f"attack.fraction={fraction}"]
    assumed = min(fraction or 0.3, 0.4)  # of 20 devices Krum can bear 8
    return [*words, f"defence.assumed={assumed}"]


def accuracy(words: list[str]) -> float:
    """Mean of the last looks at the test set; a guess where the model diverges."""
    experiment = Experiment(load(None, words))
    looks = []
    try:
        while not experiment.done:
            looks.append(experiment.advance()["test_accuracy"])
    except RunFailed:
        return GUESS
    return float(np.mean([look for look in looks if look is not None][-LOOKS:]))


def key(cell: Cell, seed: int) -> str:
    """Name of a run in the file."""
    return json.dumps([*cell, seed])


def play(options: argparse.Namespace) -> dict[str, float]:
    """Play what is missing, and return everything that is there."""
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done: dict[str, float] = dict(json.loads(line) for line in lines)
    if options.show:
        return done
    for seed, cell in product(range(options.seeds), cells()):
        if key(cell, seed) in done or (options.fraction and cell[2] not in (0.0, *options.fraction)):
            continue
        done[key(cell, seed)] = found = accuracy(settings_of(cell, seed))
        with path.open("a") as file:
            file.write(json.dumps([key(cell, seed), found]) + "\n")
        print(f"{found:.3f}  {cell} {seed}", flush=True)
    return done


def shown(cell: Cell, done: dict[str, float], seeds: int) -> str:
    """Mean and smallest accuracy of a cell over the seeds that are there, in percent."""
    there = [100 * done[key(cell, seed)] for seed in range(seeds) if key(cell, seed) in done]
    if not there:
        return ""
    few = "" if len(there) == seeds else f" ({len(there)})"
    return f"{np.mean(there):.1f} [{min(there):.0f}]{few}"


def costs(done: dict[str, float], seeds: int) -> list[tuple[float, Cell]]:
    """By how many points each defended cell is below the undefended one, over common seeds; worst first."""
    found = []
    for cell in cells():
        pairs = [
            (done[key((*cell[:3], "none"), seed)], done[key(cell, seed)])
            for seed in range(seeds)
            if key(cell, seed) in done and key((*cell[:3], "none"), seed) in done
        ]
        if pairs and cell[3] != "none":
            found.append((100 * float(np.mean([plain - defended for plain, defended in pairs])), cell))
    return sorted(found, reverse=True)


def main() -> None:
    """Play and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs/attacks.jsonl")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fraction", type=float, action="append", help="only this part of attackers")
    parser.add_argument("--show", action="store_true", help="play nothing, show what is there")
    options = parser.parse_args()
    done = play(options)
    tables = Tables()
    for method, fraction in [*product(("sbfl", "best"), (0.1, 0.3, 0.45)), ("cnn", 0.3)]:
        names = list(DEFENCES) if method == "sbfl" else list(OURS)
        name = f"{method} {100 * fraction:.0f}"
        tables.head(name, "attack", *names)
        rows = CNN if method == "cnn" else ("none", *ATTACKS)
        for attack in rows:
            part = 0.0 if attack == "none" else fraction
            row = [shown((method, attack, part, defence), done, options.seeds) for defence in names]
            tables.row(name, attack, *row)
    tables.head("costs", "method", "attack", "fraction", "defence", "points lost against no defence")
    for points, (method, attack, part, defence) in costs(done, options.seeds):
        if defence in OURS and points > 0:
            tables.row("costs", method, attack, f"{100 * part:.0f} %", defence, f"{points:.1f}")
    if options.page is not None:
        tables.write(options.page)


if __name__ == "__main__":
    main()
