"""The reproduction of the paper as a study: its page is docs/results.md."""

from __future__ import annotations

from signfade.experiments.studies.paper.calibrate import CALIBRATE
from signfade.experiments.studies.paper.claims import CLAIMS
from signfade.experiments.studies.paper.curves import FIG_ACCURACY, FIG_DOWNLINK, FIG_QUANTISATION, FIG_SNR
from signfade.experiments.studies.paper.errors import FIG_MSE
from signfade.experiments.studies.paper.gradients import FIG_PRIORS, FIG_SETUP
from signfade.experiments.studies.paper.printed import RULE
from signfade.experiments.studies.paper.regression import FIG_CONVERGENCE, FIG_REGRESSION
from signfade.experiments.studies.paper.tables import TABLE_ACCURACY, TABLE_DEVICES, TABLE_ROUNDS
from signfade.experiments.studies.study import Scale, Study

__all__ = ["PAPER"]


def _opening(scale: Scale) -> list[str]:
    return [
        "Every table and figure of the paper's Section VI, run again by `signfade reproduce`, and "
        "figures of our own beside them. What is not finished is shown as missing. `signfade "
        "reproduce all --docs docs` plays what is missing and writes this page again; with `--render` "
        "it plays nothing and draws from `docs/results/*.json` and from finished runs.",
        "What the paper leaves open is decided so: K = 20 devices for MNIST; the link budget "
        f"({scale.bandwidth_hz / 1e6:g} MHz a device at 23 dBm) and what Full means for signSGD, see "
        "below; a user's two chunks are dealt so that every class goes to equally many users (of 200 "
        "chunks 40 are held, a fifth of MNIST); kernels of 5 x 5 without padding (62,346 weights; the "
        "paper gives the numbers of channels only); 2 GHz, a metropolitan city; the training loss is "
        "the mean over what the devices see in a round. What we change: a device sends the sign about "
        "its mean, and SBFL has its corrected form, with the printed one beside it in some cells; test "
        f"accuracy is looked at every {scale.every} rounds. Every seed has its own split of the data, "
        "users' places, initial weights and noise, alike for all methods.",
        "Words: **Full**, the model is sent down as it is; **DC** (downlink compression), one bit a "
        "weight; **TL**, rounds to training loss 1.0; **TA**, rounds to test accuracy 0.9; **1e-3 / "
        "0.9**, step and momentum. **Rotated** SBFL is ours: all devices rotate their gradients alike "
        "at random first, which makes the Gaussian prior true; **best** is the preset that adds the "
        "joint posterior of all devices, their correlation learned from what is received "
        "([bfl.md](bfl.md)). **BLMMSE** is the best linear estimate, **EP** expectation propagation.",
        RULE,
    ]


PAPER = Study(
    "paper",
    "The paper's experiments, ours beside the paper's",
    "results",
    (
        CLAIMS,
        FIG_SETUP,
        CALIBRATE,
        FIG_PRIORS,
        FIG_REGRESSION,
        TABLE_ROUNDS,
        TABLE_DEVICES,
        FIG_ACCURACY,
        FIG_QUANTISATION,
        TABLE_ACCURACY,
        FIG_DOWNLINK,
        FIG_SNR,
        FIG_MSE,
        FIG_CONVERGENCE,
    ),
    _opening,
)
