"""Clusters of devices: split for sure conflicts alone, whatever the noise; models that pull together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from signfade.server.tasks import couple, split_cluster
from signfade.settings import RunSettings

Floats = np.ndarray


def measured(true: Floats, error: float, seed: int) -> tuple[Floats, Floats]:
    """Correlations `[n, n]` measured with a standard error, and the evidence."""
    noise = np.triu(np.random.default_rng(seed).standard_normal(true.shape), 1) * error
    return true + noise + noise.T, np.full(true.shape, error**-2)


def blocks(groups: int, each: int, shared: float) -> Floats:
    """Correlations at a stationary point of equal groups whose updates add up to zero."""
    own = np.kron(np.eye(groups), np.ones((each, each)))
    return np.where(own > 0, shared, -shared / (groups - 1))


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_at_odds_are_told_apart(groups: int) -> None:
    for seed in range(20):
        parts = split_cluster(*measured(blocks(groups, 5, 0.6), 0.02, seed), most=8)
        assert parts.tolist() == np.repeat(np.arange(groups), 5).tolist()


@pytest.mark.parametrize("common", [-1 / 19, 0.0, 0.3])
def test_noise_never_splits_devices_that_are_alike(common: float) -> None:
    """Also with precise measurements of a stationary point, where all 20 are correlated by -1/19."""
    for seed, error in enumerate([0.3, 0.1, 0.03, 0.01, 0.003, 0.001] * 20):
        assert not split_cluster(*measured(np.full((20, 20), common), error, seed), most=8).any()


def test_devices_chained_by_shared_classes_stay_together() -> None:
    """Neighbours on a ring agree, all others disagree: any two parts have a pair that agrees."""
    apart = np.abs(np.arange(20)[:, None] - np.arange(20)[None])
    ring = np.where(np.minimum(apart, 20 - apart) == 1, 0.4, -0.15)
    for seed in range(20):
        assert not split_cluster(*measured(ring, 0.01, seed), most=8).any()


def test_weak_evidence_waits_and_the_bound_is_kept() -> None:
    true = blocks(4, 5, 0.6)
    assert not split_cluster(*measured(true, 0.2, 0), most=8).any()
    parts = split_cluster(*measured(true, 0.01, 0), most=3)
    assert len(set(parts.tolist())) == 3
    assert all(len(set(parts[start : start + 5].tolist())) == 1 for start in range(0, 20, 5))


def test_weak_links_do_not_hide_a_conflict_that_the_parts_show() -> None:
    """Two parts are hardly at odds, and one device of each has a link with a hundred times the variance."""
    true = blocks(4, 5, 0.6)
    true[:5, 5:10] = true[5:10, :5] = -0.05
    error = np.where(np.arange(20) % 5 == 0, 10.0, 1.0)
    for seed in range(20):
        noisy, evidence = measured(np.zeros((20, 20)), 0.004, seed)
        scale = np.sqrt(np.outer(error, error))
        assert split_cluster(true + noisy * scale, evidence / scale**2, most=8).tolist() == [
            part for part in range(4) for _ in range(5)
        ]


def test_a_lone_device_is_not_split_off() -> None:
    true = np.full((6, 6), 0.5)
    true[0, 1:] = true[1:, 0] = -0.5
    assert not split_cluster(*measured(true, 0.01, 0), most=8).any()


def test_pull_minimises_its_objective_for_any_strength() -> None:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(5, 7, generator=draw, dtype=torch.float64)
    relations = np.random.default_rng(0).random((5, 5))
    relations = relations + relations.T
    for strength in (0.0, 0.3, 1e6):
        found = couple(weights, relations, strength).requires_grad_()
        pull = sum(relations[k, j] * (found[k] - found[j]).square().sum() for k in range(5) for j in range(k))
        objective = (found - weights).square().sum() / 2 + strength / 2 * pull
        (gradient,) = torch.autograd.grad(objective, found)
        assert float(gradient.abs().max()) < 1e-8 * max(1.0, strength)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"aggregator": "signsgd"}}, "method.aggregator must be one of"),
        ({"method": {"aggregator": "sbfl"}}, "method.rotation must not be none"),
        ({"availability": {"late": 0.5}}, "availability.late must be 0"),
        ({"defence": {"reliability": True}}, "defence.reliability must be false"),
        ({"data": {"name": "gaussian"}}, "data.name must not be gaussian"),
    ],
)
def test_what_does_not_go_with_clusters_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RunSettings.model_validate({"server": {"tasks": "clustered"}} | changes)
