"""What each assumption about the radio costs: links measured on their own beside theory, then training with
the switch and without. The tables stand in docs/radio.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from signfade import server, theory
from signfade.device import sign
from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.records import Record, Results, Scale, rounded
from signfade.experiments.studies.study import Block, Measure, Part, Study, Table, Text, picture_or_missing
from signfade.experiments.studies.variants import Variants, draw_accuracy, rounds_text
from signfade.experiments.style import INK, line_style
from signfade.keys import generator, stream_keys
from signfade.server.scheduling import Scheduler
from signfade.settings import CellSettings
from signfade.uplink import (
    PolarCode,
    align,
    cost231_hata,
    draw_fading,
    make_radio,
    refine_gain,
    send_coded,
    sound,
    transmit,
)
from signfade.uplink.radio import correlation_of

__all__ = ["RADIO"]

_VARIANTS = Variants("radio.toml")
_LAST = 4  # evaluations whose mean is the accuracy of a run: where a step is long for its link, one is luck


# -- scalars as codewords ------------------------------------------------------------------------------------

_CODES = ((8, 0.5), (8, 0.25), (16, 0.5), (16, 0.25), (64, 0.5), (64, 0.25))
_DRAWN_CODES = ((8, 0.5), (8, 0.25), (64, 0.5), (64, 0.25))
_REFERENCE = ((8, 0.5, 0.0), (16, 0.5, 0.5), (16, 0.25, -3.5), (64, 0.25, -3.5))


def _code(payload: int, rate: float) -> tuple[PolarCode, int, float]:
    """A code, the bits it carries, and the SNR in dB at which half of its words are lost."""
    code = PolarCode.of_rate(payload, rate)
    carried = payload + code.check
    return code, carried, 10 * math.log10(theory.threshold_snr(carried, code.length))


def _lost(code: PolarCode, h: Tensor, snr_db: float, seed: int) -> float:
    """Share of codewords lost over links with these gains."""
    bits = np.random.default_rng(seed).integers(0, 2, (len(h), code.payload), dtype=np.uint8)
    sigma2 = torch.full((len(h),), 1 / 10 ** (snr_db / 10), dtype=torch.float64)
    keys = stream_keys(seed, "side noise", 0, range(len(h)))
    return float((~send_coded(torch.from_numpy(bits), code, h, sigma2, keys).passed).double().mean())


def _measure_words(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    say("radio-side_info: codewords lost at one SNR and over fading")
    count = scale.draws // 100
    h = draw_fading("gaussian", count, generator(1, "fading"))
    table = [[_lost(_code(*which)[0], h, snr_db, 1) for snr_db in (10.0, 20.0)] for which in _CODES]
    curves = []
    for which in _DRAWN_CODES:
        code, _, middle = _code(*which)
        steady = [_lost(code, torch.ones(count), db, 2) for db in np.arange(middle - 1, middle + 2.1, 1.0)]
        curves.append([steady, [_lost(code, h, db, 1) for db in range(0, 31, 10)]])
    return {"table": table, "curves": curves, "reference": _measure_reference(scale.draws // 500)}


def _measure_reference(count: int) -> list[list[float]] | None:
    """Shares of words lost by us, by sionna's list decoder, by one of them only; None without sionna."""
    try:
        import sionna.phy  # noqa: F401  # an optional extra
    except ImportError:
        return None
    rows = []
    for payload, rate, snr_db in _REFERENCE:
        code = PolarCode.of_rate(payload, rate)
        rng = np.random.default_rng(3)
        bits = torch.from_numpy(rng.integers(0, 2, (count, payload), dtype=np.uint8))
        snr = 10 ** (snr_db / 10)
        noise = torch.from_numpy(rng.normal(size=(count, code.length))) / math.sqrt(snr)
        llr = 2 * snr * (1 - 2 * code.encode(bits).double() + noise)
        own, other = code.decode(llr).passed, code.decode(llr, decoder="sionna").passed
        rows.append([float(lost.double().mean()) for lost in (~own, ~other, ~own & other, own & ~other)])
    return rows


