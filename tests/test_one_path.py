"""What the documentation shows is what a run executes: traps in functions, and runs that fall into them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from signfade import device, server, uplink
from signfade.cli.entry import run as run_command
from signfade.device import Encoder
from signfade.server import Server
from signfade.simulation import Experiment
from signfade.simulation.clients import Clients
from signfade.simulation.round import run_round
from signfade.uplink import Signals, transmit

from .runs import finish, settings

# A function of the documentation, and the settings with which a run calls it.
DOCUMENTED: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (run_round, {}),
    (Clients.train, {}),
    (Clients.encode, {}),
    (Encoder.encode, {}),
    (Server.transmit, {}),
    (Server.aggregate, {}),
    (Server.step, {}),
    (device.rotate, {"method__rotation": "shared"}),
    (device.unrotate, {"method__rotation": "shared"}),
    (device.fit_prior, {}),
    (device.one_bit, {}),
    (uplink.transmit, {}),
    (server.sbfl, {}),
    (server.blmmse, {"method__aggregator": "blmmse"}),
    (server.majority_vote, {"method__aggregator": "signsgd"}),
    (server.sign_sum, {"method__aggregator": "signsum"}),
    (server.high_snr, {"method__aggregator": "high_snr"}),
    (server.zero_forcing, {"method__aggregator": "zero_forcing"}),
    (server.joint_blmmse, {"method__aggregator": "bfl", "method__joint": "linear"}),
    (server.joint_sbfl, {"method__aggregator": "bfl", "method__joint": "soft"}),
    (server.bfl, {"method__aggregator": "bfl", "method__joint": "ep"}),
    (server.factor_bfl, {"method__aggregator": "bfl", "method__joint": "factor"}),
    (server.smooth_correlation, {"method__aggregator": "bfl"}),
    (server.over_the_air, {"cell__access": "over_the_air"}),
    (server.krum, {"method__aggregator": "krum"}),
    (server.trimmed_mean, {"method__aggregator": "trimmed_mean"}),
    (server.coordinate_median, {"method__aggregator": "median"}),
    (server.bound_scalars, {"defence__bound_scales": True}),
    (server.gather_evidence, {"defence__reliability": True}),
    (server.momentum_update, {}),
    (server.sign_downlink_update, {"server__downlink": "sign"}),
    (uplink.sound, {"cell__csi": "pilot"}),
    (uplink.refine_gain, {"cell__csi": "pilot"}),
    (uplink.send_coded, {"cell__side_info": "coded"}),
    (uplink.align, {"cell__access": "over_the_air"}),
    (device.lost_by_bits, {"method__error_feedback": 1.0}),
]


def _fall(*given: Any, **named: Any) -> Any:
    raise SystemError("trap")


@contextmanager
def trap(function: Callable[..., Any]) -> Iterator[None]:
    """Put a trap into the function itself, under whatever names other modules know it."""
    function = inspect.unwrap(function)
    code = function.__code__
    function.__code__ = _fall.__code__
    try:
        yield
    finally:
        function.__code__ = code


@pytest.mark.parametrize(
    ("function", "changes"), DOCUMENTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_run_calls_the_documented_function(function: Callable[..., Any], changes: dict[str, Any]) -> None:
    experiment = Experiment(settings(rounds=4, data__name="gaussian", data__size=70, **changes))
    with trap(function), pytest.raises(SystemError, match="trap"):
        finish(experiment)


@pytest.mark.parametrize("function", [run_round, device.one_bit, uplink.transmit, server.sbfl])
def test_so_does_the_command(
    function: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data.name=gaussian", "data.size=70", "method.aggregator=sbfl", "rounds=1", f"out={tmp_path}"]
    command = ["run", *(word for pair in words for word in ("--set", pair))]
    with trap(function):
        assert run_command(command) == 1
    assert "SystemError: trap" in capsys.readouterr().err
    assert run_command([*command, "--set", "name=again"]) == 0


def signals(devices: int, size: int, seed: int) -> Signals:
    draw = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.rand(devices, size, generator=draw) < 0.5, -1.0, 1.0)
    h = torch.randn(devices, generator=draw, dtype=torch.float64)
    return transmit(signs, h, 0.1 + torch.rand(devices, generator=draw, dtype=torch.float64), draw)


RULES: dict[str, Callable[[Any, Any, Any, Any, Any, Any], Tensor]] = {
    "sbfl": server.sbfl,
    "published sbfl": lambda y, h, s, m, k, w: server.sbfl(y, h, s, m, k, w, "published"),
    "blmmse": server.blmmse,
    "published blmmse": lambda y, h, s, m, k, w: server.blmmse(y, h, s, m, k, w, "published"),
    "high_snr": lambda y, h, s, m, k, w: server.high_snr(y, h, m, k, w),
    "zero_forcing": lambda y, h, s, m, k, w: server.zero_forcing(y, h, m, k, w),
    "sign_sum": lambda y, h, s, m, k, w: server.sign_sum(y, h, w),
    "majority_vote": lambda y, h, s, m, k, w: server.majority_vote(y, h, weights=w),
    "joint_blmmse": lambda y, h, s, m, k, w: server.joint_blmmse(y, h, s, m, k, _correlation(len(h)), w),
    "joint_sbfl": lambda y, h, s, m, k, w: server.joint_sbfl(y, h, s, m, k, _correlation(len(h)), w),
}


def _correlation(devices: int) -> Tensor:
    return 0.7 * torch.eye(devices, dtype=torch.float64) + 0.3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("known", ["true links", "estimated links"])
def test_lazy_signals_and_their_symbols_give_the_same_estimate(rule: str, known: str) -> None:
    """To the rounding of a float32 sum over seven devices whose parts are of order one."""
    received = signals(7, 1001, seed=1)
    h, sigma2 = received.link.h, received.link.sigma2
    if known == "estimated links":
        h, sigma2 = 0.9 * h, 1.2 * sigma2
    draw = torch.Generator().manual_seed(2)
    mean, scale, weights = (
        0.1 * torch.randn(7, generator=draw),
        torch.rand(7, generator=draw),
        torch.rand(7, generator=draw),
    )
    lazy = RULES[rule](received, h, sigma2, mean, scale, weights)
    plain = RULES[rule](received.y, h, sigma2, mean, scale, weights)
    error = (lazy - plain).abs().max()
    assert float(error) <= 2e-5 * max(1.0, float(plain.abs().max()))


@pytest.mark.parametrize("rule", ["sbfl", "blmmse", "high_snr", "zero_forcing"])
def test_also_where_scalars_differ_by_layer(rule: str) -> None:
    received, segments = signals(5, 90, seed=3), (20, 30, 40)
    draw = torch.Generator().manual_seed(4)
    mean, scale = 0.1 * torch.randn(5, 3, generator=draw), torch.rand(5, 3, generator=draw)
    links = [received.link.h, *([received.link.sigma2] if rule in ("sbfl", "blmmse") else [])]
    function: Callable[..., Tensor] = getattr(server, rule)
    lazy, plain = (function(y, *links, mean, scale, segments=segments) for y in (received, received.y))
    assert torch.allclose(lazy, plain, rtol=1e-4, atol=2e-5 * max(1.0, float(plain.abs().max())))
