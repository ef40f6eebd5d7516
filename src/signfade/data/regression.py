"""The paper's synthetic regression: every device's samples come from its own key, kept or drawn again.

Loss of device k: `f_k(w) = |X_k w - z_k|**2`, with the samples as *rows* of `X_k` here (the paper has
columns). The labels are independent of the data, so no `w` fits them well and the loss has a floor; what is
of interest is the excess over the least-squares optimum (docs/errata.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import keys
from signfade._check import check_shape

__all__ = ["RegressionData", "make_regression"]

_POWER = 5.0  # variance of the data of homogeneous devices, and the upper end of the others'
_BLOCK = 1 << 26  # bytes of data in hand while streaming


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Synthetic regression data of K devices, held in memory if small, else drawn again whenever asked for.

    Device k's samples are a function of (seed, k) alone: not of K, nor of the order of asking. A set of up to
    `memory` bytes is drawn once and kept. A larger one is never kept: `chunk` draws it again each time. That
    is the trade: 100,000 devices of 100 x 300 would fill 12 GB, and cost some 40 s a pass (0.4 ms a device).

    Attributes:
        devices: K.
        samples: N_k, the same for all devices.
        size: M, number of weights.
        heterogeneous: devices differ in the power of their data.
        seed: the seed of all streams.
        memory: hold the set if it takes at most this many bytes.
    """

    devices: int
    samples: int
    size: int
    heterogeneous: bool
    seed: int
    memory: int = 1 << 30

    @property
    def held(self) -> bool:
        """Whether the whole set is kept in memory."""
        return 4 * self.devices * self.samples * (self.size + 1) <= self.memory

    @property
    def X(self) -> Tensor:
        """Data of all devices, `[K, N_k, M]` float32; ValueError if the set is too large to hold."""
        return self._all[0]

    @property
    def z(self) -> Tensor:
        """Labels of all devices, `[K, N_k]` float32; ValueError if the set is too large to hold."""
        return self._all[1]

    @cached_property
    def scales(self) -> Tensor:
        """Variance `a_k` of the entries of `X_k`, `[K]` float64."""
        if not self.heterogeneous:
            return torch.full((self.devices,), _POWER, dtype=torch.float64)
        return torch.tensor([self._scale(self._stream(k)) for k in range(self.devices)], dtype=torch.float64)

    def chunk(self, devices: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the data of some devices, in the order asked.

        Args:
            devices: D device numbers, from 0 to K - 1.

        Returns:
            `X [D, N_k, M]` and `z [D, N_k]`, float32, new tensors.

        Example:
            >>> data = make_regression(devices=20)
            >>> X, z = data.chunk([3, 17])
            >>> bool((X == data.X[[3, 17]]).all()), tuple(z.shape)
            (True, (2, 100))
        """
        wanted = np.asarray(devices, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.devices):
            raise ValueError(
                f"devices must be from 0 to {self.devices - 1}; got {wanted.min()} to {wanted.max()}"
            )
        if self.held:
            index = torch.from_numpy(wanted)
            return self.X[index], self.z[index]
        return self._draw(wanted)

    @property
    def smoothness(self) -> float:
        """Smoothness of the summed loss, `L = 2 * lambda_max(sum_k X_k^T X_k)`; the paper's step is 1/L."""
        return self._solution[0]

    @property
    def optimum(self) -> Tensor:
        """Minimiser of the summed loss, `[M]` float64; the shortest one if there are many."""
        return self._solution[1]

    @property
    def optimal_loss(self) -> float:
        """The summed loss at its minimum, `min_w sum_k f_k(w)`."""
        return self._solution[2]

    def excess_loss(self, w: Tensor) -> float:
        """Return how far the summed loss at `w` is above its minimum.

        Formula: `sum_k f_k(w) - min = (w - w*)^T A (w - w*)`, `A = sum_k X_k^T X_k`; computed as the right
            side,
        which loses no digits near the optimum and needs no data.

        Args:
            w: weights, `[M]`.

        Example:
            >>> data = make_regression(devices=4, samples=50, size=10)
            >>> data.excess_loss(data.optimum)
            0.0

        Reference: the paper, Sec. VI (linear regression); docs/errata.md.
        """
        check_shape("w", w, (self.size,))
        error = w.detach().double() - self.optimum
        return max(0.0, float(error @ (self._normal[0] @ error)))

    @cached_property
    def _all(self) -> tuple[Tensor, Tensor]:
        if not self.held:
            raise ValueError(
                f"devices={self.devices} of {self.samples} x {self.size} do not fit in memory={self.memory}; "
                "ask for some with chunk(devices)"
            )
        return self._draw(np.arange(self.devices))

    @cached_property
    def _normal(self) -> tuple[Tensor, Tensor, float]:
        """The sums over k of `X_k^T X_k` [M, M], `X_k^T z_k` [M] and `|z_k|**2`: one pass over the data."""
        matrix = torch.zeros(self.size, self.size, dtype=torch.float64)
        moment = torch.zeros(self.size, dtype=torch.float64)
        energy = 0.0
        block = max(1, _BLOCK // (8 * self.samples * self.size))
        for start in range(0, self.devices, block):
            X, z = self.chunk(range(start, min(start + block, self.devices)))
            rows, labels = X.reshape(-1, self.size).double(), z.reshape(-1).double()
            matrix.addmm_(rows.T, rows)
            moment.addmv_(rows.T, labels)
            energy += float(labels @ labels)
        return matrix, moment, energy

    @cached_property
    def _solution(self) -> tuple[float, Tensor, float]:
        """Smoothness, optimum and optimal loss from one eigendecomposition of the normal matrix."""
        matrix, moment, energy = self._normal
        values, vectors = torch.linalg.eigh(matrix)
        largest = float(values[-1])
        solid = (
            values > self.size * torch.finfo(torch.float64).eps * largest
        )  # fewer samples than weights: singular
        inverse = torch.where(solid, 1 / torch.where(solid, values, 1.0), 0.0)
        optimum = vectors @ (inverse * (vectors.T @ moment))
        return 2 * largest, optimum, max(0.0, energy - float(moment @ optimum))

    def _stream(self, device: int) -> np.random.Generator:
        return keys.generator(self.seed, "regression", device=device)

    def _scale(self, stream: np.random.Generator) -> float:
        # Drawn for homogeneous sets too, so that both kinds share all other draws.
        scale = stream.uniform(0, _POWER)
        return scale if self.heterogeneous else _POWER

    def _draw(self, devices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        X = np.empty((len(devices), self.samples, self.size), dtype=np.float32)
        z = np.empty((len(devices), self.samples), dtype=np.float32)
        for row, device in enumerate(devices):
            stream = self._stream(int(device))
            deviation = np.float32(math.sqrt(self._scale(stream)))
            stream.standard_normal(dtype=np.float32, out=X[row])
            X[row] *= deviation
            stream.standard_normal(dtype=np.float32, out=z[row])
        return torch.from_numpy(X), torch.from_numpy(z)


def make_regression(
    devices: int = 20,
    samples: int = 100,
    size: int = 300,
    heterogeneous: bool = False,
    seed: int = 0,
    memory: int = 1 << 30,
) -> RegressionData:
    """Make the paper's synthetic regression set.

    Formula: `f_k(w) = |X_k w - z_k|**2`, entries of `X_k` from N(0, a_k) and of `z_k` from N(0, 1), all
    independent; `a_k = 5`, or uniform in (0, 5) if `heterogeneous`.

    Args:
        devices: K.
        samples: N_k, for every device.
        size: M, number of weights.
        heterogeneous: draw `a_k` for each device.
        seed: the same seed gives the same data for device k, whatever K is.
        memory: keep the set in memory if it takes at most this many bytes, else draw it again when asked.

    Returns:
        A `RegressionData`: `X [K, N_k, M]` and `z [K, N_k]`, or any part of them by `chunk(devices)`, `scales
        [K]`, and of the *sum* of the local losses `smoothness`, `optimum [M]`, `optimal_loss` and
        `excess_loss(w)`.

    Example:
        >>> data = make_regression(devices=20, heterogeneous=True)
        >>> tuple(data.X.shape), tuple(data.z.shape), tuple(data.scales.shape)
        ((20, 100, 300), (20, 100), (20,))

    Reference: the paper, Sec. VI (linear regression with synthetic heterogeneous data sets).
    """
    for name, value in (("devices", devices), ("samples", samples), ("size", size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    return RegressionData(devices, samples, size, heterogeneous, seed, memory)
