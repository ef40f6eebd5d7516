"""Adapters: the same model at first, then a low-rank change of the chosen layers, and nothing else sent."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from signfade.settings import RunSettings
from signfade.simulation import Experiment
from signfade.simulation.lora import LoRA, add_adapters


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5))
    return nn.Sequential(nn.Flatten(), body, nn.Tanh(), nn.Linear(5, 3))


def test_an_adapter_is_a_change_of_the_weights_of_its_rank() -> None:
    """`W x + b + (16/r) U D x` is a linear layer with weights `W + (16/r) U D`."""
    layer = nn.Linear(6, 5)
    adapter = LoRA(layer, rank=2)
    nn.init.normal_(adapter.up)
    merged = copy.deepcopy(layer)
    with torch.no_grad():
        merged.weight += 8 * adapter.up @ adapter.down
    x = torch.randn(4, 6)
    assert torch.allclose(adapter(x), merged(x), atol=1e-5)


def test_a_model_with_adapters_starts_as_it_was_and_trains_only_what_is_named() -> None:
    plain, x = network(), torch.randn(4, 6)
    model = add_adapters(network(), 2, targets=["1.*"], trained=["3.*"])
    assert torch.equal(model(x), plain(x))
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        "1.0.down": 12,
        "1.0.up": 10,
        "1.2.down": 10,
        "1.2.up": 10,
        "3.weight": 15,
        "3.bias": 3,
    }


def test_a_layer_trained_in_full_gets_no_adapter() -> None:
    model = add_adapters(network(), 2, trained=["3.weight"])
    assert isinstance(model[1][0], LoRA)  # type: ignore[index]
    assert type(model[3]) is nn.Linear  # type: ignore[index]


def test_patterns_that_fit_nothing_are_named() -> None:
    with pytest.raises(ValueError, match=r"model.lora_targets must name parts .*'\*.query' fits none"):
        add_adapters(network(), 2, targets=["*.query"])
    with pytest.raises(ValueError, match=r"model.trained must name parts .*'head' fits none"):
        add_adapters(network(), 0, trained=["head"])


def test_a_run_sends_and_keeps_adapters_alone() -> None:
    """148 weights beside 6,090 of small-cnn that stay; a resumed run ends with the same bytes."""
    tables = {
        "rounds": 3,
        "data": {"name": "digits", "devices": 4, "batch": 8},
        "model": {"name": "small-cnn", "lora_rank": 1, "lora_targets": ["3"], "trained": ["3.bias"]},
        "eval": {"every": 10},
    }
    settings = RunSettings.model_validate(tables)
    whole = Experiment(settings)
    assert whole.task.segments == (128, 10, 10)
    first = whole.weights.clone()
    whole.advance()
    kept = whole.state()
    assert max(value.numel() for name, value in kept.items() if name.startswith("server")) < 6_090
    resumed = Experiment(settings)
    resumed.restore(kept, 1)
    for _ in range(2):
        whole.advance()
        resumed.advance()
    assert torch.equal(whole.weights, resumed.weights)
    assert not torch.equal(whole.weights, first)
