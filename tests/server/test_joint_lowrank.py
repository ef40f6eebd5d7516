"""Correlations of very many devices: functions of all their entries, and what makes them valid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from signfade.server.joint import LowRank, joint_sbfl, learn_low_rank, lowrank
from signfade.server.joint.lowrank import _least_eigenvalue, mapped, valid_low_rank


def factors(devices: int, values: list[float], load: float, seed: int = 1) -> LowRank:
    """Random loadings; a device's add up to at most `load`."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(devices, len(values), generator=generator).double()
    reach = load * torch.rand(devices, 1, generator=generator).double()
    vectors *= (reach / vectors.square().sum(dim=1, keepdim=True)).sqrt()
    return LowRank(vectors, torch.tensor(values).double())


def entries(matrix: LowRank) -> Tensor:
    return (matrix.vectors * matrix.values) @ matrix.vectors.T


@pytest.mark.parametrize("values", [[1.0, 0.6, 0.3], [1.0, 0.8, 0.6, 0.4, -0.3, -0.5]])
def test_landmarks_stand_for_all_devices(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eigenvectors extended from some columns are off by hardly more than those of the whole matrix."""
    matrix = factors(1200, values, load=0.5)

    def sine(x: Tensor) -> Tensor:
        return torch.sin((math.pi / 2) * x)

    truth = sine(entries(matrix))
    whole = float((entries(mapped(matrix, sine)) - truth).norm())
    monkeypatch.setattr(lowrank, "_LANDMARKS", 400)
    extended = mapped(matrix, sine)
    assert len(extended) == 1200
    assert float((entries(extended) - truth).norm()) < 1.1 * whole
    assert whole < 0.4 * float((math.pi / 2 * entries(matrix) - truth).norm())  # or a line would do as well


@pytest.mark.parametrize("values", [[1.0, 0.5], [1.0, -0.9], [-1.0, -0.7, 0.2], [60.0, -60.0]])
@pytest.mark.parametrize("devices", [3, 40, 260])
def test_the_least_eigenvalue(values: list[float], devices: int) -> None:
    matrix = factors(devices, values, load=0.9)
    exact = min(0.005, float(matrix.private().min()), float(torch.linalg.eigvalsh(matrix.dense())[0]))
    found = _least_eigenvalue(matrix, enough=0.005)
    assert exact - 1.01e-3 * max(0.005, abs(exact)) - 1e-9 <= found <= exact + 1e-9
    valid = valid_low_rank(matrix)
    assert float(torch.linalg.eigvalsh(valid.dense())[0]) > 0


def test_bits_of_a_correlation_are_its_arcsines() -> None:
    matrix = factors(50, [1.0, -0.4], load=0.6)
    truth = (2 / math.pi) * torch.asin(entries(matrix))
    assert float((entries(matrix.bits) - truth).abs().max()) < 2e-3
    assert matrix.bits is matrix.bits  # worked out once


def test_thousands_of_devices_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the devices move against the other half: the two blocks' signs and the size are found."""
    monkeypatch.setattr(lowrank, "_LANDMARKS", 500)
    devices, size = 1500, 400
    generator = torch.Generator().manual_seed(2)
    side = torch.where(torch.arange(devices) < devices // 2, 1.0, -1.0)
    common = torch.randn(size, generator=generator)
    g = 0.6 * side[:, None] * common + 0.8 * torch.randn(devices, size, generator=generator)
    h, sigma2 = torch.randn(devices, generator=generator), torch.full((devices,), 0.5)
    y = h[:, None] * g.sign() + sigma2.sqrt()[:, None] * torch.randn(devices, size, generator=generator)
    learned = learn_low_rank(y, h, sigma2)
    strong = h.abs() > 0.5  # weak links have little evidence, and their loadings are shrunk
    found = entries(learned)[strong][:, strong] * (side[:, None] * side[None, :])[strong][:, strong]
    assert float(found.mean()) == pytest.approx(0.36, abs=0.05)
    one = torch.ones(devices)
    estimate = joint_sbfl(y, h, sigma2, 0 * one, 0.8 * one, learned, weights=side)
    cosine = float(torch.nn.functional.cosine_similarity(estimate, common, dim=0))
    assert cosine == pytest.approx(math.sqrt(0.36 / math.asin(0.36)), abs=0.005)  # of infinitely many bits
