"""A whole run: right against theory, the same bytes anyhow, and stopped anywhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signfade.data import as_dataset
from signfade.device import Encoder, rotated_size, spread
from signfade.server.core import SMALLEST_GAIN
from signfade.server.predict import known_gain
from signfade.server.received import Received
from signfade.settings import RunSettings
from signfade.simulation import Experiment, RunFailed
from signfade.simulation import clients as clients_module
from signfade.simulation.run import layer_sizes, make_task
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.uplink import Link, transmit

from ..runs import finish, settings


@pytest.mark.parametrize("aggregator", ["signsgd", "sbfl", "blmmse", "high_snr", "zero_forcing"])
@pytest.mark.parametrize("form", ["corrected", "published"])
def test_measured_errors_agree_with_theory_where_gradients_are_gaussian(aggregator: str, form: str) -> None:
    """Ratio of measured to predicted error, averaged over rounds, is one within four standard errors."""
    rounds = 30
    experiment = Experiment(
        settings(
            rounds=rounds,
            data__name="gaussian",
            data__size=4000,
            method__aggregator=aggregator,
            method__form=form,
            method__center=True,
            cell__snr_db=5.0,
        )
    )
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(rounds)


@pytest.mark.parametrize("aggregator", ["signsgd", "sbfl", "high_snr"])
@pytest.mark.parametrize("prior", ["gaussian", "empirical"])
def test_theory_knows_weights_participation_and_coarse_scalars(aggregator: str, prior: str) -> None:
    """Two bits for scales of which some are beyond the quantiser's range, and a few devices at a time."""
    rounds = 30
    experiment = Experiment(
        settings(
            rounds=rounds,
            data__name="gaussian",
            data__size=4000,
            data__participation=0.5,
            method__aggregator=aggregator,
            method__prior=prior,
            method__side_bits=2,
            method__weights="share",
            cell__snr_db=5.0,
        )
    )
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(rounds)


@pytest.mark.parametrize(
    ("aggregator", "debias", "slack"),
    [
        ("sbfl", False, 0.0),
        ("sbfl", True, 0.0),
        ("blmmse", True, 0.0),
        ("zero_forcing", False, 0.0),
        ("bfl", False, 0.0),
        ("bfl", True, 0.0),
        ("signsgd", False, 0.01),  # an approximation
    ],
)
def test_padding_is_part_of_the_predicted_error(aggregator: str, debias: bool, slack: float) -> None:
    """2817 weights are rotated as 3072 and 255 coordinates of noise are cut off again: 8 % less error."""
    rounds = 40
    assert rotated_size(2817) == 3072
    experiment = Experiment(
        settings(
            rounds=rounds,
            data__name="gaussian",
            data__size=2817,
            method__aggregator=aggregator,
            method__rotation="shared",
            method__debias=debias,
            method__correlation="genie",
            cell__snr_db=3.0,
            cell__fading="none",
        )
    )
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    error = 4 * ratio.std() / math.sqrt(rounds)
    assert abs(ratio.mean() - 1) < error + slack
    assert error < 0.03  # so that the padding would be noticed


@pytest.mark.parametrize("aggregator", ["ideal", "signsgd", "sbfl", "blmmse", "high_snr", "zero_forcing"])
@pytest.mark.parametrize("prior", ["gaussian", "laplacian", "empirical"])
@pytest.mark.parametrize(("scales", "side_bits", "weights"), [("device", None, "sum"), ("layer", 4, "share")])
def test_every_method_runs(
    aggregator: str, prior: str, scales: str, side_bits: int | None, weights: str
) -> None:
    experiment = Experiment(
        settings(
            rounds=2,
            method__aggregator=aggregator,
            method__prior=prior,
            method__scales=scales,
            method__side_bits=side_bits,
            method__weights=weights,
        )
    )
    last = finish(experiment)[-1]
    size = experiment.parameters
    layers = 2 if scales == "layer" else 1
    scalars = 4 * 32 if side_bits is None else 3 * side_bits + 16  # the first scale takes 16 bits
    expected = {"ideal": 64 * size, "signsgd": 2 * size}.get(aggregator, 2 * size + layers * scalars)
    assert last["payload_bits"] == 6 * expected
    exponents = 0 if side_bits is None or aggregator in ("ideal", "signsgd") else 8 * layers
    assert last["downlink_bits"] == 2 * (32 * size + exponents)
    assert math.isfinite(last["train_loss"])
    assert 0 <= last["test_accuracy"] <= 1
    assert -1 <= last["cosine"] <= 1


