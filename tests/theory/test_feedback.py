"""The step condition of error feedback, against runs of the very model and of the paper's regression."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade.data import make_regression
from signfade.device import sign
from signfade.theory import feedback_limit, feedback_ratio


def excess(step: float, feedback: bool, rounds: int = 240, skip: int = 60) -> tuple[float, np.ndarray]:
    """Full-batch regression over noiseless links, rotated anew each round; the step in units of 1/L."""
    data = make_regression(devices=20, samples=50, size=64, seed=3)
    w, memory = data.optimum.clone(), torch.zeros(20, 64, dtype=torch.float64)
    x, z = data.X.double(), data.z.double()
    hessians = 2 * x.mT @ x
    at_optimum = 2 * torch.bmm((x @ w - z).unsqueeze(1), x).squeeze(1)
    draw = torch.Generator().manual_seed(0)
    total = 0.0
    for t in range(rounds):
        turn = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64, generator=draw))[0]
        u = at_optimum + hessians @ (w - data.optimum) + (memory if feedback else 0)
        rotated = u @ turn
        scale = math.sqrt(2 / math.pi) * rotated.square().mean(dim=1, keepdim=True).sqrt()
        sent = (scale * sign(rotated)) @ turn.T
        memory = u - sent
        w = w - step / data.smoothness * sent.sum(dim=0)
        total += data.excess_loss(w) if t >= skip else 0.0
    return total / (rounds - skip), torch.linalg.eigvalsh(hessians.sum(dim=0)).numpy() / data.smoothness


@pytest.mark.parametrize("step", [0.2, 1.0])
def test_the_ratio_is_that_of_two_runs(step: float) -> None:
    """Within 15 %: 180 rounds of a process whose slowest direction remembers about ten of them."""
    without, curvature = excess(step, feedback=False)
    with_it, _ = excess(step, feedback=True)
    assert with_it / without == pytest.approx(feedback_ratio(step, curvature), rel=0.15)


def test_the_limit_is_where_the_steepest_direction_breaks_even() -> None:
    limit = feedback_limit(7.0)
    assert limit == pytest.approx((2 / math.pi) ** 2 / 14, rel=0.1)  # the short form of it
    assert feedback_ratio(limit, 7.0) == pytest.approx(1.0)
    assert feedback_ratio(0.99 * limit, [7.0, 0.1]) < 1
    assert feedback_ratio(2 * limit, [7.0, 6.9]) > 1
    assert feedback_limit(1.0, captured=1.0) == 0.5  # bits that lose nothing leave nothing to feed back


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: feedback_limit(0.0), "smoothness must be positive"),
        (lambda: feedback_limit(1.0, captured=0.0), "captured must be above 0"),
        (lambda: feedback_ratio(2.0, 1.0), "step must be positive and below 2"),
        (lambda: feedback_ratio(0.1, -1.0), "curvature"),
    ],
)
def test_mistakes_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
