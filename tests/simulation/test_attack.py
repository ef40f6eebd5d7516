"""Lies: what each kind changes in a packet, and what it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import unpack_signs
from signfade.simulation.attacks import Attack, choose_attackers
from signfade.device.encoder import Encoder, Sent
from signfade.device.scale_range import ScaleRange
from signfade.server import bound_scalars, initial_scalars
from signfade.settings import AttackSettings, MethodSettings

SIZE = 61
DEVICES = np.arange(10)


def lie(
    devices: np.ndarray = DEVICES,
    round: int = 4,
    method: dict[str, Any] | None = None,
    exponents: tuple[int, ...] | None = None,
    **attack: Any,
) -> tuple[Sent, Sent, Attack]:
    layers = (20, SIZE - 20)
    encoder = Encoder(MethodSettings.model_validate(method or {}), layers, ScaleRange(exponents))
    g = torch.randn(10, SIZE, generator=torch.Generator().manual_seed(0))[devices] + 0.05
    sent = encoder.encode(g)
    made = Attack(AttackSettings(fraction=0.3, **attack), encoder, 10, seed=5)
    return sent, made(sent, devices, round), made


def bits(sent: Sent) -> torch.Tensor:
    return unpack_signs(sent.packed, SIZE)  # raises if a bit beyond the last sign is set


def test_flippers_send_the_opposite() -> None:
    honest, lies, attack = lie(kind="sign-flip", strength=2.0)
    liars, others = attack.attackers, np.setdiff1d(DEVICES, attack.attackers)
    assert len(liars) == 3
    assert torch.equal(bits(lies)[liars], -bits(honest)[liars])
    assert torch.equal(lies.mean[liars], -honest.mean[liars])
    assert torch.equal(lies.scale[liars], 2 * honest.scale[liars])
    for name in ("packed", "mean", "scale"):
        assert torch.equal(getattr(lies, name)[others], getattr(honest, name)[others])
    assert torch.equal(lies.std, honest.std)  # the truth stays what it is
    assert torch.equal(lies.true_scale, honest.true_scale)


def test_inflation_changes_scales_alone() -> None:
    honest, lies, attack = lie(kind="scale-inflation", strength=1000.0, method={"scales": "layer"})
    assert torch.equal(lies.packed, honest.packed)
    assert torch.equal(lies.mean, honest.mean)
    assert torch.equal(lies.scale[attack.attackers], 1000 * honest.scale[attack.attackers])


def test_random_bits_are_new_each_round_and_alike_only_among_colluders() -> None:
    for collude in (False, True):
        _, lies, attack = lie(kind="random-bits", collude=collude)
        _, later, _ = lie(kind="random-bits", collude=collude, round=5)
        first, second, third = bits(lies)[attack.attackers]
        assert bool((first == second).all()) is collude
        assert bool((first == third).all()) is collude
        assert abs(float((bits(later)[attack.attackers[0]] * first).mean())) < 4 / np.sqrt(SIZE)
    alone = lie(attack.attackers[1:2], kind="random-bits")[1]
    assert torch.equal(bits(alone)[0], bits(lie(kind="random-bits")[1])[attack.attackers[1]])


def test_ones_and_shifted_means() -> None:
    honest, lies, attack = lie(kind="ones", strength=2.0)
    assert (bits(lies)[attack.attackers] == 1).all()
    assert torch.equal(lies.mean, honest.mean)
    assert torch.equal(lies.scale[attack.attackers], 2 * honest.scale[attack.attackers])
    honest, lies, attack = lie(kind="mean-shift", strength=2.0)
    assert torch.equal(lies.packed, honest.packed)
    assert torch.equal(lies.scale, honest.scale)
    assert torch.allclose((lies.mean - honest.mean)[attack.attackers], 2 * honest.scale[attack.attackers])


def test_colluders_vanish_and_every_sixth_inflates() -> None:
    encoder = Encoder(MethodSettings(), (SIZE,))
    sent = encoder.encode(torch.randn(20, SIZE, generator=torch.Generator().manual_seed(0)))
    settings = AttackSettings(kind="scale-collusion", fraction=0.3, strength=1000.0)
    attack = Attack(settings, encoder, 20, seed=0)
    lies = attack(sent, np.arange(20), 0)
    assert torch.equal(lies.scale[attack.attackers[:5]], torch.full((5, 1), 1e-38))
    assert torch.equal(lies.scale[attack.attackers[5]], 1000 * sent.scale[attack.attackers[5]])
    assert torch.equal(bits(lies)[attack.attackers], -bits(sent)[attack.attackers])


def test_attackers_below_the_bound_are_not_bounded() -> None:
    honest, lies, attack = lie(kind="below-bound")
    liars, others = attack.attackers, np.setdiff1d(DEVICES, attack.attackers)
    _, bounded, _ = bound_scalars(initial_scalars(10), torch.zeros_like(lies.scale), lies.scale)
    assert torch.equal(bounded[liars], lies.scale[liars])
    assert (lies.scale[liars] > honest.scale[others].max()).all()
    assert torch.equal(bits(lies)[liars], -bits(honest)[liars])
    alone = lie(attack.attackers, kind="below-bound")[1]  # nobody else to hide among
    assert torch.equal(alone.scale, honest.scale[liars])


def test_a_mixed_minority_does_one_thing_after_the_other() -> None:
    encoder = Encoder(MethodSettings(), (SIZE,))
    sent = encoder.encode(torch.randn(20, SIZE, generator=torch.Generator().manual_seed(0)))
    attack = Attack(AttackSettings(kind="mixed", fraction=0.3, strength=3.0), encoder, 20, seed=0)
    lies = attack(sent, np.arange(20), 0)
    flip, ones, shift, inflate, noise, again = attack.attackers
    assert torch.equal(bits(lies)[[flip, again]], -bits(sent)[[flip, again]])
    assert (bits(lies)[ones] == 1).all()
    assert torch.allclose(lies.mean[shift], sent.mean[shift] + 3 * sent.scale[shift])
    assert torch.equal(lies.packed[inflate], sent.packed[inflate])
    assert torch.equal(lies.scale[inflate], 3 * sent.scale[inflate])
    assert abs(float((bits(lies)[noise] * bits(sent)[noise]).mean())) < 4 / np.sqrt(SIZE)


def test_a_quantiser_is_a_bound_of_its_own() -> None:
    honest, lies, attack = lie(kind="scale-inflation", strength=1e6, method={"side_bits": 4}, exponents=(0,))
    assert (lies.scale[attack.attackers] <= 2.0**6).all()  # the largest of 16 levels is in the last bin
    assert (lies.scale[attack.attackers] >= honest.scale.max()).all()
    assert torch.equal(lies.scale[attack.attackers], lies.scale[attack.attackers[0]].expand(3, 1))


def test_attackers_are_drawn_once_a_run() -> None:
    attack = AttackSettings(kind="sign-flip", fraction=0.25)
    drawn = choose_attackers(attack, 40, seed=1)
    assert len(set(drawn.tolist())) == 10
    assert drawn.tolist() == choose_attackers(attack, 40, seed=1).tolist()
    assert drawn.tolist() != choose_attackers(attack, 40, seed=2).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "scale-inflation"}, "strength must not be 1 with scale-inflation"),
        ({"kind": "scale-collusion"}, "strength must not be 1 with scale-collusion"),
        ({"kind": "sign-flip", "collude": True}, 'collude must be false unless kind is "random-bits"'),
    ],
)
def test_attacks_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttackSettings(**options)
