"""The model and the data: nothing here knows of signfade or Flower."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["Net", "accuracy", "load_part", "load_test", "loss"]

_TEST = 360

loss = nn.CrossEntropyLoss()


class Net(nn.Module):
    """A small network for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the server's initial weights; the devices' are overwritten
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ten scores per image."""
        scores: Tensor = self.layers(x)
        return scores


def _samples() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    return images[order], torch.tensor(digits.target)[order]


def load_part(part: int, parts: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return the samples of one device; a real device has its own."""
    images, labels = (samples[_TEST:][part::parts] for samples in _samples())
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=True)


def load_test() -> tuple[Tensor, Tensor]:
    """Return the samples that no device holds."""
    images, labels = _samples()
    return images[:_TEST], labels[:_TEST]


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that a model classifies correctly."""
    model.eval()
    return float((model(images).argmax(dim=1) == labels).float().mean())
