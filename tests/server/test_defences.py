"""Defences in training: honest rounds are left as they are, attackers are found in a few rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signfade.experiments.config import load
from signfade.server import joint_rule
from signfade.server.received import Received
from signfade.server.turning import Reliability
from signfade.simulation import Experiment, RunFailed
from signfade.simulation.attacks import choose_attackers
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients

from ..runs import settings


class Bowl(GaussianTask):
    """Quadratic losses with a minimum and a curvature of each device's own, and gradients with noise.

    The minima lie about one that all share. Its coordinates differ: were they alike, the devices' means would
    say all they share, and no bit.
    """

    def __init__(self, devices: int, size: int, spread: float, noise: float = 1.0) -> None:
        super().__init__(devices, size, seed=4)
        draw = torch.Generator().manual_seed(7)
        self._optimum = torch.randn(size, generator=draw) + spread * torch.randn(
            devices, size, generator=draw
        )
        self._curvature = 0.5 + torch.rand(devices, 1, generator=draw)
        self._noise = noise

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        noise = super().local_updates(weights, devices, round).gradients
        noise = noise / noise.square().mean(dim=1, keepdim=True).sqrt()
        g = self._curvature[devices] * (weights - self._optimum[devices])
        return LocalGradients(g + self._noise * noise, torch.ones(len(devices)))


def run(task: GaussianTask, rounds: int, **options: Any) -> Experiment:
    experiment = Experiment(
        settings(
            rounds=rounds,
            data__devices=20,
            server__learning_rate=0.02,
            method__weights="sum",
            cell__path_loss="cost231",
            **options,
        ),
        task=task,
    )
    while not experiment.done:
        experiment.advance()
    return experiment


def trust(experiment: Experiment) -> torch.Tensor:
    return experiment.state()["server.stages.reliability.known.trust"]


@pytest.mark.parametrize("spread", [0.5, 4.0])
@pytest.mark.parametrize(
    "method",
    [
        {},
        {"method__rotation": "shared"},
        {"method__preset": "best"},
        {
            "method__aggregator": "signsgd",
            "server__learning_rate": 0.05,
            "method__weights": "sum",
            "rounds": 200,
        },  # bits without scales tell less
        {"method__aggregator": "blmmse", "cell__csi": "pilot"},
    ],
)
def test_flippers_are_found_whatever_the_data(spread: float, method: dict[str, Any]) -> None:
    """Their gradients turn against the way of the model, whether devices share a minimum or hardly do."""
    attack = {"attack__kind": "sign-flip", "attack__fraction": 0.3, "defence__reliability": True}
    usual = {
        "rounds": 60 if spread > 1 else 40,
        "data__devices": 20,
        "server__learning_rate": 0.02,
        "method__weights": "sum",
        "cell__path_loss": "cost231",
    }
    experiment = Experiment(
        settings(**{**usual, **attack, **method}), task=Bowl(20, 3000 if spread > 1 else 1000, spread)
    )
    while not experiment.done:
        record = experiment.advance()
    attackers = choose_attackers(experiment.settings.attack, 20, experiment.settings.seed)
    found = trust(experiment)
    assert (found[attackers] <= 0).all()  # left out, or turned round
    assert (np.delete(found.numpy(), attackers) > 0.5).all()
    assert record["reliability"][0] == pytest.approx(float(found.min()), abs=1e-4)
    assert record["nmse_theory"] is None


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_honest_devices_are_trusted(spread: float) -> None:
    assert (trust(run(Bowl(20, 1000, spread), 40, defence__reliability=True)) > 0.5).all()


def test_random_bits_lose_their_weight() -> None:
    experiment = run(
        Bowl(20, 1000, 0.5),
        40,
        attack__kind="random-bits",
        attack__fraction=0.3,
        defence__reliability=True,
    )
    attackers = choose_attackers(experiment.settings.attack, 20, experiment.settings.seed)
    found = trust(experiment)
    assert (found[attackers] < 0.7).all()
    assert (np.delete(found.numpy(), attackers) > 0.5).all()


@pytest.mark.parametrize("joint", ["linear", "soft", "ep", "factor"])
def test_a_joint_rule_trusts_independent_devices_as_far_as_a_separate_one(
    monkeypatch: pytest.MonkeyPatch, joint: str
) -> None:
    """Under the same reliabilities, and with a correlation that says that nothing is shared."""
    given = torch.tensor([1.0, 0.5, -0.9, 0.0], dtype=torch.float64).repeat(5)
    nothing_shared = torch.eye(20, dtype=torch.float64)

    def trusting(
        stage: Reliability, state: object, received: Received
    ) -> tuple[object, Received, dict[str, Any]]:
        weights = (received.weights.double() * given).to(received.weights)
        return state, received.but(trust=given, weights=weights, altered=True), {}

    monkeypatch.setattr(Reliability, "apply", trusting)
    monkeypatch.setattr(joint_rule, "_correlation", lambda *_: (nothing_shared, None))
    rules = {"linear": "blmmse"}
    separate, together = (
        run(Bowl(20, 300, 0.5), 1, defence__reliability=True, cell__snr_db=0.0, **method).weights
        for method in (
            {"method__aggregator": rules.get(joint, "sbfl")},
            {"method__aggregator": "bfl", "method__joint": joint},
        )
    )
    assert torch.allclose(separate, together, rtol=1e-3, atol=1e-3 * float(separate.abs().max()))


@pytest.mark.parametrize("side_bits", ["none", 4, 2])
def test_a_bound_on_scales_that_nobody_exceeds_changes_no_byte(side_bits: int | str) -> None:
    """Gradients that differ in size only, by a factor of three at most, or by the quantiser's next level."""
    usual = {"method__rotation": "shared", "method__side_bits": side_bits}
    plain, bounded = (
        run(Bowl(20, 200, 0.0, noise=0.0), 5, defence__bound_scales=bound, **usual) for bound in (False, True)
    )
    assert torch.equal(plain.weights, bounded.weights)


