"""The models that come with signfade, and how to bring your own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from signfade.kernels.pooled_conv import PooledConv
from signfade.keys import stream_key
from signfade.registry import Registry, user_code

__all__ = ["MODELS", "Model", "build_model", "linear", "mlp", "paper_cnn", "small_cnn"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A line of help, and the function from a sample's shape and the number of classes to a torch module."""

    help: str
    build: Callable[[Shape, int], nn.Module]


def _adopt(path: str, function: Callable[..., Any]) -> Model:
    def build(input_shape: Shape, classes: int) -> nn.Module:
        with user_code(path):
            model = function(input_shape, classes)
        if not isinstance(model, nn.Module):
            raise ValueError(f"{path!r} must return a torch.nn.Module; it returned {type(model).__name__}")
        return model

    return Model(f"your own model {path}", build)


MODELS: Registry[Model] = Registry("model.name", _adopt)


def paper_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions (32 and 64 channels), each with ReLU and 2x2 max-pooling, and one linear layer.

    62,346 parameters for 28x28 images in ten classes.
    """
    channels, height, width = _image("paper-cnn", input_shape)
    after = tuple(((side - 4) // 2 - 4) // 2 for side in (height, width))
    if min(after) < 1:
        raise ValueError(f"paper-cnn needs images of at least 16x16 pixels; got {height}x{width}")
    return nn.Sequential(
        PooledConv(channels, 32, 5),
        PooledConv(32, 64, 5),
        nn.Flatten(),
        nn.Linear(64 * after[0] * after[1], classes),
    )


def small_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """A network of the same shape for small images: 3x3 convolutions with 16 and 32 channels."""
    channels, height, width = _image("small-cnn", input_shape)
    if min(height, width) < 4:
        raise ValueError(f"small-cnn needs images of at least 4x4 pixels; got {height}x{width}")
    return nn.Sequential(
        PooledConv(channels, 16, 3, padding=1),
        PooledConv(16, 32, 3, padding=1),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


def mlp(input_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 128 units."""
    hidden = nn.Linear(math.prod(input_shape), 128)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(128, classes))


def linear(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def _image(name: str, input_shape: Shape) -> Shape:
    if len(input_shape) != 3:
        shape = list(input_shape)
        raise ValueError(f"model.name {name!r} needs images; the data has samples of shape {shape}")
    return input_shape


def _largest_that_fits(input_shape: Shape, classes: int) -> nn.Module:
    if len(input_shape) < 3:
        return mlp(input_shape, classes)
    return (paper_cnn if min(input_shape[1:]) >= 16 else small_cnn)(input_shape, classes)


MODELS.add("auto", Model("the largest of the following that fits the samples", _largest_that_fits))
MODELS.add("paper-cnn", Model("the paper's network: two 5x5 convolutions, one linear layer", paper_cnn))
MODELS.add("small-cnn", Model("two 3x3 convolutions, one linear layer, for small images", small_cnn))
MODELS.add("mlp", Model("one hidden layer of 128 units", mlp))
MODELS.add("linear", Model("multinomial logistic regression", linear))


def build_model(name: str, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """Build a model by name with initial weights drawn from `seed`; torch's own generator is left alone.

    `name` is one of `MODELS`, or the import path of a function of `(input_shape, classes)`; `input_shape` is
    that of one sample, for instance `(1, 28, 28)`.

    Example:
        >>> model = build_model("paper-cnn", (1, 28, 28), classes=10, seed=0)
        >>> sum(p.numel() for p in model.parameters())
        62346
    """
    model = MODELS.find(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "weights") >> 1)
        return model.build(input_shape, classes)
