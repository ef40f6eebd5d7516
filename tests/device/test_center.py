"""Which sign a device sends: about its mean, or about zero as the paper's Algorithms 1 and 2 print."""

from __future__ import annotations

import pytest
import torch

from signfade.device import Encoder
from signfade.settings import MethodSettings
from signfade.simulation import Experiment

from ..runs import settings

G = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)) + torch.tensor([[0.0], [1.0], [-2.0]])


def sent(**method: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    message, _ = Encoder(MethodSettings(aggregator="sbfl", **method), (1000,)).encode(G)
    return message.bits.signs(), message.mean, message.scale


def test_the_printed_algorithm_sends_signs_about_zero_and_the_same_scalars() -> None:
    signs, mean, scale = sent(form="published")
    about, *scalars = sent()
    assert torch.equal(signs, torch.where(G < 0, -1.0, 1.0))
    assert torch.equal(about, torch.where(G.mean(dim=1, keepdim=True) > G, -1.0, 1.0))
    assert torch.equal(mean, scalars[0])
    assert torch.equal(scale, scalars[1])


def test_form_decides_unless_center_is_named() -> None:
    assert MethodSettings(aggregator="sbfl").center
    assert not MethodSettings(preset="paper").center
    assert MethodSettings(preset="paper", center=True).center
    assert not MethodSettings(aggregator="sbfl", center=False).center
    with pytest.raises(ValueError, match="center must be true with sign_noise"):
        MethodSettings(aggregator="sbfl", center=False, sign_noise=1.0)


def test_theory_is_silent_about_signs_that_do_not_fit_the_prior() -> None:
    printed, centred = (
        Experiment(settings(rounds=1, method__aggregator="sbfl", method__center=center)).advance()
        for center in (False, True)
    )
    assert printed["nmse_theory"] is None
    assert centred["nmse_theory"] is not None
    assert printed["nmse"] != centred["nmse"]