@pytest.mark.parametrize("side_bits", ["none", 4])
def test_an_inflated_scale_is_cut_and_the_model_stays_close(side_bits: int | str) -> None:
    """One of twenty reports a scale a thousand times its own: the model goes all but the honest way."""
    bits = {"method__side_bits": side_bits}
    attack = {"attack__kind": "scale-inflation", "attack__fraction": 0.05, "attack__strength": 1000.0}
    honest = run(Bowl(20, 500, 0.5), 15, **bits).weights
    defended = run(Bowl(20, 500, 0.5), 15, defence__bound_scales=True, **bits, **attack).weights
    undefended = run(Bowl(20, 500, 0.5), 15, **bits, **attack).weights
    assert (defended - honest).norm() < 0.3 * honest.norm()
    # Quantised, a scale cannot exceed 64 times the others', as the range follows their median.
    assert (undefended - honest).norm() > (10 if side_bits == "none" else 1) * honest.norm()


@pytest.mark.parametrize("seed", [0, 1])
def test_flippers_among_devices_with_two_classes_each_are_found(seed: int) -> None:
    """Honest devices with different classes disagree; eighty rounds tell who attacks, with a margin."""
    example = Path(__file__).parents[2] / "examples" / "digits.toml"
    attack = ["attack.kind=sign-flip", "attack.fraction=0.3", "defence.reliability=true"]
    method = [
        "method.preset=rotated-sbfl",
        "method.weights=sum",
        "server.learning_rate=3e-2",
        "server.momentum=0.0",
    ]
    experiment = Experiment(load(example, [*method, *attack, f"seed={seed}", "rounds=1000"]))
    for _ in range(80):
        experiment.advance()
    attackers = choose_attackers(experiment.settings.attack, 20, seed)
    found = trust(experiment)
    assert (found[attackers] < -0.5).all()
    assert (np.delete(found.numpy(), attackers) > 0.5).all()


DIGITS = ["rounds=100", "model.name=mlp", "server.learning_rate=0.2", "server.schedule=sqrt", "threads=1"]


def digits(rounds: int, *words: str, seed: int = 0) -> Experiment:
    """Some rounds of the setting of docs/attacks.md."""
    rotated = ["method.aggregator=sbfl", "method.rotation=shared", "method.weights=sum"]
    experiment = Experiment(load(None, [*rotated, *DIGITS, f"seed={seed}", *words]))
    for _ in range(rounds):
        experiment.advance()
    return experiment