def _words_tables(data: dict[str, Any]) -> list[Block]:
    heads = ["payload", "rate", "coded bits", "needs"]
    heads += ["lost at 10 dB", "expected", "lost at 20 dB", "expected"]
    rows = []
    for (payload, rate), shares in zip(_CODES, data["table"]):
        code, carried, needs = _code(payload, rate)
        row = [f"{payload} bits", f"1/{round(1 / rate)}", str(code.length), f"{needs:.1f} dB"]
        for snr, share in zip((10.0, 100.0), shares):
            expected = theory.block_error_faded(snr, carried, code.length)
            row += [f"{100 * share:.1f} %", f"{100 * expected:.1f} %"]
        rows.append(row)
    tables: list[Block] = [Table(heads, rows, name="words")]
    if data["reference"] is None:
        return [*tables, Text("sionna is not installed: no reference decoder.")]
    rows = []
    for (payload, rate, snr_db), shares in zip(_REFERENCE, data["reference"]):
        lost = [f"{100 * share:.1f} %" for share in shares]
        rows.append([f"{payload} bits, 1/{round(1 / rate)}", f"{snr_db:g} dB", *lost])
    heads = ["code", "SNR", "lost", "lost by sionna", "only ours lost", "only sionna's lost"]
    return [*tables, Table(heads, rows, name="reference")]


def _draw_words(axes: Sequence[Axes], data: dict[str, Any]) -> None:
    for index, (which, (steady, faded)) in enumerate(zip(_DRAWN_CODES, data["curves"])):
        (code, carried, middle), style = _code(*which), line_style(index)
        fine = np.linspace(middle - 2, middle + 4, 100)
        axes[0].semilogy(fine, theory.block_error(10 ** (fine / 10), carried, code.length), color=style.color)
        axes[0].semilogy(middle - 1 + np.arange(len(steady)), steady, style.marker, color=style.color)
        fine = np.linspace(-5, 30, 100)
        axes[1].semilogy(fine, theory.outage(10 ** (middle / 10), 10 ** (fine / 10)), color=style.color)
        label = f"{which[0]} bits, rate 1/{round(1 / which[1])}"
        axes[1].semilogy(range(0, 31, 10), faded, style.marker, color=style.color, label=label)
    axes[0].set(title="Codewords lost at one SNR", xlabel="SNR (dB)", ylim=(3e-4, 1))
    axes[1].set(title="Codewords lost over fading", xlabel="mean SNR (dB)", ylim=(5e-3, 1))
    for axis in axes:
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes[1].legend(fontsize=7, loc="lower left")


# -- gains from pilots ---------------------------------------------------------------------------------------

_USES: tuple[theory.PilotUse, ...] = ("naive", "aware", "refined")
_PILOTS = (1, 2, 4, 16)


