"""Every closed-form rule against theory, quadrature, limits and invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from signfade import server, theory
from signfade.device import sign
from signfade.uplink import transmit

SNRS_DB = [-20, -10, 0, 10, 20, 40]
FORMS = ["corrected", "published"]
CONSTANT = math.sqrt(2 / math.pi)


def draw(family: str, devices: int, size: int, seed: int) -> Tensor:
    """Unit-variance gradients, `[K, M]`, in double precision."""
    rng = np.random.default_rng(seed)
    if family == "gaussian":
        return torch.from_numpy(rng.standard_normal((devices, size)))
    return torch.from_numpy(rng.laplace(scale=1 / math.sqrt(2), size=(devices, size)))


def kappa(family: str) -> float:
    return CONSTANT if family == "gaussian" else 1 / math.sqrt(2)


def apply(rule: str, y: Tensor, h: Tensor, sigma2: Tensor, mean: Tensor, scale: Tensor, form: str) -> Tensor:
    if rule == "sbfl":
        return server.sbfl(y, h, sigma2, mean, scale, form=form)
    if rule == "blmmse":
        return server.blmmse(y, h, sigma2, mean, scale, form=form)
    if rule == "high_snr":
        return server.high_snr(y, h, mean, scale)
    return server.zero_forcing(y, h, mean, scale)


@pytest.mark.parametrize("snr_db", SNRS_DB)
@pytest.mark.parametrize("family", ["gaussian", "laplacian"])
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        ("sbfl", "corrected"),
        ("sbfl", "published"),
        ("blmmse", "corrected"),
        ("blmmse", "published"),
        ("high_snr", "corrected"),
        ("zero_forcing", "corrected"),
    ],
)
def test_monte_carlo_agrees_with_theory(rule: str, form: str, family: str, snr_db: int) -> None:
    """Three devices of different power and gain; the error of the sum within four standard errors."""
    size = 40_000
    std = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    h = torch.tensor([1.0, -0.7, 1.6], dtype=torch.float64)
    sigma2 = h**2 / 10 ** (snr_db / 10)
    mean = torch.tensor([0.3, -1.0, 0.0], dtype=torch.float64)
    g = mean[:, None] + std[:, None] * draw(family, 3, size, seed=snr_db + 100)
    y = transmit(sign(g - mean[:, None]), h, sigma2, torch.Generator().manual_seed(snr_db + 1000))
    estimate = apply(rule, y, h, sigma2, mean, kappa(family) * std, form)
    squared = (estimate - g.sum(dim=0)).square()
    expected = theory.mse(rule, 10 ** (snr_db / 10), std.numpy(), family=family, form=form).sum()
    error = float(squared.std()) / math.sqrt(size)
    assert abs(float(squared.mean()) - expected) < 4 * error


@pytest.mark.parametrize("snr_db", SNRS_DB)
def test_corrected_sbfl_beats_every_other_rule_on_the_same_signals(snr_db: int) -> None:
    """Paired comparison on one draw: published, linear and any constant rescaling are worse beyond doubt."""
    size = 400_000
    snr = 10 ** (snr_db / 10)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    g = draw("gaussian", 1, size, seed=5)
    y = transmit(sign(g), one, one / snr, torch.Generator().manual_seed(6))
    best = apply("sbfl", y, one, one / snr, zero, CONSTANT * one, "corrected")
    minimum = theory.mse("sbfl", snr)
    power = CONSTANT**2 * theory.rho(snr)  # of the estimate: a factor c costs (c - 1)^2 of it
    rivals = {
        "published": (
            apply("sbfl", y, one, one / snr, zero, CONSTANT * one, "published"),
            theory.mse("sbfl", snr, form="published") - minimum,
        ),
        "blmmse": (
            apply("blmmse", y, one, one / snr, zero, CONSTANT * one, "corrected"),
            theory.mse("blmmse", snr) - minimum,
        ),
        **{f"{c} times": (c * best, (c - 1) ** 2 * power) for c in (0.5, 0.9, 1.1, 2.0)},
    }
    for name, (rival, expected) in rivals.items():
        gain = (rival - g[0]).square() - (best - g[0]).square()
        error = float(gain.std()) / math.sqrt(size)
        assert abs(float(gain.mean()) - expected) <= 4 * error + 1e-15, name
        # From 20 dB up tanh(l) and tanh(2l) both saturate: the same signs, the same numbers.
        assert expected > 0 or (expected == 0 and name == "published" and snr_db >= 20), name


@pytest.mark.parametrize(
    ("density", "scale"),
    [
        (stats.norm(scale=0.7), 0.7 * CONSTANT),
        (stats.laplace(scale=0.4), 0.4),
        (stats.uniform(-1.5, 3.0), 0.75),
    ],
)
@pytest.mark.parametrize("y", [-2.0, -0.3, 0.05, 1.1])
def test_sbfl_is_the_conditional_mean(density: stats.rv_continuous, scale: float, y: float) -> None:
    """Integrate g p(g|y) numerically for three symmetric priors."""
    h, sigma2 = -0.8, 0.6

    def likelihood(s: float) -> float:
        return float(stats.norm.pdf(y, loc=h * s, scale=math.sqrt(sigma2)))

    edge = float(density.ppf(1 - 1e-16)) if math.isinf(density.support()[1]) else density.support()[1]
    positive = integrate.quad(lambda g: g * density.pdf(g), 0, edge, epsabs=1e-14, epsrel=1e-13, limit=200)[0]
    numerator = positive * (likelihood(1) - likelihood(-1))
    expected = numerator / (0.5 * likelihood(1) + 0.5 * likelihood(-1))
    got = server.sbfl(
        torch.tensor([[y]], dtype=torch.float64),
        torch.tensor([h], dtype=torch.float64),
        torch.tensor([sigma2], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([scale], dtype=torch.float64),
    )
    assert float(got) == pytest.approx(expected, abs=1e-10)


def received(seed: int = 0, devices: int = 7, size: int = 500) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "y": torch.randn(devices, size, generator=rng, dtype=torch.float64),
        "h": torch.randn(devices, generator=rng, dtype=torch.float64),
        "sigma2": torch.rand(devices, generator=rng, dtype=torch.float64) + 0.1,
        "mean": torch.randn(devices, generator=rng, dtype=torch.float64),
        "scale": torch.rand(devices, generator=rng, dtype=torch.float64),
    }


def all_rules(r: dict[str, Tensor], weights: Tensor | None = None) -> dict[str, Tensor]:
    y, h, sigma2, mean, scale = r["y"], r["h"], r["sigma2"], r["mean"], r["scale"]
    results = {
        f"{name}/{form}": getattr(server, name)(y, h, sigma2, mean, scale, weights, form)
        for name in ("sbfl", "blmmse")
        for form in FORMS
    }
    results["high_snr"] = server.high_snr(y, h, mean, scale, weights)
    results["zero_forcing"] = server.zero_forcing(y, h, mean, scale, weights)
    if weights is None:
        results["majority_vote"] = server.majority_vote(y, h)
    return results


def test_a_channel_of_opposite_sign_changes_nothing() -> None:
    r = received()
    side = torch.tensor([1.0, -1, 1, -1, -1, 1, -1], dtype=torch.float64)
    flipped = {**r, "h": side * r["h"], "y": side[:, None] * r["y"]}
    for (name, a), b in zip(all_rules(r).items(), all_rules(flipped).values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=0), name


def test_devices_can_be_permuted() -> None:
    r = received()
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    weights = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    permuted = {name: value[order] for name, value in r.items()}
    for (name, a), b in zip(
        all_rules(r, weights).items(), all_rules(permuted, weights[order]).values(), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), name


def test_weights_multiply_devices() -> None:
    r = received()
    weights = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scaled = {**r, "mean": weights * r["mean"], "scale": weights * r["scale"]}
    plain = {name: value for name, value in all_rules(scaled).items() if name != "majority_vote"}
    for (name, a), b in zip(all_rules(r, weights).items(), plain.values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), name
        assert torch.allclose(all_rules(r, -weights)[name], -b, rtol=1e-12, atol=1e-12), name


def test_a_scale_per_layer_is_a_scale_per_coordinate() -> None:
    r = received()
    first = {**r, "y": r["y"][:, :200]}
    second = {**r, "y": r["y"][:, 200:], "scale": 3 * r["scale"], "mean": -r["mean"]}
    wide = {
        **r,
        "scale": torch.cat(
            [r["scale"][:, None].expand(-1, 200), 3 * r["scale"][:, None].expand(-1, 300)], dim=1
        ),
        "mean": torch.cat([r["mean"][:, None].expand(-1, 200), -r["mean"][:, None].expand(-1, 300)], dim=1),
    }
    for name, whole in all_rules(wide).items():
        parts = torch.cat([all_rules(first)[name], all_rules(second)[name]])
        assert torch.allclose(whole, parts, rtol=1e-12, atol=1e-12), name


def test_a_silent_channel_has_no_say() -> None:
    """With h = 0 only the mean of the device, which came another way, is left."""
    r = received()
    r["h"][2] = 0
    others = {name: torch.cat([value[:2], value[3:]]) for name, value in r.items()}
    for (name, a), b in zip(all_rules(r).items(), all_rules(others).values(), strict=True):
        expected = b if name == "majority_vote" else b + r["mean"][2]
        assert torch.allclose(a, expected, rtol=1e-12, atol=1e-12), name


def test_without_noise_sbfl_is_high_snr_and_blmmse_is_zero_forcing() -> None:
    r = received()
    clean = {**r, "sigma2": torch.full_like(r["sigma2"], 1e-18)}
    results = all_rules(clean)
    assert torch.allclose(results["sbfl/corrected"], results["high_snr"], rtol=1e-12)
    assert torch.allclose(results["blmmse/corrected"], results["zero_forcing"], rtol=1e-10)
    silent = all_rules({**r, "sigma2": torch.zeros_like(r["sigma2"])})
    assert torch.equal(silent["sbfl/corrected"], results["high_snr"])
    assert torch.allclose(silent["blmmse/corrected"], results["zero_forcing"], rtol=1e-12)


def test_alike_and_noiseless_devices_vote() -> None:
    """The paper's 'reduces to signSGD' holds after the outer sign, and only then."""
    signs = sign(torch.randn(9, 300, generator=torch.Generator().manual_seed(3)))
    one, zero = torch.ones(9), torch.zeros(9)
    estimate = server.sbfl(signs, one, zero, zero, 0.7 * one)
    assert torch.equal(sign(estimate), server.majority_vote(signs, one))
    assert not torch.equal(estimate, server.majority_vote(signs, one))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_snr_gives_finite_numbers(dtype: torch.dtype) -> None:
    snr_db = torch.arange(-100.0, 151.0, 10.0, dtype=torch.float64)
    sigma2 = (10 ** (-snr_db / 10)).to(dtype)
    h = torch.full_like(sigma2, -0.9)
    signs = sign(torch.randn(len(snr_db), 64, generator=torch.Generator().manual_seed(4), dtype=dtype))
    y = transmit(signs, h, sigma2, torch.Generator().manual_seed(5))
    r = {"y": y, "h": h, "sigma2": sigma2, "mean": torch.zeros_like(h), "scale": torch.ones_like(h)}
    for name, estimate in all_rules(r).items():
        assert estimate.dtype == dtype
        assert bool(estimate.isfinite().all()), name
        bounded = name in ("sbfl/corrected", "sbfl/published", "high_snr")
        assert not bounded or float(estimate.abs().max()) <= len(h) * (1 + 1e-6), name