@pytest.mark.parametrize("rotation", ["none", "shared"])
@pytest.mark.parametrize("aggregator", ["sbfl", "signsgd"])
def test_bytes_do_not_depend_on_threads(aggregator: str, rotation: str) -> None:
    options = {"method__aggregator": aggregator, "method__rotation": rotation, "data__participation": 0.7}
    one = Experiment(settings(threads=1, **options))
    records = finish(one)
    three = Experiment(settings(threads=3, **options))
    assert finish(three) == records
    assert torch.equal(one.weights, three.weights)


def test_a_split_into_chunks_changes_only_the_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are of a fixed size, so this cannot happen in a run; still the sums must agree."""
    whole = finish(Experiment(settings()))
    monkeypatch.setattr(clients_module, "_CHUNK_NUMBERS", 1300)
    parts = finish(Experiment(settings()))
    for a, b in zip(whole, parts, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-5)
        assert a["nmse"] == pytest.approx(b["nmse"], rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server__optimizer": "adam", "data__participation": 0.5, "server__averaging": 0.7},
        {"method__aggregator": "signsgd", "server__downlink": "sign", "server__momentum": 0.9},
    ],
)
def test_stopping_anywhere_changes_nothing(options: dict[str, Any]) -> None:
    through = Experiment(settings(rounds=6, **options))
    records = finish(through)
    first = Experiment(settings(rounds=6, **options))
    for _ in range(2):
        first.advance()
    saved = {name: value.clone() for name, value in first.state().items()}
    second = Experiment(settings(rounds=6, **options))
    second.restore(saved, round=2)
    assert finish(second) == records[2:]
    assert torch.equal(second.weights, through.weights)
    assert torch.equal(second.trained_weights, through.trained_weights)


def test_methods_share_data_cell_and_noise() -> None:
    """Same seed, another rule: the first round has the same losses and the same links."""
    runs = [Experiment(settings(method__aggregator=name)) for name in ("sbfl", "blmmse")]
    first, second = (run.advance() for run in runs)
    assert first["train_loss"] == second["train_loss"]
    assert first["snr_db"] == second["snr_db"]
    other = Experiment(settings(seed=1)).advance()
    assert other["train_loss"] != first["train_loss"]
    assert other["snr_db"] != first["snr_db"]


def test_perfect_links_lose_only_the_magnitudes() -> None:
    perfect = Experiment(settings(cell__perfect=True))
    record = perfect.advance()
    assert record["snr_db"] is None
    clear = Experiment(settings(cell__snr_db=120.0, cell__fading="none")).advance()
    assert record["nmse"] == pytest.approx(clear["nmse"], rel=1e-6)


def test_debiasing_undoes_the_shrinkage() -> None:
    """On Gaussian gradients the debiased estimate's projection on the truth has length one on average."""
    for aggregator in ("sbfl", "blmmse"):
        experiment = Experiment(
            settings(
                rounds=20,
                data__name="gaussian",
                data__size=4000,
                method__aggregator=aggregator,
                method__debias=True,
                cell__snr_db=5.0,
            )
        )
        # |e|^2 = |ghat|^2 - 2 <ghat, g> + |g|^2 and <ghat, g> = |ghat| |g| cos: solve for <ghat, g>/|g|^2.
        slopes = []
        for record in finish(experiment):
            c, e = record["cosine"], record["nmse"]
            # r = |ghat|/|g| solves r^2 - 2 r c + 1 = e; debiased r = 1/c on average
            r = c + math.sqrt(c * c - 1 + e)
            slopes.append(r * c)
        error = np.std(slopes) / math.sqrt(len(slopes))
        assert abs(np.mean(slopes) - 1) < 4 * error + 1e-3