@pytest.mark.parametrize("method", ["sbfl", "best"])
def test_ones_do_not_turn_the_server_against_honest_devices(method: str) -> None:
    """Six of twenty send +1 only: they dominate the way of the model, and say nothing of anybody."""
    preset = ["method.preset=best"] if method == "best" else []
    cnn = ["model.name=small-cnn", "server.learning_rate=0.03", "server.schedule=constant", *preset]
    experiment = digits(40, "attack.kind=ones", "attack.fraction=0.3", "defence.reliability=true", *cnn)
    attackers = choose_attackers(experiment.settings.attack, 20, 0)
    found = np.delete(trust(experiment).numpy(), attackers)
    assert found.mean() > 0.8
    assert found.min() >= 0


@pytest.mark.parametrize("method", ["sbfl", "best"])
def test_nine_flippers_of_twenty_are_found(method: str) -> None:
    preset = ["method.preset=best"] if method == "best" else []
    experiment = digits(
        50, "attack.kind=sign-flip", "attack.fraction=0.45", "defence.reliability=true", *preset
    )
    attackers = choose_attackers(experiment.settings.attack, 20, 0)
    found = trust(experiment).numpy()
    assert found[attackers].max() < 0.3
    assert np.delete(found, attackers).min() > 0.5


@pytest.mark.parametrize("fraction", [0.3, 0.45])
def test_vanishing_scales_do_not_let_the_inflated_one_pass(fraction: float) -> None:
    """Undefended, or bounded by the lower half's spread, the run ends within five rounds."""
    words = ["attack.kind=scale-collusion", f"attack.fraction={fraction}", "attack.strength=1000"]
    experiment = digits(30, "defence.bound_scales=true", *words)
    accuracy = experiment.task.evaluate(experiment.weights).accuracy
    assert accuracy is not None
    assert accuracy > 0.5
    with pytest.raises(RunFailed, match="diverged"):
        digits(30, *words)


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "trimmed_mean", "median"])
def test_rules_of_the_literature_leave_an_inflated_vector_out(rule: str) -> None:
    """One of twenty reports a thousand times its scale: the model goes where it goes without it."""
    method = {"method__aggregator": rule, "defence__assumed": 0.1, "cell__perfect": True}
    attack = {"attack__kind": "scale-inflation", "attack__fraction": 0.05, "attack__strength": 1000.0}
    honest, attacked = (run(Bowl(20, 300, 0.5), 10, **method, **extra).weights for extra in ({}, attack))
    assert (attacked - honest).norm() < 0.3 * honest.norm()


def test_a_median_of_equal_devices_is_their_sum() -> None:
    """Devices alike send alike: every robust mean, times K, is sbfl."""
    task = Bowl(20, 100, 0.0, noise=0.0)
    task._curvature[:] = 1.0
    plain = run(task, 3, cell__perfect=True)
    for rule in ("krum", "multi_krum", "trimmed_mean", "median"):
        found = run(task, 3, cell__perfect=True, method__aggregator=rule).weights
        assert torch.allclose(found, plain.weights, rtol=1e-4, atol=1e-6)


def test_rules_that_choose_devices_refuse_reliability() -> None:
    with pytest.raises(ValueError, match=r"defence\.reliability must be false with krum"):
        settings(method__aggregator="krum", defence__reliability=True)


@pytest.mark.parametrize(
    "attack",
    [
        ["attack.kind=ones", "attack.fraction=0.45"],
        ["attack.kind=random-bits", "attack.collude=true", "attack.fraction=0.3"],
        [],
    ],
)
def test_defences_cost_less_than_three_points(attack: list[str]) -> None:
    """A sample of docs/attacks.md: two attacks under which a defence costs most, and none at all."""
    both = ["defence.bound_scales=true", "defence.reliability=true"]
    ends = []
    for words in ([], both):
        experiment = digits(70, *attack, *words)
        looks = [experiment.advance()["test_accuracy"] for _ in range(30)]
        ends.append(np.mean([look for look in looks if look is not None]))
    assert ends[1] > ends[0] - 0.03
    assert ends[0] > 0.8
