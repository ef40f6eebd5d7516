"""Claims are held when the numbers say so, not held when they do not, and open until there are numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signfade.lab.reproduce.artefact import Study
from signfade.lab.reproduce.artefacts import ARTEFACTS
from signfade.lab.reproduce.claims import findings
from signfade.lab.reproduce.document import Table
from signfade.lab.reproduce.fig_quantisation import PAIR
from signfade.lab.reproduce.fig_regression import STEPS
from signfade.lab.reproduce.grid import COLUMNS
from signfade.lab.reproduce.records import Record, Records
from signfade.lab.reproduce.setups import FULL, PAIRS, regression, training

from .conftest import record

ENDS = {  # accuracy at the end by column; signSGD's are the same runs
    ("signsgd", "Full"): 0.90,
    ("signsgd", "DC"): 0.90,
    ("gaussian", "Full"): 0.95,
    ("gaussian", "DC"): 0.97,
    ("laplacian", "Full"): 0.94,
    ("laplacian", "DC"): 0.96,
}
ROUNDS = {"signsgd": 600, "gaussian": 120, "laplacian": 300}
SPREAD = {"signsgd": 0.02, "gaussian": 0.004, "laplacian": 0.005}


def grid(change: Callable[[Record], Record] | None = None, **rounds: int | None) -> list[Record]:
    """All of the paper's columns: the first pair is best, and has five seeds."""
    found = []
    for column in COLUMNS:
        if column.ours:
            continue
        for pair in PAIRS:
            best = pair == PAIRS[0]
            for seed in range(FULL.best_seeds if best else FULL.seeds):
                end = ENDS[column.head, column.quantity] - (0 if best else 0.05)
                end += SPREAD[column.head] * (-1) ** seed
                at = (ROUNDS | rounds)[column.head] if best else None
                found.append(record(column.run(FULL, pair, seed), end, 50, at))
    return [change(one) for one in found] if change else found


def held(*records: Record, measured: dict[str, dict[str, Any]] | None = None) -> dict[str, bool | None]:
    found = findings(Study(FULL, Records(records), measured or {}))
    return {name: finding.held for name, finding in found.items()}


def test_nothing_is_claimed_without_numbers() -> None:
    assert set(held().values()) == {None}
    (table,) = (b for b in ARTEFACTS["claims"].render(Study(FULL, Records())) if isinstance(b, Table))
    assert {row[-1] for row in table.rows} == {"missing"}


def test_a_grid_like_the_papers_words_holds_all_claims_about_it() -> None:
    found = held(*grid())
    names = ("rounds", "gaussian", "laplacian", "prior", "downlink", "variance")
    assert {name: found[name] for name in names} == dict.fromkeys(names, True)


@pytest.mark.parametrize(
    ("change", "rounds", "broken"),
    [
        ({("gaussian", "Full"): 0.91}, {}, {"gaussian"}),
        ({("laplacian", "Full"): 0.91}, {}, {"laplacian"}),
        ({("laplacian", "DC"): 0.93}, {}, {"downlink"}),
        ({}, {"signsgd": 300}, {"rounds"}),
        ({}, {"gaussian": None}, {"rounds", "prior"}),
        ({}, {"laplacian": 100}, {"prior"}),
    ],
)
def test_each_claim_falls_with_its_own_number(
    monkeypatch: pytest.MonkeyPatch, change: dict[Any, float], rounds: dict[str, int | None], broken: set[str]
) -> None:
    for key, value in change.items():
        monkeypatch.setitem(ENDS, key, value)
    found = held(*grid(**rounds))
    names = {"rounds", "gaussian", "laplacian", "prior", "downlink", "variance"}
    assert {name for name in names if found[name] is False} == broken


def test_signsgd_that_never_arrives_is_slower_than_any_factor() -> None:
    assert held(*grid(signsgd=None))["rounds"] is True


def test_variance_falls_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPREAD, "laplacian", 0.03)
    assert held(*grid())["variance"] is False


def quantised(loss: float) -> list[Record]:
    found = []
    for prior in ("gaussian", "laplacian"):
        for bits in (None, 4):
            more: dict[str, Any] = {}
            if bits is not None:
                more = {"method__side_bits": bits, "method__scale_low": 1e-5, "method__scale_high": 1.0}
            for seed in range(FULL.figure_seeds):
                settings = training(FULL, prior, PAIR, seed=seed, rounds=FULL.figure_rounds, **more)
                found.append(record(settings, 0.9 - (loss if bits else 0.0)))
    return found


def test_four_bits() -> None:
    assert held(*quantised(0.009))["quantisation"] is True
    assert held(*quantised(0.011))["quantisation"] is False


def floors(signsgd: float, sbfl: dict[bool, float]) -> list[Record]:
    found = []
    for kind in (False, True):
        for place, step in enumerate(STEPS["signsum"]):
            end = signsgd * (1 + (place - 2) ** 2)  # the third step is the best
            found.append(record(regression(FULL, "signsum", heterogeneous=kind, step=step), floor=end))
        found.append(record(regression(FULL, "gaussian", heterogeneous=kind), floor=sbfl[kind]))
    return found


def test_regression_is_compared_with_signsgds_best_step() -> None:
    found = held(*floors(1.0, {False: 0.46, True: 0.2}))
    assert (found["homogeneous"], found["heterogeneous"]) == (True, True)
    found = held(*floors(1.0, {False: 0.6, True: 0.7}))
    assert (found["homogeneous"], found["heterogeneous"]) == (False, False)


def looks(first: float, last: float, mean: float = 0.0) -> dict[str, Any]:
    return {
        f"{t},{user}": {"raw": {"mean": mean, "std": std}}
        for t, std in ((1, first), (50, last))
        for user in (0, 7)
    }


def test_trends_of_the_variance_and_the_mean() -> None:
    found = held(measured={"fig-priors": {"regression": looks(2.0, 1.0), "mnist": looks(1.0, 2.0)}})
    assert (found["shrinking"], found["growing"], found["zero_mean"]) == (True, True, True)
    found = held(measured={"fig-priors": {"regression": looks(1.0, 2.0), "mnist": looks(2.0, 1.0, 0.3)}})
    assert (found["shrinking"], found["growing"], found["zero_mean"]) == (False, False, False)
