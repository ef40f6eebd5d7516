"""Aggregation of soft values: the rate dial, and private rotations.

Signal model: a rotated coordinate in units of its deviation, `x_k ~ N(0, 1)`, is sent as signs, as bits of
Lloyd-Max levels or as an amplitude, and the server reads `z_k = E[x_k | y_k]`. With one rotation for all, the
sum is `sum_k w_k z_k` turned back. With private rotations each device is turned back by its own,
`u_k = R_k^T z_k = D_k x_k + e_k`: the errors e_k are white and independent between devices, so that those of
devices that agree average out. `signfade.theory.rate` has the weights and the errors.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from signfade.device.constellation import levels
from signfade.kernels.correlations import pair_sums
from signfade.server.aggregators import Context
from signfade.server.joint.correlation import (
    CorrelationState,
    initial_correlation,
    known_correlation,
    smooth_measured,
)
from signfade.server.received import Estimate, Received, Truth
from signfade.theory.rate import ORDERS, Rotated, RotatedFit, explained, harmonics, soft_amplitude
from signfade.uplink import Signals, half_llr, symbols

__all__ = ["better_rotation", "measure_updates", "soft_estimate", "soft_values"]

_CHUNK_NUMBERS = 1 << 24  # soft values at a time, or odds of their levels
_PAIRED_DEVICES = 1000  # beyond, devices are taken for independent
# Levels and amplitudes are taken in units of the scale that was sent: where it is rounded by more than this,
# they are not N(0, 1), and theory does not know their error. Signs do not care.
_SCALE_OFF = 0.03
_TABLE = 4096  # amplitudes at which the posterior mean is worked out


def soft_values(
    y: Tensor | Signals, h: Tensor, sigma2: Tensor, bits: int | None = 1, papr_db: float | None = None
) -> Tensor:
    """Return `z = E[x | y]` of every coordinate that was sent, `[K, n]`, in units of its deviation.

    `bits` per coordinate, None for amplitudes. B = 1: `sqrt(2/pi) * tanh(l)`; B > 1:
    `tanh(l_1) * sum_i c_i p_i exp(b_i . l)/sum_i p_i exp(b_i . l)` over the magnitudes' labels.

    Example:
        >>> from signfade.device import one_bit
        >>> from signfade.uplink import transmit
        >>> one, zero = torch.ones(1), torch.zeros(1)
        >>> signals = transmit(one_bit(torch.tensor([[0.5, -2.0]]), zero), one, zero, np.zeros(1, np.uint64))
        >>> soft_values(signals, one, zero, 1, None)
        tensor([[ 0.7979, -0.7979]])
    """
    y = symbols(y)
    if bits is None:
        return torch.stack([_soft_amplitudes(*row, papr_db) for row in zip(y, h, sigma2)])
    llr = half_llr(y, h, sigma2)
    size = llr.shape[1] // bits
    sign = torch.tanh(llr[:, :size])
    cells = levels(bits)
    values, masses, labels = (
        torch.from_numpy(part).to(llr) for part in (cells.values, cells.masses, cells.labels)
    )
    if bits == 1:
        return values[0] * sign
    planes = llr[:, size:].reshape(len(llr), bits - 1, size).clamp(-1e4, 1e4)
    odds = torch.softmax(torch.einsum("ib,kbn->ikn", labels, planes) + masses.log()[:, None, None], dim=0)
    return sign * torch.einsum("i,ikn->kn", values, odds)


def _soft_amplitudes(y: Tensor, h: Tensor, sigma2: Tensor, papr_db: float | None) -> Tensor:
    """The posterior mean of one device's amplitudes, from a table over the symbols it received."""
    if float(h) == 0:
        return torch.zeros_like(y)
    deviation = max(float(sigma2), float(h) ** 2 * 1e-8) ** 0.5  # a noiseless link counts as one of 80 dB
    signal, snr = (y / (math.copysign(deviation, float(h)))).double().numpy(), (float(h) / deviation) ** 2
    if papr_db is None:
        return torch.from_numpy(soft_amplitude(signal, snr)).to(y)
    grid = np.linspace(0.0, max(1.0, float(np.abs(signal).max())), _TABLE)
    found = np.interp(np.abs(signal), grid, soft_amplitude(grid, snr, papr_db))
    return torch.from_numpy(np.copysign(found, signal)).to(y)


