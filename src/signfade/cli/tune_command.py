"""`signfade tune`: every method at its best, found by one protocol that treats all of them alike."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from signfade.cli.options import (
    ConfigFile,
    Out,
    Overrides,
    print_paths,
    read_settings,
    stdout_console,
)

if TYPE_CHECKING:
    from signfade.experiments.tuning import Protocol, Score, Trial

__all__ = ["tune"]


def tune(
    config: ConfigFile = None,
    methods: Annotated[
        str, Option(metavar="A,B,C", help='What to tune, named as for "signfade compare".')
    ] = "signsgd,sbfl,best,ideal",
    rates: Annotated[
        str, Option(metavar="X,Y,Z", help="Learning rates of the server to try.")
    ] = "1e-3,3e-3,1e-2,3e-2,0.1,0.3,1,3",
    momenta: Annotated[str, Option(metavar="X,Y,Z", help="Momenta of the server to try.")] = "0,0.5,0.9",
    device_rates: Annotated[
        str | None,
        Option(metavar="X,Y,Z", help="Learning rates of the devices to try; by default only the config's."),
    ] = None,
    seeds: Annotated[int, Option(metavar="N", help="Seeds to tune on, from 100 on.")] = 3,
    finalists: Annotated[
        int, Option(metavar="N", help="Points of each method that go on from the first seed to the others.")
    ] = 3,
    target: Annotated[
        float | None,
        Option(metavar="ACCURACY", help="Choose the fewest bits to this test accuracy, such as 0.9."),
    ] = None,
    jobs: Annotated[
        int | None, Option("-j", "--jobs", metavar="J", min=1, help="Runs at a time; all cores by default.")
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
) -> None:
    """Find the learning rate and momentum that suit each method best.

    All methods get the same grid, seeds and score: the accuracy over the last six evaluations, or the bits to
    a target. The runs are kept in OUT/NAME-tune, with tuned.toml for "signfade compare". The same command
    again continues what was stopped.
    """
    settings = read_settings(config, overrides, out)
    from signfade import api
    from signfade.api.progress import print_note

    names = [name.strip() for name in methods.split(",") if name.strip()]
    result = api.tune(
        names,
        settings,
        rates=_numbers("--rates", rates),
        momenta=_numbers("--momenta", momenta),
        device_rates=() if device_rates is None else _numbers("--device-rates", device_rates),
        seeds=seeds,
        finalists=finalists,
        target=target,
        jobs=jobs,
        out=settings.out,
    )
    trials, protocol = result.trials, result.protocol
    stdout_console().print(_table(trials, protocol))
    edge = [name for name, found in trials.items() if protocol.edges(found[0].point)]
    if edge:
        print_note(f"the best point of {', '.join(edge)} lies at the edge of the grid; widen the grid there")
    print_paths(result.files)
    command = [
        "signfade",
        "compare",
        str(result.files[0]),
        "--methods",
        ",".join(trials),
        "--seeds",
        str(seeds),
    ]
    typer.echo(f"compare them on fresh seeds: {shlex.join(command)}")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas, such as 0.1,0.3,1; got {text!r}") from None


def _score(score: Score, target: float | None) -> str:
    if score.kind == "failed":
        return "failed"
    if score.kind == "bits":
        return f"{score.value / 1e3:.4g}"
    if score.kind == "loss":
        return f"{score.value:.3g}"
    return f"{100 * score.value:.1f} %" + ("" if target is None else " at best")


def _mean(trial: Trial, target: float | None) -> str:
    from signfade.experiments.tuning import Score

    counted = trial.counted
    text = _score(Score(counted[0].kind, trial.mean or 0.0), target)
    short = len(counted) < len(trial.scores)
    return f"{text} ({len(counted)} of {len(trial.scores)})" if short else text


def _table(trials: dict[str, list[Trial]], protocol: Protocol) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from signfade.experiments.tuning import WORDS

    best = {name: found[0] for name, found in trials.items()}
    axes = list(next(iter(best.values())).point)
    table = Table("method", box=box.SIMPLE)
    headers = [WORDS[key] for key in axes] + [f"seed {seed}" for seed in protocol.tuning_seeds] + ["mean"]
    for header in headers:
        table.add_column(header, justify="right")
    table.add_column("at the edge")
    for name, trial in best.items():
        cells = [f"{trial.point[key]:g}" for key in axes]
        cells += [_score(score, protocol.target) for score in trial.scores] + [_mean(trial, protocol.target)]
        cells.append(", ".join(WORDS[key] for key in protocol.edges(trial.point)) or "no")
        table.add_row(*map(Text, (name, *cells)))
    kind = next(iter(best.values())).counted[0].kind
    scores = {
        "accuracy": "mean test accuracy over the last six evaluations",
        "loss": "mean excess loss over the last six evaluations",
    }
    reach = f"kbit that the average device sends to reach a test accuracy of {protocol.target}"
    shown = scores[kind] if protocol.target is None else reach
    points = len(protocol.grid)
    table.caption = f"best of {points} point{'s' * (points > 1)}; scores: {shown}"
    table.caption_justify = "left"
    return table
