"""What every rung of the joint posterior costs: the table in docs/bfl.md.

    python benchmarks/joint_cost.py [--rounds 15] [--threads 1] [--json FILE]

20 devices that hold two of ten classes each, 65,536 coordinates, fading links around 0 dB, and the gradients
of a round of the paper's network beside them. All steps take turns in one run; times are CPU milliseconds of
all threads, the least of the rounds. The last lines are the ratios that bound the cost: rotation there and
back with the joint linear rule over the fused uplink and sum of sbfl; the same with the rule's own uplink and
learning, all together; and ep over the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from harness import arguments, measure, write
from round import experiment, images

from signfade.device import rotate, unrotate
from signfade.experiments.studies.joint_errors import draw_round
from signfade.kernels import fused_sum, received
from signfade.server.joint import (
    bfl,
    factor_bfl,
    fit_factor,
    initial_correlation,
    joint_blmmse,
    joint_sbfl,
    private_part,
    smooth_correlation,
)
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.task import one_thread

DEVICES, SIZE = 20, 65_536
SEED = 7
Steps = dict[str, Callable[[], object]]


def steps() -> Steps:
    """Every step on the same round; names are the table's."""
    g, h, sigma2, *_ = draw_round(DEVICES, None, 0.0, SIZE, SEED)
    keys = np.random.default_rng(SEED).integers(0, 2**64, DEVICES, dtype=np.uint64)
    packed = torch.from_numpy(np.packbits(g.numpy() >= 0, axis=1))
    mean, scale = torch.zeros(DEVICES), torch.full((DEVICES,), math.sqrt(2 / math.pi))
    links, sent = (h, sigma2), (packed, SIZE, h, sigma2)
    y = received(*sent, keys)
    nothing = initial_correlation(DEVICES)
    r, _ = smooth_correlation(nothing, y, *links)
    loadings = fit_factor(r)
    total = g.sum(dim=0)
    run = experiment(images(), {"aggregator": "ideal"})
    everyone = np.arange(DEVICES)

    def gradients() -> None:
        with one_thread():
            run.task.local_updates(run.weights, everyone, run.round)

    def whole() -> None:
        rotate(g, SEED)
        y = received(*sent, keys)
        learned, _ = smooth_correlation(nothing, y, *links)
        unrotate(joint_blmmse(y, *links, mean, scale, learned), SEED, SIZE)

    return {
        "rotate all devices": lambda: rotate(g, SEED),
        "unrotate the sum": lambda: unrotate(total, SEED, SIZE),
        "sbfl: fused uplink and sum": lambda: fused_sum("sbfl", *sent, mean, scale, None, keys),
        "received signals": lambda: received(*sent, keys),
        "learn the correlation": lambda: smooth_correlation(nothing, y, *links),
        "joint linear": lambda: joint_blmmse(y, *links, mean, scale, r),
        "joint soft": lambda: joint_sbfl(y, *links, mean, scale, r),
        "factor": lambda: factor_bfl(y, *links, mean, loadings, private_part(torch.ones(DEVICES), loadings)),
        "ep": lambda: bfl(y, *links, mean, r, method="ep"),
        "rotation, uplink, learning, joint linear": whole,
        "gradients of a round": gradients,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--threads", type=int, default=1, help="of torch; kernels follow OMP_NUM_THREADS")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_allocator()
    rows = measure(steps(), options.rounds, base="gradients of a round")
    least = {name: row["cpu_ms"] for name, row in rows.items()}
    sbfl, gradients = least["sbfl: fused uplink and sum"], least["gradients of a round"]
    print(f"{'':<42} {'CPU ms':>7} {'/ sbfl':>7} {'/ gradients':>11}")
    for name, value in least.items():
        print(f"{name:<42} {value:7.2f} {value / sbfl:7.2f} {value / gradients:11.3f}")
    rule = ("rotate all devices", "unrotate the sum", "joint linear")
    ratios = {
        "rotation and joint linear over sbfl": sum(least[name] for name in rule) / sbfl,
        "with uplink and learning over sbfl": least["rotation, uplink, learning, joint linear"] / sbfl,
        "ep over gradients": least["ep"] / gradients,
    }
    for (name, value), bound in zip(ratios.items(), (2.0, 2.0, 1.0), strict=True):
        print(f"{name}: {value:.2f} (at most {bound:g})")
    write(options.json, {"cpu_ms": least, "ratios": ratios})


if __name__ == "__main__":
    main()
