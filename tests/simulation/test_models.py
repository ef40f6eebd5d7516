"""Models by name and by import path."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from signfade.registry import load_function
from signfade.settings import InitialWeights
from signfade.simulation.models import MODELS, build_model


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "size"), [("paper-cnn", 62_346), ("paper-cnn-3x3", 50_186)])
def test_the_papers_network_is_as_large_as_the_docs_say(name: str, size: int) -> None:
    assert parameters(build_model(name, (1, 28, 28), 10, seed=0)) == size


TEXT = ("char-lstm", "char-transformer")


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_maps_a_batch_to_scores(name: str) -> None:
    if name in TEXT:
        assert build_model(name, (9,), 7, seed=0, tokens=True)(torch.zeros(3, 9).long()).shape == (3, 9, 7)
    else:
        assert build_model(name, (1, 20, 20), 7, seed=0)(torch.zeros(3, 1, 20, 20)).shape == (3, 7)


@pytest.mark.parametrize("name", TEXT)
def test_a_text_model_does_not_see_the_future(name: str) -> None:
    """Changing a character changes scores there and after it, and none before: it cannot copy its label."""
    model = build_model(name, (9,), 7, seed=0, tokens=True)
    text = torch.arange(9).remainder(7).unsqueeze(0)
    other = text.clone()
    other[0, 5] = 6 - other[0, 5]
    moved = (model(text) - model(other)).detach().abs().amax(dim=(0, 2))
    assert float(moved[:5].max()) < 1e-6
    assert float(moved[5:].min()) > 1e-6


def test_resnet8_has_the_size_of_the_usual_one() -> None:
    """Convolutions 3x3 of 16, 16, 16, 32, 32, 64, 64 channels, two 1x1, nine normalisations, ten scores."""
    convolutions = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64
    norms = 2 * (3 * 16 + 3 * 32 + 3 * 64)
    assert parameters(build_model("resnet8", (3, 32, 32), 10, seed=0)) == convolutions + norms + 650


@pytest.mark.parametrize(("shape", "size"), [((1, 28, 28), 62_346), ((1, 8, 8), 6_090), ((12,), 2_954)])
def test_auto_takes_the_largest_network_that_fits(shape: tuple[int, ...], size: int) -> None:
    assert parameters(build_model("auto", shape, 10, seed=0)) == size


def test_auto_takes_a_text_model_for_tokens() -> None:
    assert build_model("auto", (9,), 7, seed=0, tokens=True)(torch.zeros(2, 9).long()).shape == (2, 9, 7)


def test_initial_weights_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    a, b, c = (build_model("mlp", (1, 8, 8), 10, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    first = [next(model.parameters()) for model in (a, b, c)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def wide(initial: InitialWeights, seed: int = 0) -> nn.Sequential:
    """The paper's network on an image so large that its first linear layer has many weights."""
    model = build_model("paper-cnn", (1, 44, 44), 10, seed=seed, initial=initial)
    assert isinstance(model, nn.Sequential)
    return model


@pytest.mark.parametrize(
    ("initial", "variance", "most", "bias"),
    [
        ("he", lambda into, out: 2 / into, math.inf, 0.0),
        ("glorot", lambda into, out: 2 / (into + out), math.sqrt(3), 0.0),
        # of a normal distribution cut at two deviations: 1 - 2 a phi(a) / (2 Phi(a) - 1) with a = 2
        ("truncated-normal", lambda into, out: 0.01 * 0.7737, 2 / math.sqrt(0.7737), 0.1),
    ],
)
def test_initial_weights_have_their_papers_moments(
    initial: InitialWeights, variance: Callable[[int, int], float], most: float, bias: float
) -> None:
    layers = [layer for layer in wide(initial).modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert len(layers) == 3
    for layer in layers:
        field = layer.weight[0, 0].numel()
        expected = variance(layer.weight.shape[1] * field, layer.weight.shape[0] * field)
        unit = layer.weight.detach() / math.sqrt(expected)
        error = 6 / math.sqrt(unit.numel())
        assert abs(float(unit.mean())) < error
        assert abs(float(unit.square().mean()) - 1) < 1.5 * error
        assert float(unit.abs().max()) < 1.001 * most
        assert layer.bias is not None
        assert torch.equal(layer.bias, torch.full_like(layer.bias, bias))


@pytest.mark.parametrize("initial", get_args(InitialWeights))
def test_other_initial_weights_follow_the_seed_too(initial: InitialWeights) -> None:
    once, again, other = (wide(initial, seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(once, wide("torch", 1)[0].weight) == (initial == "torch")


def test_weights_are_not_drawn_again_where_some_are_frozen(tmp_path: Path) -> None:
    file = tmp_path / "frozen.py"
    file.write_text(
        "import torch\n\ndef build(shape, classes):\n"
        "    return torch.nn.Linear(shape[0], classes).requires_grad_(False)\n"
    )
    with pytest.raises(ValueError, match="he draws weights anew, and this model has frozen ones"):
        build_model(f"{file}:build", (3,), 2, seed=0, initial="he")


def test_a_factory_is_found_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef net(shape, classes): return nn.Linear(shape[0], classes)\n")
    assert parameters(build_model(f"{file}:net", (5,), 2, seed=0)) == 12


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (1, 28, 28), "model.name must be one of auto, paper-cnn"),
        ("paper-cnn", (1, 8, 8), "paper-cnn needs images of at least 16x16"),
        ("small-cnn", (64,), "needs images"),
        ("char-lstm", (1, 8, 8), "reads tokens, and the data has numbers"),
        ("no.such.module:net", (64,), "cannot import 'no.such.module'"),
        ("/nowhere/net.py:net", (64,), "cannot import '/nowhere/net.py'"),
        ("math:nothing", (64,), "'math' has no function 'nothing'"),
        ("math:hypot", (64,), "math:hypot failed with TypeError"),
        ("builtins:divmod", (64,), "builtins:divmod failed with TypeError"),
        ("operator:contains", (64,), "must return a torch.nn.Module; it returned bool"),
    ],
)
def test_what_cannot_be_built_is_named(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, shape, 3, seed=0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_package_anywhere", "no_such_package_anywhere"),
        ("def net(:", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_broken_import_keeps_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"{text}\n")
    with pytest.raises(ValueError, match=rf"cannot import .*broken\.py.*{reason}"):
        load_function(f"{file}:net")
