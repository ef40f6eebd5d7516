"""What devices have of their own: labels permuted by group, and layers that never leave the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from signfade.keys import generator
from signfade.settings import DataSettings

__all__ = ["LabelGroups", "make_groups", "personal_parameters"]


@dataclass(frozen=True, eq=False)
class LabelGroups:
    """Groups of devices, each with its own permutation of the labels, `[G, C]`; the first keeps them."""

    maps: Tensor
    regroup_at: int | None = None  # device 0 is in the next group after so many rounds

    def of(self, devices: NDArray[np.int64], round: int) -> NDArray[np.int64]:
        """Return the groups of devices in a round, counted from 0."""
        moved = self.regroup_at is not None and round >= self.regroup_at
        groups: NDArray[np.int64] = (devices + ((devices == 0) & moved)) % len(self.maps)
        return groups


def make_groups(data: DataSettings, classes: int, seed: int) -> LabelGroups:
    """Draw the groups' permutations of the labels.

    Example:
        >>> make_groups(DataSettings(groups=2), classes=4, seed=0).maps
        tensor([[0, 1, 2, 3],
                [1, 2, 3, 0]])
    """
    drawn = [generator(seed, "label groups", device=g).permutation(classes) for g in range(1, data.groups)]
    return LabelGroups(torch.from_numpy(np.stack([np.arange(classes), *drawn])), data.regroup_at)


def personal_parameters(model: nn.Module, names: Sequence[str]) -> list[bool]:
    """Tell of every parameter to train whether it stays on its device: its name starts with one of `names`.

    `head` is also the last layer of a model that has no layer of this name.

    Example:
        >>> personal_parameters(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), ["head"])
        [False, False, True, True]
    """
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))
    chosen = []
    for name in names:
        found = [one for one in trained if f"{one}.".startswith(f"{name}.")]
        if not found and name == "head":
            found = [one for one in trained if one.rpartition(".")[0] == layers[-1]]
        if not found:
            raise ValueError(
                f"model.personal: no parameter's name starts with {name!r}; there are {', '.join(trained)}, "
                "and head for the last layer"
            )
        chosen += found
    if len(set(chosen)) == len(trained) > 0:
        raise ValueError("model.personal must leave some of the model to be shared; it names all of it")
    return [name in chosen for name in trained]
