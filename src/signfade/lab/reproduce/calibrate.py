"""The link budget, which the paper does not give: chosen by signSGD's columns alone, then kept for all.

A budget shifts the SNR of every device by the same number of decibels. Of four budgets (bandwidths of 180
kHz, 1, 3 and 10 MHz) the one is taken under which signSGD ends nearest to the paper's signSGD in Table II,
over the three pairs of hyper-parameters that tell budgets apart and both of its columns. SBFL is never
looked at.
"""

from __future__ import annotations

from statistics import mean

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text
from signfade.lab.reproduce.grid import Pair, pair_text
from signfade.lab.reproduce.paper import read_paper
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Records
from signfade.lab.reproduce.setups import BANDWIDTHS, Scale, training
from signfade.settings import RunSettings

__all__ = ["CALIBRATE", "CALIBRATION_PAIRS", "calibrated", "gaps"]

# 1e-4 / 0.9 moves as far as 1e-3 / 0, and 1e-2 / 0 as far as 1e-3 / 0.9; 1e-2 / 0.9 fails at any SNR.
CALIBRATION_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-3, 0.0), (1e-4, 0.0))
_CASES = (("Full", "signsum", "full"), ("DC", "vote", "sign"))
_SEEDS = 1


def _run(scale: Scale, bandwidth: float, pair: Pair, case: int, seed: int) -> RunSettings:
    _, method, downlink = _CASES[case]
    return training(
        scale,
        method,
        pair,
        seed=seed,
        downlink="sign" if downlink == "sign" else "full",
        bandwidth_hz=bandwidth,
    )


def _wants(scale: Scale, records: Records) -> list[Want]:
    wants = []
    for place, bandwidth in enumerate(BANDWIDTHS):
        for number, pair in enumerate(CALIBRATION_PAIRS):
            for case in range(len(_CASES)):
                order = number * 100 + place * 10 + case
                wants += [
                    Want(_run(scale, bandwidth, pair, case, seed), Tier.CALIBRATION, order=order)
                    for seed in range(_SEEDS)
                ]
    return wants


def accuracy(scale: Scale, records: Records, bandwidth: float, pair: Pair, case: int) -> float | None:
    """Return signSGD's mean accuracy under a budget, None if it is not known."""
    found = records.find_all(_run(scale, bandwidth, pair, case, seed) for seed in range(_SEEDS))
    values = [record.accuracy for record in found if record.accuracy is not None]
    return mean(values) if values else None


def gaps(scale: Scale, records: Records) -> dict[float, float]:
    """Return the root mean square distance from the paper's signSGD, by bandwidth, of finished budgets."""
    table = read_paper().accuracy
    found = {}
    for bandwidth in BANDWIDTHS:
        squares = []
        for pair in CALIBRATION_PAIRS:
            for case, (quantity, _, _) in enumerate(_CASES):
                ours, printed = accuracy(scale, records, bandwidth, pair, case), None
                printed = table.cells[*pair, "signsgd", quantity]
                if ours is not None and printed is not None:
                    squares.append((ours - printed) ** 2)
        if len(squares) == len(CALIBRATION_PAIRS) * len(_CASES):
            found[bandwidth] = mean(squares) ** 0.5
    return found


def calibrated(scale: Scale, records: Records) -> float | None:
    """Return the bandwidth that fits signSGD's columns best; None until all budgets are finished."""
    found = gaps(scale, records)
    return min(found, key=lambda bandwidth: found[bandwidth]) if len(found) == len(BANDWIDTHS) else None


def _name(bandwidth: float) -> str:
    return f"{bandwidth / 1e3:g} kHz" if bandwidth < 1e6 else f"{bandwidth / 1e6:g} MHz"


def _render(study: Study) -> list[Block]:
    table = read_paper().accuracy
    rows = []
    for pair in CALIBRATION_PAIRS:
        for case, (quantity, _, _) in enumerate(_CASES):
            values = [accuracy(study.scale, study.records, b, pair, case) for b in BANDWIDTHS]
            texts = ["missing" if value is None else f"{value:.3f}" for value in values]
            printed = table.cells[*pair, "signsgd", quantity]
            rows.append([f"{pair_text(pair)}, {quantity}", f"{printed:.2f}", *texts])
    found = gaps(study.scale, study.records)
    rows.append(["distance", "0", *(f"{found[b]:.3f}" if b in found else "missing" for b in BANDWIDTHS)])
    chosen = calibrated(study.scale, study.records)
    words = (
        "The paper gives neither its link budget nor the SNRs, and the gap between signSGD and SBFL depends "
        "on them. A budget shifts the SNR of all devices alike, so one number is free; we vary the bandwidth "
        "of a device's subchannel, at 23 dBm and a noise figure of 5 dB. Taken is the one under which "
        "signSGD, and nothing else, ends nearest to the paper's Table II."
    )
    if chosen is None:
        verdict = "Calibration is not finished; until then we use"
        words += f" {verdict} {_name(study.scale.bandwidth_hz)}."
    else:
        words += f" The nearest is **{_name(chosen)}**; this page uses {_name(study.scale.bandwidth_hz)}."
    note = (
        "signSGD's accuracy after the same number of rounds, seed 0; Full is the sum of the detected signs, "
        "DC their majority. Distance: root mean square over the six cells."
    )
    return [Text(words), Table(["cell", "paper", *map(_name, BANDWIDTHS)], rows, note)]


CALIBRATE = Artefact("calibrate", "The link budget", "not in the paper", _render, wants=_wants)
