"""A deployment gives the simulator's weights, to the last bit, with or without a radio in the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from signfade.experiments.config import resolve
from signfade.experiments.metrics import BIT_KEYS
from signfade.integrations.flower.deployed import evaluation
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.simulation.run import Experiment, make_task

from .grids import cell_of

BASE: dict[str, Any] = {
    "rounds": 4,
    "seed": 3,
    "data.devices": 5,
    "data.split": "dirichlet",
    "model.name": "linear",
    "cell.perfect": True,
    "eval.every": 2,
    "server.momentum": 0.5,
}
RADIO = {"cell.perfect": False, "cell.snr_db": 3.0}
CASES: dict[str, dict[str, Any]] = {
    "sbfl": {"method.aggregator": "sbfl"},
    "high_snr": {"method.aggregator": "high_snr", "method.weights": "share"},
    "coded scalars, by layer": {"method.side_bits": 6, "method.scales": "layer"},
    "coded scalars of the regression": {"data.name": "regression", "data.size": 40, "method.side_bits": 4},
    "coded scalars as codewords": RADIO | {"cell.side_info": "coded", "method.side_bits": 3},
    "vote": {"method.aggregator": "signsgd", "server.downlink": "sign", "server.learning_rate": 1e-3},
    "vote, ties by a coin": RADIO
    | {"data.devices": 4, "method.aggregator": "signsgd", "method.tie": "random"},
    "factor": {"method.aggregator": "bfl", "method.joint": "factor", "method.rotation": "shared"},
    "best": {"method.preset": "best", "method.side_bits": 8},
    "a tenth of a bit": RADIO
    | {"method.preset": "best", "method.rotation": "private"}
    | {"method.bits_per_weight": 0.1, "method.side_bits": 4},
    "a tenth of a bit, its scale as a codeword": RADIO
    | {"method.preset": "best", "method.bits_per_weight": 0.1, "method.side_bits": 4}
    | {"cell.side_info": "coded"},
    "two bits": {"method.preset": "best", "method.bits_per_weight": 2},
    "rotated as is better": RADIO | {"method.preset": "best", "method.rotation": "auto"},
    "ideal": {"method.aggregator": "ideal"},
    "bounded": RADIO | {"defence.bound_scales": True},
    "reliability": RADIO | {"defence.reliability": True, "method.rotation": "shared"},
    "trimmed": RADIO | {"method.aggregator": "trimmed_mean", "defence.assumed": 0.2},
    "radio": RADIO,
    "pilots": RADIO | {"cell.csi": "pilot", "cell.pilots": 2},
    "over the air": RADIO | {"method.aggregator": "sbfl", "cell.access": "over_the_air"},
    "radio, best": RADIO | {"method.preset": "best"},
    "radio, a cell": {"cell.perfect": False, "cell.fading": "rayleigh", "method.weights": "share"},
    "sign downlink": {"server.downlink": "sign", "server.learning_rate": 1e-3},
    "sign downlink, adam": {"server.downlink": "sign", "server.optimizer": "adam", "server.momentum": 0.0},
    "averaged": RADIO | {"server.averaging": 0.6},
    "local steps": RADIO | {"device.local_steps": 3, "device.momentum": 0.5},
    "epochs, private subsets": RADIO
    | {
        "device.epochs": 1,
        "method.rotation": "private",
        "method.bits_per_weight": 0.2,
        "method.side_bits": 4,
    },
    "auto, two bits": RADIO
    | {"method.preset": "best", "method.rotation": "auto", "method.bits_per_weight": 2},
    "some devices": {"data.participation": 0.4, "rounds": 6},
    "some devices, sign downlink": {"data.participation": 0.4, "rounds": 6, "server.downlink": "sign"},
}


@pytest.mark.parametrize("name", CASES)
def test_same_weights_losses_and_accuracies(name: str) -> None:
    settings = resolve(BASE | CASES[name])
    simulated = Experiment(settings)
    records = [simulated.advance() for _ in range(settings.rounds)]

    task = make_task(settings)
    strategy = OneBitStrategy(settings, Start.of_task(task))
    result = strategy.start(cell_of(settings), timeout=60, evaluate_fn=evaluation(task))

    assert torch.equal(strategy.server.weights, simulated.weights)
    assert strategy.validator.faults == []
    assert strategy.server.state.server.sent.record() == {key: records[-1][key] for key in BIT_KEYS}
    assert strategy.server.encoder == simulated._simulation.server.encoder(simulated._state.server)
    for record in records:
        number = record["round"]
        metrics = result.train_metrics_clientapp[number]
        assert metrics["train-loss"] == pytest.approx(record["train_loss"], rel=1e-12)
        assert metrics["devices"] == record["devices"]
        if record["test_accuracy"] is not None:
            assert result.evaluate_metrics_serverapp[number]["accuracy"] == record["test_accuracy"]
            assert result.evaluate_metrics_serverapp[number]["loss"] == record["test_loss"]
    flat = torch.cat([torch.from_numpy(array.numpy()).reshape(-1) for array in result.arrays.values()])
    assert torch.equal(flat, simulated.trained_weights)