def soft_estimate(received: Received, context: Context, joint: bool) -> Estimate:
    """Estimate the weighted sum from soft values: devices as independent, or jointly with what they share."""
    encoder, method = received.encoder, received.encoder.method
    private = method.rotation == "private"
    bits, papr = method.level_bits, encoder.papr_db
    alpha = received.weights.double().numpy()
    std = math.sqrt(math.pi / 2) * received.layer_scale[:, 0].double().numpy()

    def rotated(snr: Tensor, std: np.ndarray, correlation: np.ndarray) -> Rotated:
        return Rotated(harmonics(snr, bits, papr), std, correlation, encoder.part, encoder.kept, private)

    memory = context.memory
    if joint and len(received) <= _PAIRED_DEVICES:
        rows = torch.empty(0)
        for chunk in _chunks(received):
            part = _rows(received, chunk)
            rows = rows if chunk.start else part.new_empty(len(received), part.shape[1])
            rows[chunk] = part
        if context.method.correlation == "genie" and context.genie is not None:
            correlation = context.genie.numpy()
        else:
            alone = rotated(received.link.snr, std, np.eye(len(received)))
            measured, precision = _measure(rows, alone)
            found, memory = _learn(context.memory, measured, precision, received)
            correlation = found.numpy()
        fit = rotated(received.link.snr, std, correlation).fit(alpha)
        value = torch.mv(rows.T, torch.from_numpy(fit.combine).to(rows))
    else:
        target = alpha * std  # devices as independent: no matrix of all of them
        seen, energy = float(target**2 @ explained(received.link.snr, bits, papr)), float(target @ target)
        fit = RotatedFit(target, encoder.part * seen / energy if energy > 0 else 0.0)
        value = torch.zeros(())
        for chunk in _chunks(received):
            rows = _rows(received, chunk)
            value = value + torch.mv(rows.T, torch.from_numpy(fit.combine[chunk]).to(rows))

    def predict(truth: Truth, factor: float) -> float | None:
        if truth.correlation is None:
            return None
        true_std = truth.priors.std[:, 0].double().numpy()
        if bits != 1 and (np.abs(std - true_std) > _SCALE_OFF * true_std).any():
            return None
        true = rotated(received.signals.link.snr, true_std, truth.correlation.numpy())
        moments = true.moments(alpha, fit.combine)
        return moments.nmse(factor) if moments.energy > 0 else None

    if not private:
        value = received.turned_back(value)
    return Estimate(value, fit.gain, memory, turned_back=True, predict=predict)


def measure_updates(received: Received) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Return what is received about the devices' rotated updates: correlations, precision, soft values.

    The correlations r_kj, `[K, K]`, have the variance `1/(p_k p_j)`, p `[K]`; the soft values are turned
    back, `[K, M]`, in units of each update's deviation.
    """
    encoder = received.encoder
    found = harmonics(received.link.snr, encoder.method.level_bits, encoder.papr_db)
    private, ones = encoder.method.rotation == "private", np.ones(len(received))
    rows = _rows(received, slice(None))
    model = Rotated(found, ones, np.eye(len(ones)), encoder.part, encoder.kept, private)
    measured, precision = _measure(rows, model)
    return measured, precision, rows if private else encoder.unrotate(rows, received.rotation_keys)


def _chunks(received: Received) -> list[slice]:
    """Devices whose soft values are worked out at a time: memory for the odds stays flat."""
    cells = 2 ** ((received.encoder.method.level_bits or 1) - 1)
    step = max(1, _CHUNK_NUMBERS // (cells * received.encoder.coordinates))
    return [slice(start, start + step) for start in range(0, len(received), step)]


def _rows(received: Received, rows: slice) -> Tensor:
    """Soft values of some devices: turned back, `[k, M]`, where rotations are private; as sent otherwise."""
    encoder, link, y = received.encoder, received.link, received.signals.rows(rows)
    values = soft_values(y, link.h[rows], link.sigma2[rows], encoder.method.level_bits, encoder.papr_db)
    if encoder.method.rotation != "private":
        return values
    return encoder.unrotate(values, received.rotation_keys[rows])


def _learn(
    memory: CorrelationState | None, measured: np.ndarray, precision: np.ndarray, received: Received
) -> tuple[Tensor, CorrelationState | None]:
    """Learn the correlation, and remember it unless there are too many devices in the cell."""
    if memory is None:
        nothing = initial_correlation(len(received))
        return smooth_measured(nothing, measured, precision, of_bits=False)[0], None
    return smooth_measured(memory, measured, precision, torch.from_numpy(received.devices), of_bits=False)


def _measure(rows: Tensor, model: Rotated) -> tuple[np.ndarray, np.ndarray]:
    """Return what the products of soft values say about the correlations r_kj, and its precision p.

    After private rotations a product is `f**2 a_k a_j r_kj` for each of n coordinates, otherwise
    `sum_i a_ki a_ji r_kj**i` for each that was sent. The variance `1/(p_k p_j)` is that of small r.
    """
    first = np.maximum(model.coefficients[:, 0], 1e-9)
    count = rows.shape[1] / (model.kept if model.private else 1.0)
    seen = pair_sums(rows).numpy() / (count * np.outer(first, first))
    if model.private:
        seen /= model.part**2
        precision = model.part * math.sqrt(count / model.kept) * first
    else:
        seen = _invert(seen, model.coefficients / first[:, None])
        precision = math.sqrt(count) * first
    np.fill_diagonal(seen, 0.0)
    return seen, precision


def _invert(seen: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Solve `r + sum_(n > 1) c_n r**n = seen` for r by Newton's method, `c_n` the products of ratios."""
    powers = np.append(ORDERS, ORDERS[-1] + 2)
    c = np.einsum("kn,jn->kjn", ratios, ratios)
    r = np.clip(seen, -1, 1)
    for _ in range(8):
        value = (c * r[..., None] ** powers).sum(axis=-1)
        slope = (c * powers * r[..., None] ** (powers - 1)).sum(axis=-1)
        r = np.clip(r - (value - seen) / np.maximum(slope, 1e-9), -1, 1)
    return np.asarray(r)


def better_rotation(memory: CorrelationState, model: Rotated) -> str:
    """Return "private" or "shared", whichever has the smaller predicted error for what is known so far."""
    ones, correlation = np.ones(len(model.std)), known_correlation(memory).numpy()
    errors = {}
    for name in ("private", "shared"):
        trial = model._replace(correlation=correlation, private=name == "private")
        errors[name] = trial.moments(ones, trial.fit(ones).combine).nmse()
    return min(errors, key=errors.__getitem__)
