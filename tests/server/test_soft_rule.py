"""Private rotations and the rate dial end to end: predicted against measured errors, and what is refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from signfade.device import Encoder, one_bit
from signfade.device.constellation import Amplitudes, level_bits, levels
from signfade.device.rotation import rotated_size
from signfade.experiments.config import resolve
from signfade.server import soft_rule
from signfade.server.soft_rule import better_rotation, soft_values
from signfade.settings import MethodSettings, RunSettings
from signfade.simulation import Experiment
from signfade.theory.rate import Rotated, harmonics, soft_amplitude
from signfade.uplink import Signals, transmit

KEYS = np.arange(1, 4, dtype=np.uint64)


def settings(**changes: object) -> RunSettings:
    base = {
        "data.name": "digits",
        "data.devices": 12,
        "model.name": "mlp",
        "rounds": 3,
        "seed": 3,
        "cell.bandwidth_hz": 1e6,
        "method.aggregator": "bfl",
        "method.joint": "soft",
        "method.rotation": "private",
        "server.learning_rate": 0.1,
        "eval.every": 100,
    }
    return resolve(base | {key.replace("__", "."): value for key, value in changes.items()})


# The peak limits amplitudes alone.
DIAL: list[tuple[float | str, float | str]] = [(rate, 8.0) for rate in (0.01, 0.03, 0.1, 1.0, 2, 3, 4)]
DIAL += [("analog", papr_db) for papr_db in (3.0, 8.0, "none")]


@pytest.mark.parametrize("rotation", ["shared", "private"])
@pytest.mark.parametrize(("rate", "papr_db"), DIAL)
def test_the_predicted_error_is_the_measured_one(
    rotation: str, rate: float | str, papr_db: float | str
) -> None:
    """Within 2 % over all coordinates of a model, averaged over rounds: nothing is learned meanwhile."""
    changes = {"method__rotation": rotation, "method__bits_per_weight": rate, "cell__papr_db": papr_db}
    experiment = Experiment(
        settings(**changes, data__name="gaussian", data__size=40_000, rounds=12, method__correlation="genie")
    )
    records = [experiment.advance() for _ in range(12)]
    measured, predicted = (np.array([record[key] for record in records]) for key in ("nmse", "nmse_theory"))
    assert measured.mean() == pytest.approx(predicted.mean(), rel=0.02)
    explained, expected = 1 - measured.mean(), 1 - predicted.mean()
    assert explained == pytest.approx(expected, rel=0.1)  # at a hundredth of a bit errors are all near one


@pytest.mark.parametrize("aggregator", ["sbfl", "bfl"])
@pytest.mark.parametrize("rate", [0.1, 1.0, 2, 4, "analog"])
@pytest.mark.parametrize("side_bits", [4, 8])
def test_rounded_scales_are_predicted_or_not_at_all(
    aggregator: str, rate: float | str, side_bits: int
) -> None:
    changes = {"data__name": "gaussian", "data__size": 20_000, "cell__snr_db": 12.0, "cell__fading": "none"}
    method = {"method__aggregator": aggregator, "method__bits_per_weight": rate, "rounds": 4}
    experiment = Experiment(settings(**changes, **method, method__side_bits=side_bits))
    records = [experiment.advance() for _ in range(4)]
    for record in records:
        if record["nmse_theory"] is not None:
            assert record["nmse"] == pytest.approx(record["nmse_theory"], rel=0.06)
    known = [record["nmse_theory"] is not None for record in records]
    assert known == [True, *[rate in (0.1, 1.0) or side_bits == 8] * 3]  # the first round's grid is fine


@pytest.mark.parametrize(("rate", "least", "most"), [(1, 0.3, 0.4), (4, 0.005, 0.02), ("analog", 0, 0.01)])
def test_perfect_links_leave_what_was_not_sent(rate: float | str, least: float, most: float) -> None:
    changes = {"data__name": "gaussian", "data__size": 2000, "cell__perfect": True}
    record = Experiment(settings(method__bits_per_weight=rate, **changes)).advance()
    assert least < record["nmse"] < most
    assert least < record["nmse_theory"] < most


@pytest.mark.parametrize("rate", [0.1, 1.0, "analog"])
def test_correlated_gradients_of_a_model(rate: float | str) -> None:
    experiment = Experiment(settings(method__bits_per_weight=rate, method__debias=True, rounds=6))
    records = [experiment.advance() for _ in range(6)]
    ratio = [record["nmse"] / record["nmse_theory"] for record in records]
    assert np.mean(ratio) == pytest.approx(1, abs=0.05)


def test_private_rotations_beat_a_shared_one_where_devices_agree() -> None:
    errors = {}
    for rotation in ("shared", "private", "auto"):
        changes = {"data__split": "iid", "device__local_steps": 10, "cell__bandwidth_hz": 180e3}
        experiment = Experiment(settings(method__rotation=rotation, rounds=4, **changes))
        errors[rotation] = np.mean([experiment.advance()["nmse"] for _ in range(4)])
    assert errors["private"] < 0.8 * errors["shared"]
    assert errors["auto"] < 1.05 * errors["private"]


def test_auto_takes_the_smaller_predicted_error() -> None:
    from signfade.server.joint.correlation import CorrelationState, initial_correlation

    model = Rotated(harmonics(np.full(4, 10.0)), np.ones(4), np.eye(4))
    agree = CorrelationState(
        torch.full((4, 4), 0.8).fill_diagonal_(0), torch.full((4, 4), 1e6).fill_diagonal_(0)
    )
    assert better_rotation(agree, model) == "private"
    opposed = CorrelationState(-agree.bits / 2.5, agree.evidence)
    errors = {}
    for private in (False, True):
        r = np.full((4, 4), -0.32) + 1.32 * np.eye(4)
        trial = model._replace(correlation=r, private=private)
        errors[private] = trial.moments(np.ones(4), trial.fit(np.ones(4)).combine).nmse()
    expected = "shared" if errors[False] < errors[True] else "private"
    assert better_rotation(opposed, model) == expected == "shared"
    assert better_rotation(initial_correlation(4), model) == "private"


def test_the_estimate_is_the_weighted_sum_of_what_each_device_turned_back() -> None:
    """By hand, from the public functions, for the rule that takes devices for independent."""
    experiment = Experiment(settings(method__aggregator="sbfl", method__bits_per_weight=0.3, rounds=1))
    server = experiment._simulation.server
    seen = {}
    original = server.aggregate

    def aggregate(memory, received, genie=None):
        result = original(memory, received, genie)
        seen.update(received=received, value=result[1].value)
        return result

    server.aggregate = aggregate  # type: ignore[method-assign]
    experiment.advance()
    received = seen["received"]
    encoder = received.encoder
    assert len(set(received.rotation_keys.tolist())) == len(received) == 12
    soft = received.scale[:, None] * torch.tanh(received.y * (received.h / received.sigma2)[:, None])
    expected = encoder.unrotate(soft, received.rotation_keys).sum(dim=0)
    assert torch.allclose(
        seen["value"].double(), expected.double(), rtol=1e-3, atol=1e-4 * float(expected.abs().max())
    )


def test_noiseless_soft_values_are_the_levels() -> None:
    x = torch.tensor([[0.1, -0.7, 1.2, -3.0]])
    one, zero = torch.ones(1), torch.zeros(1)
    for bits in (2, 3, 4):
        cells = levels(bits)
        signals = transmit(level_bits(x, bits), -one, zero, KEYS[:1])
        found = soft_values(signals, -one, zero, bits, None)
        magnitude = np.searchsorted(cells.edges[1:], x.abs().numpy())
        assert found.numpy() == pytest.approx(np.sign(x.numpy()) * cells.values[magnitude], rel=1e-5)


@pytest.mark.parametrize("papr_db", [None, 3.0])
def test_soft_amplitudes_follow_the_formula(papr_db: float | None) -> None:
    values = torch.linspace(-3, 3, 301)[None]
    h, sigma2 = torch.tensor([-0.5]), torch.tensor([0.3])
    signals = transmit(Amplitudes(values), h, sigma2, KEYS[:1])
    found = soft_values(signals, h, sigma2, None, papr_db)
    scaled = signals.y.double().numpy() * -1 / np.sqrt(0.3)
    assert found.numpy() == pytest.approx(soft_amplitude(scaled, 0.25 / 0.3, papr_db), abs=1e-3)
    assert soft_values(signals, 0 * h, sigma2, None, papr_db).abs().max() == 0


def test_an_encoder_of_a_subset_sends_what_it_can_place_again() -> None:
    encoder = Encoder(MethodSettings(rotation="private", bits_per_weight=0.1), (1000,))
    assert (encoder.coordinates, encoder.sent, encoder.size) == (1024, 102, 102)
    gradients = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    rotated = encoder.rotate(gradients, KEYS)
    message, _ = encoder.encode(rotated, rotation_keys=KEYS)
    back = encoder.unrotate(message.bits.signs(), KEYS)
    assert back.shape == (3, 1000)
    again = encoder.rotate(back, KEYS)
    subset = encoder._subsets(KEYS, rotated.device)
    assert len(set(map(tuple, subset.tolist()))) == 3
    agree = (torch.gather(again, 1, subset).sign() == message.bits.signs()).float().mean()
    assert agree > 0.95  # all but what the padding took away
    assert torch.equal(
        message.bits.signs(), torch.gather(one_bit(rotated, torch.zeros(3)).signs(), 1, subset)
    )
    shared = np.full(3, 7, dtype=np.uint64)
    assert len(set(map(tuple, encoder._subsets(shared, rotated.device).tolist()))) == 1


def test_a_killed_run_goes_on_to_the_same_bytes() -> None:
    asked = settings(
        method__bits_per_weight=0.05, device__local_steps=2, device__control_variates=True, rounds=4
    )
    whole, first, second = Experiment(asked), Experiment(asked), Experiment(asked)
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        first.advance()
    second.restore({name: value.clone() for name, value in first.state().items()}, 2)
    for _ in range(2):
        second.advance()
    assert torch.equal(whole.weights, second.weights)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method__bits_per_weight": 0.0005}, "must be from 0.001 to 1, or 2, 3, 4 or analog"),
        ({"method__bits_per_weight": 1.5}, "must be from 0.001 to 1, or 2, 3, 4 or analog"),
        ({"method__bits_per_weight": 0.1, "method__rotation": "none"}, "rotation must not be none"),
        ({"cell__access": "over_the_air"}, "cell.access must be orthogonal"),
        ({"method__aggregator": "signsgd"}, "must be one of sbfl, bfl"),
        ({"method__flip": 0.1}, "flip must be 0"),
        ({"defence__reliability": True}, "reliability must be false"),
        ({"method__bits_per_weight": "analog", "cell__csi": "pilot"}, "csi must be perfect"),
    ],
)
def test_refuses_in_one_sentence(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**changes)


@pytest.mark.parametrize("aggregator", ["sbfl", "bfl"])
@pytest.mark.parametrize("rotation", ["shared", "private"])
def test_the_odds_of_levels_are_worked_out_a_few_devices_at_a_time(
    monkeypatch: pytest.MonkeyPatch, aggregator: str, rotation: str
) -> None:
    """Eight odds for each of the 4-bit soft values: no more of them at once than the limit says."""
    changes = {"method__aggregator": aggregator, "method__rotation": rotation, "method__bits_per_weight": 4}
    chosen = settings(**changes, data__name="gaussian", data__size=1024)
    whole = Experiment(chosen)
    whole.advance()
    monkeypatch.setattr(soft_rule, "_CHUNK_NUMBERS", 8 * 1024 * 5)
    devices: list[int] = []

    def watched(signals: Signals, *rest: object) -> torch.Tensor:
        devices.append(len(signals))
        return soft_values(signals, *rest)

    monkeypatch.setattr(soft_rule, "soft_values", watched)
    parts = Experiment(chosen)
    parts.advance()
    assert devices == [5, 5, 2]
    assert torch.allclose(whole.weights, parts.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rotation", ["shared", "private"])
@pytest.mark.parametrize(("size", "padded"), [(1024, 1024), (525, 544)])
def test_debias_divides_by_the_gain_of_the_weights_in_use(rotation: str, size: int, padded: int) -> None:
    """One device over a perfect link: two thirds of a sign are explained, whatever a rotation pads."""
    changes = {"data__name": "gaussian", "data__devices": 1, "cell__perfect": True, "data__size": size}
    chosen = {"method__aggregator": "sbfl", "method__rotation": rotation, "method__bits_per_weight": 0.5}
    found = []
    for debias in (False, True):
        experiment = Experiment(settings(**changes, **chosen, method__debias=debias))
        experiment.advance()
        found.append(float(experiment.weights.norm()))
    assert rotated_size(size) == padded
    assert found[1] / found[0] == pytest.approx(np.pi, rel=1e-3)  # 1/(0.5 * 2/pi)


@pytest.mark.parametrize("rotation", ["private", "auto"])
def test_independent_devices_need_no_matrix_of_all(rotation: str) -> None:
    changes = {"data__name": "gaussian", "data__devices": 3000, "data__size": 16}
    experiment = Experiment(settings(**changes, method__aggregator="sbfl", method__rotation=rotation))
    tracemalloc.start()
    try:
        experiment.advance()
        assert tracemalloc.get_traced_memory()[1] < 8 * 3000**2 / 4  # bytes
    finally:
        tracemalloc.stop()