def _measure_pilots(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    say("radio-csi: errors with estimated gains")
    links, found = scale.draws // 10, dict[str, Any]()
    for snr_db in (0, 10):
        sigma2 = 10 ** (-snr_db / 10)
        errors = {use: [_pilot_error(use, sigma2, p, links) for p in _PILOTS] for use in _USES}
        found[str(snr_db)] = {use: [rounded(error, 5) for error in row] for use, row in errors.items()}
    return found


def _pilot_error(use: str, sigma2: float, pilots: int, links: int) -> float:
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


def _pilots_tables(data: dict[str, Any]) -> list[Block]:
    rows = []
    for snr_db, found in data.items():
        snr = 10 ** (float(snr_db) / 10)
        for place, pilots in enumerate(_PILOTS):
            row = [f"{snr_db} dB", str(pilots)]
            for use in _USES:
                expected = theory.pilot_mse("sbfl", snr, pilots, use=use)
                row += [f"{expected:.4f}", f"{found[use][place]:.4f}"]
            rows.append([*row, f"{theory.mse_faded('sbfl', snr):.4f}"])
    columns = [column for use in _USES for column in (use, "simulated")]
    return [Table(["mean SNR", "pilots", *columns, "known"], rows, name="pilots")]


def _draw_pilots(axes: Sequence[Axes], data: dict[str, Any]) -> None:
    (axis,) = axes
    grid = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
    for index, use in enumerate(_USES):
        style = line_style(index)
        curve = [theory.pilot_mse("sbfl", 1.0, int(p), use=use) for p in grid]
        axis.semilogx(grid, curve, color=style.color, dashes=style.dashes, label=use)
        axis.plot(_PILOTS, data["0"][use], style.marker, color=style.color)
    axis.axhline(float(theory.mse_faded("sbfl", 1.0)), color=INK, linewidth=0.8, linestyle=":", label="known")
    axis.set(title="Error of a coordinate at 0 dB", xlabel="pilots P", ylabel="squared error / variance")
    axis.minorticks_off()
    axis.set_xticks((1, 2, 4, 8, 16, 32), ["1", "2", "4", "8", "16", "32"])
    axis.legend(fontsize=7)


# -- all devices at once -------------------------------------------------------------------------------------

_DEVICES = 20
_RULES = ("vote", "linear", "posterior")
# Repeats divide the noise; with a K-th of the power each the amplitudes fall as well.
_WAYS = {
    "once": ("at once", 1, 1.0),
    "K times": (f"at once, {_DEVICES} times", _DEVICES, 1.0),
    "K times, same energy": (f"the same, 1/{_DEVICES} of the power", _DEVICES, 1 / _DEVICES),
}


def _best_scaled(guess: Tensor, truth: Tensor) -> float:
    return float(1 - (guess @ truth) ** 2 / (guess @ guess) / (truth @ truth))


def _error(guess: Tensor, truth: Tensor) -> float:
    return float((guess - truth).square().sum() / truth.square().sum())


def _measure_access(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Normalised errors of the sum of 20 independent Gaussian gradients, by access, precoding and rule."""
    say("radio-access: errors of the sum, over the air and one device at a time")
    size = 400
    cell = make_radio(
        CellSettings(path_loss="cost231", bandwidth_hz=_VARIANTS.base["cell.bandwidth_hz"]), _DEVICES, seed=0
    )
    zero, kappa = torch.zeros(_DEVICES), torch.full((_DEVICES,), math.sqrt(2 / math.pi))
    found: dict[str, list[float]] = {}
    for t in range(scale.draws // 1000):
        rng = torch.Generator().manual_seed(t)
        g = torch.randn(_DEVICES, size, generator=rng)
        link, truth, s = cell.link(np.arange(_DEVICES), t), g.sum(dim=0), sign(g)
        h, sigma2 = link.h.float(), link.sigma2.float()
        y = transmit(s, h, sigma2, rng)
        row = {
            "orthogonal, posterior": _error(server.sbfl(y, h, sigma2, zero, kappa), truth),
            "orthogonal, linear": _error(server.blmmse(y, h, sigma2, zero, kappa), truth),
            "orthogonal, vote": _best_scaled(server.majority_vote(y, h, tie="plus"), truth),
        }
        noise = torch.randn(size, generator=rng)
        for name, (_, repeats, share) in _WAYS.items():
            for precoding in ("phase", "inversion"):
                a = align(link.h, link.sigma2 / share, precoding, repeats=repeats).float()
                signal = a @ s + noise / math.sqrt(repeats)
                for how, label in (("auto", "posterior"), ("gaussian", "linear")):
                    read = server.over_the_air(signal, a, 1 / repeats, zero, kappa, method=how)  # type: ignore[arg-type]
                    row[f"{name}, {precoding}, {label}"] = _error(read, truth)
                row[f"{name}, {precoding}, vote"] = _best_scaled(server.superposed_vote(signal), truth)
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: rounded(fmean(values), 5) for name, values in found.items()}


def _access_tables(data: dict[str, Any]) -> list[Block]:
    rows = [["one at a time", "", str(_DEVICES), *(f"{data[f'orthogonal, {rule}']:.3f}" for rule in _RULES)]]
    for name, (text, uses, _) in _WAYS.items():
        for precoding in ("phase", "inversion"):
            cells = [f"{data[f'{name}, {precoding}, {rule}']:.3f}" for rule in _RULES]
            rows.append([text, precoding, str(uses), *cells])
    heads = ["who", "precoding", "channel uses per coordinate", "vote", "linear", "posterior mean"]
    return [Table(heads, rows, name="together")]


def _draw_access(axes: Sequence[Axes], data: dict[str, Any]) -> None:
    (axis,) = axes
    groups = ["once", "K times, same energy", "K times"]
    shown = (("phase", "vote"), ("phase", "posterior"), ("inversion", "vote"), ("inversion", "posterior"))
    for index, (precoding, rule) in enumerate(shown):
        style = line_style(index)
        values = [data[f"{name}, {precoding}, {rule}"] for name in groups]
        label = f"{precoding}, {rule}"
        axis.plot(range(3), values, style.marker, color=style.color, label=label, linestyle=":")
    for rule, dashes in (("vote", "--"), ("posterior", "-")):
        label = f"one at a time, {rule}"
        axis.axhline(data[f"orthogonal, {rule}"], color=INK, linewidth=0.9, linestyle=dashes, label=label)
    axis.set(title="Error of the sum", ylabel="squared error / variance", xlim=(-0.3, 2.3))
    axis.set_xticks(range(3), ["1 use", "20 uses,\nsame energy", "20 uses"])
    axis.set_ylim(top=1.35)  # room for the legend
    axis.legend(fontsize=7, loc="upper right")


# -- the cell: fading in time, antennas, powers, schedules, the downlink -------------------------------------


def _measure_cell(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Predicted and simulated numbers of each switch of the cell, with the standard error of the latter."""
    say("radio-cell: the cell's switches, predicted and simulated")
    links, found = scale.draws // 10, dict[str, list[float]]()
    everyone = np.arange(links)

    def add(name: str, predicted: float, sample: NDArray[Any]) -> None:
        error = float(sample.std()) / math.sqrt(sample.size)
        found[name] = [rounded(value, 5) for value in (predicted, float(sample.mean()), error)]

    for key, value in (("fading_correlation", 0.9), ("doppler_hz", 0.1)):
        cell = CellSettings.model_validate({"snr_db": 0.0, key: value})
        one, two = (make_radio(cell, links, 7).link(everyone, t).h.numpy() for t in (40, 41))
        add(f"`{key} = {value}`: E[h(t) h(t + 1)]", correlation_of(cell), one * two)
    for antennas in (1, 2, 4):
        link = make_radio(CellSettings(snr_db=0.0, antennas=antennas), links, 7).link(everyone, 0)
        draw = torch.from_numpy(np.random.default_rng(3).normal(size=(2, links)))
        y = link.h * sign(draw[0]) + link.sigma2.sqrt() * draw[1]
        guess = math.sqrt(2 / math.pi) * torch.tanh(link.h * y / link.sigma2)
        predicted = float(theory.mse("sbfl", 1.0, fading="gaussian", antennas=antennas))
        add(f"`antennas = {antennas}`: error at 0 dB", predicted, (guess - draw[0]).square().numpy())
    paper = {"path_loss": "cost231", "bandwidth_hz": _VARIANTS.base["cell.bandwidth_hz"]}
    cell = CellSettings.model_validate(paper | {"power_control": "fractional"})
    sent = make_radio(cell, links, 7).power_dbm
    assert sent is not None
    # The loss grows by so many dB per decade of the distance, and P(distance < d) = (d/radius)^2.
    reach = (cell.power_dbm - cell.p0_dbm) / cell.alpha - cost231_hata(1.0, warn=False)
    slope = cost231_hata(10.0, warn=False) - cost231_hata(1.0, warn=False)
    within = min(1.0, 10 ** (2 * reach / slope))
    add('`power_control = "fractional"`: share below full power', within, sent < cell.power_dbm)
    tree = {"cell.scheduling": "best-channel", "data.participation": 0.5, "cell.fading": "rayleigh"}
    settings = resolve(tree | {"data.devices": _DEVICES, "cell.snr_db": 0.0})
    scheduler = Scheduler(settings, radio := make_radio(settings.cell, _DEVICES, 0))
    state, powers = scheduler.init(), []
    for t in range(links // 10):
        state, chosen = scheduler.choose(state, t)
        powers.append(float(radio.link(chosen, t).snr.mean()))
    half = _DEVICES // 2
    ordered = fmean(sum(1 / j for j in range(i, _DEVICES + 1)) for i in range(1, half + 1))
    add('`scheduling = "best-channel"`: mean SNR of 10 of 20, Rayleigh, 0 dB', ordered, np.array(powers))
    cell = CellSettings(snr_db=3.0, downlink="coded", base_dbm=23 + 10 * math.log10(links), downlink_rate=1.0)
    heard = make_radio(cell, links, 7).hears(0)
    decoded = 1 - float(theory.outage(1.0, 10**0.3))
    add('`downlink = "coded"`: decoded at 1 bit/s/Hz, 3 dB', decoded, heard)
    return found


def _cell_tables(data: dict[str, Any]) -> list[Block]:
    rows = [[name, *(f"{value:.4f}" for value in values)] for name, values in data.items()]
    return [Table(["switch", "predicted", "simulated", "standard error"], rows, name="predicted")]


# -- training and the parts ----------------------------------------------------------------------------------


def _training_row(name: str, records: list[Record]) -> list[str]:
    accuracy = [record.late_accuracy(_LAST) for record in records]
    uses = records[0].value("channel_uses") or records[0].value("uplink_bits")  # one symbol per bit
    nmse = [value for record in records if (value := record.value("median_nmse")) is not None]
    spread, error = f"{fmean(accuracy):.3f} ± {pstdev(accuracy):.3f}", f"{fmean(nmse):.3f}" if nmse else "-"
    return [name, spread, rounds_text(records), f"{(uses or 0) / 1e6:.1f}", error]


def _part(
    switch: str,
    panels: int = 0,
    measure: Measure | None = None,
    tables: Callable[[dict[str, Any]], list[Block]] | None = None,
    draw: Callable[[Sequence[Axes], dict[str, Any]], None] | None = None,
) -> Part:
    name, texts = f"radio-{switch}", _VARIANTS.switches[switch]

    def render(results: Results) -> list[Block]:
        data = results.measured.get(name)
        found = _VARIANTS.found(results, switch)
        with new_figure((3.4 * (panels + 2), 3.6), 1, panels + 2) as (figure, axes):
            if draw is not None and data is not None:
                draw(axes[:panels], data)
            draw_accuracy(figure, axes[-2], axes[-1], found, loc="outside lower right", ncols=5)
        blocks = [picture_or_missing(figure, name, texts["about"])]
        if tables is not None:
            blocks += [Text("Missing.")] if data is None else tables(data)
        heads = ["", "accuracy", "rounds to 0.9", "million channel uses", "error, median"]
        rows = [_training_row(label, records) for label, records in found.items()]
        return [*blocks, Table(heads, rows, name=switch) if rows else Text("Training: missing.")]

    extra: dict[str, Any] = {"measure": measure, "depends": ("draws",), "cost": 60.0} if measure else {}
    return Part(name, texts["title"], "ours", render, _VARIANTS.wants(switch), **extra)


_PARTS = (
    _part("side_info", 2, _measure_words, _words_tables, _draw_words),
    _part("csi", 1, _measure_pilots, _pilots_tables, _draw_pilots),
    _part("modulation"),
    _part("cell", 0, _measure_cell, _cell_tables),
    _part("access", 1, _measure_access, _access_tables, _draw_access),
)
RADIO = Study("radio", "The radio, without the paper's assumptions", "radio", _PARTS, host="radio.md")
