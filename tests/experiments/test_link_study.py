"""`signfade link`: every number against a closed form, quadrature, brute force or a simulated run."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import integrate, special, stats

from signfade.cli.entry import run as signfade
from signfade.experiments.config import load
from signfade.experiments.link_study import LinkStudy, study_link
from signfade.experiments.link_tables import device_errors
from signfade.keys import generator
from signfade.simulation import Experiment
from signfade.theory import bit_error_faded, block_error, block_error_faded, mse
from signfade.theory.dial import dial_nmse
from signfade.theory.rules import bit_error
from signfade.uplink import cost231_hata
from signfade.uplink.channel import draw_fading
from signfade.uplink.radio import make_cell, power_and_snr

DOCS = Path(__file__).parents[2] / "docs" / "link.md"
CELLS = {
    "uma": [],
    "paper": ["cell.path_loss=cost231"],
    "shadowed": ["cell.path_loss=cost231", "cell.shadowing_db=8", "cell.fading=rayleigh"],
    "controlled": [
        "cell.power_control=fractional",
        "cell.antennas=4",
        "cell.fading=rician",
        "cell.gains_db=3",
    ],
}


def study(*changes: str, **options: Any) -> LinkStudy:
    return study_link(load(None, [*changes]), **options)


def column(of: LinkStudy, table: str, key: str) -> np.ndarray:
    return np.array([row[key] for row in of.tables.tables[table].rows], dtype=float)


# -- bits and words ------------------------------------------------------------------------------------------

DENSITIES = {
    "gaussian": lambda h: 2 * stats.norm.pdf(h),
    "rayleigh": lambda h: 2 * h * np.exp(-(h**2)),
    "rician": lambda h: (
        2 * h * 10 * stats.ncx2.pdf(10 * h**2, 2, 8)
    ),  # line of sight four times the scattered
}


@pytest.mark.parametrize("fading", DENSITIES)
def test_errors_over_fading_are_those_of_quadrature(fading: Any) -> None:
    """Over the density of the gain, `E[h**2] = 1`; bits have closed forms besides."""
    gain = np.geomspace(1e-7, 8, 1501)
    density = gain * DENSITIES[fading](gain)  # of its logarithm

    def mean_of(values: np.ndarray) -> float:
        return float(integrate.trapezoid(density * values, np.log(gain)))

    assert mean_of(gain**2) == pytest.approx(1, rel=1e-6)
    for mean in (0.3, 10.0, 300.0):
        bits, words = bit_error(mean * gain**2), block_error(mean * gain**2, 32, 128)
        assert bit_error_faded(mean, fading) == pytest.approx(mean_of(bits), rel=1e-5)
        assert block_error_faded(mean, 32, 128, fading) == pytest.approx(mean_of(words), rel=1e-3)
    snr = np.array([0.3, 10.0, 300.0])
    closed = {"gaussian": np.arctan(1 / np.sqrt(snr)) / np.pi, "rayleigh": (1 - np.sqrt(snr / (2 + snr))) / 2}
    if fading in closed:
        assert bit_error_faded(snr, fading) == pytest.approx(closed[fading], rel=1e-9)


def test_what_is_needed_has_the_error_it_is_needed_for() -> None:
    found = study("method.side_bits=4", target_error=0.02).needs
    assert bit_error(found.bit_snr) == pytest.approx(0.02, rel=1e-9)
    assert (found.word_bits, found.word_length) == (32, 128)  # two scalars of 4 bits, a check of 24
    assert block_error(found.word_snr, 32, 128) == pytest.approx(0.02, rel=1e-6)
    assert study("method.aggregator=signsgd").needs.word_snr is None
    with pytest.raises(ValueError, match=r"must be above 0 and below 0\.5; got 0\.5"):
        study(target_error=0.5)


# -- the cell ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", CELLS.values(), ids=CELLS)
def test_the_budget_adds_up_and_its_users_are_at_their_quantiles(changes: list[str]) -> None:
    found = study(*changes)
    cell = found.settings.cell
    for row in found.tables.tables["budget"].rows:
        received = row["power_dbm"] + row["gains_db"] - row["path_loss_db"] - row["shadowing_db"]
        assert row["received_dbm"] == pytest.approx(received, abs=1e-9)
        snr_db = received - row["noise_dbm"] + 10 * math.log10(cell.antennas)
        assert row["mean_snr_db"] == pytest.approx(snr_db, abs=1e-9)
        assert row["margin_db"] == pytest.approx(snr_db - found.needs.bit_db, abs=1e-9)
        assert row["power_dbm"] <= 23
        if cell.power_control == "full":
            level = row["level"]
            deviation = math.sqrt(level * (1 - level) / 20_000)
            # users within half a percent of the level stand for it
            assert make_cell(cell).snr_cdf(snr_db) == pytest.approx(level, abs=4 * deviation + 0.002)
    shared = study(*changes, "cell.modulation=qpsk")
    less = column(found, "budget", "mean_snr_db") - column(shared, "budget", "mean_snr_db")
    assert less == pytest.approx(10 * math.log10(2), abs=1e-9)


@pytest.mark.parametrize("changes", CELLS.values(), ids=CELLS)
def test_the_distribution_of_snrs(changes: list[str]) -> None:
    """Mean SNRs against the cell's own law, by Kolmogorov's bound; with fading against drawn rounds."""
    found = study(*changes)
    cell, crowd = found.settings.cell, found.crowd
    snr_db, users = column(found, "cdf", "snr_db"), column(found, "cdf", "users_below")
    if cell.power_control == "full":
        bound = 1.95 / math.sqrt(20_000)
        assert users == pytest.approx(make_cell(cell).snr_cdf(snr_db), abs=bound)
        median = make_cell(cell).snr_quantile_db(0.5)
        assert np.interp(median, snr_db, users) == pytest.approx(0.5, abs=bound + 0.01)  # steps of 1 dB
    assert crowd is not None
    everyone = np.arange(crowd.devices)
    drawn = np.concatenate([crowd.link(everyone, t).snr.numpy() for t in range(5)])
    share = [(10 * np.log10(drawn) <= x).mean() for x in snr_db]
    bound = 4 * math.sqrt(0.25 / len(drawn)) + 0.002
    assert column(found, "cdf", "below") == pytest.approx(share, abs=bound)


def test_coverage_is_that_of_the_path_loss() -> None:
    found = study("cell.path_loss=cost231")
    distance = column(found, "coverage", "distance_m")
    snr = 23 - cost231_hata(distance / 1e3, warn=False) - make_cell(found.settings.cell).budget.noise_dbm
    assert column(found, "coverage", "snr_db") == pytest.approx(snr, abs=1e-9)
    need = 10 ** (found.needs.bit_db / 10)
    covered = 1 - special.erf(np.sqrt(need / 10 ** (snr / 10) / 2))
    assert column(found, "coverage", "covered") == pytest.approx(covered, abs=1e-9)
    assert distance[-1] == 1000


@pytest.mark.parametrize("changes", [["cell.fading=rician"], CELLS["controlled"]])
def test_coverage_with_line_of_sight_and_shadowing_is_that_of_drawn_users(changes: list[str]) -> None:
    found, place, draws = study(*changes), 20, 40_000
    cell, row = found.settings.cell, found.tables.tables["coverage"].rows[place]
    draw = generator(1, "test")
    path = make_cell(cell).budget.propagate(np.full(draws, row["distance_m"] / 1e3), draw)
    _, snr_db = power_and_snr(cell, path.loss_db)
    assert row["line_of_sight"] == pytest.approx(path.line_of_sight.mean(), abs=4 * 0.5 / math.sqrt(draws))
    combined_db = snr_db + 10 * math.log10(cell.antennas)
    assert row["snr_db"] == pytest.approx(combined_db.mean(), abs=4 * snr_db.std() / math.sqrt(draws))
    gain = draw_fading("rician", draws, draw, antennas=cell.antennas).numpy()
    above = (10 ** (snr_db / 10) * gain**2 >= found.needs.bit_snr).mean()
    assert row["covered"] == pytest.approx(above, abs=4 * 0.5 / math.sqrt(draws) + 0.002)


def test_devices_are_those_of_the_run() -> None:
    found = study("data.devices=7", "seed=3")
    path, places = found.radio.propagation, found.radio.positions_km
    assert path is not None
    assert places is not None
    assert column(found, "devices", "path_loss_db") == pytest.approx(path.path_loss_db)
    assert column(found, "devices", "distance_m") == pytest.approx(1e3 * np.hypot(*places.T))
    assert [
        row["line_of_sight"] for row in found.tables.tables["devices"].rows
    ] == path.line_of_sight.tolist()
    snr = 10 ** (column(found, "devices", "mean_snr_db") / 10)
    assert column(found, "devices", "ber") == pytest.approx(np.arctan(1 / np.sqrt(snr)) / np.pi, rel=1e-9)
    assert [row["power_dbm"] for row in found.tables.tables["devices"].rows] == [23.0] * 7
    missed = special.erf(np.sqrt(special.ndtri(0.1) ** 2 / snr / 2))
    assert column(found, "devices", "outage") == pytest.approx(missed, rel=1e-9)


# -- errors --------------------------------------------------------------------------------------------------


def test_shares_of_the_error() -> None:
    """They add up to one, in the ratio of the devices' own errors, which bits per weight scale as they do."""
    given = ["cell.snr_db=[0, 10, 20]", "data.devices=3", "cell.fading=none"]
    found = study(*given, "method.aggregator=sbfl")
    error = np.asarray(mse("sbfl", [1.0, 10.0, 100.0]))
    assert column(found, "devices", "error_share") == pytest.approx(error / error.sum(), rel=1e-12)
    assert study(*given).radio.propagation is None
    snr = np.array([1.0, 10.0])
    for rate, rotation in ((0.1, "shared"), (0.1, "private"), (2, "private"), ("analog", "shared")):
        changes = [*given, f"method.bits_per_weight={rate}", f"method.rotation={rotation}"]
        alone = [float(dial_nmse([one], rate, papr_db=8.0)) for one in snr]
        assert device_errors(load(None, changes), snr) == pytest.approx(alone, rel=1e-6)


