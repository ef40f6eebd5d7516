"""The rivals: unbiased where their papers say so, their published errors, and their bits counted by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade.cli.entry import run as signfade
from signfade.device import add_sign_noise, rotate, rotated_size, sign, unrotate
from signfade.device.compressors import COMPRESSORS, Compressed
from signfade.device.rivals import qsgd_bits, qsgd_levels
from signfade.experiments.config import ConfigError, resolve
from signfade.experiments.methods import method_settings
from signfade.keys import generator, stream_keys
from signfade.settings import method_name
from signfade.simulation.clients import Clients, Update
from signfade.simulation.synthetic import GaussianTask

from ..runs import finish, gaussian, settings

RIVALS = ["qsgd", "topk", "ef-sign", "drive", "eden"]
# Mean squared errors of the Lloyd-Max quantisers of N(0, 1) with 1 to 4 bits (Max 1960).
DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


def compress(name: str, g: Tensor, rate: float = 1.0, seed: int = 0, first: int = 0) -> Compressed:
    streams = [generator(seed, "test", device=first + k) for k in range(len(g))]
    return COMPRESSORS.find(name).compress(g, streams, rate)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("qsgd", 0.2), ("qsgd", 4), ("drive", 1), ("eden", 0.1), ("eden", 1), ("eden", 2), ("eden", 4)],
)
def test_means_over_many_draws_are_the_gradient(name: str, rate: float) -> None:
    """The mean's squared error is one draw's over the number of draws, and along g there is none."""
    draws, size = 1500, 640
    g = normal(size)
    values = compress(name, g.expand(draws, size), rate).values
    along = (values @ g) / (g @ g)
    error = along.std() / math.sqrt(draws)
    assert abs(along.mean() - 1) < 5 * error + 1e-9
    lost = values - g
    shares = lost.square().mean(dim=0)
    freedom = shares.sum() ** 2 / shares.square().sum()  # coordinates with an equal part in the error
    ratio = draws * lost.mean(dim=0).square().sum() / shares.sum()
    assert abs(ratio - 1) < 5 * math.sqrt(2 / freedom)
    assert freedom > 100


@pytest.mark.parametrize(
    ("name", "rate", "published"),
    [
        ("drive", 1, math.pi / 2 - 1),
        *(("eden", bits, 1 / (1 - d) - 1) for bits, d in DISTORTION.items()),
        ("eden", 0.1, math.pi / 0.2 - 1),  # a tenth of the weights, one bit each
    ],
)
def test_rotated_rivals_have_their_published_errors(name: str, rate: float, published: float) -> None:
    """10,240 weights and a tenth of them are sizes of the rotation: no part of the error is cut off."""
    g = normal(40, 10_240)
    nmse = (compress(name, g, rate).values - g).square().sum(dim=1) / g.square().sum(dim=1)
    assert abs(nmse.mean() - published) < 4 * nmse.std() / math.sqrt(40)
    assert nmse.std() / math.sqrt(40) < 0.02 * published


@pytest.mark.parametrize(("name", "rate"), [("qsgd", 1), ("drive", 1), ("eden", 0.1), ("eden", 2)])
def test_gradients_of_any_size_are_sent_alike(name: str, rate: float) -> None:
    """A power of two changes no digit, and no square of a large float overflows."""
    g = normal(2, 640).float()
    plain, large = compress(name, g, rate), compress(name, g * 2.0**110, rate)
    assert torch.equal(large.values, plain.values * 2.0**110)
    assert torch.equal(large.bits, plain.bits)


def test_drive_is_its_formula() -> None:
    g = normal(3, 100)
    sent = compress("drive", g, seed=5)
    for k in range(3):
        key = int(generator(5, "test", device=k).integers(1 << 63))
        turned = rotate(g[k], key)
        scale = turned.square().sum() / turned.abs().sum()
        assert torch.allclose(sent.values[k], unrotate(scale * sign(turned), key, 100), atol=1e-12)
    assert sent.bits.tolist() == [rotated_size(100) + 32] * 3


def test_qsgd_has_the_error_of_random_rounding_within_the_papers_bounds() -> None:
    size, draws, rate = 1000, 400, 2
    s, g = qsgd_levels(rate, size), normal(size)
    sent = compress("qsgd", g.expand(draws, size), rate)
    nmse = (sent.values - g).square().sum(dim=1) / g.square().sum()
    part = (s * g.abs() / g.norm()).frac()
    expected = float((part * (1 - part)).sum()) / s**2
    assert abs(nmse.mean() - expected) < 4 * nmse.std() / math.sqrt(draws)
    assert s > 1
    assert expected < min(size / s**2, math.sqrt(size) / s)  # the bound on its variance
    filled = s * (s + math.sqrt(size))
    bound = (3 + 1.5 * math.log2(2 * (s**2 + size) / filled)) * filled + 32
    assert sent.bits.double().mean() < bound  # the bound on its bits, without its o(1)


@pytest.mark.parametrize("rate", [0.1, 1, 4])
def test_qsgds_levels_use_the_rate_up(rate: float) -> None:
    size, devices = 4000, 100
    s, bits = qsgd_levels(rate, size), compress("qsgd", normal(devices, size), rate).bits.double()
    assert abs(bits.mean() - qsgd_bits(s, size)) < 4 * bits.std() / math.sqrt(devices)
    assert qsgd_bits(s, size) <= max(rate * size, qsgd_bits(1, size)) < qsgd_bits(s + 1, size)


def elias(k: int) -> str:
    """Elias' recursive (omega) code, written out."""
    code = "0"
    while k > 1:
        code = f"{k:b}" + code
        k = k.bit_length() - 1
    return code


