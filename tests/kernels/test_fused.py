"""The fused uplink equals the walk it replaces: unpack, transmit, aggregate."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade import server
from signfade.device import spread, unpack_signs
from signfade.kernels import fused_sum, received, standard_normal
from signfade.uplink import transmit

from . import reference

DEVICES, SIZE = 7, 1301  # two whole tiles and a ragged one, a ragged last byte
EVERY = [
    ("sbfl", "corrected"),
    ("sbfl", "published"),
    ("blmmse", "corrected"),
    ("blmmse", "published"),
    ("high_snr", "corrected"),
    ("zero_forcing", "corrected"),
    ("vote", "corrected"),
    ("linear", "corrected"),
]


def cell(devices: int = DEVICES, size: int = SIZE, parts: int = 1) -> dict[str, Any]:
    """Return the arguments of a sum; among the links a dead, a noiseless and an all but noiseless one."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2, size=(devices, size), dtype=np.uint8)
    h, sigma2 = rng.standard_normal(devices), 10 ** rng.uniform(-2, 1, devices)
    if devices >= 6:
        h[1], sigma2[2], sigma2[3] = 0.0, 0.0, 1e-30
        h[4] = sigma2[4] = 0.0
    shape = (devices, parts) if parts > 1 else (devices,)
    return {
        "packed": torch.from_numpy(np.packbits(bits, axis=1)),
        "size": size,
        "h": torch.from_numpy(h),
        "sigma2": torch.from_numpy(sigma2),
        "mean": torch.from_numpy(0.1 * rng.standard_normal(shape)),
        "scale": torch.from_numpy(rng.uniform(0.5, 2, shape)),
        "weights": torch.from_numpy(rng.uniform(0.1, 1, devices)),
        "keys": rng.integers(0, 2**64, size=devices, dtype=np.uint64),
    }


def for_rule(rule: str, c: dict[str, Any]) -> dict[str, Any]:
    return c | {"mean": None, "scale": None, "weights": None} if rule == "vote" else c


def walk(rule: str, form: Any, c: dict[str, Any], y: Tensor) -> Tensor:
    """The walk in float64, by the functions of the server."""
    h, sigma2, prior = c["h"], c["sigma2"], (c["mean"], c["scale"], c["weights"])
    if rule == "sbfl":
        return server.sbfl(y, h, sigma2, *prior, form=form)
    if rule == "blmmse":
        return server.blmmse(y, h, sigma2, *prior, form=form)
    if rule == "high_snr":
        return server.high_snr(y, h, *prior)
    if rule == "zero_forcing":
        return server.zero_forcing(y, h, *prior)
    if rule == "vote":
        return server.detect(y, h).sum(dim=0)
    mean, scale = (v.unsqueeze(1) if v.ndim == 1 else v for v in prior[:2])
    return (c["weights"].unsqueeze(1) * (mean + scale * y)).sum(dim=0)


def signals(c: dict[str, Any]) -> Tensor:
    return transmit(unpack_signs(c["packed"], c["size"]).double(), c["h"], c["sigma2"], c["keys"]).y


@pytest.mark.parametrize(("rule", "form"), EVERY)
def test_equals_unpack_transmit_aggregate(rule: str, form: str) -> None:
    c = for_rule(rule, cell())
    truth = walk(rule, form, c, signals(c))
    # f is a float32: a few roundings of an argument of size `reach`, times the scales that are added up
    reach = 1.0
    if rule in ("zero_forcing", "linear", "blmmse"):
        reach = float((signals(c) / c["h"].unsqueeze(1)).nan_to_num(0, 0, 0).abs().max())
        reach = max(reach, float(signals(c).abs().max()))
    torch.testing.assert_close(
        fused_sum(rule, **c, form=form).double(), truth, rtol=0, atol=DEVICES * 2 * 4e-7 * max(reach, 1.0)
    )


@pytest.mark.parametrize("rule", ["sbfl", "linear"])
def test_layers_have_their_own_scale(rule: str) -> None:
    segments = (3, 600, 1, 512, 185)
    c = cell(parts=len(segments))
    whole = {k: spread(c[k], segments) if k in ("mean", "scale") else v for k, v in c.items()}
    truth = walk(rule, "corrected", whole, signals(c))
    torch.testing.assert_close(fused_sum(rule, **c, segments=segments).double(), truth, rtol=0, atol=3e-5)