@pytest.mark.parametrize("aggregator", ["sbfl", "bfl"])
def test_debiasing_has_a_bound(aggregator: str) -> None:
    """At -30 dB the gain is far below the smallest that is divided by."""
    steps = []
    for debias in (False, True):
        experiment = Experiment(
            settings(
                rounds=1,
                data__name="gaussian",
                data__size=4000,
                method__aggregator=aggregator,
                method__debias=debias,
                method__correlation="genie",
                cell__snr_db=-30.0,
                cell__fading="none",
            ),
            task=Centred(devices=6, size=4000, seed=0),
        )
        finish(experiment)
        steps.append(experiment.weights)
    assert torch.allclose(steps[1], steps[0] / SMALLEST_GAIN, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("prior", "gain"), [("gaussian", 2 / math.pi), ("laplacian", 1 / 2), ("empirical", 2 / math.pi)]
)
def test_the_gain_without_noise_is_what_a_sign_knows(prior: str, gain: float) -> None:
    """`scale**2/variance`: 2/pi of a Gaussian, half of a Laplacian."""
    method = settings(method__prior=prior).method
    one, zero = torch.ones(2), torch.zeros(2)
    received = Received(
        transmit(torch.ones(2, 8), one, zero, np.zeros(2, dtype=np.uint64)),
        Link(one, zero),
        layer_mean=zero[:, None],
        layer_scale=torch.tensor([[1.0], [3.0]]),
        weights=one,
        encoder=Encoder(method, (8,)),
        devices=np.arange(2),
        round=0,
        model=torch.zeros(8),
        fresh=np.ones(2, dtype=bool),
    )
    assert known_gain("sbfl", method, received) == pytest.approx(gain)
    # At 0 dB blmmse halves what arrives; the stronger device counts nine times.
    at_0_db = replace(received, link=Link(one, torch.tensor([0.0, 1.0])))
    assert known_gain("blmmse", method, at_0_db) == pytest.approx(gain * (1 + 9 / 2) / 10)


def test_bits_are_those_of_the_devices_heard_and_their_buffers(tmp_path: Path) -> None:
    half = Experiment(settings(data__participation=0.5))
    assert [record["payload_bits"] for record in finish(half)] == [3 * t * (650 + 64) for t in (1, 2, 3)]
    file = tmp_path / "normed.py"
    file.write_text(
        "from torch import nn\n"
        "def normed(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False), nn.Linear(64, classes))\n"
    )
    normed = Experiment(settings(model__name=f"{file}:normed"))
    buffers = 32 * (64 + 64 + 1)  # running mean and variance, and how often they were updated
    last = finish(normed)[-1]
    assert (last["payload_bits"], last["bits.buffers"]) == (3 * 6 * (650 + 64), 3 * 6 * buffers)


def test_the_test_set_is_looked_at_when_set_and_at_the_end() -> None:
    records = finish(Experiment(settings(rounds=5, eval__every=2)))
    assert [record["test_accuracy"] is not None for record in records] == [False, True, False, True, True]
    records = finish(Experiment(settings(rounds=5, eval__every=9, eval__at=[1, 3, 7])))
    assert [record["test_accuracy"] is not None for record in records] == [True, False, True, False, True]


def test_the_record_has_the_links_of_those_heard() -> None:
    snr_db = [-3.0, 20.0, 0.0, 7.0, 1.0, 12.0]
    record = Experiment(settings(cell__snr_db=snr_db, cell__fading="none")).advance()
    assert record["snr_db"] in ([-3.0, 1.0, 20.0], [-3.0, 7.0, 20.0])  # the median of six is one of two
    assert record["devices"] == 6


class Centred(GaussianTask):
    """Gaussian gradients whose means are zero to rounding."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        g, losses = super().local_updates(weights, devices, round)
        return LocalGradients(g - g.mean(dim=1, keepdim=True), losses)


class Still(GaussianTask):
    """No device has anything to say."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        return LocalGradients(torch.zeros(len(devices), self.size), torch.ones(len(devices)))


@pytest.mark.parametrize("rotation", ["none", "shared"])
@pytest.mark.parametrize("aggregator", ["signsgd", "sbfl", "blmmse", "high_snr", "zero_forcing", "bfl"])
def test_gradients_that_vanish_leave_no_error_to_speak_of(aggregator: str, rotation: str) -> None:
    options = settings(rounds=2, method__aggregator=aggregator, method__rotation=rotation)
    experiment = Experiment(options, task=Still(devices=3, size=50, seed=0))
    for record in finish(experiment):
        json.dumps(record, allow_nan=False)
        assert record["cosine"] is None
        assert record["nmse"] is None
    assert aggregator == "signsgd" or torch.equal(experiment.weights, torch.zeros(50))


