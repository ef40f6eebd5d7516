"""Error feedback in a run: nothing is lost, and on the paper's regression a small step ends far lower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import spread, unpack_signs, unrotate
from signfade.keys import stream_key
from signfade.simulation import Experiment
from signfade.simulation.conduct import make_conduct
from signfade.device.encoder import Encoder
from signfade.simulation.feedback import Feedback
from signfade.simulation.synthetic import GaussianTask

from .conftest import settings


@pytest.mark.parametrize("rotation", ["none", "hadamard"])
@pytest.mark.parametrize("flip", [0.0, 0.2])
def test_what_devices_sent_and_still_owe_is_what_they_had(rotation: str, flip: float) -> None:
    """Also over flipped bits: a device knows what it sent."""
    options = settings(
        method__error_feedback=1.0, method__rotation=rotation, method__flip=flip, data__devices=3
    )
    task = GaussianTask(3, 48, seed=0)  # 48 is a size of the rotation: no padding is cut off
    encoder = Encoder(options.method, (48,))
    conduct = make_conduct(options, task, encoder)
    assert conduct is not None
    assert conduct.feedback is not None
    had, told = torch.zeros(3, 48), torch.zeros(3, 48)
    for t in range(7):
        devices = np.array([0, 2]) if t % 2 else np.arange(3)
        g = task.local_gradients(torch.zeros(48), devices, t).gradients
        key = stream_key(0, "rotation", t)
        sent = conduct.send(g, devices, t, key)
        said = spread(sent.mean, [48]) + spread(sent.scale, [48]) * unpack_signs(sent.packed, 48)
        if rotation == "hadamard":
            said = unrotate(said, key, 48)
        had[devices] += g
        told[devices] += said
    assert torch.allclose(conduct.feedback.state()["memory"], had - told, atol=1e-4)


def test_a_part_can_be_kept() -> None:
    full, half = (
        make_conduct(settings(method__error_feedback=keep), GaussianTask(2, 30, 0), encoder)
        for keep, encoder in (
            (k, Encoder(settings(method__error_feedback=k).method, (30,))) for k in (1.0, 0.5)
        )
    )
    assert full is not None
    assert half is not None
    g = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    for conduct in (full, half):
        conduct.send(g, np.arange(2), 0, 0)
    assert full.feedback is not None
    assert half.feedback is not None
    memory = full.feedback.state()["memory"]
    assert torch.allclose(half.feedback.state()["memory"], memory / 2)
    assert memory.abs().sum() > 0


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_the_papers_regression_at_a_fifth_of_the_step(heterogeneous: bool) -> None:
    """Noise variance 0.1, Gaussian fading: the excess loss is at most a quarter of that without feedback."""

    def floor(**method: Any) -> float:
        experiment = Experiment(
            settings(
                rounds=300,
                data__name="regression",
                data__batch=None,
                data__devices=20,
                data__heterogeneous=heterogeneous,
                cell__snr_db=10.0,
                server__step=0.2,
                eval__every=10,
                **method,
            )
        )
        found = [experiment.advance()["test_loss"] for _ in range(300)]
        return float(np.mean([loss for loss in found[200:] if loss is not None]))

    assert floor(method__error_feedback=1.0) < floor() / 4


def test_too_many_memories_are_refused_with_their_size() -> None:
    encoder = Encoder(settings(method__error_feedback=1.0).method, (650,))
    with pytest.raises(ValueError, match=r"a gradient of 650 numbers for each of 1000000 devices, 2.6 GB"):
        Feedback(encoder, 1_000_000)
