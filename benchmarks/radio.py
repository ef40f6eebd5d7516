"""What each assumption about the radio costs: a figure and a table a switch of the cell, for docs/radio.md.

Links are measured on their own, beside theory; then a model is trained with the switch and without. The runs
are kept and continued, so the command may be stopped and given again.

    python benchmarks/radio.py --seeds 3 --page docs/radio.md
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from page import Tables

from signfade import server, theory
from signfade.device import sign
from signfade.keys import generator, stream_keys
from signfade.lab.compare import PlannedRun, compare, plan
from signfade.lab.config import load, resolve
from signfade.lab.folder import RunFolder
from signfade.lab.group import Group, Run
from signfade.lab.style import INK, figure_style, line_style, save_figure
from signfade.learn import make_cell
from signfade.settings import CellSettings
from signfade.uplink import PolarCode, align, draw_fading, refine_gain, send_coded, sound, transmit

AIR = {"cell.access": "over_the_air", "cell.precoding": "inversion"}
# A vote has no scale, so its step is one of its own: the best of a few, as in examples/digits.toml.
VOTE = {
    "method.aggregator": "signsgd",
    "method.tie": "plus",
    "method.rotation": "none",
    "method.debias": False,
    "server.step": 2e-2,
}
ASSUMED = "assumed"  # what the paper takes for granted: trained once, shown with every switch
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "side_info": {
        ASSUMED: {},
        "coded 1-4": {"cell.side_info": "coded", "cell.code_rate": 0.25},
        "coded 1-2": {"cell.side_info": "coded", "cell.code_rate": 0.5},
        "coded 1-2 drop": {"cell.side_info": "coded", "cell.code_rate": 0.5, "cell.outage": "drop"},
    },
    "csi": {
        ASSUMED: {},
        "4 pilots": {"cell.csi": "pilot", "cell.pilots": 4},
        "1 pilot": {"cell.csi": "pilot", "cell.pilots": 1},
        "1 pilot naive": {"cell.csi": "pilot", "cell.pilots": 1, "cell.csi_error": "naive"},
    },
    "modulation": {
        ASSUMED: {},
        "qpsk": {"cell.modulation": "qpsk"},
        "qpsk, coded, 4 pilots": {
            "cell.modulation": "qpsk",
            "cell.side_info": "coded",
            "cell.csi": "pilot",
            "cell.pilots": 4,
        },
    },
    "access": {
        ASSUMED: {},
        "air x 20": {**AIR, "cell.repeats": 20},
        "air x 20, step 1e-2": {**AIR, "cell.repeats": 20, "server.step": 1e-2},
        "air x 20, 13 dB less": {**AIR, "cell.repeats": 20, "cell.power_dbm": 10.0},
        "air x 1": AIR,
        "phase x 20": {**AIR, "cell.precoding": "phase", "cell.repeats": 20},
        "orthogonal vote": VOTE,
        "air vote x 20": {**VOTE, **AIR, "cell.repeats": 20},
    },
}
LOOKS = 4  # at the end of a run; their mean is its accuracy
RULES = ("vote", "linear", "posterior")
CODES = ((8, 0.5), (8, 0.25), (16, 0.5), (16, 0.25), (64, 0.5), (64, 0.25))


TABLES = Tables()


def lost(code: PolarCode, h: torch.Tensor, snr: float, seed: int) -> float:
    """Share of codewords lost over links with these gains."""
    bits = torch.from_numpy(
        np.random.default_rng(seed).integers(0, 2, (len(h), code.payload), dtype=np.uint8)
    )
    sigma2 = torch.full((len(h),), 1 / snr, dtype=torch.float64)
    keys = stream_keys(seed, "side noise", 0, range(len(h)))
    return float((~send_coded(bits, code, h, sigma2, keys).passed).double().mean())


def words(axes: Sequence[Axes], count: int = 2000) -> None:
    """Lost words at one SNR and over fading, measured and expected."""
    shares = ("lost at 10 dB", "expected", "lost at 20 dB", "expected")
    TABLES.head("words", "payload", "rate", "coded bits", "needs", *shares)
    h = draw_fading("gaussian", count, generator(1, "fading"))
    for payload, rate in CODES:
        code = PolarCode.of_rate(payload, rate)
        carried = payload + code.check
        needs = theory.threshold_snr(carried, code.length)
        cells = []
        for snr in (10.0, 100.0):
            expected = theory.block_error_faded(snr, carried, code.length)
            cells += [f"{100 * lost(code, h, snr, 1):.1f} %", f"{100 * expected:.1f} %"]
        sizes = (
            f"{payload} bits",
            f"1/{round(1 / rate)}",
            str(code.length),
            f"{10 * math.log10(needs):.1f} dB",
        )
        TABLES.row("words", *sizes, *cells)
    for index, (payload, rate) in enumerate(((8, 0.5), (8, 0.25), (64, 0.5), (64, 0.25))):
        code = PolarCode.of_rate(payload, rate)
        carried, style = payload + code.check, line_style(index)
        middle = 10 * math.log10(theory.threshold_snr(carried, code.length))
        fine, coarse = np.linspace(middle - 2, middle + 4, 100), np.arange(middle - 1, middle + 2.1, 1.0)
        axes[0].semilogy(fine, theory.block_error(10 ** (fine / 10), carried, code.length), color=style.color)
        measured = [lost(code, torch.ones(count), 10 ** (db / 10), 2) for db in coarse]
        label = f"{payload} bits, rate 1/{round(1 / rate)}"
        axes[0].semilogy(coarse, measured, style.marker, color=style.color)
        fine, coarse = np.linspace(-5, 30, 100), np.arange(0, 31, 10)
        expected = theory.outage(10 ** (middle / 10), 10 ** (fine / 10))
        axes[1].semilogy(fine, expected, color=style.color)
        measured = [lost(code, h, 10 ** (db / 10), 1) for db in coarse]
        axes[1].semilogy(coarse, measured, style.marker, color=style.color, label=label)
    axes[0].set(title="Codewords lost at one SNR", xlabel="SNR (dB)", ylim=(3e-4, 1))
    axes[1].set(title="Codewords lost over fading", xlabel="mean SNR (dB)", ylim=(5e-3, 1))
    for axis in axes:
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes[1].legend(fontsize=7, loc="lower left")


def reference(count: int = 400) -> None:
    """The same words through sionna's list decoder, where it is installed."""
    try:
        import sionna.phy  # noqa: F401
    except ImportError:
        print("\nsionna is not installed: no reference decoder")
        return
    TABLES.head("reference", "code", "SNR", "lost", "lost by sionna", "only ours lost", "only sionna's lost")
    for payload, rate, snr_db in ((8, 0.5, 0.0), (16, 0.5, 0.5), (16, 0.25, -3.5), (64, 0.25, -3.5)):
        code = PolarCode.of_rate(payload, rate)
        rng = np.random.default_rng(3)
        bits = torch.from_numpy(rng.integers(0, 2, (count, payload), dtype=np.uint8))
        snr = 10 ** (snr_db / 10)
        noise = torch.from_numpy(rng.normal(size=(count, code.length))) / math.sqrt(snr)
        llr = 2 * snr * (1 - 2 * code.encode(bits).double() + noise)
        own, other = code.decode(llr).passed, code.decode(llr, decoder="sionna").passed
        shares = [~own, ~other, ~own & other, own & ~other]
        cells = [f"{100 * float(share.double().mean()):.1f} %" for share in shares]
        TABLES.row("reference", f"{payload} bits, 1/{round(1 / rate)}", f"{snr_db:g} dB", *cells)


