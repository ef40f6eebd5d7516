"""Ours: error of every aggregator against the SNR, simulated and predicted, beside the printed formulas.

Signs are ±1, sigma2 is the variance of the real noise per symbol, the SNR is h**2/sigma2 with h = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from signfade import server, theory
from signfade.device import sign
from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import Results, Scale, rounded
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import INK, MUTED, LineStyle, draw_line, named_styles, scale_vertical
from signfade.server.joint import bfl, fit_joint_blmmse, fit_joint_sbfl, joint_blmmse, joint_sbfl
from signfade.uplink import transmit

__all__ = ["FIG_MSE"]

_SNRS_DB = tuple(range(-20, 31, 5))
_DEVICES, _CORRELATION = 20, 0.3
_KAPPA = math.sqrt(2 / math.pi)
_SINGLE: dict[str, tuple[theory.Rule, theory.Form]] = {
    "SBFL": ("sbfl", "corrected"),
    "SBFL, as printed": ("sbfl", "published"),
    "BLMMSE": ("blmmse", "corrected"),
    "BLMMSE, as printed": ("blmmse", "published"),
    "high SNR": ("high_snr", "corrected"),
    "zero forcing": ("zero_forcing", "corrected"),
}
_METHODS = {"SBFL": "sbfl", "signSGD, best scale": "signsgd", "joint soft (best)": "best"}
_PRINTED: dict[str, theory.Printed] = {
    "Theorem 1 as printed": "theorem_1",
    "Corollary 3 as printed": "corollary_3",
    "Corollary 2 as printed": "corollary_2",
}
_EP_DRAWS = 4000  # expectation propagation takes a tenth of a second for these


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    say("fig-mse: simulating the error of every aggregator")
    found: dict[str, dict[str, list[float]]] = {"single": {}, "sum": {}}
    for index, decibel in enumerate(_SNRS_DB):
        snr = 10 ** (decibel / 10)
        single, together = (
            _errors_single(snr, scale.draws, index),
            _errors_of_sum(snr, scale.draws // 4, index),
        )
        for part, errors in (("single", single), ("sum", together)):
            for name, error in errors.items():
                found[part].setdefault(name, []).append(rounded(error, 5))
    return {"snr_db": list(_SNRS_DB), "draws": scale.draws, **found}


def _received(g: Tensor, snr: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    h, sigma2 = torch.ones(len(g)), torch.full((len(g),), 1 / snr)
    return transmit(sign(g), h, sigma2, generator).y, h, sigma2


def _errors_single(snr: float, draws: int, seed: int) -> dict[str, float]:
    """Mean squared error of one device's coordinate of variance one."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(1, draws, generator=generator)
    y, h, sigma2 = _received(g, snr, generator)
    mean, scale = torch.zeros(1), torch.full((1,), _KAPPA)
    estimates = {
        "SBFL": server.sbfl(y, h, sigma2, mean, scale),
        "SBFL, as printed": server.sbfl(y, h, sigma2, mean, scale, form="published"),
        "BLMMSE": server.blmmse(y, h, sigma2, mean, scale),
        "BLMMSE, as printed": server.blmmse(y, h, sigma2, mean, scale, form="published"),
        "high SNR": server.high_snr(y, h, mean, scale),
        "zero forcing": server.zero_forcing(y, h, mean, scale),
    }
    return {name: float((estimate - g[0]).double().square().mean()) for name, estimate in estimates.items()}


def _correlation() -> Tensor:
    return torch.full((_DEVICES, _DEVICES), _CORRELATION).fill_diagonal_(1.0).double()


def _errors_of_sum(snr: float, draws: int, seed: int) -> dict[str, float]:
    """Normalised error of the sum over devices that are correlated; of a vote, that of its best multiple."""
    generator = torch.Generator().manual_seed(1000 + seed)
    shared = torch.randn(1, draws, generator=generator)
    own = torch.randn(_DEVICES, draws, generator=generator)
    g = math.sqrt(_CORRELATION) * shared + math.sqrt(1 - _CORRELATION) * own
    y, h, sigma2 = _received(g, snr, generator)
    mean, scale, r = torch.zeros(_DEVICES), torch.full((_DEVICES,), _KAPPA), _correlation()
    truth = g.sum(dim=0).double()
    vote = server.majority_vote(y, h, tie="plus").double()
    explained = float((vote @ truth) ** 2 / (vote.square().sum() * truth.square().sum()))
    few = slice(0, min(draws, _EP_DRAWS))
    estimates = {
        "SBFL": (server.sbfl(y, h, sigma2, mean, scale), truth),
        "joint linear": (joint_blmmse(y, h, sigma2, mean, scale, r), truth),
        "joint soft (best)": (joint_sbfl(y, h, sigma2, mean, scale, r), truth),
        "EP": (bfl(y[:, few], h, sigma2, mean, r, method="ep"), truth[few]),
    }
    return {"signSGD, best scale": 1 - explained} | {
        name: float((estimate - target).square().sum() / target.square().sum())
        for name, (estimate, target) in estimates.items()
    }


