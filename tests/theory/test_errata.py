"""Slips of the paper that belong to no function: each decided by a computation. See docs/errata.md."""

import itertools

import numpy as np
import pytest
import torch
from scipy import special


def half_line(last: float = 12.0, pieces: int = 6, order: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, last]."""
    node, weight = np.polynomial.legendre.leggauss(order)
    edges = np.linspace(0, last, pieces + 1)
    width = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + width) + width * node).ravel(), (width * weight).ravel()


@pytest.mark.parametrize("prior", ["gaussian", "laplacian"])
def test_the_posterior_mean_is_tanh_of_the_half_llr(prior: str) -> None:
    # Eq. (47) integrated as it stands; eq. (50) and so Propositions 1 and 3 print tanh of twice the argument.
    scale, h, sigma2 = 0.7, -1.3, 0.9
    g, weight = half_line(40.0, 40)
    density = np.exp(-(g**2) / 2) if prior == "gaussian" else np.exp(-g)
    kappa = scale * (np.sqrt(2 / np.pi) if prior == "gaussian" else 1.0)
    for y in np.linspace(-1.5, 1.5, 13):
        likelihood = {sign: np.exp(-((y - h * sign) ** 2) / (2 * sigma2)) for sign in (1, -1)}
        top = sum(likelihood[sign] * sign * scale * (weight * g * density).sum() for sign in (1, -1))
        bottom = sum(likelihood[sign] * (weight * density).sum() for sign in (1, -1))
        assert top / bottom == pytest.approx(kappa * np.tanh(h * y / sigma2), abs=1e-12)
        if y != 0:
            assert abs(top / bottom - kappa * np.tanh(2 * h * y / sigma2)) > 0.005


def test_the_linear_rule_follows_from_its_own_covariance_form() -> None:
    # Eq. (33) with Sigma = nu**2*I: the bits' autocorrelation is I, so the noise meets h**2, not (2/pi)*h**2.
    nu, h, sigma2, size = 1.4, 0.6, 0.5, 3
    covariance = nu**2 * np.eye(size)
    root = np.diag(1 / np.sqrt(np.diag(covariance)))
    bits = 2 / np.pi * np.arcsin(root @ covariance @ root)
    np.testing.assert_allclose(bits, np.eye(size))
    rule = h * covariance @ (np.sqrt(2 / np.pi) * root) @ np.linalg.inv(h**2 * bits + sigma2 * np.eye(size))
    np.testing.assert_allclose(rule, np.sqrt(2 / np.pi) * nu * h / (h**2 + sigma2) * np.eye(size), atol=1e-15)
    # The best b in b*y minimises nu**2 - 2*b*E[g*y] + b**2*E[y**2]; E[g*y] = kappa*h, E[y**2] = h**2+sigma2.
    kappa, slope = np.sqrt(2 / np.pi) * nu, rule[0, 0]
    assert -2 * kappa * h + 2 * slope * (h**2 + sigma2) == pytest.approx(0, abs=1e-15)


def test_the_prior_density_needs_the_root_of_the_determinant() -> None:
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    x = np.linspace(-12, 12, 481)
    grid = np.stack(np.meshgrid(x, x), axis=-1)
    form = np.einsum("...i,ij,...j", grid, np.linalg.inv(covariance), grid)
    total = np.exp(-form / 2).sum() * (x[1] - x[0]) ** 2 / (2 * np.pi)
    determinant = np.linalg.det(covariance)
    assert total / np.sqrt(determinant) == pytest.approx(1, rel=1e-12)
    assert abs(total / determinant - 1) > 0.2


def test_a_sign_taken_about_zero_does_not_fit_the_rule_about_the_mean() -> None:
    # Algorithms 1 and 2 send sign(g); the rule mean + kappa*tanh(l) is the posterior mean for sign(g - mean).
    mean, std, llr = 1.0, 1.0, 0.8
    z, weight = half_line()
    density = weight * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    g, p = mean + std * np.r_[z, -z], np.r_[density, density]

    def posterior_mean(bit: np.ndarray) -> float:
        likelihood = p * np.exp(bit * llr)
        return float((likelihood * g).sum() / likelihood.sum())

    rule = mean + np.sqrt(2 / np.pi) * std * np.tanh(llr)
    assert posterior_mean(np.sign(g - mean)) == pytest.approx(rule, abs=1e-12)
    assert abs(posterior_mean(np.where(g >= 0, 1, -1)) - rule) > 0.1


def test_the_factorised_likelihood_fails_from_three_devices_on() -> None:
    # Eq. (18) writes P(y_1..y_K | g_1) as a product over devices. True for two; for three it ignores that g_2
    # and g_3 stay correlated given g_1.
    correlation, llr = 0.7, np.array([0.2, 2.0, 2.0])
    two = llr[:2]
    assert _exact_mean(correlation, two) == pytest.approx(_factorised_mean(correlation, two), abs=1e-9)
    assert _factorised_mean(correlation, llr) > _exact_mean(correlation, llr) + 0.05
    # Where g_2 and g_3 really are independent given g_1, the factorisation is right for three as well.
    chain = np.array([[1.0, 0.7, 0.7], [0.7, 1.0, 0.49], [0.7, 0.49, 1.0]])
    assert _exact_mean(chain, llr) == pytest.approx(_factorised_mean(0.7, llr), abs=1e-9)


def _exact_mean(correlation: float | np.ndarray, llr: np.ndarray) -> float:
    """E[g_1 | y] of unit-variance Gaussians, by integrating Bayes' rule over every orthant."""
    devices = len(llr)
    covariance = np.where(np.eye(devices) > 0, 1.0, correlation)
    inverse = np.linalg.inv(covariance)
    node, weight = half_line(9.0, 3, 24)
    points = np.stack(np.meshgrid(*[node] * devices, indexing="ij"), axis=-1)
    volume = np.prod(np.stack(np.meshgrid(*[weight] * devices, indexing="ij"), axis=-1), axis=-1)
    top = bottom = 0.0
    for signs in itertools.product((1, -1), repeat=devices):
        g = points * np.array(signs)
        density = volume * np.exp(-np.einsum("...i,ij,...j", g, inverse, g) / 2) * np.exp(np.dot(signs, llr))
        top, bottom = top + (density * g[..., 0]).sum(), bottom + density.sum()
    return top / bottom