# -- time and energy -----------------------------------------------------------------------------------------


def test_time_and_energy_by_hand() -> None:
    """300 signs, two scalars of 32 bits and 84 bits of header: 448 symbols at 1000 a second and 0.1 W."""
    radio = ["cell.bandwidth_hz=1e3", "cell.power_dbm=20", "data.participation=0.25", "rounds=10"]
    cost = study("data.name=gaussian", "method.aggregator=sbfl", *radio).tables.tables["cost"].rows
    assert cost[0] == pytest.approx(
        {"span": "one device, one round", "bits": 448, "symbols": 448, "airtime_s": 0.448, "energy_j": 0.0448}
    )
    assert cost[1] == pytest.approx(
        {"span": "5 devices, one round", "bits": 2240, "symbols": 2240, "airtime_s": 0.448, "energy_j": 0.224}
    )
    assert (cost[3]["airtime_s"], cost[3]["energy_j"]) == pytest.approx((4.48, 2.24))
    whole = study("data.name=gaussian", "method.aggregator=ideal", *radio).tables.tables["cost"].rows
    assert whole[0]["airtime_s"] == pytest.approx(9.6)  # 300 numbers of 32 bits


def test_energy_is_that_of_each_devices_power() -> None:
    """Fractional power control: the devices' powers in watts, on average, times the time they send."""
    found = study("data.name=gaussian", "data.devices=5", *CELLS["controlled"])
    one, all_of_them, *_ = found.tables.tables["cost"].rows
    watt = 10 ** (column(found, "devices", "power_dbm") / 10) / 1e3
    assert all_of_them["energy_j"] == pytest.approx(watt.sum() * one["airtime_s"], rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        ["method.aggregator=sbfl", "cell.modulation=qpsk", "cell.csi=pilot"],
        ["method.aggregator=sbfl", "cell.side_info=coded", "method.side_bits=4"],
        ["method.aggregator=sbfl", "cell.access=over_the_air", "cell.repeats=3"],
        ["method.preset=low-rate", "device.local_steps=1"],
        ["method.aggregator=signsgd", "data.participation=0.5"],
    ],
)
def test_a_run_sends_what_was_announced(changes: list[str]) -> None:
    settings = load(None, ["data.name=gaussian", "data.size=500", "data.devices=4", "rounds=3", *changes])
    experiment = Experiment(settings)
    while not experiment.done:
        record = experiment.advance()
    whole = study_link(settings).tables.tables["cost"].rows[-1]
    assert (whole["bits"], whole["symbols"]) == (record["uplink_bits"], record["channel_uses"])
    if settings.cell.access == "over_the_air":  # one subchannel for all
        assert whole["airtime_s"] == pytest.approx(record["channel_uses"] / settings.cell.bandwidth_hz)