def estimated(axes: Sequence[Axes], links: int = 20_000) -> None:
    """Errors with pilots: theory, and simulated links."""
    (axis,) = axes
    uses: tuple[theory.PilotUse, ...] = ("naive", "aware", "refined")
    columns = [column for use in uses for column in (use, "simulated")]
    TABLES.head("pilots", "mean SNR", "pilots", *columns, "known")
    for snr_db in (0.0, 10.0):
        snr = 10 ** (snr_db / 10)
        known = theory.mse_faded("sbfl", snr)
        for pilots in (1, 2, 4, 16):
            cells = []
            for use in uses:
                cells += [f"{theory.pilot_mse('sbfl', snr, pilots, use=use):.4f}"]
                cells += [f"{_simulated(use, 1 / snr, pilots, links):.4f}"]
            TABLES.row("pilots", f"{snr_db:g} dB", str(pilots), *cells, f"{known:.4f}")
    grid = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
    for index, use in enumerate(uses):
        style = line_style(index)
        curve = [theory.pilot_mse("sbfl", 1.0, int(p), use=use) for p in grid]
        axis.semilogx(grid, curve, color=style.color, dashes=style.dashes, label=use)
        dots = [_simulated(use, 1.0, int(p), links) for p in (1, 2, 4, 16)]
        axis.plot((1, 2, 4, 16), dots, style.marker, color=style.color)
    axis.axhline(theory.mse_faded("sbfl", 1.0), color=INK, linewidth=0.8, linestyle=":", label="known")
    axis.set(title="Error of a coordinate at 0 dB", xlabel="pilots P", ylabel="squared error / variance")
    axis.set_xticks((1, 2, 4, 8, 16, 32), minor=False)
    axis.minorticks_off()
    axis.set_xticklabels(["1", "2", "4", "8", "16", "32"])
    axis.legend(fontsize=7)


