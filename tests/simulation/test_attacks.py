"""What each kind of attack changes in a message, and what it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import Encoder, Message
from signfade.server import bound_scalars, initial_scalars
from signfade.settings import AttackSettings, MethodSettings, RunSettings
from signfade.simulation.attacks import Attackers, choose_attackers

SIZE = 61
DEVICES = np.arange(10)


def attacked(
    devices: np.ndarray = DEVICES,
    round: int = 4,
    method: dict[str, Any] | None = None,
    exponents: tuple[int, ...] = (),
    **attack: Any,
) -> tuple[Message, Message, np.ndarray]:
    """What honest devices send, what arrives instead, and who attacks."""
    encoder = Encoder(MethodSettings.model_validate(method or {}), (20, SIZE - 20), exponents=exponents)
    g = torch.randn(10, SIZE, generator=torch.Generator().manual_seed(0))[devices] + 0.05
    honest, _ = encoder.encode(g)
    attackers = Attackers(AttackSettings(fraction=0.3, **attack), 10, seed=5)
    return honest, attackers.change(honest, encoder, devices, round), attackers.devices


def attacked_by_six(**attack: Any) -> tuple[Message, Message, np.ndarray]:
    encoder = Encoder(MethodSettings(), (SIZE,))
    honest, _ = encoder.encode(torch.randn(20, SIZE, generator=torch.Generator().manual_seed(0)))
    attackers = Attackers(AttackSettings(fraction=0.3, **attack), 20, seed=0)
    return honest, attackers.change(honest, encoder, np.arange(20), 0), attackers.devices


def bits(message: Message) -> torch.Tensor:
    return message.bits.signs()  # raises if a bit beyond the last sign is set


def test_flippers_send_the_opposite() -> None:
    honest, sent, who = attacked(kind="sign-flip", strength=2.0)
    others = np.setdiff1d(DEVICES, who)
    assert len(who) == 3
    assert torch.equal(bits(sent)[who], -bits(honest)[who])
    assert torch.equal(sent.mean[who], -honest.mean[who])
    assert torch.equal(sent.scale[who], 2 * honest.scale[who])
    assert torch.equal(bits(sent)[others], bits(honest)[others])
    for name in ("mean", "scale"):
        assert torch.equal(getattr(sent, name)[others], getattr(honest, name)[others])


def test_inflation_changes_only_scales() -> None:
    honest, sent, who = attacked(kind="scale-inflation", strength=1000.0, method={"scales": "layer"})
    assert torch.equal(bits(sent), bits(honest))
    assert torch.equal(sent.mean, honest.mean)
    assert torch.equal(sent.scale[who], 1000 * honest.scale[who])


def test_random_bits_are_new_each_round_and_alike_only_among_colluders() -> None:
    for collude in (False, True):
        _, sent, who = attacked(kind="random-bits", collude=collude)
        _, later, _ = attacked(kind="random-bits", collude=collude, round=5)
        first, second, third = bits(sent)[who]
        assert bool((first == second).all()) is collude
        assert bool((first == third).all()) is collude
        assert abs(float((bits(later)[who[0]] * first).mean())) < 4 / np.sqrt(SIZE)
    by_itself = attacked(who[1:2], kind="random-bits")[1]
    assert torch.equal(bits(by_itself)[0], bits(attacked(kind="random-bits")[1])[who[1]])


def test_ones_and_shifted_means() -> None:
    honest, sent, who = attacked(kind="ones", strength=2.0)
    assert (bits(sent)[who] == 1).all()
    assert torch.equal(sent.mean, honest.mean)
    assert torch.equal(sent.scale[who], 2 * honest.scale[who])
    honest, sent, who = attacked(kind="mean-shift", strength=2.0)
    assert torch.equal(bits(sent), bits(honest))
    assert torch.equal(sent.scale, honest.scale)
    assert torch.allclose((sent.mean - honest.mean)[who], 2 * honest.scale[who])


@pytest.mark.parametrize("side_bits", [None, 4])
def test_no_mean_is_shifted_where_packets_have_none(side_bits: int | None) -> None:
    encoder = Encoder(MethodSettings(rotation="private", side_bits=side_bits), (64,))
    honest, _ = encoder.encode(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
    attackers = Attackers(AttackSettings(kind="mean-shift", fraction=0.3, strength=10.0), 10, seed=5)
    sent = attackers.change(honest, encoder, DEVICES, 4)
    assert not sent.mean.any()
    assert torch.equal(sent.scale, honest.scale)


def test_colluders_vanish_and_every_sixth_inflates() -> None:
    honest, sent, who = attacked_by_six(kind="scale-collusion", strength=1000.0)
    assert torch.equal(sent.scale[who[:5]], torch.full((5, 1), 1e-38))
    assert torch.equal(sent.scale[who[5]], 1000 * honest.scale[who[5]])
    assert torch.equal(bits(sent)[who], -bits(honest)[who])


def test_attackers_below_the_bound_are_not_bounded() -> None:
    honest, sent, who = attacked(kind="below-bound")
    others = np.setdiff1d(DEVICES, who)
    _, bounded, _ = bound_scalars(initial_scalars(10), torch.zeros_like(sent.scale), sent.scale)
    assert torch.equal(bounded[who], sent.scale[who])
    assert (sent.scale[who] > honest.scale[others].max()).all()
    assert torch.equal(bits(sent)[who], -bits(honest)[who])
    by_itself = attacked(who, kind="below-bound")[1]  # nobody else to hide among
    assert torch.equal(by_itself.scale, honest.scale[who])


def test_a_mixed_minority_does_one_thing_after_the_other() -> None:
    honest, sent, who = attacked_by_six(kind="mixed", strength=3.0)
    flip, ones, shift, inflate, noise, again = who
    assert torch.equal(bits(sent)[[flip, again]], -bits(honest)[[flip, again]])
    assert (bits(sent)[ones] == 1).all()
    assert torch.allclose(sent.mean[shift], honest.mean[shift] + 3 * honest.scale[shift])
    assert torch.equal(bits(sent)[inflate], bits(honest)[inflate])
    assert torch.equal(sent.scale[inflate], 3 * honest.scale[inflate])
    assert abs(float((bits(sent)[noise] * bits(honest)[noise]).mean())) < 4 / np.sqrt(SIZE)


def test_a_quantiser_is_a_bound_of_its_own() -> None:
    honest, sent, who = attacked(
        kind="scale-inflation", strength=1e6, method={"side_bits": 4}, exponents=(0,)
    )
    assert (sent.scale[who] <= 2.0**6).all()  # the largest of 16 levels is in the last bin
    assert (sent.scale[who] >= honest.scale.max()).all()
    assert torch.equal(sent.scale[who], sent.scale[who[0]].expand(3, 1))


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


@pytest.mark.parametrize(
    ("method", "kind", "what"),
    [
        ({"aggregator": "signsgd"}, "mean-shift", "means"),
        ({"aggregator": "signsgd"}, "scale-inflation", "scales"),
        ({"preset": "low-rate"}, "mean-shift", "means"),
    ],
)
def test_attacks_on_what_nobody_sends_are_refused(method: dict[str, Any], kind: str, what: str) -> None:
    attack = {"kind": kind, "strength": 10.0}
    RunSettings.model_validate({"method": {"aggregator": "sbfl"}, "attack": attack})
    with pytest.raises(ValueError, match=f'must not be "{kind}" .* devices send no {what}'):
        RunSettings.model_validate({"method": method, "attack": attack})
