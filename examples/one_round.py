"""One round of SBFL on one page, written like the paper's Algorithm 1.

    python examples/one_round.py

Twenty devices in a cell of 1 km hold gradients of 50,000 weights. Each sends the signs and two numbers over
its own fading, noisy link; the server estimates the sum. Printed: the error of every rule, measured and
predicted.
"""

import functools

import torch

from signfade import device, server, theory, uplink
from signfade.keys import generator, stream_keys

K, M, SEED = 20, 50_000, 1


def main() -> None:
    """Walk from the gradients to the new weights."""
    # The gradients: here iid Gaussian, so that the theory is exact. Devices differ in mean and spread.
    rng = torch.Generator().manual_seed(SEED)
    g = torch.linspace(-0.1, 0.1, K)[:, None] + torch.linspace(0.5, 2, K)[:, None] * torch.randn(
        K, M, generator=rng
    )

    # On each device k: fit the prior, then send sign(g - mean), the mean and the scale E|g - mean|.
    prior = device.fit_prior(g, family="gaussian")
    bits = device.one_bit(g, prior.mean)

    # Through the air: users uniform in the disc, 3GPP urban path loss, shadowing, block fading, noise.
    cell = uplink.Cell(radius_km=1.0)
    places = cell.place_users(K, generator(SEED, "positions"))
    sigma2 = uplink.noise_variance(cell.mean_snr_db(places, generator(SEED, "shadowing")))
    h = uplink.draw_fading("gaussian", K, generator(SEED, "fading"))
    signals = uplink.transmit(bits, h, sigma2, noise=stream_keys(SEED, "noise", 0, range(K)))

    # On the server: the posterior mean of the summed gradient, and its rivals. Theory says what each rule's
    # error should be, from the links and the spreads alone.
    links, priors = (signals, h, sigma2), (prior.mean, prior.scale)
    estimate = server.sbfl(*links, *priors)
    expected = functools.partial(theory.mse, snr=uplink.Link(h, sigma2).snr, std=prior.std)
    truth = server.ideal(g)
    print(f"{'rule':<20}{'measured':>10}{'predicted':>11}   |estimate - sum|^2 / |sum|^2")
    for name, guess, error in [
        ("sbfl", estimate, expected("sbfl")),
        (
            "sbfl, as published",
            server.sbfl(*links, *priors, form="published"),
            expected("sbfl", form="published"),
        ),
        ("blmmse", server.blmmse(*links, *priors), expected("blmmse")),
        ("high_snr", server.high_snr(signals, h, *priors), expected("high_snr")),
        ("zero_forcing", server.zero_forcing(signals, h, *priors), expected("zero_forcing")),
    ]:
        energy = truth.square().sum()
        print(f"{name:<20}{(guess - truth).square().sum() / energy:>10.4f}{M * error.sum() / energy:>11.4f}")

    # The step: w <- w - step * m, with m the running sum of estimates.
    state = server.initial_state(torch.zeros(M))
    state, info = server.momentum_update(state, estimate, step=1e-2, momentum=0.9)
    print(f"\nstepped {info.step_norm:.2f} far; the uplink carried {K * M:,} bits and {2 * K} numbers")


if __name__ == "__main__":
    main()
