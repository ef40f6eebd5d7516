"""The data sets without labelled samples: the paper's synthetic regression, and Gaussian gradients.

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
from signfade.data.dataset import DATASETS, DataSource
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["RegressionData", "make_regression"]

_Floats = NDArray[np.float32]

_POWER = 5.0  # variance of the data of homogeneous devices, and the upper end of the others'
_BLOCK = 1 << 26  # bytes of data in hand while streaming


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Synthetic regression data of K devices, drawn when first asked for, and kept as far as memory goes.

    Device k's samples are a function of (seed, k) alone: not of K, nor of the order of asking. The first
    devices, as many as `memory` bytes hold, are drawn once; the others are drawn again each time. That is the
    trade: 100,000 devices of 100 x 300 would fill 12 GB, and drawing one of them takes 0.4 ms of a core.
    """

    devices: int  # K
    samples: int  # N_k, the same for all devices
    size: int  # M, number of weights
    heterogeneous: bool  # devices differ in the power of their data
    seed: int
    memory: int = 1 << 30  # bytes

    @property
    def _kept(self) -> int:
        return min(self.devices, self.memory // (4 * self.samples * (self.size + 1)))

    @property
    def X(self) -> Tensor:
        """Data of all devices, `[K, N_k, M]` float32, a new tensor."""
        return self.chunk(range(self.devices))[0]

    @property
    def z(self) -> Tensor:
        """Labels of all devices, `[K, N_k]` float32, a new tensor."""
        return self.chunk(range(self.devices))[1]

    @cached_property
    def scales(self) -> Tensor:
        """Variance `a_k` of the entries of `X_k`, `[K]` float64."""
        return torch.tensor([self._scale(self._stream(k)) for k in range(self.devices)], dtype=torch.float64)

    def chunk(
        self, devices: Sequence[int] | NDArray[np.int64], threads: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `X [D, N_k, M]` and `z [D, N_k]` of D devices in the order asked, float32, as new tensors.

        All cores by default; the number of threads never changes a result.

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
        X = np.empty((len(wanted), self.samples, self.size), dtype=np.float32)
        z = np.empty((len(wanted), self.samples), dtype=np.float32)

        def work(first: int, last: int) -> None:
            for row in range(first, last):
                self._read(int(wanted[row]), X[row], z[row])

        run_ranges(work, len(wanted), threads or available_threads())
        return torch.from_numpy(X), torch.from_numpy(z)

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
        """Return how far the summed loss at `w [M]` is above its minimum; NaN if `w` is not finite.

        Formula: `sum_k f_k(w) - min = (w - w*)^T A (w - w*)`, `A = sum_k X_k^T X_k`; computed as the right
        side, which loses no digits near the optimum and needs no data.

        Reference: the paper, Sec. VI (linear regression); docs/errata.md.
        """
        check_shape("w", w, (self.size,))
        error = w.detach().double() - self.optimum
        excess = float(error @ (self._normal[0] @ error))
        return max(excess, 0.0)  # of NaN and 0 this is NaN, the other way round it would be 0

    def multitask_optimum(self, coupling: float) -> Tensor:
        """Return the models that minimise `sum_k f_k(w_k) + coupling/2 * sum_k |w_k - mean(w)|**2`.

        `[K, M]` float64, in closed form: with `B_k = (2 X_k^T X_k + coupling)^-1` a model is
        `w_k = B_k (2 X_k^T z_k + coupling*v)`, and the mean v solves
        `(1 - coupling*mean(B)) v = mean(2 B X^T z)`.

        Reference: Smith et al., "Federated multi-task learning", the mean-regularised form.
        """
        X, z = (part.double() for part in self.chunk(range(self.devices)))
        eye = torch.eye(self.size, dtype=torch.float64)
        B = torch.linalg.inv(2 * X.mT @ X + coupling * eye)
        models: Tensor = (B @ (2 * X.mT @ z.unsqueeze(2))).squeeze(2)
        if coupling > 0:
            mean = torch.linalg.solve(eye - coupling * B.mean(dim=0), models.mean(dim=0))
            models = models + coupling * B @ mean
        return models

    def multitask_loss(self, w: Tensor, coupling: float) -> float:
        """Return `sum_k f_k(w_k) + coupling/2 * sum_k |w_k - mean(w)|**2` of models `w [K, M]`."""
        X, z = (part.double() for part in self.chunk(range(self.devices)))
        residual = (X @ w.double().unsqueeze(2)).squeeze(2) - z
        spread = w.double() - w.double().mean(dim=0)
        return float(residual.square().sum() + coupling / 2 * spread.square().sum())

    @cached_property
    def _store(self) -> tuple[_Floats, _Floats, NDArray[np.bool_]]:
        """Room for what is kept, which takes memory only as it fills, and which devices are there."""
        X = np.empty((self._kept, self.samples, self.size), dtype=np.float32)
        return X, np.empty(X.shape[:2], dtype=np.float32), np.zeros(self._kept, dtype=np.bool_)

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
            del X, z, rows, labels  # before the next are drawn
        return matrix, moment, energy

    @cached_property
    def _solution(self) -> tuple[float, Tensor, float]:
        """Smoothness, optimum and optimal loss from one eigendecomposition of the normal matrix."""
        matrix, moment, energy = self._normal
        values, vectors = torch.linalg.eigh(matrix)
        largest = float(values[-1])
        # With fewer samples than weights the matrix is singular.
        solid = values > self.size * torch.finfo(torch.float64).eps * largest
        inverse = torch.where(solid, 1 / torch.where(solid, values, 1.0), 0.0)
        optimum = vectors @ (inverse * (vectors.T @ moment))
        return 2 * largest, optimum, max(0.0, energy - float(moment @ optimum))

    def _stream(self, device: int) -> np.random.Generator:
        return keys.generator(self.seed, "regression", device=device)

    def _scale(self, stream: np.random.Generator) -> float:
        # Drawn for homogeneous sets too, so that both kinds share all other draws.
        scale = stream.uniform(0, _POWER)
        return scale if self.heterogeneous else _POWER

    def _read(self, device: int, X: _Floats, z: _Floats) -> None:
        """Fill in the data of one device, from the store if it is there."""
        all_X, all_z, there = self._store
        if device < self._kept and there[device]:
            X[:], z[:] = all_X[device], all_z[device]
            return
        stream = self._stream(device)
        deviation = np.float32(math.sqrt(self._scale(stream)))
        stream.standard_normal(dtype=np.float32, out=X)
        X *= deviation
        stream.standard_normal(dtype=np.float32, out=z)
        if device < self._kept:  # finished bytes only: another thread may be reading
            all_X[device], all_z[device] = X, z
            there[device] = True


def make_regression(
    devices: int = 20,
    samples: int = 100,
    size: int = 300,
    heterogeneous: bool = False,
    seed: int = 0,
    memory: int = 1 << 30,
) -> RegressionData:
    """Make the paper's synthetic regression set; the arguments are the fields of `RegressionData`.

    Formula: `f_k(w) = |X_k w - z_k|**2`, entries of `X_k` from N(0, a_k) and of `z_k` from N(0, 1), all
    independent; `a_k = 5`, or uniform in (0, 5) if `heterogeneous`.

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


for _name, _help in {
    "regression": "the paper's synthetic linear regression",
    "gaussian": "no data: gradients are iid Gaussian, as the theory assumes",
}.items():
    DATASETS.add(_name, DataSource(_help, where=lambda cache: "made on the fly"))
