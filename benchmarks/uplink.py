"""The fused uplink beside a NumPy twin written from the equations and careful eager torch.

python benchmarks/uplink.py --json uplink.json             # K = 20, M = 1e6
python benchmarks/uplink.py --scaling --json scaling.json   # cost over K and M
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from harness import PeakMemory, arguments, measure, show, write

from signfade.kernels import fused_sum, standard_normal


class Cell:
    """K devices with random bits, gains and scalars."""

    def __init__(self, devices: int, size: int) -> None:
        rng = np.random.default_rng(0)
        self.devices, self.size = devices, size
        self.packed = torch.from_numpy(rng.integers(0, 256, (devices, -(-size // 8)), dtype=np.uint8))
        self.h = torch.from_numpy(rng.standard_normal(devices)).float()
        self.sigma2 = torch.from_numpy(rng.uniform(0.1, 1, devices)).float()
        self.mean = torch.from_numpy(0.1 * rng.standard_normal(devices)).float()
        self.scale = torch.from_numpy(rng.uniform(0.5, 2, devices)).float()
        self.keys = rng.integers(0, 2**64, devices, dtype=np.uint64)

    def fused(self, rule: str = "sbfl", threads: int | None = None) -> torch.Tensor:
        """This project's kernel."""
        scalars = (None, None) if rule == "vote" else (self.mean, self.scale)
        link = (self.h, self.sigma2, *scalars, None, self.keys)
        return fused_sum(rule, self.packed, self.size, *link, threads=threads)

    def numpy_whole(self) -> np.ndarray:
        """The equations as they stand on paper, all devices at once."""
        rng = np.random.default_rng(1)
        h, sigma2, mean, scale = (v.numpy()[:, None] for v in (self.h, self.sigma2, self.mean, self.scale))
        s = 2.0 * np.unpackbits(self.packed.numpy(), axis=1, count=self.size) - 1
        y = h * s + np.sqrt(sigma2) * rng.standard_normal((self.devices, self.size))
        return (mean + scale * np.tanh(h * y / sigma2)).sum(axis=0)

    def numpy_loop(self) -> np.ndarray:
        """The same device by device in float32: half the memory traffic."""
        rng = np.random.default_rng(1)
        total = np.zeros(self.size, np.float32)
        for k in range(self.devices):
            h, sigma2 = self.h[k].numpy(), self.sigma2[k].numpy()
            bits = np.unpackbits(self.packed[k].numpy(), count=self.size)
            y = h * (2 * bits.astype(np.float32) - 1)
            y += np.sqrt(sigma2) * rng.standard_normal(self.size, dtype=np.float32)
            total += self.mean[k].numpy() + self.scale[k].numpy() * np.tanh(h / sigma2 * y)
        return total

    def torch_loop(self) -> torch.Tensor:
        """Careful eager torch: device by device, in place, no temporary it can do without."""
        if not hasattr(self, "_shifts"):
            self._shifts = torch.arange(7, -1, -1, dtype=torch.uint8)
        generator = torch.Generator().manual_seed(1)
        total = torch.zeros(self.size)
        y = torch.empty(self.size)
        for k in range(self.devices):
            h, sigma2 = float(self.h[k]), float(self.sigma2[k])
            bits = ((self.packed[k][:, None] >> self._shifts) & 1).view(-1)[: self.size]
            y.normal_(generator=generator).mul_(sigma2**0.5).add_(bits, alpha=2 * h).sub_(h)
            total.add_(y.mul_(h / sigma2).tanh_(), alpha=float(self.scale[k])).add_(float(self.mean[k]))
        return total


def candidates(cell: Cell) -> dict[str, Callable[[], object]]:
    return {
        "numpy": cell.numpy_whole,
        "numpy, by device": cell.numpy_loop,
        "eager torch": cell.torch_loop,
        "fused": cell.fused,
        "fused, one thread": lambda: cell.fused(threads=1),
        "fused blmmse": lambda: cell.fused("blmmse"),
        "fused vote": lambda: cell.fused("vote"),
        "noise alone": lambda: standard_normal(cell.keys, cell.size),
    }


