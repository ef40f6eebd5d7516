"""Error feedback in a run: nothing is lost, and on the paper's regression a small step ends far lower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import Encoder, spread, unrotate
from signfade.keys import stream_key
from signfade.simulation import Experiment
from signfade.simulation.clients import Clients, Update
from signfade.simulation.synthetic import GaussianTask

from ..runs import settings


@pytest.mark.parametrize("rotation", ["none", "shared"])
@pytest.mark.parametrize("flip", [0.0, 0.2])
def test_what_was_sent_and_what_is_kept_add_up_to_the_gradients(rotation: str, flip: float) -> None:
    """Also over flipped bits: a device knows what it sent."""
    options = settings(
        method__error_feedback=1.0, method__rotation=rotation, method__flip=flip, data__devices=3
    )
    task = GaussianTask(3, 48, seed=0)  # 48 is a size of the rotation: no padding is cut off
    encoder = Encoder(options.method, (48,))
    clients = Clients(options, task)
    state = clients.init()
    had, sent = torch.zeros(3, 48), torch.zeros(3, 48)
    for t in range(7):
        devices = np.array([0, 2]) if t % 2 else np.arange(3)
        update = Update(devices, *task.local_updates(torch.zeros(48), devices, t))
        key = stream_key(0, "rotation", t)
        message, _ = clients.encode(state, update, encoder, key, t)
        part = spread(message.mean, [48]) + spread(message.scale, [48]) * message.bits.signs()
        if rotation == "shared":
            part = unrotate(part, key, 48)
        had[devices] += update.gradients
        sent[devices] += part
    assert torch.allclose(state.feedback, had - sent, atol=1e-4)


def test_a_part_can_be_kept() -> None:
    g = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    kept = []
    for part in (1.0, 0.5):
        options = settings(method__error_feedback=part)
        clients = Clients(options, GaussianTask(2, 30, 0))
        state = clients.init()
        update = Update(np.arange(2), g, torch.zeros(2))
        clients.encode(
            state, update, Encoder(options.method, (30,)), rotation=np.zeros(2, np.uint64), round=0
        )
        kept.append(state.feedback)
    assert torch.allclose(kept[1], kept[0] / 2)
    assert kept[0].abs().sum() > 0


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
                server__learning_rate=0.2,
                eval__every=10,
                **method,
            )
        )
        found = [experiment.advance()["test_loss"] for _ in range(300)]
        return float(np.mean([loss for loss in found[200:] if loss is not None]))

    assert floor(method__error_feedback=1.0) < floor() / 4


def test_too_many_memories_are_refused_with_their_size() -> None:
    with pytest.raises(ValueError, match=r"keeps 650 numbers for each of 1000000 devices, 2.6 GB"):
        Clients(settings(method__error_feedback=1.0), GaussianTask(1_000_000, 650, 0))
