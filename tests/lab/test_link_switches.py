"""What `signfade link` says about switches of the radio."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from signfade.lab.config import load
from signfade.lab.link import link_text, study_link
from signfade.lab.link_switches import switch_notes
from signfade.theory import block_error_faded, pilot_mse

SNR_DB = np.array([0.0, 20.0])


def notes(*changes: str) -> list[str]:
    return switch_notes(load(None, list(changes)), SNR_DB)


def test_defaults_need_no_word() -> None:
    assert notes() == []
    assert notes("cell.side_info=coded", "method.aggregator=signsgd") == []


@pytest.mark.parametrize("aggregator", ["sbfl", "blmmse"])
def test_the_error_with_pilots_is_that_of_theory(aggregator: str) -> None:
    changes = ("cell.csi=pilot", "cell.pilots=2", "cell.csi_error=naive", f"method.aggregator={aggregator}")
    error = pilot_mse(aggregator, 10.0, 2, use="naive")  # type: ignore[arg-type]
    (note,) = switch_notes(load(None, list(changes)), np.array([10.0]))
    assert note == f"Gains: with 2 pilots (naive) the error of {aggregator} is {error:.3f}."


def test_the_share_of_lost_words_is_that_of_theory() -> None:
    (note,) = switch_notes(load(None, ["cell.side_info=coded", "cell.code_length=200"]), np.array([3.0]))
    lost = block_error_faded(10**0.3, 64 + 24, 200)
    assert note == f"Scalars: {100 * lost:.0f} % of the codewords (200 bits, 32 bits a scalar) are lost."


def test_link_prints_them() -> None:
    study = study_link(load(None, ["cell.access=over_the_air", "cell.side_info=coded"]))
    console = Console(width=100, file=io.StringIO(), record=True)
    for part in link_text(study):
        console.print(part)
    text = console.export_text()
    assert "Scalars:" in text
    assert "Over the air no device is heard alone" in text
