"""The models that come with signfade, and how to bring your own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.nn import functional

from signfade.kernels.pooled_conv import PooledConv
from signfade.keys import stream_key
from signfade.registry import Registry, user_code
from signfade.settings import InitialWeights

__all__ = ["MODELS", "Model", "build_model", "char_lstm", "char_transformer", "linear", "mlp", "paper_cnn"]
__all__ += ["resnet8", "small_cnn"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A line of help, and the function from a sample's shape and the number of classes to a torch module."""

    help: str
    build: Callable[[Shape, int], nn.Module]
    reads: Literal["numbers", "tokens", "any"] = "any"


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


def paper_cnn_3x3(input_shape: Shape, classes: int) -> nn.Module:
    """The same with padded 3x3 convolutions: 50,186 parameters for 28x28 images in ten classes."""
    return _padded("paper-cnn-3x3", input_shape, classes, 32)


def small_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """A network of the same shape for small images: padded 3x3 convolutions with 16 and 32 channels."""
    return _padded("small-cnn", input_shape, classes, 16)


def _padded(name: str, input_shape: Shape, classes: int, width: int) -> nn.Module:
    """Two padded 3x3 convolutions, the second with twice as many channels, and one linear layer."""
    channels, high, wide = _image(name, input_shape)
    if min(high, wide) < 4:
        raise ValueError(f"{name} needs images of at least 4x4 pixels; got {high}x{wide}")
    return nn.Sequential(
        PooledConv(channels, width, 3, padding=1),
        PooledConv(width, 2 * width, 3, padding=1),
        nn.Flatten(),
        nn.Linear(2 * width * (high // 4) * (wide // 4), classes),
    )


def mlp(input_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 128 units."""
    hidden = nn.Linear(math.prod(input_shape), 128)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(128, classes))


def linear(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


class _Residual(nn.Module):
    """Two 3x3 convolutions with group normalisation, added to the input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normalised(channels, width, 3, stride), nn.ReLU(), *_normalised(width, width, 3, 1)
        )
        same = stride == 1 and channels == width
        self.skip = nn.Identity() if same else nn.Sequential(*_normalised(channels, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def _normalised(channels: int, width: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A convolution and the normalisation of eight groups of its channels."""
    convolution = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
    return convolution, nn.GroupNorm(8, width)


def resnet8(input_shape: Shape, classes: int) -> nn.Module:
    """ResNet-8 for CIFAR-10: three residual blocks of 16, 32 and 64 channels, with group normalisation.

    78,042 parameters for colour images in ten classes. Group normalisation has no running statistics, which
    differ from device to device where each has few classes.

    Reference: K. Hsieh et al., The Non-IID Data Quagmire of Decentralized Machine Learning, ICML 2020.
    """
    channels, *_ = _image("resnet8", input_shape)
    return nn.Sequential(
        *_normalised(channels, 16, 3, 1),
        nn.ReLU(),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        _Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class _CharLSTM(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, 32)
        self.recur = nn.LSTM(32, 128, batch_first=True)
        self.score = nn.Linear(128, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(self.recur(self.embed(tokens))[0])
        return scores


def char_lstm(input_shape: Shape, classes: int) -> nn.Module:
    """One LSTM of 128 units over embedded characters: a score of every character at every position."""
    return _CharLSTM(classes)


class _CharTransformer(nn.Module):
    def __init__(self, length: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(classes, width), nn.Embedding(length, width)
        layers = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        ]
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(width)
        self.score = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        x = self.embed(tokens) + self.place.weight[:length]
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        scores: Tensor = self.score(self.norm(x))
        return scores


def char_transformer(input_shape: Shape, classes: int) -> nn.Module:
    """Two causal transformer layers of width 64 over embedded characters; scores as those of `char_lstm`."""
    return _CharTransformer(input_shape[0], classes)


def _image(name: str, input_shape: Shape) -> Shape:
    if len(input_shape) != 3:
        shape = list(input_shape)
        raise ValueError(f"model.name {name!r} needs images; the data has samples of shape {shape}")
    return input_shape


def _largest_that_fits(input_shape: Shape, classes: int) -> nn.Module:
    if len(input_shape) < 3:
        return mlp(input_shape, classes)
    return (paper_cnn if min(input_shape[1:]) >= 16 else small_cnn)(input_shape, classes)


MODELS.add(
    "auto", Model("the largest CNN or mlp that fits the samples, char-lstm for text", _largest_that_fits)
)
MODELS.add(
    "paper-cnn", Model("the paper's network: two 5x5 convolutions, one linear layer", paper_cnn, "numbers")
)
MODELS.add("paper-cnn-3x3", Model("the same with padded 3x3 convolutions", paper_cnn_3x3, "numbers"))
MODELS.add(
    "small-cnn", Model("two 3x3 convolutions, one linear layer, for small images", small_cnn, "numbers")
)
MODELS.add("resnet8", Model("ResNet-8 with group normalisation, for CIFAR-10", resnet8, "numbers"))
MODELS.add("mlp", Model("one hidden layer of 128 units", mlp, "numbers"))
MODELS.add("linear", Model("multinomial logistic regression", linear, "numbers"))
MODELS.add(
    "char-lstm", Model("an LSTM that predicts the next character at every position", char_lstm, "tokens")
)
MODELS.add("char-transformer", Model("a causal transformer that does the same", char_transformer, "tokens"))


def _normal(tensor: Tensor, deviation: float, cut: float = math.inf) -> Tensor:
    """Draw normal numbers cut at `cut` deviations, from uniform ones, which no CPU draws differently."""
    tail = 0.5 * math.erfc(cut / math.sqrt(2))
    uniform = torch.rand(tensor.shape, dtype=torch.float64).clamp_min(2.0**-53)
    return tensor.copy_(deviation * torch.from_numpy(ndtri(tail + (1 - 2 * tail) * uniform.numpy())))


_INITIAL: dict[InitialWeights, tuple[Callable[[Tensor, float, float], Tensor], float]] = {
    "he": (lambda weight, into, _: _normal(weight, math.sqrt(2 / into)), 0.0),
    "glorot": (
        lambda weight, into, out: weight.uniform_(-math.sqrt(6 / (into + out)), math.sqrt(6 / (into + out))),
        0.0,
    ),
    "truncated-normal": (lambda weight, _into, _out: _normal(weight, 0.1, cut=2), 0.1),
}


@torch.no_grad()
def _draw_again(model: nn.Module, initial: InitialWeights) -> None:
    """Draw the weights of linear and convolutional layers from another distribution than torch's.

    References: K. He et al., Delving Deep into Rectifiers, ICCV 2015; X. Glorot and Y. Bengio, Understanding
    the Difficulty of Training Deep Feedforward Neural Networks, AISTATS 2010.
    """
    if not all(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"model.initial {initial} draws weights anew, and this model has frozen ones")
    draw, bias = _INITIAL[initial]
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            field = math.prod(layer.weight.shape[2:])
            out, into = layer.weight.shape[:2]
            draw(layer.weight, into * field, out * field)
            if layer.bias is not None:
                layer.bias.fill_(bias)


def build_model(
    name: str,
    input_shape: Shape,
    classes: int,
    seed: int,
    tokens: bool = False,
    initial: InitialWeights = "torch",
) -> nn.Module:
    """Build a model by name with initial weights drawn from `seed`; torch's own generator is left alone.

    `name` is one of `MODELS`, or the import path of a function of `(input_shape, classes)`; `input_shape` is
    that of one sample, for instance `(1, 28, 28)`. Samples are numbers, or `tokens`, for which `auto` takes
    char-lstm. `initial` says how linear and convolutional layers are drawn.

    Example:
        >>> model = build_model("paper-cnn", (1, 28, 28), classes=10, seed=0)
        >>> sum(p.numel() for p in model.parameters())
        62346
    """
    name = "char-lstm" if tokens and name == "auto" else name
    model, given = MODELS.find(name), "tokens" if tokens else "numbers"
    if model.reads not in ("any", given):
        hint = ": integers [N, T] are tokens, make floats of a table" if tokens else ""
        raise ValueError(f"model.name {name!r} reads {model.reads}, and the data has {given}{hint}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "weights") >> 1)
        built = model.build(input_shape, classes)
        if initial != "torch":
            _draw_again(built, initial)
        return built