def _simulated(use: str, sigma2: float, pilots: int, links: int) -> float:
    keys = stream_keys(7, "pilots", pilots, range(links))
    variance = torch.full((links,), sigma2, dtype=torch.float64)
    sounding = sound("gaussian", links, variance, pilots, generator(7, "fading", pilots), keys)
    draw = torch.from_numpy(np.random.default_rng(3).normal(size=(2, links)))
    s = sign(draw[0])
    y = sounding.h * s + math.sqrt(sigma2) * draw[1]
    estimate = sounding.estimate(variance)
    if use == "refined":
        link, trust = refine_gain(estimate, sounding.h.square() + variance, variance, 10**9)
        f = trust * torch.tanh(link.h * y / sigma2)
    else:
        f = torch.tanh(estimate.h * y / (sigma2 + (estimate.error if use == "aware" else 0.0)))
    return float((1 + 2 / math.pi * (f.square() - 2 * s * f)).mean())


def _best_scaled(guess: torch.Tensor, truth: torch.Tensor) -> float:
    return float(1 - (guess @ truth) ** 2 / (guess @ guess) / (truth @ truth))


def _error(guess: torch.Tensor, truth: torch.Tensor) -> float:
    return float((guess - truth).square().sum() / truth.square().sum())


def together(axes: Sequence[Axes], bandwidth_hz: float, rounds: int = 200, size: int = 400) -> None:
    """Normalised errors of the sum of 20 independent Gaussian gradients, by channel uses."""
    (axis,) = axes
    devices = 20
    plan_ = make_cell(CellSettings(bandwidth_hz=bandwidth_hz), devices, seed=0)
    zero, scale = torch.zeros(devices), torch.full((devices,), math.sqrt(2 / math.pi))
    found: dict[str, list[float]] = {}
    for t in range(rounds):
        rng = torch.Generator().manual_seed(t)
        g = torch.randn(devices, size, generator=rng)
        link, truth, s = plan_.link(np.arange(devices), t), g.sum(dim=0), sign(g)
        h, sigma2 = link.h.float(), link.sigma2.float()
        y = transmit(s, h, sigma2, rng)
        row = {
            "orthogonal, posterior": _error(server.sbfl(y, h, sigma2, zero, scale), truth),
            "orthogonal, linear": _error(server.blmmse(y, h, sigma2, zero, scale), truth),
            "orthogonal, vote": _best_scaled(server.majority_vote(y, h, tie="plus"), truth),
        }
        noise = torch.randn(size, generator=rng)
        # Repeats divide the noise; with a K-th of the power each the amplitudes fall as well.
        for name, repeats, share in (
            ("once", 1, 1.0),
            ("K times", devices, 1.0),
            ("K times, same energy", devices, 1 / devices),
        ):
            for precoding in ("phase", "inversion"):
                a = align(link.h, link.sigma2 / share, precoding, repeats=repeats).float()
                signal = a @ s + noise / math.sqrt(repeats)
                for how, label in (("auto", "posterior"), ("gaussian", "linear")):
                    read = server.over_the_air(signal, a, 1 / repeats, zero, scale, method=how)  # type: ignore[arg-type]
                    row[f"{name}, {precoding}, {label}"] = _error(read, truth)
                row[f"{name}, {precoding}, vote"] = _best_scaled(server.superposed_vote(signal), truth)
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    ways = (
        ("one at a time", "orthogonal", devices),
        ("at once", "once", 1),
        (f"at once, {devices} times", "K times", devices),
        (f"the same, 1/{devices} of the power", "K times, same energy", devices),
    )
    TABLES.head(
        "together", "who", "precoding", "channel uses a coordinate", "vote", "linear", "posterior mean"
    )
    for text, name, uses in ways:
        for precoding in ("",) if name == "orthogonal" else ("phase", "inversion"):
            found_here = [found.get(", ".join(filter(None, (name, precoding, rule)))) for rule in RULES]
            cells = ["" if values is None else f"{np.mean(values):.3f}" for values in found_here]
            TABLES.row("together", text, precoding, str(uses), *cells)
    groups = ["once", "K times, same energy", "K times"]
    shown = (("phase", "vote"), ("phase", "posterior"), ("inversion", "vote"), ("inversion", "posterior"))
    for index, (precoding, rule) in enumerate(shown):
        style = line_style(index)
        values = [np.mean(found[f"{name}, {precoding}, {rule}"]) for name in groups]
        axis.plot(
            range(3), values, style.marker, color=style.color, label=f"{precoding}, {rule}", linestyle=":"
        )
    for rule, dashes in (("vote", "--"), ("posterior", "-")):
        label = f"one at a time, {rule}"
        axis.axhline(
            np.mean(found[f"orthogonal, {rule}"]), color=INK, linewidth=0.9, linestyle=dashes, label=label
        )
    axis.set(title="Error of the sum", ylabel="squared error / variance", xticks=range(3), xlim=(-0.3, 2.3))
    axis.set_xticklabels(["1 use", "20 uses,\nsame energy", "20 uses"])
    axis.set_ylim(top=1.35)  # room for the legend
    axis.legend(fontsize=7, loc="upper right")