def test_one_scale_for_all_layers_is_one_number_a_device() -> None:
    c = cell()
    assert torch.equal(fused_sum("sbfl", **c, segments=(300, 1001)), fused_sum("sbfl", **c))


def test_devices_in_several_calls_give_the_same_bytes() -> None:
    c = cell()
    total = torch.zeros(SIZE, dtype=torch.float64)
    for rows in (slice(0, 1), slice(1, 1), slice(1, 5), slice(5, 7)):
        part = {k: v if k == "size" else v[rows] for k, v in c.items()}
        assert fused_sum("sbfl", **part, out=total) is total
    assert torch.equal(total.float(), fused_sum("sbfl", **c))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_bytes_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    segments = (1000, 24, 3000, 976)
    c = cell(size=5000, parts=4) | {"segments": segments}
    assert torch.equal(fused_sum("sbfl", **c, threads=threads), fused_sum("sbfl", **c, threads=1))


def test_sum_is_accurate_where_devices_cancel() -> None:
    # 2000 noiseless devices of scale 1e4 in pairs that cancel, and one small one: float32 sums would lose it
    devices = 2001
    packed = torch.full((devices, 1), 255, dtype=torch.uint8)
    packed[1::2] = 0
    scale = torch.full((devices,), 1e4)
    scale[-1] = 1e-3
    packed[-1] = 255
    one = torch.ones(devices)
    keys = np.arange(devices, dtype=np.uint64)
    estimate = fused_sum("high_snr", packed, 8, one, 0 * one, None, scale, None, keys)
    torch.testing.assert_close(estimate, torch.full((8,), 1e-3), rtol=1e-6, atol=0)


