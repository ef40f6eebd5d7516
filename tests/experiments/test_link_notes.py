"""What `signfade link` says about switches of the radio."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from signfade.experiments.config import ConfigError, load
from signfade.experiments.link_notes import air_error, bit_errors, downlink_note, path_loss_note, switch_notes
from signfade.experiments.link_study import study_link
from signfade.settings import CellSettings
from signfade.theory import block_error_faded, mse, mse_faded, pilot_mse
from signfade.uplink import make_radio

SNR_DB = np.array([0.0, 20.0])


def notes(*changes: str) -> list[str]:
    return switch_notes(load(None, list(changes)), SNR_DB)


def test_defaults_need_no_word() -> None:
    assert notes() == []
    assert notes("cell.side_info=coded", "method.aggregator=signsgd") == []


@pytest.mark.parametrize("aggregator", ["sbfl", "blmmse"])
@pytest.mark.parametrize(("modulation", "heard"), [("bpsk", 2), ("qpsk", 4)])
def test_the_error_with_pilots_is_that_of_theory(aggregator: str, modulation: str, heard: int) -> None:
    """A pilot has the power of a symbol: beside bits that share theirs it is worth two."""
    changes = ("cell.csi=pilot", "cell.pilots=2", "cell.csi_error=naive", f"method.aggregator={aggregator}")
    error = pilot_mse(aggregator, 10.0, heard, use="naive")  # type: ignore[arg-type]
    known = mse_faded(aggregator, 10.0)  # type: ignore[arg-type]
    settings = load(None, [*changes, f"cell.modulation={modulation}"])
    note = switch_notes(settings, np.array([10.0]))[-1]
    told = f"the error of {aggregator} is {error:.3f}, if known {known:.3f}."
    assert note == f"Gains: with 2 pilots (naive) {told}"


def test_the_share_of_lost_words_is_that_of_theory() -> None:
    (note,) = switch_notes(load(None, ["cell.side_info=coded", "cell.code_length=200"]), np.array([3.0]))
    lost = block_error_faded(10**0.3, 64 + 24, 200)
    assert note == f"Scalars: {100 * lost:.1f} % of the codewords (200 bits, 32 bits per scalar) are lost."
    (note,) = notes("cell.side_info=coded", "method.scales=layer", "method.aggregator=sbfl")
    assert "depends on the model" in note


def test_a_word_too_short_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cell.code_length does not fit the scalars: .* got 50$"):
        notes("cell.side_info=coded", "cell.code_length=50")


def test_wrong_bits_are_those_of_the_fading() -> None:
    """Rayleigh has a closed form: `(1 - sqrt(g/(2 + g)))/2` for the real SNR g."""
    snr = np.array([0.5, 8.0])
    expected = np.mean((1 - np.sqrt(snr / (2 + snr))) / 2)
    assert bit_errors(snr, CellSettings(fading="rayleigh")) == pytest.approx(expected, rel=1e-6)


def test_rare_errors_are_not_called_none() -> None:
    """A good link, whose tenths of a percent are all zero."""
    settings = load(None, ["cell.snr_db=11", "cell.fading=none", "cell.side_info=coded"])
    found = study_link(settings)
    assert found.notes[0] == "Bits: 0.019 % arrive with the wrong sign."  # Q(sqrt(10**1.1)) = 1.94e-4
    (row, *_), shown = found.tables.tables["devices"].rows, found.tables.tables["devices"].columns
    assert shown["ber"].write(row["ber"]) == "0.019"
    assert shown["bler"].write(row["bler"]) == "<1e−9"
    assert shown["outage"].write(row["outage"]) == "0"


def test_one_device_over_the_air_is_one_device() -> None:
    """Alone and without fading it is heard as on a subchannel of its own; repeats add their energies."""
    for aggregator, rule in (("sbfl", "sbfl"), ("blmmse", "blmmse"), ("signsgd", "hard")):
        settings = load(
            None, ["cell.access=over_the_air", "cell.repeats=3", f"method.aggregator={aggregator}"]
        )
        expected = mse(rule, 3 * 0.7)  # type: ignore[arg-type]
        # 10^5 signs; a soft bit varies by less than one.
        assert air_error(settings, np.full((50, 1), 0.7)) == pytest.approx(expected, abs=0.01)


def test_two_devices_over_the_air_are_read_better_by_the_posterior_mean() -> None:
    snr = np.full((20, 5), 100.0)
    found = [
        air_error(load(None, ["cell.access=over_the_air", f"method.aggregator={name}"]), snr)
        for name in ("sbfl", "blmmse", "signsgd")
    ]
    assert found == sorted(found)
    assert found[0] == pytest.approx(
        1 - 2 / np.pi, abs=0.01
    )  # all but noiseless: only what a sign leaves open


def test_path_loss_outside_its_measurements_is_told() -> None:
    far = np.array([[1.5, 0.0], [0.0, 19.0]])
    assert path_loss_note(CellSettings(path_loss="cost231"), far) == []
    (note,) = path_loss_note(CellSettings(path_loss="cost231"), far / 10)
    assert "1 of 2 devices stands elsewhere" in note
    (note,) = path_loss_note(CellSettings(path_loss="cost231", carrier_mhz=3500, base_m=20), far)
    assert "cell.carrier_mhz = 3500 (1500 to 2000), cell.base_m = 20 (30 to 200)" in note


def test_missed_broadcasts_are_those_of_the_rounds() -> None:
    cell = CellSettings(downlink="coded", downlink_rate=6.0, antennas=2)
    radio = make_radio(cell, 4000, seed=1)
    (note,) = downlink_note(radio)
    missed = 1 - np.mean([radio.hears(t) for t in range(5)])
    told = float(note.split()[1]) / 100
    assert told == pytest.approx(missed, abs=4 * np.sqrt(missed * (1 - missed) / 20_000) + 5e-4)
    assert note.endswith("% of the broadcasts at 6 bit/s/Hz are missed.")
    assert downlink_note(make_radio(CellSettings(), 3, seed=1)) == []


def test_link_prints_them() -> None:
    study = study_link(
        load(
            None,
            [
                "method.aggregator=sbfl",
                "cell.path_loss=cost231",
                "cell.access=over_the_air",
                "cell.side_info=coded",
                "cell.modulation=qpsk",
            ],
        )
    )
    console = Console(width=120, file=io.StringIO(), record=True)
    for part in study.text():
        console.print(part)
    text = console.export_text()
    assert "Bits: " in text
    assert "Scalars:" in text
    assert "SNRs are those of a bit" in text
    assert "Over the air (inversion, once) the error of sbfl is 0." in text
    assert "20 of 20 devices stand elsewhere" in text
