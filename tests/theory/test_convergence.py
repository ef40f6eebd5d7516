"""The bounds against gradient descent that was really run."""

from collections.abc import Callable

import numpy as np
import pytest

from signfade.theory import corrected_bound, mse, published_bound, step_sizes


class Run:
    """What a run of descent on a quadratic went through: squared gradients and squared errors by round."""

    def __init__(self, gap: float, smoothness: float, gradients: list[float], errors: list[float]) -> None:
        self.gap, self.smoothness = gap, smoothness
        self.gradients, self.errors = np.array(gradients), np.array(errors)


def quadratic_run(rule: str, seed: int, step: float, rounds: int, schedule: str) -> Run:
    """Devices with their own quadratics, one bit a coordinate over faded links, one of several estimators."""
    rng = np.random.default_rng(seed)
    devices, size = 4, 40
    factors = rng.normal(size=(devices, size, size)) / np.sqrt(size)
    curvature = np.einsum("kij,klj->kil", factors, factors) * rng.uniform(0.1, 2, (devices, 1, 1))
    centre = rng.normal(size=(devices, size))
    total = curvature.sum(axis=0)
    smoothness = float(np.linalg.eigvalsh(total)[-1])
    best = np.linalg.solve(total, np.einsum("kij,kj->i", curvature, centre))

    def local(w: np.ndarray) -> np.ndarray:
        return np.einsum("kij,kj->ki", curvature, w - centre)

    w = rng.normal(size=size) * 3
    gap = 0.5 * (w - best) @ total @ (w - best)
    gradients, errors = [], []
    for length in step_sizes(step / smoothness, rounds, schedule):
        g = local(w)
        mean = g.mean(axis=1, keepdims=True)
        kappa = np.abs(g - mean).mean(axis=1, keepdims=True)
        h, sigma2 = rng.normal(size=(devices, 1)), 0.5
        y = h * np.where(g >= mean, 1, -1) + np.sqrt(sigma2) * rng.normal(size=g.shape)
        llr = h * y / sigma2
        soft = {
            "corrected": np.tanh(llr),
            "published": np.tanh(2 * llr),
            "hard": np.sign(llr),
            "none": 0 * llr,
        }
        estimate = (mean + kappa * soft[rule]).sum(axis=0)
        gradient = g.sum(axis=0)
        gradients.append(gradient @ gradient)
        errors.append((estimate - gradient) @ (estimate - gradient))
        w = w - length * estimate
    return Run(gap, smoothness, gradients, errors)


@pytest.mark.parametrize("schedule", ["constant", "sqrt"])
@pytest.mark.parametrize("rule", ["corrected", "published", "hard", "none"])
@pytest.mark.parametrize("step", [1.0, 0.2])
def test_the_corrected_bound_holds_on_every_run(rule: str, schedule: str, step: float) -> None:
    for seed in range(3):
        run = quadratic_run(rule, seed, step, 150, schedule)
        lengths = step_sizes(step / run.smoothness, 150, schedule)
        mean = np.cumsum(run.gradients) / np.arange(1, 151)
        bound = corrected_bound(run.gap, run.smoothness, step / run.smoothness, run.errors, schedule=schedule)
        assert (mean <= bound).all()
        weighted = np.cumsum(lengths * run.gradients) / np.cumsum(lengths)
        tighter = corrected_bound(
            run.gap, run.smoothness, step / run.smoothness, run.errors, schedule=schedule, weighted=True
        )
        assert (weighted <= tighter).all()
        assert (tighter <= bound * (1 + 1e-12)).all()


def test_the_corrected_bound_is_attained_at_the_step_1_over_l_and_fails_beyond() -> None:
    # One weight, exact gradients: w <- (1 - step*L)*w. At 1/L one step ends it, with |grad F|**2 = 2*L*gap.
    smoothness, w0, rounds = 2.0, 3.0, 50
    gap = smoothness * w0**2 / 2
    bound = corrected_bound(gap, smoothness, 1 / smoothness, 0.0, rounds)
    assert (smoothness * w0) ** 2 == pytest.approx(bound[0], rel=1e-15)
    step = 1.2 / smoothness
    path = w0 * (1 - step * smoothness) ** np.arange(rounds)
    assert ((smoothness * path) ** 2).sum() > 1.2 * 2 * gap / step  # what the formula would say