def read_elias(bits: Iterator[str]) -> int:
    k = 1
    while (bit := next(bits)) == "1":
        k = int("1" + "".join(next(bits) for _ in range(k)), 2)
    assert bit == "0"
    return k


@pytest.mark.parametrize("rate", [0.01, 1, 4])
def test_qsgds_message_can_be_read_and_is_as_long_as_counted(rate: float) -> None:
    """Norm; distance, sign and level of every weight that is not zero: written bit by bit and decoded."""
    size = 3000
    g = normal(3, size) * normal(size, seed=1) ** 2
    g[1] = 0
    s, sent = qsgd_levels(rate, size), compress("qsgd", g, rate)
    for row, value, count in zip(g, sent.values, sent.bits.tolist()):
        norm = row.norm()
        levels = [round(float(x)) for x in value * s / norm] if norm > 0 else []
        code, last = "", -1
        for i in (i for i, level in enumerate(levels) if level):
            code += elias(i - last) + ("1" if levels[i] < 0 else "0") + elias(abs(levels[i]))
            last = i
        assert count == 32 + len(code)
        bits, decoded, at = iter(code), torch.zeros(size, dtype=torch.float64), -1
        for _ in range(sum(level != 0 for level in levels)):
            at += read_elias(bits)
            turn = -1 if next(bits) == "1" else 1
            decoded[at] = turn * read_elias(bits) * norm / s
        assert torch.allclose(decoded, value)
        assert next(bits, None) is None


def test_top_k_is_what_sorting_finds() -> None:
    g = normal(4, 50)
    sent = compress("topk", g, rate=4)
    k = 5  # 4*50/(32 + 6)
    for row, value in zip(g.tolist(), sent.values.tolist()):
        largest = sorted(range(50), key=lambda i: -abs(row[i]))[:k]
        assert value == [x if i in largest else 0 for i, x in enumerate(row)]
    assert sent.bits.tolist() == [k * 38] * 4


@pytest.mark.parametrize(
    ("name", "rate", "bits"),
    [
        ("topk", 0.001, 32 + 10),  # one weight at least
        ("topk", 1, 23 * 42),
        ("ef-sign", 0.1, 1000 + 32),
        ("drive", 0.1, 1024 + 32),
        ("eden", 0.1, 104 + 32),
        ("eden", 3, 3 * 1024 + 32),
    ],
)
def test_bits_by_hand(name: str, rate: float, bits: int) -> None:
    """1000 weights: 10 bits for a place; 104 and 1024 are the sizes of the rotation above 100 and 1000."""
    sent = compress(name, normal(2, 1000), rate)
    assert sent.bits.dtype == torch.int64
    assert sent.bits.tolist() == [bits] * 2


def test_ef_signs_message_is_the_scaled_sign() -> None:
    g = torch.tensor([[1.0, -3.0, 0.0, -2.0]])
    assert compress("ef-sign", g).values.tolist() == [[1.5, -1.5, 1.5, -1.5]]


@pytest.mark.parametrize("name", RIVALS)
def test_draws_belong_to_a_device_and_a_key(name: str) -> None:
    g = normal(4, 300).float()
    whole, again, other = (compress(name, g, 0.3, seed) for seed in (1, 1, 2))
    assert torch.equal(whole.values, again.values)
    random = name in ("qsgd", "drive", "eden")
    assert torch.equal(whole.values, other.values) != random
    alone = compress(name, g[2:], 0.3, seed=1, first=2)
    # Sums over a row may round differently where rows lie elsewhere in memory.
    assert torch.allclose(alone.values, whole.values[2:], rtol=1e-5)
    assert torch.equal(alone.bits, whole.bits[2:])
    assert whole.values.dtype == torch.float32


@pytest.mark.parametrize("name", RIVALS)
def test_nothing_is_made_of_nothing(name: str) -> None:
    assert not compress(name, torch.zeros(2, 30), 0.1).values.any()
    assert compress(name, torch.full((1, 1), 2.0), 0.001).values.tolist() in ([[2.0]], [[-2.0]])


@pytest.mark.parametrize("name", ["topk", "ef-sign"])
def test_what_was_sent_and_what_is_kept_add_up_to_the_gradients(name: str) -> None:
    task = GaussianTask(3, 200, seed=0)
    clients = Clients(settings(method__aggregator="ideal", method__compressor=name, data__devices=3), task)
    state = clients.init()
    had, sent = torch.zeros(3, 200), torch.zeros(3, 200)
    for t in range(9):
        devices = np.array([0, 2]) if t % 2 else np.arange(3)
        update = Update(devices, *task.local_updates(torch.zeros(200), devices, t))
        had[devices] += update.gradients
        sent[devices] += clients.compress(state, update, t).values
    assert torch.allclose(state.feedback, had - sent, atol=1e-4)
    assert (state.feedback.square().sum(dim=1) > 1).all()


