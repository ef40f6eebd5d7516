from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade.data import RegressionData, make_regression


def summed_loss(data: RegressionData, w: Tensor) -> Tensor:
    """The definition, in float64: the sum over devices of |X_k w - z_k|^2."""
    return sum(((X.double() @ w - z.double()) ** 2).sum() for X, z in zip(data.X, data.z))  # type: ignore[return-value]


def test_shapes_and_the_papers_sizes() -> None:
    data = make_regression()
    assert data.X.shape == (20, 100, 300)
    assert data.z.shape == (20, 100)
    assert data.X.dtype == data.z.dtype == torch.float32
    assert (data.scales == 5).all()


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_entries_have_the_stated_variance(heterogeneous: bool) -> None:
    data = make_regression(heterogeneous=heterogeneous, seed=3)
    entries = 100 * 300
    unit = data.X.double() / data.scales.sqrt()[:, None, None]
    # Of n standard normal entries the mean has deviation 1/sqrt(n), the mean square sqrt(2/n).
    assert (unit.mean(dim=(1, 2)).abs() < 5 / math.sqrt(entries)).all()
    assert ((unit.square().mean(dim=(1, 2)) - 1).abs() < 5 * math.sqrt(2 / entries)).all()
    assert abs(float(data.z.double().square().mean()) - 1) < 5 * math.sqrt(2 / 2000)
    # and no two devices, nor data and labels, share draws
    rows = unit[:, :, :100].reshape(20, -1)
    correlation = torch.corrcoef(torch.cat([rows, data.z.double().repeat(1, 100)]))[:20]
    correlation[:, :20].fill_diagonal_(0)
    assert correlation.abs().max() < 0.06  # deviation 0.01 for data; labels repeat, which does not widen it


def test_scales_are_uniform() -> None:
    from scipy.stats import kstest

    scales = make_regression(devices=2000, samples=1, size=1, heterogeneous=True).scales
    assert kstest(scales.numpy(), "uniform", args=(0, 5)).pvalue > 1e-4


def test_both_kinds_share_all_draws_but_the_scale() -> None:
    same, mixed = make_regression(devices=4), make_regression(devices=4, heterogeneous=True)
    ratio = (mixed.scales / same.scales).sqrt()[:, None, None].float()
    assert torch.allclose(mixed.X, same.X * ratio, rtol=1e-6, atol=0)
    assert torch.equal(mixed.z, same.z)


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_a_devices_data_do_not_depend_on_the_others(heterogeneous: bool) -> None:
    few = make_regression(devices=3, samples=7, size=5, heterogeneous=heterogeneous, seed=4)
    many = make_regression(devices=8, samples=7, size=5, heterogeneous=heterogeneous, seed=4)
    assert torch.equal(few.X, many.X[:3])
    assert torch.equal(few.z, many.z[:3])
    assert torch.equal(few.scales, many.scales[:3])
    other = make_regression(devices=3, samples=7, size=5, heterogeneous=heterogeneous, seed=5)
    assert not torch.isclose(few.X, other.X).any()


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_chunk_is_the_part_asked_for(memory: int) -> None:
    whole = make_regression(devices=6, samples=7, size=5, heterogeneous=True)
    data = make_regression(devices=6, samples=7, size=5, heterogeneous=True, memory=memory)
    X, z = data.chunk([4, 0, 4])
    assert torch.equal(X, whole.X[[4, 0, 4]])
    assert torch.equal(z, whole.z[[4, 0, 4]])
    X.zero_()  # the caller's own copy
    assert torch.equal(data.chunk(np.array([4]))[0], whole.X[[4]])
    assert data.chunk([])[0].shape == (0, 7, 5)
    for wrong in ([6], [-1]):
        with pytest.raises(ValueError, match="devices must be from 0 to 5"):
            data.chunk(wrong)