def _factorised_mean(correlation: float, llr: np.ndarray) -> float:
    """The same by the paper's eqs. (17) and (18)."""
    node, weight = half_line()
    g, w = np.r_[node, -node], np.r_[weight, weight]
    density = w * np.exp(-(g**2) / 2) * np.exp(np.sign(g) * llr[0])
    for other in llr[1:]:
        up = special.ndtr(correlation * g / np.sqrt(1 - correlation**2))
        density *= np.exp(other) * up + np.exp(-other) * (1 - up)
    return float((density * g).sum() / density.sum())


def test_the_regression_gradient() -> None:
    # X is M x N. The gradient of |X'w - z|**2 is 2*X*(X'w - z), of length M; X'X*w has not even its length.
    torch.manual_seed(0)
    data, labels = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    w = torch.randn(5, dtype=torch.float64, requires_grad=True)
    ((data.T @ w - labels) ** 2).sum().backward()
    torch.testing.assert_close(w.grad, 2 * data @ (data.T @ w.detach() - labels))
    with pytest.raises(RuntimeError):
        data.T @ data @ w


def test_the_correlation_example_is_a_product_of_means() -> None:
    # Two values for each entry of x, every combination equally likely: expectations are exact sums.
    w, labels = np.array([0.7, -0.2]), (1.0, -1.0)
    columns = [np.array(x) for x in itertools.product((1.0, -2.0), (1.0, 2.0))]
    gradients = np.array([2 * x * (x @ w - z) for x in columns for z in labels])
    both = np.einsum("ai,bj->ij", gradients, gradients) / len(gradients) ** 2  # independent devices, given w
    mean = gradients.mean(axis=0)
    np.testing.assert_allclose(both, np.outer(mean, mean), atol=1e-14)  # what eq. (12) computes
    covariance = both - np.outer(mean, mean)
    np.testing.assert_allclose(covariance, 0, atol=1e-14)  # the correlation it is meant to show is absent
    assert np.abs(mean).max() > 1


def test_without_the_outer_sign_the_limit_is_not_a_vote() -> None:
    bits = np.array([[1, 1, -1], [1, -1, -1], [1, -1, -1]])
    limit, vote = 0.3 * bits.sum(axis=0), np.where(bits.sum(axis=0) >= 0, 1, -1)
    np.testing.assert_array_equal(np.where(limit >= 0, 1, -1), vote)
    assert len(np.unique(limit / vote)) > 1  # not even a multiple of the vote


def test_the_quantiser_bins_as_printed_overlap_and_run_out() -> None:
    # Eq. (26), B = 1: outputs q_1, q_2 and edges b_0, b_1, b_2, but the sum asks for b_3 and never for b_0.
    edges, outputs = {0: -1.0, 1: 0.0, 2: 1.0}, {1: -0.5, 2: 0.5}
    asked = {edge for level in outputs for edge in (level, level + 1)}
    assert asked - set(edges) == {3}
    assert set(edges) - asked == {0}
    closed = sum(outputs[level] * (edges[level - 1] <= 0.0 <= edges[level]) for level in outputs)
    half_open = sum(outputs[level] * (edges[level - 1] <= 0.0 < edges[level]) for level in outputs)
    assert closed not in outputs.values()  # both bins claim their common edge, and the outputs add
    assert half_open == outputs[2]


def test_the_regression_loss_cannot_fall_to_the_printed_value() -> None:
    # Labels independent of the data: K*N = 2000 samples, M = 300 weights. The least-squares residual is the
    # part of the labels outside a random 300-dimensional space: 1700/2000 of their energy.
    rng = np.random.default_rng(5)
    samples, size = 2000, 300
    data = np.sqrt(5) * rng.normal(size=(samples, size))
    labels = rng.normal(size=samples)
    residual = labels - data @ np.linalg.solve(data.T @ data, data.T @ labels)
    lowest = residual @ residual / samples
    assert lowest == pytest.approx(1 - size / samples, abs=4.5 * np.sqrt(2 * 1700) / samples)
    assert lowest > 50 * 0.009


@pytest.mark.parametrize(("decibel", "outage"), [(10, 0.31), (20, 0.10)])
def test_scalars_are_not_always_decoded_over_gaussian_fading(decibel: float, outage: float) -> None:
    threshold = 10 ** (0.2 - decibel / 10)  # a code that needs 2 dB
    exact = special.erf(np.sqrt(threshold / 2))
    assert exact == pytest.approx(outage, abs=0.005)
