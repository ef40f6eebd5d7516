"""Fig. 4: the paper's regression, homogeneous and heterogeneous devices, as excess over the optimum."""

from __future__ import annotations

from statistics import mean

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text, picture
from signfade.lab.reproduce.drawing import (
    band,
    curve_of,
    legend_below,
    log_axis,
    method_style,
    new_figure,
    tail_mean,
)
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Record, Records, shared_seeds
from signfade.lab.reproduce.setups import METHODS, Scale, regression
from signfade.lab.style import figure_style
from signfade.lab.table import spread_text
from signfade.settings import RunSettings

__all__ = ["FIG_REGRESSION", "OPTIMUM", "SIGNSGD", "below", "chosen", "floors"]

# In units of 1/L. The paper's step is 1/L, which a sign of size one cannot use: the gradient has hundreds. So
# signSGD may choose, by how it ends. Steps stand close: too short a step does not arrive in time; a longer
# one ends higher in proportion.
STEPS: dict[str, tuple[float, ...]] = {
    "vote": (200.0, 300.0, 400.0, 500.0, 700.0, 1000.0),
    "signsum": (20.0, 30.0, 40.0, 50.0, 70.0, 100.0),
    "gaussian": (1.0,),
    "laplacian": (1.0,),
    "published": (1.0,),
    "rotated": (1.0,),
    "best": (1.0,),
    "ideal": (1.0,),
}
SIGNSGD = ("vote", "signsum")
OPTIMUM = 0.85  # least loss a sample, about 1 - M/(K N)
KINDS = {"homogeneous": False, "heterogeneous": True}


def _runs(scale: Scale, method: str, kind: str, step: float) -> list[RunSettings]:
    return [
        regression(scale, method, heterogeneous=KINDS[kind], step=step, seed=seed)
        for seed in range(scale.regression_seeds)
    ]


def _wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(settings, Tier.FIGURE, not METHODS[method].paper)
        for method, steps in STEPS.items()
        for kind in KINDS
        for step in steps
        for settings in _runs(scale, method, kind, step)
    ]


def floors(records: list[Record]) -> list[float]:
    """Return the mean excess loss over the last tenth of the rounds, one a seed."""
    return [value for record in records if (value := tail_mean(record, "test_loss")) is not None]


def chosen(study: Study, method: str, kind: str) -> tuple[float, list[Record]]:
    """Return the step with which a method ends lowest, and its records."""
    found = {}
    for step in STEPS[method]:
        records = study.records.find_all(_runs(study.scale, method, kind, step))
        if values := floors(records):
            found[step] = (mean(values), records)
    if not found:
        return STEPS[method][0], []
    step = min(found, key=lambda step: found[step][0])
    return step, found[step][1]


def below(study: Study, method: str, kind: str, reading: str) -> float | None:
    """Return by which part a method's excess loss is below signSGD's, read one way, with its best step.

    Over the seeds that both have; None without any.
    """
    pair = shared_seeds(chosen(study, method, kind)[1], chosen(study, reading, kind)[1])
    ours, theirs = map(floors, pair)
    return 1 - mean(ours) / mean(theirs) if ours and theirs else None


def _render(study: Study) -> list[Block]:
    with figure_style():
        figure = new_figure((8.4, 4.4), study.scale)
        panels = figure.subplots(1, 2, sharey=True)
        for ax, kind in zip(panels, KINDS):
            for method in STEPS:
                _, records = chosen(study, method, kind)
                curve = curve_of(records, "test_loss")
                if curve is None or method == "ideal":  # the ideal ends at 1e-12: another figure
                    continue
                label = METHODS[method].label + (" (its best step)" if method in SIGNSGD else "")
                band(ax, curve, method_style(method), label, log=True)
            ax.set(title=f"{kind.capitalize()} devices", xlabel="round", yscale="log")
            log_axis(ax.yaxis)
            ax.grid(visible=False, axis="x")
        panels[0].set_ylabel("excess loss per sample")
        legend_below(figure, panels[0])
    words = (
        "`f_k(w) = |X_k w - z_k|^2`, M = 300, K = 20, 100 samples a device, full batches. The labels are "
        "independent of the data, so the raw loss cannot fall to the paper's 0.009: shown is the excess "
        "over the least-squares optimum, per sample. SBFL takes the paper's step 1/L. A sign has size one "
        "where these gradients have hundreds, so signSGD takes the step that is best for it, of six for "
        f"each reading, chosen on these very seeds. The number of rounds, {study.scale.regression_rounds}, "
        "decides that step: with a shorter one signSGD would end lower, and later. Most of the raw loss is "
        f"the optimum itself (about 1 - M/(K N) = {OPTIMUM:g} a sample), so that in raw loss all "
        "differences are far smaller. `best` undoes the shrinkage of its estimate: it is there first and "
        "stays at a higher floor, as with a larger step."
    )
    about = "Excess loss of the regression over the rounds, homogeneous and heterogeneous devices"
    return [Text(words), picture(figure, "fig-regression", about), _table(study)]


def _table(study: Study) -> Table:
    rows = []
    for method in STEPS:
        row = [METHODS[method].label]
        for kind in KINDS:
            step, records = chosen(study, method, kind)
            values = floors(records)
            if not values:
                row += ["missing", "missing"]
                continue
            parts = [None if method in SIGNSGD else below(study, method, kind, r) for r in SIGNSGD]
            told = " / ".join("–" if part is None else f"{100 * part:.0f}" for part in parts)
            told = told + " %" if any(parts) else "–"
            row += [f"{spread_text(values)} ({len(values)}), step {step:g}/L", told.replace("-", "−")]
        rows.append(row)
    heads = ["method"]
    for kind in KINDS:
        heads += [f"{kind}: excess loss", "below vote / sum"]
    note = (
        "Mean over the last tenth of the rounds; mean ± deviation over seeds (number of seeds). Below vote "
        "/ sum: below signSGD with its best step, in both readings; the paper says 54 % and more."
    )
    return Table(heads, rows, note)


FIG_REGRESSION = Artefact("fig-regression", "Regression", "Fig. 4", _render, wants=_wants)
