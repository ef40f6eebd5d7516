"""The uplink and the server's sum in one pass, from packed bits to the estimate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_shape
from signfade.kernels import portable
from signfade.kernels.noise import backend_of, check_keys
from signfade.kernels.rules import FUNCTIONS, RULES, Float64, slopes
from signfade.kernels.table import TILE
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["fused_sum", "received"]


def fused_sum(
    rule: str,
    packed: Tensor,
    size: int,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor | None,
    scale: Tensor | None,
    weights: Tensor | None,
    keys: NDArray[np.uint64],
    *,
    form: str = "corrected",
    segments: Sequence[int] | None = None,
    known: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    method: str = "table",
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Send every device's bits over its link and add up what the rule makes of them.

    `sum_k weights_k*(mean_k + scale_k*f(y_k))`, `y_k = h_k*s_k + sqrt(sigma2_k)*z_k`, where z_k is the stream
    `standard_normal(keys)[k]` and f belongs to the rule: `tanh(h*y/sigma2)` (sbfl), `h*y/(h^2 + sigma2)`
    (blmmse), `sign(y/h)` (high_snr, vote), `y/h` (zero_forcing), `y` (linear). It is what `transmit` followed
    by the function of that name in `signfade.server` gives, up to float rounding: tanh is within 1.2e-7, sums
    are float64. sigma2 is the variance of the real noise per symbol; signs have unit power.

    The signals are never stored. Devices are added one after another in the order given; threads share out
    the coordinates. So the bytes of the result depend neither on the number of threads nor on how the devices
    are cut into calls that hand on `out`.

    Args:
        rule: "sbfl", "blmmse", "high_snr", "zero_forcing", "vote" (the sum of the detected signs), "linear".
        packed: signs, eight to a byte as `pack_signs` makes them, uint8 `[K, ceil(size/8)]`.
        size: number of coordinates M.
        h: gains `[K]`. With a gain of zero a device contributes its mean alone (linear: its noise, too).
        sigma2: noise variances `[K]`; zero is a noiseless link.
        mean: `[K]`, or `[K, S]` with `segments`; zero if None. None for the vote.
        scale: `E|g - mean|`, `[K]` or `[K, S]`; one if None. None for the vote.
        weights: `[K]`; one if None.
        keys: keys of the noise streams, uint64 `[K]`.
        form: "corrected" or "published", for sbfl and blmmse.
        segments: lengths of the S layers where mean or scale differ by layer.
        known: gains and variances `[K]` from which the rule makes its slope, where the server does not know
            `h` and `sigma2` themselves.
        out: a float64 accumulator `[M]` to add into, in place. Then it is what is returned.
        method: "table" or "exact", the noise of `standard_normal`.
        backend: "numba", "torch" (the same bits), or "auto": numba on the CPU, where it is installed.
        threads: at most so many threads, by default as many as there are cores.

    Returns:
        The sum, float32 `[M]`, or `out`. Nothing else of that length is allocated.

    Raises:
        ValueError: shapes or types that do not match, an unknown rule, form or method, a negative variance.

    Example:
        >>> packed = torch.tensor([[0b10100000], [0b11000000]], dtype=torch.uint8)
        >>> one, keys = torch.ones(2), np.array([1, 2], dtype=np.uint64)
        >>> fused_sum("sbfl", packed, 3, one, 0 * one, 0 * one, one, None, keys)
        tensor([2., 0., 0.])

    Reference: Propositions 1 to 3, Corollary 1, Sec. II for the vote; docs/errata.md for the two forms.
    """
    check_choice("rule", rule, RULES)
    check_choice("form", form, ("corrected", "published"))
    check_choice("method", method, ("table", "exact"))
    if rule == "vote" and not (mean is None and scale is None):
        raise ValueError("mean and scale must be None for the vote: it adds signs")
    devices, gain, variance = _check_sent(packed, size, h, sigma2)
    keys = _check_stream(keys, devices)
    lengths = [size] if segments is None else [int(n) for n in segments]
    if sum(lengths) != size or min(lengths, default=1) < 1:
        raise ValueError(f"segments must be positive and add up to size = {size}; got {lengths}")
    parts = len(lengths)
    alpha = np.ones((devices, 1)) if weights is None else _scalars("weights", weights, devices)
    factor = alpha * (np.ones((devices, 1)) if scale is None else _scalars("scale", scale, devices, parts))
    offset = alpha * (np.zeros((devices, 1)) if mean is None else _scalars("mean", mean, devices, parts))
    factor, offset = (np.broadcast_to(a, (devices, parts)).copy() for a in (factor, offset))
    if out is not None and (out.dtype != torch.float64 or tuple(out.shape) != (size,)):
        raise ValueError(f"out must be float64 of shape [{size}]; got {out.dtype} of shape {list(out.shape)}")
    taken = None if known is None else _check_sent(packed, size, *known)[1:]
    signal, noise = slopes(rule, form, gain, variance, taken)
    bounds = np.cumsum([0, *lengths])
    if method == "exact" or packed.device.type != "cpu" or backend_of(backend) == "torch":
        total = torch.zeros(size, dtype=torch.float64, device=packed.device) if out is None else out
        numbers = (signal, noise, offset, factor, bounds)
        portable.add_devices(FUNCTIONS[rule], packed, numbers, keys, total, method == "exact")
        return total.float() if out is None else out

    from signfade.kernels import compiled_sum

    bits = packed.contiguous().numpy()
    total64 = np.empty(0) if out is None else out.numpy()
    result: NDArray[np.float32] = np.empty(size if out is None else 0, dtype=np.float32)

    def work(first: int, last: int) -> None:
        compiled_sum.add_devices(
            FUNCTIONS[rule], bits, signal, noise, keys, offset, factor, bounds, total64, result, first, last
        )

    run_ranges(work, -(-size // TILE), threads or available_threads())
    return torch.from_numpy(result) if out is None else out


def received(
    packed: Tensor,
    size: int,
    h: Tensor,
    sigma2: Tensor,
    keys: NDArray[np.uint64],
    *,
    start: int = 0,
    stop: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Return the received symbols themselves, for rules that look at all devices together.

    `y = h*s + sqrt(sigma2)*z`: bit for bit what `transmit` makes of the unpacked signs and the same keys.
    sigma2 is the variance of the real noise per symbol; signs have unit power.

    Args:
        packed: signs, eight to a byte, uint8 `[K, ceil(size/8)]`.
        size: number of coordinates M.
        h: gains `[K]`.
        sigma2: noise variances `[K]`.
        keys: keys of the noise streams, uint64 `[K]`.
        start: first coordinate wanted.
        stop: one past the last; `size` if None. Columns can so be worked on in groups.
        backend: as in `fused_sum`.
        threads: as in `fused_sum`.

    Returns:
        float32 `[K, stop - start]`.

    Example:
        >>> packed, keys = torch.tensor([[0b10100000]], dtype=torch.uint8), np.array([1], dtype=np.uint64)
        >>> received(packed, 3, torch.tensor([-2.0]), torch.zeros(1), keys)
        tensor([[-2.,  2., -2.]])

    Reference: Sec. II, "Uplink transmission".
    """
    devices, gains, _ = _check_sent(packed, size, h, sigma2)
    keys = _check_stream(keys, devices)
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        raise ValueError(f"start and stop must satisfy 0 <= start <= stop <= {size}; got {start} and {stop}")
    gain = gains.astype(np.float32)
    deviation: NDArray[np.float32] = sigma2.detach().sqrt().cpu().float().numpy()
    if packed.device.type != "cpu" or backend_of(backend) == "torch":
        rows = [
            portable.argument(
                packed[k], float(gain[k]), float(deviation[k]), int(keys[k]), start, stop, False
            )
            for k in range(devices)
        ]
        return torch.stack(rows) if rows else torch.empty(0, stop - start)

    from signfade.kernels import compiled_sum

    y: NDArray[np.float32] = np.empty((devices, stop - start), dtype=np.float32)
    first, last = start // TILE, -(-stop // TILE)
    bits = packed.contiguous().numpy()

    def work(a: int, b: int) -> None:
        compiled_sum.fill_received(bits, gain, deviation, keys, start, y, first + a, first + b)

    if y.size:
        run_ranges(work, last - first, threads or available_threads())
    return torch.from_numpy(y)


def _check_sent(packed: Tensor, size: int, h: Tensor, sigma2: Tensor) -> tuple[int, Float64, Float64]:
    """Return K, h and sigma2, or raise."""
    if packed.dtype != torch.uint8 or packed.ndim != 2:
        raise ValueError(
            f"packed must be uint8 of shape [K, ceil(size/8)]; got {packed.dtype}, {list(packed.shape)}"
        )
    devices = packed.shape[0]
    check_shape("packed", packed, (devices, -(-size // 8)))
    gain, variance = _scalars("h", h, devices)[:, 0], _scalars("sigma2", sigma2, devices)[:, 0]
    if devices and variance.min() < 0:
        raise ValueError(f"sigma2 must be non-negative; its smallest entry is {variance.min():g}")
    return devices, gain, variance


def _check_stream(keys: NDArray[np.uint64], devices: int) -> NDArray[np.uint64]:
    keys = check_keys(keys)
    if len(keys) != devices:
        raise ValueError(f"keys must have shape [{devices}]; got {list(keys.shape)}")
    return keys


def _scalars(name: str, values: Tensor, devices: int, parts: int = 1) -> Float64:
    """Return finite scalars of K devices as float64 `[K, 1]` or `[K, S]`, or raise."""
    # NumPy: these arrays are small, and a call of torch costs several times one of NumPy.
    check_shape(name, values, (devices,), (devices, parts))
    array: Float64 = values.detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity")
    return array.reshape(devices, 1 if array.ndim == 1 else parts)
