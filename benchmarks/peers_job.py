"""The job that every peer does: one FedAvg round of one local step, K devices, the paper's network in torch.

Weights, images and labels come from one seed, so that all who do the job must end with the same weights.
Nothing here needs signfade: a peer's environment has torch and the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICES, BATCH, STEP, WARM_UP = 20, 32, 0.1, 3


def cnn() -> nn.Sequential:
    """The paper's network: 62,346 parameters."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(1024, 10))


@cache
def data() -> tuple[Tensor, Tensor]:
    """Return images `[K, batch, 1, 28, 28]` and labels `[K, batch]`."""
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(DEVICES, BATCH, 1, 28, 28, generator=rng)
    return images, torch.randint(10, (DEVICES, BATCH), generator=rng)


def local_step(model: nn.Module, optimizer: torch.optim.Optimizer, device: int) -> None:
    """One step of a device on its batch."""
    images, labels = data()
    optimizer.zero_grad()
    functional.cross_entropy(model(images[device]), labels[device]).backward()
    optimizer.step()


def plain_round() -> Callable[[], Iterable[Tensor]]:
    """The loop one writes first, with torch's default settings."""
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
    weights = [parameter.detach().clone() for parameter in model.parameters()]

    def one_round() -> Iterable[Tensor]:
        nonlocal weights
        total = [torch.zeros_like(w) for w in weights]
        for device in range(DEVICES):
            with torch.no_grad():
                for parameter, w in zip(model.parameters(), weights, strict=True):
                    parameter.copy_(w)
            local_step(model, optimizer, device)
            for sum_, parameter in zip(total, model.parameters(), strict=True):
                sum_ += parameter.detach()
        weights = [sum_ / DEVICES for sum_ in total]
        return weights

    return one_round


def sums(weights: Iterable[Tensor]) -> list[float]:
    """Return what the weights add up to, and their energy."""
    parts = [part.detach().double() for part in weights]
    energy = sum(float(part.square().sum()) for part in parts)
    return [round(float(sum(part.sum() for part in parts)), 4), round(energy, 5)]