def _theory_of_sum(snr_db: np.ndarray) -> dict[str, np.ndarray]:
    std, r = np.ones(_DEVICES), _correlation()
    h, scale = torch.ones(_DEVICES), torch.full((_DEVICES,), _KAPPA)
    rows: dict[str, list[float]] = {}
    for snr in 10 ** (snr_db / 10):
        gamma, sigma2 = np.full(_DEVICES, snr), torch.full((_DEVICES,), 1 / snr)
        errors = {
            "signSGD, best scale": theory.vote_moments(gamma, std, r, tie="plus").best_scaled_nmse(),
            "SBFL": theory.joint_moments("sbfl", gamma, std, r).nmse(),
            "joint linear": 1 - fit_joint_blmmse(h, sigma2, scale, r).gain,
            "joint soft (best)": 1 - fit_joint_sbfl(h, sigma2, scale, r).gain,
        }
        for name, error in errors.items():
            rows.setdefault(name, []).append(error)
    return {name: np.array(row) for name, row in rows.items()}


def _styles(names: Iterable[str]) -> list[LineStyle]:
    """Lines of the rules here: those that are methods elsewhere have their line from there."""
    return named_styles([_METHODS.get(name, name) for name in names])


def _draw_theory(ax: Axes, x: np.ndarray, y: Any, style: LineStyle, name: str) -> None:
    draw_line(ax, x, np.asarray(y), LineStyle(style.color, (), ""), "_line", 1.4)
    ax.plot([], [], style.marker, color=style.color, linestyle="-", label=name)


def _render(results: Results) -> list[Block]:
    data = results.measurement("fig-mse")
    grid = np.linspace(_SNRS_DB[0], _SNRS_DB[-1], 101)
    with new_figure((9.6, 4.8), 1, 2) as (figure, (left, right)):
        for style, (name, (rule, form)) in zip(_styles(_SINGLE), _SINGLE.items()):
            _draw_theory(left, grid, theory.mse(rule, 10 ** (grid / 10), form=form), style, name)
            above = 3 if name == "SBFL" else 2  # the least error is not to be covered
            look: Any = {"color": style.color, "label": "_dots", "zorder": above}
            left.plot(data["snr_db"], data["single"][name], style.marker, **look)
        for (name, which), dashes in zip(_PRINTED.items(), ((3, 1.5), (1, 1), (6, 1.5, 1, 1.5))):
            printed = theory.printed_mse(which, 10 ** (grid / 10))
            draw_line(left, grid, printed, LineStyle(MUTED, dashes, ""), name, 1.3)
        left.set(title="One device", xlabel="SNR (dB)", ylim=(0.3, 1.6))
        left.set_ylabel("mean squared error / variance")
        predicted = _theory_of_sum(grid)
        for style, (name, dots) in zip(_styles(data["sum"]), data["sum"].items()):
            if name in predicted:
                _draw_theory(right, grid, predicted[name], style, name)
            label = "_dots" if name in predicted else f"{name} (simulated only)"
            right.plot(data["snr_db"], dots, style.marker, color=style.color, label=label)
        scale_vertical(right, np.array([v for row in data["sum"].values() for v in row]), span=8)
        right.set(title=f"Sum of {_DEVICES} devices, correlation {_CORRELATION:g}", xlabel="SNR (dB)")
        right.set_ylabel("squared error / energy of the sum")
        for ax in (left, right):
            ax.grid(visible=False, axis="x")
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, handlelength=3.2, fontsize=8)
        left.axhline(1, color=INK, linewidth=0.6, label="_guess")
    about = "Error of every aggregator against the SNR: predicted, simulated, and as the paper prints it"
    return [Text(words_of("fig-mse")), Picture(figure, "fig-mse", about), _table(data)]


def _table(data: dict[str, Any]) -> Table:
    snrs, shown, rows = np.array(data["snr_db"], dtype=float), (-10, 0, 10), []

    def add(name: str, simulated: list[float], predicted: np.ndarray) -> None:
        at = [data["snr_db"].index(snr) for snr in shown]
        gap = np.abs(np.array(simulated) / predicted - 1).max()
        rows.append([name, *(f"{simulated[i]:.3f} / {predicted[i]:.3f}" for i in at), f"{100 * gap:.1f} %"])

    for name, (rule, form) in _SINGLE.items():
        predicted = np.asarray(theory.mse(rule, 10 ** (snrs / 10), form=form))
        add(f"{name}, one device", data["single"][name], predicted)
    for name, row in _theory_of_sum(snrs).items():
        add(f"{name}, {_DEVICES} devices", data["sum"][name], row)
    heads = ["rule", *(f"{snr} dB".replace("-", "−") for snr in shown), "largest difference"]
    return Table(heads, rows, words_of("fig-mse", "note", coordinates=data["draws"], ep=_EP_DRAWS))


FIG_MSE = Part(
    "fig-mse",
    "Error of the aggregators",
    "ours; Theorem 1 and its corollaries",
    _render,
    measure=_measure,
    depends=("draws",),
    cost=60.0,
)
