"""Adapters: a frozen model that learns by thin matrices beside its linear layers (LoRA).

Only the adapters, and the parameters named to be trained in full, are weights of a run: they alone are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LoRA", "add_adapters"]


class LoRA(nn.Module):
    """A linear layer with an adapter: `W x + b + (alpha/r)*U D x`, D `[r, inputs]` and U `[outputs, r]`.

    U is zero at first, so that the layer starts as it was.

    Example:
        >>> layer = nn.Linear(6, 4)
        >>> x = torch.ones(2, 6)
        >>> torch.equal(LoRA(layer, rank=2)(x), layer(x))
        True

    Reference: E. J. Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float = 16.0) -> None:
        super().__init__()
        self.layer, self.factor = layer, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its adapter."""
        added = functional.linear(functional.linear(x, self.down), self.up, None)
        return torch.add(self.layer(x), added, alpha=self.factor)


def add_adapters(
    model: nn.Module,
    rank: int,
    targets: Sequence[str] = ("*",),
    trained: Sequence[str] = (),
    alpha: float = 16.0,
) -> nn.Module:
    """Freeze a model, in place, and put adapters on its linear layers; return it.

    Args:
        model: Any module; only layers of the class `nn.Linear` itself get adapters.
        rank: Of the adapters; 0 adds none, so that `trained` alone says what is trained.
        targets: Which layers get one: patterns such as `*.query` for their dotted names.
        trained: Parameters trained in full besides: patterns such as `head.*` for their dotted names. Layers
            whose weight is among them get no adapter.
        alpha: Of the adapters: their part is multiplied by alpha/rank.

    Raises:
        ValueError: A pattern fits nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = add_adapters(model, rank=2, targets=["0"], trained=["2.*"])
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['0.down', '0.up', '2.weight', '2.bias']
    """
    parameters = dict(model.named_parameters())
    layers = {name: part for name, part in model.named_modules() if type(part) is nn.Linear}
    _check("lora_targets", targets if rank else (), list(layers))
    _check("trained", trained, list(parameters))
    for name, parameter in parameters.items():
        parameter.requires_grad_(_fits(name, trained))
    for name, layer in layers.items():
        if rank and _fits(name, targets) and not layer.weight.requires_grad:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, LoRA(layer, rank, alpha))
    return model


def _check(key: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise ValueError(f"model.{key} must name parts of the model ({some}); {pattern!r} fits none")


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
