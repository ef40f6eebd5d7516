"""The paper's regression, and the task whose gradients are Gaussian by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from signfade.data import make_regression
from signfade.experiments.config import resolve
from signfade.simulation.run import make_task
from signfade.simulation.synthetic import GaussianTask, RegressionTask


def test_regression_gradients_are_autograds() -> None:
    data = make_regression(devices=4, samples=30, size=12, heterogeneous=True, seed=1)
    task = RegressionTask(data, batch=None, seed=1)
    w = task.initial_weights().requires_grad_()
    x, z = data.chunk(np.array([2, 0]))
    local = task.local_updates(w.detach(), np.array([2, 0]), round=0)
    for row in range(2):
        loss = (x[row] @ w - z[row]).square().sum()
        (expected,) = torch.autograd.grad(loss, w)
        assert torch.allclose(local.gradients[row], expected, rtol=1e-4, atol=1e-3)
        assert float(local.losses[row]) == pytest.approx(loss.item() / 30, rel=1e-5)


def test_neither_blocks_nor_threads_change_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd sizes, so that a block of another size would shift the rows within the products' groups."""
    data = make_regression(devices=101, samples=13, size=41, heterogeneous=True, seed=5)
    devices = np.arange(101)
    whole = RegressionTask(data, None, seed=5)
    w = whole.initial_weights()
    expected = whole.local_updates(w, devices, round=0)
    monkeypatch.setattr("signfade.simulation.synthetic._BLOCK_BYTES", 1)  # 16 devices at a time
    for workers in (1, 3):
        found = RegressionTask(data, None, seed=5, workers=workers).local_updates(w, devices, round=0)
        assert torch.equal(found.gradients, expected.gradients)
        assert torch.equal(found.losses, expected.losses)
    monkeypatch.setattr(
        "signfade.simulation.synthetic._LARGEST_BLOCK_BYTES", 1
    )  # one at a time: other rounding
    found = RegressionTask(data, None, seed=5, workers=2).local_updates(w, devices, round=0)
    assert torch.allclose(found.gradients, expected.gradients, rtol=1e-4, atol=1e-3)


def test_the_test_loss_is_the_train_loss_less_its_minimum() -> None:
    """On full batches of equally many samples both are per sample, so their difference is the floor."""
    data = make_regression(devices=4, samples=30, size=12, heterogeneous=True, seed=1)
    task = RegressionTask(data, batch=None, seed=1)
    w = task.initial_weights()
    train = float(task.local_updates(w, np.arange(4), round=0).losses.mean())
    excess = task.evaluate(w).loss
    assert excess == pytest.approx(train - data.optimal_loss / (4 * 30), rel=1e-5)


def test_a_minibatch_is_unbiased() -> None:
    """Averaged over many rounds the mini-batch gradient is the full one."""
    data = make_regression(devices=1, samples=20, size=5, seed=2)
    full = RegressionTask(data, None, seed=2)
    part = RegressionTask(data, 4, seed=2)
    w = full.initial_weights()
    device = np.array([0])
    draws = torch.cat([part.local_updates(w, device, round=t).gradients for t in range(2000)])
    error = draws.std(dim=0) / np.sqrt(len(draws))
    expected = full.local_updates(w, device, round=0).gradients[0]
    assert bool(((draws.mean(dim=0) - expected).abs() < 4 * error).all())


@pytest.mark.parametrize("mean", [False, True])
def test_one_step_of_one_over_l_never_raises_the_loss(mean: bool) -> None:
    """Descent at 1/L, and divergence well above 2/L: L is the smoothness of the loss that is stepped."""
    data = make_regression(devices=5, samples=30, size=12, heterogeneous=True, seed=3)
    task = RegressionTask(data, None, seed=3, mean=mean)
    alpha = torch.full((5,), 0.2 if mean else 1.0)

    def final(step: float) -> float:
        w = task.initial_weights()
        for t in range(60):
            w = w - step * task.step_unit * (alpha @ task.local_updates(w, np.arange(5), t).gradients)
        loss = task.evaluate(w).loss
        assert loss is not None
        return loss

    start = task.evaluate(task.initial_weights()).loss
    assert start is not None
    assert final(1.0) < start / 10
    assert final(2.2) > start


def test_gaussian_gradients_have_the_stated_law() -> None:
    task = GaussianTask(devices=7, size=20_000, seed=4)
    g = task.local_updates(task.initial_weights(), np.arange(7), round=3).gradients
    for k in range(7):
        standard = g[k].numpy() / 2.0 ** (k % 5 - 2)
        assert stats.kstest(standard, "norm").pvalue > 1e-4
    again = task.local_updates(task.initial_weights(), np.array([3, 6]), round=3).gradients
    assert torch.equal(again, g[[3, 6]])


def test_the_optimum_does_not_depend_on_the_number_of_threads() -> None:
    """The step is measured in 1/L, so its last digit would be in every weight."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            task = make_task(resolve({"data.name": "regression"}))
            assert torch.get_num_threads() == threads
            found.append((task.step_unit, task.evaluate(task.initial_weights()).loss))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