@pytest.mark.parametrize("name", RIVALS)
def test_memories_survive_a_stop(name: str) -> None:
    changes: dict[str, Any] = {
        "method__aggregator": "ideal",
        "method__compressor": name,
        "method__bits_per_weight": 0.2,
        "data__participation": 0.5,
        "data__size": 300,
    }
    through, first, second = (gaussian(rounds=6, **changes) for _ in range(3))
    records = finish(through)
    for _ in range(3):
        first.advance()
    assert (first.state()["clients.feedback"].numel() > 0) == (name in ("topk", "ef-sign"))
    second.restore({key: value.clone() for key, value in first.state().items()}, round=3)
    assert finish(second) == records[3:]
    assert torch.equal(second.weights, through.weights)


def test_the_noisy_sign_over_the_radio_is_z_sign() -> None:
    """Tang et al. with z = 1: the mean of `sqrt(pi/2)*sigma*sign(g + sigma*n)`; g itself as sigma grows."""
    draws, sigma = 20_000, 3.0
    g = torch.tensor([[-1.0, 0.2, 0.5, 2.0]], dtype=torch.float64)
    keys = stream_keys(0, "sign noise", 0, range(draws))
    one = torch.ones(draws, 1, dtype=torch.float64)
    values = math.sqrt(math.pi / 2) * sigma * sign(add_sign_noise(g.expand(draws, 4), one, sigma, [4], keys))
    expected = math.sqrt(math.pi / 2) * sigma * torch.erf(g[0] / (math.sqrt(2) * sigma))
    assert ((values.mean(dim=0) - expected).abs() < 5 * values.std(dim=0) / math.sqrt(draws)).all()
    assert torch.allclose(expected, g[0], rtol=0.08)


@pytest.mark.parametrize("name", RIVALS)
def test_three_rounds_on_digits(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (
        f"name={name}",
        f"out={tmp_path}",
        "rounds=3",
        "model.name=linear",
        "data.devices=4",
        "method.aggregator=ideal",
        f"method.compressor={name}",
    )
    assert signfade(["run", *(word for change in changes for word in ("--set", change))]) == 0
    folder = next(tmp_path.rglob("metrics.jsonl"))
    records = [json.loads(line) for line in folder.read_text().splitlines()]
    assert len(records) == 3
    assert all(0 < record["nmse"] < 50 for record in records)
    size = 650
    fixed = {"topk": 15 * 42, "ef-sign": size + 32, "drive": rotated_size(size) + 32}
    fixed["eden"] = fixed["drive"]
    per_device = records[-1]["uplink_bits"] / (3 * 4)
    assert per_device == fixed[name] if name in fixed else 32 < per_device <= size
    assert json.loads((folder.parent / "summary.json").read_text())["method"] == name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method.bits_per_weight": 1.5},
            "bits_per_weight must be from 0.001 to 1, or 2, 3, 4 or analog; got 1.5",
        ),
        ({"method.bits_per_weight": 5}, "bits_per_weight"),
        ({"method.bits_per_weight": 0}, "bits_per_weight"),
        ({"method.aggregator": "sbfl"}, 'method.compressor must be "auto" with sbfl'),
        ({"method.error_feedback": 1.0}, "method.error_feedback must be 0 with ideal"),
    ],
)
def test_settings_that_do_not_fit_get_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve({"method.aggregator": "ideal", "method.compressor": "topk"} | changes)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_memories_have_a_limit_and_eden_whole_bits() -> None:
    chosen = settings(method__aggregator="ideal", method__compressor="topk")
    with pytest.raises(ValueError, match=r"method.compressor keeps 650 numbers for each"):
        Clients(chosen, GaussianTask(1_000_000, 650, 0))
    with pytest.raises(ValueError, match=r"must be at most 1, or 2, 3 or 4; got 1.5"):
        compress("eden", torch.ones(1, 8), 1.5)


def test_a_rival_is_a_method_of_a_comparison() -> None:
    shared = resolve({"method.preset": "best", "method.bits_per_weight": 0.1})
    chosen = method_settings(shared, "eden")
    assert (chosen.method.aggregator, chosen.method.compressor, chosen.label) == ("ideal", "eden", "eden")
    assert chosen.method.bits_per_weight == 0.1
    assert method_name(chosen.method.model_dump()) == "eden"
    with pytest.raises(ConfigError, match="unknown method 'auto'"):
        method_settings(shared, "auto")


def test_every_rival_says_its_reference_and_its_channel() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rivals.md").read_text()
    for name, entry in COMPRESSORS.items():
        if name != "auto":
            assert "et al. 20" in entry.help
            assert "clean channel" in entry.help
            assert f"| `{name}` |" in page
    assert COMPRESSORS.names() == ["auto", *RIVALS]