def low_snr_run(seed: int, size: int, snr: float, step: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """One device, F = |w|**2/2, corrected SBFL with its true prior: the gradient starts as iid Gaussian."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=size)
    gradients, errors = [], []
    for length in step_sizes(step, rounds, "sqrt"):
        kappa = np.sqrt(2 / np.pi) * w.std()
        llr = snr * np.where(w >= 0, 1, -1) + np.sqrt(snr) * rng.normal(size=size)
        estimate = kappa * np.tanh(llr)
        gradients.append(w @ w)
        errors.append(((estimate - w) ** 2).sum())
        w = w - length * estimate
    return np.array(gradients), np.array(errors)


def test_the_published_bound_fails_for_the_biased_estimate_it_is_about() -> None:
    size, snr, step, rounds = 2000, 0.01, 0.5, 400
    for seed in range(5):
        gradients, errors = low_snr_run(seed, size, snr, step, rounds)
        # The errors are those the (corrected) theorem on the MSE predicts for the first round.
        assert errors[0] == pytest.approx(size * mse("sbfl", snr), rel=0.15)  # 4.5 deviations: sqrt(2/size)
        gap = gradients[0] / 2
        mean = np.cumsum(gradients) / np.arange(1, rounds + 1)
        printed = published_bound(gap, 1.0, step, errors)
        assert mean[-1] > 3 * printed[-1]
        assert (mean <= corrected_bound(gap, 1.0, step, errors, schedule="sqrt")).all()


def test_the_published_bound_fails_for_an_unbiased_estimate_too() -> None:
    # F = w**2/2, ghat = w + noise of variance one, started at the minimum: E[w**2] obeys an exact recursion.
    step, rounds = 0.05, 5000
    second = np.zeros(rounds)
    for t, length in enumerate(step_sizes(step, rounds - 1, "sqrt")):
        second[t + 1] = (1 - length) ** 2 * second[t] + length**2
    mean = np.cumsum(second) / np.arange(1, rounds + 1)
    printed = published_bound(0.0, 1.0, step, 1.0, rounds)
    assert mean[-1] > 2 * printed[-1]
    # With the division its last line lost, step*L/2 instead of step**2*L/2, the bound holds here.
    assert (mean <= printed / step).all()


def test_an_error_that_stays_leaves_a_floor_and_the_published_bound_denies_it() -> None:
    rounds = 10**5
    assert corrected_bound(1.0, 1.0, 0.5, 0.3, rounds)[-1] == pytest.approx(0.3, rel=1e-3)
    assert corrected_bound(1.0, 1.0, 0.5, 0.3, rounds, "sqrt")[-1] == pytest.approx(0.6, rel=0.05)
    assert corrected_bound(1.0, 1.0, 0.5, 0.3, rounds, "sqrt", weighted=True)[-1] == pytest.approx(
        0.3, rel=0.05
    )
    assert published_bound(1.0, 1.0, 0.5, 0.3, rounds)[-1] < 0.02


def test_formulas_by_hand() -> None:
    errors = np.array([1.0, 3.0, 2.0])
    np.testing.assert_allclose(corrected_bound(2.0, 0.5, 1.0, errors), [4 + 1, 4 / 2 + 2, 4 / 3 + 2])
    expected = [
        (2 / 0.5 + e * (1 + np.log(t)) * 0.125) / 0.75 / np.sqrt(t) for t, e in ((1, 1), (2, 3), (3, 3))
    ]
    np.testing.assert_allclose(published_bound(2.0, 1.0, 0.5, errors), expected)
    root = np.sqrt([1, 2, 3])
    np.testing.assert_allclose(
        corrected_bound(2.0, 0.5, 1.0, errors, schedule="sqrt"),
        (4 + np.cumsum(errors / root)) * root / [1, 2, 3],
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: corrected_bound(1.0, 2.0, 0.6, 0.0, 5), "step must be at most 1/smoothness = 0.5; got 0.6"),
        (lambda: corrected_bound(-1.0, 2.0, 0.5, 0.0, 5), "gap"),
        (lambda: corrected_bound(float("nan"), 2.0, 0.5, 0.0, 5), "gap"),
        (lambda: corrected_bound(1.0, 0.0, 0.5, 0.0, 5), "smoothness"),
        (lambda: corrected_bound(1.0, 2.0, 0.0, 0.0, 5), "step must be positive"),
        (lambda: corrected_bound(1.0, 2.0, 0.5, -1.0, 5), "mse"),
        (lambda: corrected_bound(1.0, 2.0, 0.5, 1.0), "rounds"),
        (lambda: corrected_bound(1.0, 2.0, 0.5, [1.0, 2.0], 3), "rounds"),
        (lambda: corrected_bound(1.0, 2.0, 0.5, []), "rounds"),
        (lambda: corrected_bound(1.0, 2.0, 0.5, 1.0, 0), "rounds"),
        (
            lambda: corrected_bound(1.0, 2.0, 0.5, 1.0, 5, "linear"),
            "schedule must be one of 'constant', 'sqrt'",
        ),
        (lambda: published_bound(1.0, 2.0, 1.0, 1.0, 5), "step must be below 2/smoothness = 1; got 1"),
        (lambda: published_bound(1.0, 2.0, -1.0, 1.0, 5), "step must be positive"),
        (lambda: step_sizes(1.0, 0), "rounds must be at least 1"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