@pytest.mark.parametrize("h", [0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1.0, 1e18, 3e38])
@pytest.mark.parametrize("sigma2", [0.0, 1e-45, 1e-38, 1e-20, 1.0, 3e38])
def test_any_float32_gives_finite_numbers(h: float, sigma2: float) -> None:
    """Gains and variances down to the smallest float32, and signals that do not fit them at all."""
    sizes = [0.0, 1e-45, 1e-40, 1e-20, 1.0, 1e20, 3e38]
    y = torch.tensor([[*sizes, *(-size for size in sizes)]])
    for gain in (h, -h):
        link = {"h": torch.tensor([gain]), "sigma2": torch.tensor([sigma2])}
        for name, estimate in all_rules(
            {"y": y, **link, "mean": torch.zeros(1), "scale": torch.ones(1)}
        ).items():
            assert bool(estimate.isfinite().all()), name


@pytest.mark.parametrize("form", FORMS)
def test_the_network_is_the_function(form: str) -> None:
    r = received()
    weights = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    network = server.SBFLNetwork(r["h"], r["sigma2"], r["mean"], r["scale"], weights, form)
    expected = server.sbfl(r["y"], r["h"], r["sigma2"], r["mean"], r["scale"], weights, form)
    assert torch.allclose(network(r["y"]), expected, rtol=1e-12, atol=1e-12)
    assert {name for name, _ in network.named_parameters()} == {"slope", "combine.weight", "combine.bias"}


