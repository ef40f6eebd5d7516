"""Over the air in training: the signal is the sum it should be, and its errors are predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import Encoder
from signfade.kernels import standard_normal
from signfade.keys import stream_key, stream_keys
from signfade.server import over_the_air
from signfade.server.received import Received
from signfade.server.superposition import AirRule
from signfade.settings import CellSettings, MethodSettings
from signfade.simulation import Experiment
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.uplink import align, make_radio, transmit

from ..runs import finish, gaussian, settings

AIR = {"cell__access": "over_the_air"}


@pytest.mark.parametrize("precoding", ["inversion", "phase"])
@pytest.mark.parametrize("repeats", [1, 5])
def test_the_signal_is_the_sum_of_the_signs_in_the_receivers_noise(precoding: str, repeats: int) -> None:
    """The whole walk from its definition: signs, amplitudes, noise of the round, posterior mean."""
    cell = CellSettings(access="over_the_air", precoding=precoding, repeats=repeats, snr_db=3.0)
    task = GaussianTask(6, 500, 7)
    task.segments = (100, 400)
    method = MethodSettings(scales="layer")
    encoder = Encoder(method, task.segments)
    everyone, model = np.arange(6), torch.zeros(500)
    message, _ = encoder.encode(task.local_updates(model, everyone, 4).gradients)
    link = make_radio(cell, 6, 7).link(everyone, 4)
    signals = transmit(message.bits, link.h, link.sigma2, stream_keys(7, "noise", 4, everyone))
    known = (link, message.mean, message.scale, torch.ones(6), encoder)
    received = Received(signals, *known, everyone, 4, model, np.ones(6, dtype=bool))
    estimate = AirRule("posterior", cell, method, 7).estimate(received).value
    amplitude = align(received.h, received.sigma2, precoding, repeats=repeats)
    key = np.array([stream_key(7, "air noise", 4)], dtype=np.uint64)
    noise = torch.from_numpy(standard_normal(key, 500)[0]) / math.sqrt(repeats)
    y = amplitude.float() @ message.bits.signs() + noise
    for layer, part in enumerate((slice(0, 100), slice(100, 500))):
        expected = over_the_air(
            y[part], amplitude, 1 / repeats, received.layer_mean[:, layer], received.layer_scale[:, layer]
        )
        assert torch.allclose(estimate[part], expected, atol=1e-4)


@pytest.mark.parametrize("precoding", ["inversion", "phase"])
@pytest.mark.parametrize(
    "options",
    [
        {"method__aggregator": "sbfl"},
        {"method__aggregator": "sbfl", "method__debias": True},
        {"method__aggregator": "blmmse", "cell__repeats": 6},
        {"method__aggregator": "signsgd"},
        {"method__aggregator": "sbfl", "method__rotation": "shared", "cell__repeats": 6},
        {"method__aggregator": "signsgd", "method__rotation": "shared"},
    ],
)
def test_measured_errors_agree_with_the_prediction(precoding: str, options: dict[str, Any]) -> None:
    """Within four standard errors of the mean ratio; a prediction is a trial of 4096 coordinates itself."""
    experiment = gaussian(40, **AIR, cell__precoding=precoding, **options)
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    error = 4 * ratio.std() / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < error
    assert error < 0.06


class Shifted(GaussianTask):
    """Gradients whose mean is most of them, as those of one output's bias may be."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        local = super().local_updates(weights, devices, round)
        return LocalGradients(local.gradients + 5.0, local.losses)


def test_means_that_are_sent_are_no_error() -> None:
    options = {"data__name": "gaussian", "data__size": 3000, "cell__snr_db": 5.0, **AIR}
    experiment = Experiment(settings(rounds=20, **options), task=Shifted(6, 3000, 0))
    records = finish(experiment)
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in records])
    assert max(record["nmse"] for record in records) < 0.1
    assert ratio.mean() == pytest.approx(1, abs=0.05)


def test_a_level_that_is_set_silences_whoever_cannot_reach_it() -> None:
    """At 40 dB above everybody nobody sends: the estimate is the means."""
    silent = gaussian(1, **AIR, cell__inversion_db=60.0, cell__fading="none").advance()
    assert silent["nmse"] == pytest.approx(1.0, abs=0.01)
    received = gaussian(1, **AIR, cell__inversion_db=5.0, cell__fading="none", cell__snr_db=5.01).advance()
    assert received["nmse"] < 0.9


def test_the_posterior_mean_is_better_than_the_linear_rule_and_the_vote() -> None:
    """Devices received at very different power, far above the noise."""
    errors = [
        np.mean(
            [
                record["nmse"]
                for record in finish(
                    gaussian(10, **AIR, cell__precoding="phase", cell__snr_db=30.0, method__aggregator=name)
                )
            ]
        )
        for name in ("sbfl", "blmmse", "signsgd")
    ]
    assert errors[0] < errors[1] - 0.02 < errors[2] - 0.04
