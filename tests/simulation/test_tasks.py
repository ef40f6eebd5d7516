"""Data sets and attacks of a user's own, named by their file; mistakes in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signfade.data import DATASETS
from signfade.simulation import Experiment

from ..runs import finish, settings

OWN = """
import torch
from signfade.data import Dataset

def clouds():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(500) % 2
    samples = torch.randn(500, 16, generator=rng) + labels[:, None]
    return Dataset(samples[:400], labels[:400], samples[400:], labels[400:], classes=2, name="clouds")

def nothing():
    return None

def broken():
    raise KeyError("no such file")

def quiet(signs, mean, scale, draw):
    return signs, mean, 0 * scale
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return str(file)


def test_a_users_data_set_is_learned(own: str) -> None:
    """Better than chance, 0.5, by four standard errors of 100 test samples."""
    run = Experiment(
        settings(
            rounds=30,
            data__name=f"{own}:clouds",
            data__split="iid",
            cell__snr_db=10.0,
            server__learning_rate=0.1,
        )
    )
    assert finish(run)[-1]["test_accuracy"] > 0.7


def test_a_users_attack_changes_what_is_sent(own: str) -> None:
    attack = {"attack__kind": f"{own}:quiet", "attack__fraction": 1.0}
    record = Experiment(settings(**attack, method__rotation="shared")).advance()
    assert record["nmse"] == pytest.approx(1, abs=0.05)  # only the means arrive


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"data__name": "cifar"},
            "one of digits, idx, mnist, .*, package.* got 'cifar'",
        ),
        ({"data__name": "own"}, "which only that app can load"),
        ({"data__name": "{own}:nothing"}, ":nothing must be a signfade.data.Dataset, .* got NoneType"),
        ({"data__name": "{own}:broken"}, "broken failed with KeyError"),
        ({"data__name": "{own}:missing"}, "has no function 'missing'"),
        ({"attack__kind": "bribe"}, "attack.kind must be one of none, sign-flip, .* got 'bribe'"),
        ({"attack__kind": "{own}:missing"}, "has no function 'missing'"),
    ],
)
def test_mistakes_are_named_in_one_sentence(changes: dict[str, Any], sentence: str, own: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Experiment(settings(**{key: value.format(own=own) for key, value in changes.items()}))


def test_every_data_set_has_a_line_of_help() -> None:
    assert all(entry.help and "\n" not in entry.help for _, entry in DATASETS.items())