def test_a_network_names_what_it_cannot_read() -> None:
    one = torch.ones(2)
    assert bool(server.SBFLNetwork(one, 1e-45 * one, one, one)(torch.zeros(2, 3)).isfinite().all())
    for bad in (torch.ones(2, 0), torch.ones(2, 3)):
        with pytest.raises(ValueError, match=r"mean must have shape \[2\]"):
            server.SBFLNetwork(one, one, bad, one)
    with pytest.raises(ValueError, match="h must be float32 or float64"):
        server.SBFLNetwork(torch.ones(2, dtype=torch.int64), one, one, one)
    with pytest.raises(ValueError, match="sigma2 must be positive"):
        server.SBFLNetwork(one, 0 * one, one, one)
    network = server.SBFLNetwork(one, one, one, one)
    for signal in (torch.ones(3, 2), torch.ones(2), torch.ones(2, 3, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"y must be torch.float32 of shape \[2, M\]; got"):
            network(signal)


def test_ideal_names_its_own_argument() -> None:
    for g in (torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.full((2, 2), torch.nan)):
        with pytest.raises(ValueError, match=r"^g must"):
            server.ideal(g)


def test_ideal_is_the_weighted_sum() -> None:
    g = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.allclose(server.ideal(g), g.sum(dim=0))
    assert torch.allclose(server.ideal(g, weights), (weights[:, None] * g).sum(dim=0))


def test_a_signal_of_zero_is_detected_as_plus_one() -> None:
    y = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert torch.equal(server.detect(y, torch.tensor([-1.0, -1.0]))[:, 1], torch.ones(2))


def test_detection_does_not_divide() -> None:
    """The ratio y/h of a weak signal over a strong gain is zero in float32; its sign is still that of y."""
    y = torch.tensor([[-1e-30, 1e-30], [-1e-30, 1e-30]])
    assert server.detect(y, torch.tensor([1e20, -1e20])).tolist() == [[-1, 1], [1, -1]]


BAD = [
    ({"y": torch.zeros(3)}, "y must have shape"),
    ({"y": torch.full((7, 500), torch.nan, dtype=torch.float64)}, "y must be finite"),
    ({"y": torch.zeros(7, 500, dtype=torch.int64)}, "y must be float32 or float64; got torch.int64"),
    ({"y": torch.zeros(7, 500, dtype=torch.float16)}, "y must be float32 or float64; got torch.float16"),
    ({"h": torch.ones(6, dtype=torch.float64)}, "h must have shape"),
    ({"sigma2": -torch.ones(7, dtype=torch.float64)}, "sigma2 must be non-negative"),
    ({"sigma2": torch.full((7,), torch.nan, dtype=torch.float64)}, "sigma2 must be finite"),
    ({"mean": torch.zeros(7, 3, dtype=torch.float64)}, "mean must have shape"),
    ({"scale": -torch.ones(7, dtype=torch.float64)}, "scale must be non-negative"),
    ({"weights": torch.ones(2, dtype=torch.float64)}, "weights must have shape"),
    ({"form": "printed"}, "form must be one of 'corrected', 'published'; got 'printed'"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
@pytest.mark.parametrize("rule", [server.sbfl, server.blmmse])
def test_bad_input_is_named(rule: object, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(**{**received(), **change})  # type: ignore[operator]