def test_no_data_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGNFADE_CACHE", str(tmp_path / "empty"))
    assert study("data.name=mnist").tables.facts["weights"] == 62346
    command = ["link", "--out", str(tmp_path), "--set", "data.name=idx", "--set", f"data.folder={tmp_path}"]
    assert signfade(command) == 0
    assert "give it as --weights" in capsys.readouterr().out
    assert signfade([*command, "--weights", "1000"]) == 0
    assert "Model: 1,000 weights" in capsys.readouterr().out


# -- output --------------------------------------------------------------------------------------------------

KINDS = {
    "default": [],
    "coded": ["cell.side_info=coded", "method.side_bits=4", "cell.modulation=qpsk", *CELLS["controlled"]],
    "given": ["cell.snr_db=3", "cell.fading=none"],
    "crowded": ["data.devices=60"],
    "perfect": ["cell=none"],
    "indoors": ["cell.path_loss=inh", "cell.radius_km=0.1", "method.aggregator=zero_forcing"],
    "air": ["cell.access=over_the_air", "method.aggregator=signsgd", "data.devices=1"],
    "ideal": ["method.aggregator=ideal", "method.compressor=qsgd"],
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_text_fits_100_columns_and_everything_is_drawn(changes: list[str]) -> None:
    found = study(*changes)
    console = Console(width=100, record=True, file=io.StringIO())
    for part in found.text():
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    assert (
        len(re.findall(r"^\S.*%\)|^\s+\(", text, flags=re.M)) < 30
    )  # no column was folded into a heap of lines
    figure, names = found.plot(), found.tables.tables
    if found.radio.mean_snr_db is None:
        assert figure is None
        return
    assert figure is not None
    drawn = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert len(drawn) == 3 + 2 * ("coverage" in names) + (found.needs.word_snr is not None)
    figure.draw_without_rendering()


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_rows_hold_numbers_of_python(changes: list[str]) -> None:
    kinds = {
        type(one)
        for table in study(*changes).tables.tables.values()
        for row in table.rows
        for one in row.values()
    }
    assert kinds <= {float, int, bool, str, type(None)}


def test_a_study_shows_itself_in_two_lines() -> None:
    first, second = repr(study("cell.snr_db=3", "cell.antennas=10", "name=mine")).splitlines()
    assert first == "<signfade link mine, 20 devices: mean SNR 13.0, 13.0 and 13.0 dB at 5, 50 and 95 %;"
    assert second.endswith(".tables.tables: devices, cdf, curves, cost, errors>")
    assert "1 device: perfect links;" in repr(study("cell=none", "data.devices=1"))


def test_json_and_csv_hold_everything_that_the_docs_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["link", "--out", str(tmp_path), "--json", "--csv", str(tmp_path / "csv")]
    assert signfade(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "signfade.link/1"
    tables = {name: rows for name, rows in document.items() if isinstance(rows, list) and name != "notes"}
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == set(tables)
    keys = set(document) | {key for rows in tables.values() for row in rows for key in row}
    explained = set(re.findall(r"`(\w+)`", DOCS.read_text()))
    assert keys - explained == set()