def test_mean_squared_error_is_the_theory_s() -> None:
    # E[(s - tanh(l))^2] = 1 - rho(1) per device at SNR 1; rho(1) by quadrature
    size = 200_000
    c = cell(devices=2, size=size)
    one = torch.ones(2)
    c |= {"h": torch.tensor([1.0, -1.0]), "sigma2": one, "mean": 0 * one, "scale": one, "weights": one}
    error = fused_sum("sbfl", **c).double() - unpack_signs(c["packed"], size).double().sum(dim=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    rho = float((weights * np.tanh(1 + nodes)).sum() / np.sqrt(2 * np.pi))
    spread_of_squares = float(error.square().std()) / np.sqrt(size)
    assert abs(float(error.square().mean()) - 2 * (1 - rho)) < 4 * spread_of_squares


@pytest.mark.parametrize(("start", "stop"), [(0, SIZE), (3, 700), (512, 1024), (1300, 1301), (5, 5)])
def test_received_is_transmit_bit_for_bit(start: int, stop: int) -> None:
    c = cell()
    y = transmit(unpack_signs(c["packed"], SIZE), c["h"], c["sigma2"], c["keys"]).y
    got = received(c["packed"], SIZE, c["h"], c["sigma2"], c["keys"], start=start, stop=stop)
    assert torch.equal(got, y[:, start:stop])


def test_noise_is_the_stream_of_standard_normal() -> None:
    c = cell()
    zero, one = torch.zeros(DEVICES), torch.ones(DEVICES)
    y = received(c["packed"], SIZE, zero, one, c["keys"])
    assert np.array_equal(y.numpy(), standard_normal(c["keys"], SIZE))


def test_tanh_is_within_its_bound() -> None:
    x = torch.cat([torch.linspace(-25, 25, 400_001), torch.logspace(-30, 30, 100_001)])
    tanh = reference.tanh
    error = (tanh(x).double() - torch.tanh(x.double())).abs()
    assert float(error.max()) < 1.2e-7
    assert torch.equal(tanh(-x), -tanh(x))
    assert float(tanh(x).abs().max()) == 1.0
    assert float(tanh(torch.zeros(1))) == 0.0


def test_a_second_implementation_of_the_symbols_gives_the_same_bytes() -> None:
    c = cell()
    y = received(c["packed"], SIZE, c["h"], c["sigma2"], c["keys"])
    for k in range(DEVICES):
        gain, deviation = float(c["h"][k].float()), float(c["sigma2"][k].sqrt().float())
        row = reference.argument(c["packed"][k], gain, deviation, int(c["keys"][k]), 0, SIZE)
        assert torch.equal(y[k], row)


def test_no_device_gives_zero() -> None:
    c = {k: v if k == "size" else v[:0] for k, v in cell().items()}
    assert torch.equal(fused_sum("sbfl", **c), torch.zeros(SIZE))
    assert received(c["packed"], SIZE, c["h"], c["sigma2"], c["keys"]).shape == (0, SIZE)


def test_arguments_are_not_changed() -> None:
    c = cell()
    before = {k: v.clone() if isinstance(v, Tensor) else np.copy(v) for k, v in c.items()}
    fused_sum("sbfl", **c)
    assert all(np.array_equal(c[k], before[k]) for k in c)


def test_gain_at_the_edge_of_float_stays_finite() -> None:
    c = cell()
    for tiny in (1e-45, 1e-300):
        c["h"] = torch.full((DEVICES,), tiny, dtype=torch.float64)
        for rule, form in EVERY:
            assert bool(fused_sum(rule, **for_rule(rule, c), form=form).isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "median"}, "rule must be one of"),
        ({"form": "printed"}, "form must be one of"),
        ({"size": 1400}, "packed must have shape"),
        ({"packed": torch.zeros(DEVICES, 163)}, "packed must be uint8"),
        ({"h": torch.ones(3)}, "h must have shape"),
        ({"h": torch.full((DEVICES,), torch.nan)}, "h must be finite"),
        ({"sigma2": -torch.ones(DEVICES)}, "sigma2 must be non-negative"),
        ({"mean": torch.ones(DEVICES, 2)}, "mean must have shape"),
        ({"scale": torch.full((DEVICES,), torch.inf)}, "scale must be finite"),
        ({"weights": torch.ones(2)}, "weights must have shape"),
        ({"keys": np.arange(DEVICES)}, "keys must be uint64"),
        ({"keys": np.arange(3, dtype=np.uint64)}, "keys must have shape"),
        ({"segments": (1, 2)}, "segments must be positive and add up"),
        ({"out": torch.zeros(SIZE)}, "out must be float64"),
        ({"rule": "vote"}, "mean and scale must be None for the vote"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_sum(**({"rule": "sbfl"} | cell() | change))


def test_columns_outside_are_refused() -> None:
    c = cell()
    with pytest.raises(ValueError, match="start and stop"):
        received(c["packed"], SIZE, c["h"], c["sigma2"], c["keys"], start=0, stop=SIZE + 1)


@pytest.mark.parametrize(("rule", "form"), EVERY)
def test_a_server_that_knows_its_links_only_roughly_reads_the_same_signals(rule: str, form: str) -> None:
    """The rule is made from the known gains and variances, the signals come over the true ones."""
    c = cell()
    known_h = c["h"] * torch.tensor([1.1, 1.0, 0.9, -1.0, 1.0, 0.5, 0.0]) + torch.eye(7).double()[1]
    known_sigma2 = c["sigma2"] * torch.tensor([1.3, 1.0, 1.0, 1e28, 1.0, 0.7, 1.0]) + torch.eye(7).double()[2]
    y = signals(c)
    expected = walk(rule, form, c | {"h": known_h, "sigma2": known_sigma2}, y)
    got = fused_sum(rule, **for_rule(rule, c), form=form, known=(known_h, known_sigma2)).double()
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5 * float(y.abs().max()))
    same = fused_sum(rule, **for_rule(rule, c), form=form, known=(c["h"], c["sigma2"]))
    alike = fused_sum(rule, **for_rule(rule, c), form=form)
    assert torch.allclose(same, alike, rtol=1e-5, atol=1e-5 * float(y.abs().max()))


def test_known_gains_at_the_edge_of_float_stay_finite() -> None:
    c = cell()
    for tiny in (1e-45, 1e-300):
        known = (torch.full((DEVICES,), tiny, dtype=torch.float64), 0 * c["sigma2"])
        for rule, form in EVERY:
            assert bool(fused_sum(rule, **for_rule(rule, c), form=form, known=known).isfinite().all())
