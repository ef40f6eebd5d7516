"""What theory expects of a round with more devices than pairs are counted for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from signfade.simulation import Experiment
from signfade.simulation import metrics as metrics_module

from ..runs import settings


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method__debias": True},
        {"method__aggregator": "blmmse", "method__form": "published", "method__side_bits": 4},
        {"cell__csi": "pilot", "cell__csi_error": "aware", "cell__noise": "known"},
    ],
)
def test_too_many_devices_for_pairs(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices have much in common; both predictions know it and are right within four standard errors."""
    chosen = settings(
        rounds=40,
        data__name="regression",
        data__devices=60,
        data__batch="none",
        server__learning_rate=0.05,
        method__rotation="shared",
        **changes,
    )
    found = {}
    for limit in (60, 59):
        monkeypatch.setattr(metrics_module, "PAIRED_DEVICES", limit)
        run = Experiment(chosen)
        records = [run.advance() for _ in range(40)]
        measured = np.array([record["nmse"] for record in records])
        expected = np.array([record["nmse_theory"] for record in records])
        ratio = measured / expected
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(40)
        found[limit] = measured, expected
    np.testing.assert_array_equal(found[60][0], found[59][0])  # a prediction changes nothing
    assert not (found[60][1] == found[59][1]).any()
    # Given the bits there is less left to chance than given the correlation alone.
    assert np.std(found[59][0] / found[59][1]) < np.std(found[60][0] / found[60][1])
