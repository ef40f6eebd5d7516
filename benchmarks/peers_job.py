"""The job that every peer does: one FedAvg round of one local step, K devices, the paper's network in torch.

Weights, images and labels come from one seed, so that all who do the job must end with the same weights.
Nothing here needs signfade: a peer's environment has torch and the peer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICES, BATCH, STEP, WARM_UP = 20, 32, 0.1, 3
MARK = "peer:"  # engines write to standard output as they like; our lines start with this


def cnn() -> nn.Sequential:
    """The paper's network: 62,346 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


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


def ready(weights: Iterable[Tensor]) -> None:
    """Say that the first round is done, and what its weights add up to."""
    parts = [part.detach().double() for part in weights]
    energy = sum(float(part.square().sum()) for part in parts)
    print(f"{MARK} {float(sum(part.sum() for part in parts)):.4f} {energy:.5f}", flush=True)


def wait_for_turn() -> bool:
    """Wait for a line on standard input; False at its end."""
    return bool(sys.stdin.readline())


def answer(seconds: float) -> None:
    print(f"{MARK} {seconds}", flush=True)


def serve(one_round: Callable[[], Iterable[Tensor]]) -> None:
    """Run a round for every line on standard input and answer with its seconds."""
    ready(one_round())
    for _ in range(WARM_UP - 1):
        one_round()
    while wait_for_turn():
        start = time.perf_counter()
        one_round()
        answer(time.perf_counter() - start)


class Turns:
    """The same for engines that run the loop themselves and call back after every round."""

    def __init__(self) -> None:
        self._done = 0
        self._start = 0.0

    def round_is_over(self, weights: Iterable[Tensor]) -> bool:
        """Answer for the round just run and wait for the next; False when there is none."""
        took = time.perf_counter() - self._start
        self._done += 1
        if self._done == 1:
            ready(weights)
        elif self._done > WARM_UP:
            answer(took)
        more = self._done < WARM_UP or wait_for_turn()
        self._start = time.perf_counter()
        return more