def memory_of(name: str, devices: int, size: int) -> float:
    """Peak bytes per coordinate of one candidate, in a fresh process."""
    command = [sys.executable, __file__, "--memory", name, "--devices", str(devices), "--size", str(size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def scaling(rounds: int) -> dict[str, list[dict[str, float]]]:
    """Nanoseconds per device-coordinate over K (at M = 1e5) and over M (at K = 100), interleaved.

    One thread, and the least CPU time rather than the clock: other programs hardly enter.
    """
    shapes = [(k, 100_000) for k in (10, 100, 1000, 10_000)]
    shapes += [(100, m) for m in (10_000, 1_000_000, 10_000_000)]
    cells = [Cell(*shape) for shape in shapes]
    best = [float("inf")] * len(cells)
    for cell in cells:
        cell.fused()
    for _ in range(rounds):
        for i, cell in enumerate(cells):
            for _ in range(max(1, 20_000_000 // (cell.devices * cell.size))):
                start = time.thread_time()
                cell.fused(threads=1)
                best[i] = min(best[i], time.thread_time() - start)
    rows = [
        {"devices": c.devices, "size": c.size, "ms": 1e3 * t, "ns_per_entry": 1e9 * t / (c.devices * c.size)}
        for c, t in zip(cells, best, strict=True)
    ]
    for r in rows:
        shape = f"K={r['devices']:<6.0f} M={r['size']:<9.0f}"
        print(f"  {shape} {r['ms']:9.3f} ms {r['ns_per_entry']:6.2f} ns per entry")
    return {"scaling": rows}


def draw(path: str, rows: list[dict[str, float]]) -> None:
    """Draw time over K and over M, both axes logarithmic, with the straight line of linear cost."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "signfade"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for axis, over, fixed, value in ((axes[0], "devices", "size", 1e5), (axes[1], "size", "devices", 100)):
        points = sorted((r[over], r["ms"]) for r in rows if r[fixed] == value)
        x, y = np.array(points).T
        axis.loglog(x, y, "o", color="#1f5fa8", label="measured")
        axis.loglog(x, y[-1] * x / x[-1], color="#999999", lw=1, label="linear")
        axis.set_xlabel("devices K (M = 100,000)" if over == "devices" else "coordinates M (K = 100)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms, one thread")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--figure", help="with --scaling: file of a log-log figure")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        candidates(Cell(2, 1000))[args.memory]()  # loads and compiles
        work = candidates(Cell(args.devices, args.size))[args.memory]
        with PeakMemory() as peak:
            result = work()
        del result
        print(peak.extra / args.size)
        return
    if args.scaling:
        results = scaling(args.rounds)
        write(args.json, results)
        if args.figure:
            draw(args.figure, results["scaling"])
        return
    cell = Cell(args.devices, args.size)
    rows = measure(candidates(cell), args.rounds, base="numpy, by device")
    for name in ("numpy", "numpy, by device", "eager torch", "fused"):
        rows[name]["bytes_per_coordinate"] = memory_of(name, args.devices, args.size)
    show(f"sbfl uplink and sum, K={args.devices}, M={args.size}; ratio to the faster NumPy twin", rows)
    ratios = {
        "fused_to_numpy": rows["fused"]["ratio_of_minima"],
        "fused_to_eager_torch": rows["eager torch"]["min_ms"] / rows["fused"]["min_ms"],
        "entries_per_second": args.devices * args.size / (1e-3 * rows["fused"]["min_ms"]),
        "bytes_per_coordinate": rows["fused"]["bytes_per_coordinate"],
    }
    for name, value in ratios.items():
        print(f"  {name:24s} {value:.3g}")
    write(args.json, {"devices": args.devices, "size": args.size, "rows": rows} | ratios)


if __name__ == "__main__":
    main()
