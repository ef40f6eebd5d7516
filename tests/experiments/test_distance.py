"""How far methods are above the limit: in runs, in `signfade theory` and `signfade link`, in reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.config import load
from signfade.experiments.distance import limit_lines, limit_notes, limit_numbers, predicted_errors
from signfade.experiments.group import Group, Run
from signfade.experiments.html_report import render_report
from signfade.experiments.metrics import summarise
from signfade.experiments.table import comparison
from signfade.theory import limit, vote_nmse

from ..runs import finish, gaussian

Text = pytest.CaptureFixture[str]


def printed(capsys: Text, *words: str) -> dict[str, list[list[str]]]:
    """The rows of the tables that `signfade theory` prints, by label."""
    assert signfade(["theory", *words]) == 0
    rows: dict[str, list[list[str]]] = {}
    for line in capsys.readouterr().out.splitlines():
        label, *cells = [part for part in line.strip().split("  ") if part.strip()] or [""]
        rows.setdefault(label.strip(), []).append([cell.strip() for cell in cells])
    return rows


# -- runs --------------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "sbfl": {"method__rotation": "shared"},
    "vote": {"method__rotation": "shared", "method__aggregator": "signsgd"},
    "debiased": {"method__preset": "best"},
    "joint": {"method__preset": "best", "method__debias": False},
    "subset": {"method__rotation": "private", "method__bits_per_weight": 0.1},
    "levels": {"method__rotation": "private", "method__bits_per_weight": 3},
    "amplitudes": {"method__rotation": "shared", "method__bits_per_weight": "analog"},
    "no peak": {"method__rotation": "shared", "method__bits_per_weight": "analog", "cell__papr_db": None},
}


@pytest.mark.parametrize("method", METHODS)
def test_no_rule_is_below_the_limit(method: str) -> None:
    """Fading links of unequal strength and devices of unequal size; amplitudes are at the limit."""
    changes = {"eval__every": 1, "cell__snr_db": [-5.0, 0.0, 3.0, 5.0, 8.0, 12.0], **METHODS[method]}
    records = finish(gaussian(rounds=30, data__size=4096, **changes))
    gap = np.array([record["nmse"] - record["nmse_limit"] for record in records])
    error = gap.std(ddof=1) / math.sqrt(len(gap))
    assert gap.mean() > -error
    if method == "no peak":
        assert gap.mean() == pytest.approx(0, abs=0.01)
    assert max(abs(record["correlation_mean"]) for record in records) < 0.02


def test_the_limit_is_that_of_the_rounds_links() -> None:
    record = finish(gaussian(rounds=1, method__rotation="shared", cell__fading="none", data__size=4096))[-1]
    assert record["nmse_limit"] == pytest.approx(1 / (1 + 10**0.5), rel=1e-6)
    half = {"method__rotation": "shared", "method__bits_per_weight": 0.5}
    record = finish(gaussian(rounds=1, cell__fading="none", data__size=4096, **half))[-1]
    assert record["nmse_limit"] == pytest.approx((1 + 10**0.5) ** -0.5, rel=1e-6)


def test_only_rotated_rounds_that_are_evaluated_have_a_limit() -> None:
    records = finish(gaussian(rounds=5, eval__every=2, method__rotation="shared"))
    assert ["nmse_limit" in record for record in records] == [False, True, False, True, True]
    for changes in (
        {"method__rotation": "none"},
        {"method__aggregator": "ideal"},
        {"method__rotation": "shared", "cell__perfect": True, "cell__snr_db": None},
        {"method__rotation": "shared", "cell__access": "over_the_air"},
    ):
        assert "nmse_limit" not in finish(gaussian(rounds=1, **changes))[0]


def test_the_summary_compares_means_over_rounds_that_have_both() -> None:
    records = [
        {"round": 1, "nmse": 9.0},
        {"round": 2, "nmse": 0.3, "nmse_limit": 0.1},
        {"round": 3, "nmse": 0.5, "nmse_limit": 0.3},
        {"round": 4, "nmse": None, "nmse_limit": 0.1},
    ]
    about = {"name": "", "seed": 0, "method": "", "parameters": 1, "devices": 1}
    assert summarise(records, **about)["db_above_limit"] == pytest.approx(10 * math.log10(0.4 / 0.2))
    assert summarise(records[:1], **about)["db_above_limit"] is None


# -- signfade theory ---------------------------------------------------------------------------------------


def test_theory_has_the_limit_and_the_distance_of_one_device(capsys: Text) -> None:
    rows = printed(capsys, "--snr-db", "0,10")
    assert rows["limit"] == [["0.5000", "0.0909"]]
    assert rows["sbfl"] == [["0.6496", "0.3649"], ["1.1", "6.0"]]  # 10*log10(0.6496/0.5), (0.3649/0.0909)
    assert rows["ideal"] == [["0.0000", "0.0000"]]
    rayleigh = printed(capsys, "--snr-db", "0", "--fading", "rayleigh")["limit"]
    assert rayleigh == [["0.5963"]]  # e*E1(1)
    assert "limit" not in printed(capsys, "--snr-db", "0", "--family", "laplacian")


def test_theory_turns_the_dial(capsys: Text) -> None:
    rows = printed(capsys, "--snr-db", "0,10", "--correlation", "0.3", "--bits-per-weight", "0.1,1,2,analog")
    for label, uses in (("limit, 0.1 use", 0.1), ("limit, 1 use", 1), ("limit, 2 uses", 2)):
        expected = [limit([gamma] * 20, 0.3, uses) for gamma in (1.0, 10.0)]
        assert [float(cell) for cell in rows[label][0]] == pytest.approx(expected, abs=5.1e-5)
    (error, _), (above, _) = rows["analog, 8 dB, private"]
    assert float(above) == pytest.approx(10 * math.log10(float(error) / 0.1098), abs=0.06)
    assert {label.rpartition(", ")[2] for label in rows if "bit" in label} == {"shared", "private"}
    own = printed(capsys, "--private", "--devices", "1", "--snr-db", "0", "--papr-db", "none")
    assert own["analog, no peak, private"] == [["0.5000"], ["0.0"]]
    assert "1 bit, shared" not in own
    apart = printed(capsys, "--correlation", "-0.05", "--snr-db", "0")
    assert apart["limit, 1 use, bound for independent devices"] == [["0.5000"]]


def test_theory_draws_the_dial(tmp_path: Path, capsys: Text) -> None:
    plot = tmp_path / "dial.svg"
    assert signfade(["theory", "--snr-db", "0,10", "--devices", "2", "--plot", str(plot)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(plot)
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bits-per-weight", "two"], "--bits-per-weight must be such as 0.1,1,2,analog; got 'two'"),
        (["--bits-per-weight", "7"], "bits_per_weight must be from 0.001 to 1, or 2, 3, 4 or analog; got 7"),
        (["--papr-db", "loud"], "--papr-db must be a number of dB or none; got 'loud'"),
        (["--papr-db", "-3"], "papr_db must be"),
        (["--private", "--fading", "rayleigh"], "--fading must be none with the rate dial"),
        (["--private", "--family", "laplacian"], "--family must be gaussian with the rate dial"),
        (["--correlation", "1.5"], "correlation must be from"),
    ],
)
def test_theory_refuses_in_one_sentence(words: list[str], says: str, capsys: Text) -> None:
    assert signfade(["theory", *words]) != 0
    told = capsys.readouterr().err
    assert says in told
    assert len(told.strip().splitlines()) == 1


# -- signfade link -----------------------------------------------------------------------------------------


def lines(correlation: float, *changes: str) -> list[str]:
    settings = load(None, [*changes])
    return limit_lines(
        settings, limit_numbers(settings, np.zeros((1, settings.data.devices)), correlation), correlation
    )


def test_link_says_error_limit_and_distance() -> None:
    sbfl, bound = lines(0.0, "method.preset=rotated-sbfl")
    told = "predicted error of the sum 0.65, 1.1 dB above the limit."
    assert sbfl == f"rotated-sbfl, 1 bit per weight, rotation shared: {told}"
    assert bound == "Limit: 0.5, bound for independent devices, 1 channel use per weight."
    _, debiased, bound = lines(0.3, "method.rotation=private", "method.bits_per_weight=2")
    assert debiased.startswith("Debiased: predicted error ")
    least = float(limit([1.0] * 20, 0.3, 2))
    assert bound == f"Limit: {least:.3g}, bound for devices correlated by 0.3, 2 channel uses per weight."
    assert lines(-0.02)[-1].endswith("; none is known for devices that disagree.")
    assert lines(0.0, "method.aggregator=ideal") == []
    assert "received one by one" in lines(0.0, "method.aggregator=sbfl", "cell.access=over_the_air")[0]
    assert "Gaussian coordinates" in lines(0.0, "method.aggregator=sbfl", "method.prior=laplacian")[0]
    many = lines(0.0, "data.devices=501")
    assert many[-1].endswith("per weight; of the first 500 devices.")
    with pytest.raises(ValueError, match=r"correlation must be from -0.0526 to 1 for 20 devices; got 2"):
        lines(2.0)


def test_link_predicts_the_vote() -> None:
    errors = predicted_errors(load(None, ["method.aggregator=signsgd"]), np.full((1, 20), 2.0), 0.0)
    assert errors == pytest.approx([vote_nmse([2.0] * 20)] * 2, rel=0.02)


# In the run devices differ in size, which a vote does not hear.
@pytest.mark.parametrize("method", [name for name in METHODS if name != "vote"])
def test_link_predicts_what_a_run_measures(method: str) -> None:
    """At one SNR, where devices of unequal size have one error."""
    changes = {"cell__fading": "none", "eval__every": 1, **METHODS[method]}
    experiment = gaussian(rounds=15, data__size=4096, **changes)
    measured = np.mean([record["nmse"] for record in finish(experiment)])
    settings = experiment.settings
    errors = predicted_errors(settings, np.full((1, 6), 10**0.5), 0.0)
    assert errors is not None
    assert errors[settings.method.debias] == pytest.approx(measured, rel=0.03)


def test_link_prints_it(tmp_path: Path, capsys: Text) -> None:
    assert signfade(["link", "--correlation", "0.3", "--out", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "dB above the limit. Debiased: predicted error" in out
    assert "bound for devices correlated by 0.3, 1 channel use per weight." in out


# -- reports -----------------------------------------------------------------------------------------------


def group(label: str, r: float, *ratios: float) -> Group:
    config = {"name": "a", "label": label, "method": {"aggregator": "bfl"}, "rounds": 1}
    record = {"round": 1, "nmse_limit": 0.1, "correlation_mean": r, "nmse_theory": 0.2}
    runs = [
        Run(Path(), "", {**config, "seed": s}, [{**record, "nmse": 0.1 * x}], None)
        for s, x in enumerate(ratios)
    ]
    return Group(label, tuple(runs))


def test_reports_and_tables_say_it() -> None:
    near, far = group("near", 0.2, 2.0, 2.0), group("far", -0.1, 10.0)
    words = comparison([near, far])
    assert words.notes == (
        "far: devices disagree on average; the limit is the bound for independent devices.",
    )
    assert limit_notes([near]) == []
    column = words.headers.index("dB above the limit")
    assert [row[column] for row in words.rows] == ["3.0", "10.0"]
    without = Group("old", (Run(Path(), "", {"name": "a"}, [{"round": 1, "nmse": 0.5}], None),))
    assert limit_notes([without]) == []
    page = render_report([near, far])
    assert "<th scope=col>above the limit</th>" in page
    assert "<td>3.0 dB</td></tr>" in page
    assert "above the limit" not in render_report([without])
    assert "dB above the limit" not in comparison([without]).headers