def test_what_memory_holds_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first devices are kept, the others drawn again, and nobody can tell from the data."""
    whole = make_regression(devices=6, samples=7, size=5, heterogeneous=True)
    expected = whole.X, whole.z
    data = make_regression(devices=6, samples=7, size=5, heterogeneous=True, memory=3 * 4 * 7 * 6)
    drawn: list[int] = []
    stream = RegressionData._stream
    monkeypatch.setattr(
        RegressionData, "_stream", lambda self, device: (drawn.append(device), stream(self, device))[1]
    )
    for threads in (1, 3):
        X, z = data.chunk(range(6), threads=threads)
        X.zero_()  # the caller's own copy
        X, z = data.chunk(range(6), threads=threads)
        assert torch.equal(X, expected[0])
        assert torch.equal(z, expected[1])
    assert sorted(drawn) == [0, 1, 2, *([3] * 4), *([4] * 4), *([5] * 4)]


def test_drawing_again_gives_the_same_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signfade.data.regression._BLOCK", 8 * 10 * 6 * 3)  # three at a time, then one
    held = make_regression(devices=7, samples=10, size=6)
    drawn = make_regression(devices=7, samples=10, size=6, memory=0)
    assert torch.equal(held.optimum, drawn.optimum)
    assert (held.smoothness, held.optimal_loss) == (drawn.smoothness, drawn.optimal_loss)
    assert torch.equal(held.X, drawn.X)


def test_a_set_larger_than_memory_costs_nothing_until_asked() -> None:
    data = make_regression(devices=100_000, heterogeneous=True)
    X, z = data.chunk([7, 99_999])
    assert torch.equal(X[:1], make_regression(devices=8, heterogeneous=True).X[7:])
    assert X.shape == (2, 100, 300)
    assert z.shape == (2, 100)


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_the_optimum_against_derivatives_of_the_definition(heterogeneous: bool) -> None:
    data = make_regression(devices=5, samples=30, size=12, heterogeneous=heterogeneous)
    w = data.optimum.clone().requires_grad_()
    loss = summed_loss(data, w)
    (gradient,) = torch.autograd.grad(loss, w)
    assert gradient.norm() < 1e-9 * data.smoothness
    assert data.optimal_loss == pytest.approx(loss.item(), rel=1e-10)
    hessian = torch.autograd.functional.hessian(lambda v: summed_loss(data, v), data.optimum)
    assert isinstance(hessian, Tensor)
    assert data.smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-10)


def test_excess_loss_is_the_difference_of_losses() -> None:
    data = make_regression(devices=5, samples=30, size=12)
    w = torch.randn(12, generator=torch.Generator().manual_seed(0))
    expected = float(summed_loss(data, w.double())) - data.optimal_loss
    assert data.excess_loss(w) == pytest.approx(expected, rel=1e-10)
    near = data.optimum + 1e-9  # a plain difference of losses would drown here
    direction = torch.ones(12, dtype=torch.float64)
    expected = float(((data.X.reshape(-1, 12).double() @ direction) * 1e-9).square().sum())
    assert data.excess_loss(near) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match=r"w must have shape \[12\]"):
        data.excess_loss(torch.zeros(13))


@pytest.mark.parametrize("lost", [torch.nan, torch.inf])
def test_a_lost_model_has_no_excess_loss(lost: float) -> None:
    excess = make_regression(devices=5, samples=30, size=12).excess_loss(torch.full((12,), lost))
    assert not math.isfinite(excess)


def test_the_floor_of_the_loss_is_that_of_labels_without_meaning() -> None:
    """Labels independent of the data leave a chi-square residual of (samples - weights) degrees."""
    data = make_regression(heterogeneous=True)
    freedom = 20 * 100 - 300
    assert abs(data.optimal_loss - freedom) < 5 * math.sqrt(2 * freedom)


def test_fewer_samples_than_weights() -> None:
    data = make_regression(devices=2, samples=10, size=50)
    shortest = torch.linalg.pinv(data.X.reshape(-1, 50).double()) @ data.z.reshape(-1).double()
    assert torch.allclose(data.optimum, shortest, rtol=1e-8, atol=1e-10)
    assert data.optimal_loss < 1e-10
    assert data.excess_loss(shortest) < 1e-12


def test_the_step_1_over_L_descends_at_the_known_rate() -> None:
    data = make_regression(devices=5, samples=30, size=12)
    w = torch.zeros(12, dtype=torch.float64)
    rows, labels = data.X.reshape(-1, 12).double(), data.z.reshape(-1).double()
    slowest = float(torch.linalg.eigvalsh(2 * rows.T @ rows)[0]) / data.smoothness
    for _ in range(20):
        before = data.excess_loss(w)
        w = w - 2 * rows.T @ (rows @ w - labels) / data.smoothness
        assert data.excess_loss(w) <= (1 - slowest) ** 2 * before * (1 + 1e-9)


@pytest.mark.parametrize("name", ["devices", "samples", "size"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
        make_regression(**{name: 0})
