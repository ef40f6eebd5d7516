"""Aggregation rules from the literature on hostile devices: Krum, trimmed mean and median.

They act on what each device's signal says of its gradient, `x_k = mean_k + scale_k*tanh(l_k)`, `[K, M]`, and
estimate the mean over the honest devices. None looks beyond one round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from signfade._check import check_finite, check_tensor
from signfade.server._sum import column
from signfade.server.aggregators import AGGREGATORS, Aggregator
from signfade.server.received import Context, Estimate, Received
from signfade.settings import RunSettings
from signfade.uplink import half_llr

__all__ = ["coordinate_median", "krum", "trimmed_mean"]

_CHUNK = 1 << 16  # coordinates at a time: what is sorted or squared stays small


def krum(x: Tensor, attackers: int, chosen: int = 1) -> Tensor:
    """Krum: the vector that is closest to its neighbours; multi-Krum: the mean of the `chosen` best.

    `score(i) = sum over the K - f - 2 nearest j != i of |x_i - x_j|^2` for f attackers; the smallest wins.

    `x` `[K, M]` holds one vector per device; K must be at least `2*f + 3`.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [1.1, 2.0], [0.9, 2.1], [1.0, 1.9], [90.0, -90.0]])
        >>> krum(x, attackers=1), krum(x, attackers=1, chosen=4)
        (tensor([1., 2.]), tensor([1., 2.]))

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent", NeurIPS 2017, section 4; multi-Krum: section 5.
    """
    _check(x, attackers)
    devices = len(x)
    if devices < 2 * attackers + 3:
        needed = 2 * attackers + 3
        raise ValueError(f"x must have at least {needed} devices for {attackers} attackers; got {devices}")
    if not 1 <= chosen <= devices:
        raise ValueError(f"chosen must be from 1 to {devices}; got {chosen}")
    distance = torch.zeros(devices, devices, dtype=torch.float64)
    for part in torch.split(x, _CHUNK, dim=1):
        wide = part.double()
        distance += torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square().cpu()
    distance.fill_diagonal_(torch.inf)
    score = distance.sort(dim=1).values[:, : devices - attackers - 2].sum(dim=1)
    best = torch.argsort(score, stable=True)[:chosen]
    return x[best.to(x.device)].mean(dim=0)


def trimmed_mean(x: Tensor, attackers: int) -> Tensor:
    """Coordinate by coordinate, the mean without the f largest and the f smallest of `[K, M]`, K above `2*f`.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0, -9.0], [2.0, 3.0], [99.0, 5.0]]), attackers=1)
        tensor([2., 3.])

    Reference: Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", ICML 2018, definition 2.
    """
    _check(x, attackers)
    devices = len(x)
    if devices <= 2 * attackers:
        needed = f"more than {2 * attackers} devices for {attackers} attackers"
        raise ValueError(f"x must have {needed}; got {devices}")
    kept = slice(attackers, devices - attackers)
    return torch.cat([part.sort(dim=0).values[kept].mean(dim=0) for part in torch.split(x, _CHUNK, dim=1)])


def coordinate_median(x: Tensor) -> Tensor:
    """Coordinate by coordinate, the median; for an even number of devices the mean of the middle two.

    Example:
        >>> coordinate_median(torch.tensor([[1.0, -9.0], [2.0, 3.0], [99.0, 5.0]]))
        tensor([2., 3.])

    Reference: Yin et al. 2018, definition 1.
    """
    return trimmed_mean(x, (len(x) - 1) // 2)


def _check(x: Tensor, attackers: int) -> None:
    check_tensor("x", x)
    if x.ndim != 2 or len(x) == 0 or x.shape[1] == 0:
        raise ValueError(f"x must have shape [K, M] with a device and a coordinate; got {list(x.shape)}")
    check_finite("x", x)
    if attackers < 0:
        raise ValueError(f"attackers must not be negative; got {attackers}")


def _robust(find: Callable[[Tensor, int], Tensor]) -> Callable[[Received, Context], Estimate]:
    """Make the estimate of a robust mean of `mean_k + scale_k*tanh(l_k)`, times `sum_k alpha_k`.

    Of K devices `f = defence.assumed*K`, rounded, are taken for attackers, but fewer than half.
    """

    def estimate(r: Received, context: Context) -> Estimate:
        soft = torch.tanh(half_llr(r.y, r.h, r.sigma2))
        attackers = min(int(context.defence.assumed * len(r) + 0.5), (len(r) - 1) // 2)
        values = soft.mul_(column(r.scale, soft)).add_(column(r.mean, soft))
        return Estimate(float(r.weights.sum()) * find(values, attackers))

    return estimate


def _krum(x: Tensor, attackers: int, *, several: bool) -> Tensor:
    if len(x) < 3:
        raise ValueError(f"Krum needs at least 3 devices per round; got {len(x)}")
    attackers = min(attackers, (len(x) - 3) // 2)
    return krum(x, attackers, len(x) - attackers if several else 1)


def _check_settings(settings: RunSettings) -> None:
    if settings.defence.reliability:
        raise ValueError(
            f"defence.reliability must be false with {settings.method.aggregator}, which has no weights"
        )


for _name, _help, _find in (
    ("krum", "the device closest to its neighbours (Blanchard et al. 2017)", partial(_krum, several=False)),
    ("multi_krum", "the mean of the devices that Krum likes best", partial(_krum, several=True)),
    ("trimmed_mean", "coordinate-wise mean without the extremes (Yin et al. 2018)", trimmed_mean),
    ("median", "coordinate-wise median (Yin et al. 2018)", lambda x, f: coordinate_median(x)),
):
    AGGREGATORS.add(_name, Aggregator(help=_help, estimate=_robust(_find), check=_check_settings))
