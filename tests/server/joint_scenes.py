"""Random joint priors and received signals for the tests of the joint rules."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

SCALE = math.sqrt(2 / math.pi)


def random_correlation(devices: int, factors: int, noise: float, seed: int) -> torch.Tensor:
    """A correlation matrix with entries of both signs; few factors and little noise make it extreme."""
    generator = np.random.default_rng(seed)
    loadings = generator.standard_normal((devices, factors))
    covariance = loadings @ loadings.T + noise * np.eye(devices)
    root = np.sqrt(np.diag(covariance))
    return torch.from_numpy(covariance / np.outer(root, root))


def equal(devices: int, value: float) -> torch.Tensor:
    return value + (1 - value) * torch.eye(devices, dtype=torch.float64)


def receive(
    covariance: torch.Tensor, h: torch.Tensor, sigma2: torch.Tensor, size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients `[K, M]` drawn from N(0, covariance), and what is received of their signs."""
    generator = torch.Generator().manual_seed(seed)
    values, vectors = torch.linalg.eigh(covariance.double())
    root = vectors * values.clamp_min(0).sqrt()
    g = root @ torch.randn(len(h), size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(h), size, generator=generator, dtype=torch.float64)
    signs = torch.where(g >= 0, 1.0, -1.0).double()
    return g, h.double()[:, None] * signs + sigma2.double().sqrt()[:, None] * noise


def gaussian_integral(
    covariance: NDArray[np.float64], llr: NDArray[np.float64], nodes: int = 80
) -> NDArray[np.float64]:
    """`E[g | y]` by brute force: Gauss-Legendre over every orthant, d nested loops in one array."""
    d = len(covariance)
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = 4.5 * (x + 1), 4.5 * w
    inverse = np.linalg.inv(covariance)
    mass, mean = 0.0, np.zeros(d)
    for pattern in range(2**d):
        signs = np.array([1.0 if pattern >> i & 1 == 0 else -1.0 for i in range(d)])
        grid = np.stack(np.meshgrid(*(s * x * math.sqrt(v) for s, v in zip(signs, np.diag(covariance)))))
        grid = grid.reshape(d, -1)
        weight = np.prod(np.stack(np.meshgrid(*[w] * d)).reshape(d, -1), axis=0)
        density = weight * np.exp(-0.5 * np.einsum("in,ij,jn->n", grid, inverse, grid) + signs @ llr)
        mass += density.sum()
        mean += grid @ density
    return mean / mass
