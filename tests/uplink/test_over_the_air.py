"""How loud devices are heard when all send at once."""

from __future__ import annotations

import itertools

import pytest
import torch

from signfade.uplink import align, inversion_level

H = torch.tensor([0.3, -1.0, 2.0, 0.0, -0.5])
SIGMA2 = torch.tensor([0.1, 1.0, 0.5, 0.2, 0.25])


def test_phase_alignment_keeps_every_gain() -> None:
    assert torch.allclose(align(H, SIGMA2, "phase"), (H.abs() / SIGMA2.sqrt()).double())


@pytest.mark.parametrize("level", [None, 0.9, 1.0])
def test_inversion_hears_those_who_can_and_all_alike_within_their_power(level: float | None) -> None:
    gain = (H.double().abs() / SIGMA2.double().sqrt()).tolist()
    heard = align(H, SIGMA2, "inversion", level).tolist()
    common = level or inversion_level(torch.tensor(gain, dtype=torch.float64))
    for g, a in zip(gain, heard, strict=True):
        assert a == (common if g >= common else 0.0)
        assert a <= g or a == pytest.approx(g)  # a device sends a/g of its full amplitude


@pytest.mark.parametrize("repeats", [1, 20])
def test_the_level_is_the_best_of_all(repeats: int) -> None:
    """No other subset of devices heard at its weakest member's gain explains more."""
    gain = torch.tensor([5.0, 2.0, 1.5, 0.4, 0.3, 0.1], dtype=torch.float64)

    def explained(subset: tuple[float, ...]) -> float:
        n, a = len(subset), min(subset)
        return (n * a) ** 2 / (n * a**2 + 1 / repeats)

    subsets = [s for n in range(1, 7) for s in itertools.combinations(gain.tolist(), n)]
    assert inversion_level(gain, repeats) == min(max(subsets, key=explained))
    assert inversion_level(torch.zeros(3)) == 0.0
    assert align(torch.zeros(2), torch.ones(2), "inversion").tolist() == [0.0, 0.0]


def test_a_twentieth_of_the_power_twenty_times_hears_the_same_devices() -> None:
    once = align(H, SIGMA2, "inversion")
    often = align(H, 20 * SIGMA2, "inversion", repeats=20)
    assert torch.allclose(often * 20**0.5, once)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precoding": "none"}, "precoding must be one of 'inversion', 'phase'"),
        ({"repeats": 0}, "repeats must be at least 1; got 0"),
        ({"level": 0.0}, "level must be positive and finite; got 0.0"),
        ({"sigma2": torch.zeros(5)}, "sigma2 must be positive"),
        ({"sigma2": torch.ones(4)}, r"sigma2 must have shape \[5\]"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], message: str) -> None:
    given = {"h": H, "sigma2": SIGMA2, "precoding": "inversion"} | arguments
    with pytest.raises(ValueError, match=message):
        align(**given)  # type: ignore[arg-type]