def planned(switch: str, options: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs of a switch; what several switches share lies in one folder."""
    base = load(options.config, [*options.set, f"out={options.out}"])
    tree = base.model_dump(exclude={"variants"})
    settings = resolve(tree | {"variants": VARIANTS[switch]})
    runs = plan(settings, list(VARIANTS[switch]), Path(options.out) / settings.name, options.seeds)
    return [run for run in runs if not options.finished or RunFolder(run.folder).finished]


def train_all(switches: Sequence[str], options: argparse.Namespace) -> None:
    """Train whatever is not there yet, one seed after the other, so that early numbers cover all switches."""
    runs = {run.folder: run for switch in switches for run in planned(switch, options)}
    missing = sorted(runs.values(), key=lambda run: run.settings.seed)
    for number, run in enumerate(missing, start=1):
        print(f"  {number}/{len(missing)} {run.folder}", flush=True)
        compare([run])


def table(switch: str, groups: Sequence[Group]) -> None:
    """Print what became of the runs of a switch."""
    TABLES.head(switch, "", "accuracy", "rounds to 0.9", "million channel uses", "error, median")
    for group in groups:
        accuracy, needed = [_late_accuracy(run) for run in group.runs], _rounds_needed(group)
        text = ", ".join("never" if math.isinf(n) else f"{n:.0f}" for n in needed)
        last = group.runs[0].metrics[-1]  # without a switch every bit takes a symbol
        uses = last.get("channel_uses", last["uplink_bits"]) / 1e6
        nmse = np.mean(group.values("nmse"))
        spread = f"{np.mean(accuracy):.3f} ± {np.std(accuracy):.3f}"
        TABLES.row(switch, group.runs[0].label, spread, text, f"{uses:.1f}", f"{nmse:.3f}")


def _late_accuracy(run: Run) -> float:
    """Mean of the last four looks: where a step is long for its link, a single one is luck."""
    looked = [m["test_accuracy"] for m in run.metrics if m.get("test_accuracy") is not None]
    return float(np.mean(looked[-LOOKS:]))


def _rounds_needed(group: Group) -> list[float]:
    values = [run.numbers.get("rounds_to_accuracy_09") for run in group.runs]
    return [math.inf if value is None else float(value) for value in values]


def accuracy(axis: Axes, bars: Axes, groups: Sequence[Group]) -> None:
    """Accuracy over rounds, mean of the seeds, and the rounds to 0.9 of each seed."""
    names = []
    for index, group in enumerate(groups):
        style, series = line_style(index), group.series("test_accuracy")
        names.append(group.runs[0].label)
        axis.plot(series.rounds, series.mean, color=style.color, dashes=style.dashes, label=names[-1])
        needed = _rounds_needed(group)
        reached = [n for n in needed if math.isfinite(n)]
        bars.plot(reached, [index] * len(reached), style.marker, color=style.color)
        if len(reached) < len(needed):
            bars.annotate(
                f"{len(needed) - len(reached)} never",
                (1, index),
                xycoords=("axes fraction", "data"),
                ha="right",
                fontsize=7,
            )
    axis.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
    axis.set(title="Test accuracy", xlabel="round", ylabel="share of digits told right", ylim=(0, 1))
    rounds = groups[0].rounds[1]
    bars.set(title="Rounds to 0.9", xlabel="round", yticks=range(len(names)), xlim=(0, 1.25 * rounds))
    bars.set_yticklabels(names)
    bars.invert_yaxis()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("examples/radio.toml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--figures", default="docs/figures")
    parser.add_argument("--finished", action="store_true", help="train nothing, show what is there")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced, such as docs/radio.md")
    parser.add_argument("--only", choices=VARIANTS, action="append")
    options = parser.parse_args()
    bandwidth = load(options.config, options.set).cell.bandwidth_hz
    links: dict[str, tuple[int, Callable[[Sequence[Axes]], None]]] = {
        "side_info": (2, words),
        "csi": (1, estimated),
        "access": (1, lambda axes: together(axes, bandwidth)),
    }
    switches = options.only or list(VARIANTS)
    drawn: dict[str, tuple[Figure, NDArray[Any]]] = {}
    with figure_style():
        for switch in switches:
            panels, look = links.get(switch, (0, None))
            figure = Figure(figsize=(3.4 * (panels + 2), 3.6), layout="constrained")
            drawn[switch] = figure, figure.subplots(1, panels + 2, squeeze=False)[0]
            if look is not None:
                look(drawn[switch][1][:panels])
            if switch == "side_info":
                reference()
        train_all(switches, options)
        for switch, (figure, axes) in drawn.items():
            groups = compare(planned(switch, options)).groups
            table(switch, groups)
            accuracy(axes[-2], axes[-1], groups)
            lines, names = axes[-2].get_legend_handles_labels()
            figure.legend(lines, names, loc="outside lower right", ncols=min(len(names), 5), handlelength=3)
            for path in save_figure(figure, Path(options.figures) / f"radio-{switch}", ["png"]):
                print(f"wrote {path}", flush=True)
    if options.page is not None:
        TABLES.write(options.page)


if __name__ == "__main__":
    main()
