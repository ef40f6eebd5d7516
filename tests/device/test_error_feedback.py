"""Error feedback: nothing is lost for good."""

from __future__ import annotations

import math

import pytest
import torch

from signfade.device import fit_prior, lost_by_bits, one_bit, rotate, spread, unrotate


def test_what_was_sent_and_what_is_kept_add_up_to_what_there_was() -> None:
    g = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) + 1
    segments = [20, 30]
    prior = fit_prior(g, segments=segments)
    bits = one_bit(g, prior.mean, segments)
    signs = bits.signs(g.dtype)
    kept = lost_by_bits(g, bits.packed, prior.mean, prior.scale, segments)
    sent = spread(prior.mean, segments) + spread(prior.scale, segments) * signs
    assert torch.allclose(kept + sent, g, atol=1e-6)
    assert kept.dtype == g.dtype


def test_a_memory_settles_at_the_energy_the_step_condition_assumes() -> None:
    """A gradient that stays, rotated anew each round: `(1 - d)*(2 - d)/d**2` times its energy, d = 2/pi.

    The memory's mean is `(1 - d)/d` of the gradient, the fluctuation about it has `(1 - d)/d**2` of its
    energy.
    """
    size, rounds, skip = 4096, 60, 20
    g = torch.randn(1, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    memory, sent = torch.zeros_like(g), torch.zeros_like(g)
    energies = []
    for t in range(rounds):
        u = rotate(g + memory, seed=t)
        prior = fit_prior(u, segments=[size])
        packed = one_bit(u, prior.mean, [size]).packed
        lost = lost_by_bits(u, packed, prior.mean, prior.scale)
        sent += unrotate(u - lost, seed=t, size=size)
        memory = unrotate(lost, seed=t, size=size)
        energies.append(float(memory.square().sum() / g.square().sum()))
    assert torch.allclose(sent + memory, rounds * g, atol=1e-5)
    d = 2 / math.pi
    # Energies of 4096 coordinates have a relative deviation of sqrt(2/4096) = 2 %; forty rounds average it
    # out.
    assert sum(energies[skip:]) / (rounds - skip) == pytest.approx((1 - d) * (2 - d) / d**2, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "message"), [((4,), r"u must have shape \[K, M\]"), ((1, 4), "mean must have shape")]
)
def test_mistakes_are_named(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lost_by_bits(
            torch.zeros(shape), torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, 2), torch.zeros(1, 1)
        )