class Shifted(GaussianTask):
    """Gaussian gradients about a mean far from zero, another one in each layer."""

    def __init__(self, devices: int, size: int, seed: int) -> None:
        super().__init__(devices, size, seed)
        self.segments = (size // 4, size - size // 4)

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        local = super().local_updates(weights, devices, round)
        shift = spread(torch.tensor([[3.0, -2.0]]), self.segments)
        return LocalGradients(local.gradients + shift, local.losses)


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("aggregator", ["sbfl", "blmmse"])
def test_a_mean_that_was_told_is_neither_shrunk_nor_stretched(aggregator: str, debias: bool) -> None:
    rounds = 20
    options = settings(
        rounds=rounds,
        method__aggregator=aggregator,
        method__scales="layer",
        method__debias=debias,
        cell__snr_db=-3.0,
    )
    experiment = Experiment(options, task=Shifted(devices=6, size=4000, seed=0))
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(rounds)


def test_a_users_rule_is_called_with_what_was_received(tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text(
        "from signfade import server\n"
        "def mine(r):\n"
        "    return server.sbfl(r.y, r.h, r.sigma2, r.mean, r.scale, r.weights)\n"
        "def short(r):\n"
        "    return r.y[0, :3]\n"
        "def nonsense(r):\n"
        "    return r.y[0] * float('nan')\n"
        "def broken(r):\n"
        "    return r.signal\n"
    )
    own = Experiment(settings(method__aggregator=f"{file}:mine"))
    built_in = Experiment(settings(method__aggregator="sbfl"))
    a, b = own.advance(), built_in.advance()
    assert a["nmse"] == pytest.approx(b["nmse"], rel=1e-5)
    assert a["nmse_theory"] is None
    for name, message in (
        ("short", r"must return a tensor of shape \[650\]; got \[3\]"),
        ("nonsense", "NaN"),
    ):
        with pytest.raises(RunFailed, match=message):
            Experiment(settings(method__aggregator=f"{file}:{name}")).advance()


def test_divergence_fails_in_one_sentence() -> None:
    experiment = Experiment(
        settings(rounds=50, data__name="regression", server__learning_rate=100.0, method__aggregator="ideal")
    )
    with pytest.raises(RunFailed, match=r"round \d+: a gradient is not finite; the model has diverged"):
        finish(experiment)


def test_a_blown_up_loss_is_noticed_once() -> None:
    experiment = Experiment(settings(rounds=30, server__learning_rate=50.0, method__aggregator="ideal"))
    finish(experiment)
    assert len(experiment.warnings) == 1
    assert "training loss rose" in experiment.warnings[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method__aggregator": "mode"},
            "method.aggregator must be one of .*, package.module:function or file.py:function; got 'mode'",
        ),
        ({"model__name": "transformer"}, "model.name must be"),
        ({"data__devices": 5000}, "devices"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment(settings(**options))


_DRAW = np.random.default_rng(0)
_TOKENS, _LABELS = _DRAW.integers(0, 9, (60, 5)), np.arange(60) % 9


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        ("linear", _LABELS, "model.name 'linear' reads numbers, and the data has tokens: integers"),
        ("auto", _LABELS, "scores at every position, and mine has one label per sample"),
        ("char-lstm", np.minimum(_TOKENS, 3), "read tokens from 0 to 3, .* mine has 8"),
    ],
)
def test_integers_are_tokens(model: str, labels: Any, message: str) -> None:
    data = as_dataset((_TOKENS, labels, _TOKENS, labels), "mine")
    with pytest.raises(ValueError, match=message):
        make_task(settings(model__name=model, data__split="iid"), dataset=data)


@pytest.mark.parametrize("tables", [{"name": "digits"}, {"name": "regression", "size": 70}])
def test_layers_are_known_before_data_is_loaded(tables: dict[str, Any]) -> None:
    configured = RunSettings.model_validate({"data": tables})
    assert layer_sizes(configured) == make_task(configured).segments
    assert layer_sizes(RunSettings.model_validate({"data": {"name": "idx", "folder": "x"}})) is None


@pytest.mark.parametrize("data", ["digits", "regression"])
def test_the_global_training_loss_is_that_of_all_samples_after_the_round(data: str) -> None:
    """With full batches it is the mean of the devices' losses at the weights after the round."""
    changes = {"data__name": data, "data__batch": None, "eval__every": 2, "data__size": 30}
    experiment = Experiment(settings(rounds=2, eval__training=True, **changes))
    first, second = finish(experiment)
    local = experiment.task.local_updates(experiment.weights, np.arange(6), 2)
    assert "global_train_loss" not in first
    assert second["global_train_loss"] == pytest.approx(
        float(local.losses.double().numpy() @ experiment.task.shares), rel=1e-5
    )
    assert "global_train_loss" not in finish(Experiment(settings(rounds=1, **changes)))[0]
