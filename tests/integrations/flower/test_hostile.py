"""Well-formed but false replies of one device are bounded, and do not end a run."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from signfade.experiments.config import resolve
from signfade.experiments.folder import RunFolder
from signfade.experiments.training import RunFailed, run_rounds
from signfade.integrations.flower import OneBitStrategy, settings_from
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.server_core import with_bounds
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment, make_task

from .grids import CallingGrid, Node, cell_of
from .test_device import Net, normalised
from .test_faults import packet, with_scale

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def app_settings(**changes: Any) -> RunSettings:
    base = {"data.devices": 5, "rounds": 3, "server.learning_rate": 0.1}
    named = base | {key.replace("__", "."): value for key, value in changes.items()}
    return settings_from({f"signfade.{key}": value for key, value in named.items()})


def changing(node: Node, change: Change) -> Node:
    """A node that changes the words and the arrays of what it would honestly send."""

    def answer(message: Message) -> Message:
        reply = node(message)
        assert reply is not None
        words = dict(reply.content["signfade"])
        arrays: dict[str, Any] = dict(reply.content.array_records.get("arrays", {}))
        change(words, arrays)
        content = RecordDict({"signfade": ConfigRecord(words)})
        if arrays:
            content["arrays"] = ArrayRecord(arrays)
        return Message(content, reply_to=message)

    return answer


def buffer(name: str, value: Any) -> Change:
    def change(words: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[f"1.{name}"] = value if isinstance(value, Array) else Array(np.asarray(value))

    return change


def word(name: str, value: Any) -> Change:
    return lambda words, arrays: words.__setitem__(name, value)


def run_strategy(change: Change | None, **changes: Any) -> OneBitStrategy:
    """Five devices with batch normalisation, of which the last changes what it sends."""
    net = Net(normalised, devices=5)
    if change is not None:
        net.grid.nodes[54] = changing(net.grid.nodes[54], change)
    strategy = OneBitStrategy(app_settings(**changes), normalised())
    strategy.start(net.grid, timeout=1.0)
    return strategy


HUGE = np.float32(3e38)
REFUSED: dict[str, tuple[Change, str]] = {
    "another type": (
        buffer("running_mean", np.zeros(5, np.longdouble)),
        r"'1\.running_mean' must be float32 of shape \[5\]; got float128 \[5\]",
    ),
    "doubles": (buffer("running_mean", np.zeros(5)), r"must be float32 of shape \[5\]; got float64 \[5\]"),
    "objects": (
        buffer("running_mean", Array("object", (5,), "numpy.ndarray", b"\x93NUMPY\x01\x00garbage")),
        "cannot be read",
    ),
    "complex": (buffer("running_var", np.zeros(5, complex)), r"float32 of shape \[5\]; got complex128"),
    "infinity": (buffer("running_var", np.full(5, math.inf, np.float32)), "must be finite"),
    "another shape": (buffer("running_var", np.zeros(6, np.float32)), r"shape \[5\]; got float32 \[6\]"),
    "a counter that is none": (
        buffer("num_batches_tracked", np.float32(3)),
        r"int64 of shape \[\]; got float32",
    ),
    "a huge claim": (
        buffer(
            "running_mean",
            Array(
                "f",
                (5,),
                "numpy.ndarray",
                b"\x93NUMPY\x01\x00\x36\x00"
                + (
                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000,), }".ljust(0x35)
                    + b"\n"
                ),
            ),
        ),
        "cannot be read",
    ),
    "a large reply": (
        lambda words, arrays: words.__setitem__("more", bytes(1_000_000)),
        "its reply has more than [0-9]+ bytes, the most for this model; it is not asked again",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(name: str) -> None:
    if name == "another type" and np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("a long double is a double here")
    change, why = REFUSED[name]
    strategy = run_strategy(change)
    first = strategy.validator.faults[0]
    assert first.startswith("round 1: refused: node 54")
    assert re.search(why, first), first
    assert strategy.validator.counts == {"refused": 1 if name == "a large reply" else 3}
    state = strategy.state()
    assert all(state[key].isfinite().all() for key in state if key.startswith(("server.model.", "task.")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("running_mean", np.full(5, HUGE)),
        ("running_mean", np.full(5, -HUGE)),
        ("running_var", np.full(5, HUGE)),
        ("running_var", np.zeros(5, np.float32)),
        ("num_batches_tracked", np.int64(2**63 - 1)),
    ],
)
def test_hostile_buffers_stay_near_those_of_the_others(name: str, value: Any) -> None:
    honest, hostile = run_strategy(None), run_strategy(buffer(name, value))
    assert hostile.validator.faults == []
    ours, theirs = (strategy.server.buffers[f"1.{name}"].double() for strategy in (honest, hostile))
    assert (ours - theirs).abs().max() <= (0.0 if name == "num_batches_tracked" else 1.0)
    state = hostile.state()
    assert all(state[key].isfinite().all() for key in state if key.startswith(("server.model.", "task.")))


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308])
def test_a_hostile_loss_is_cut_to_ten_times_the_usual_one(loss: float) -> None:
    strategy = run_strategy(word("loss", loss))
    assert strategy.validator.counts == {}
    assert strategy.last_round.loss is not None
    assert abs(strategy.last_round.loss) < 4.0  # of two classes: honest losses are near 0.7


def test_a_number_of_samples_is_the_first_one_and_at_most_four_medians() -> None:
    """With equal devices the hostile device's share is 4/8, whatever it reports, and stays that."""
    by_share = {"method__weights": "share"}
    honest = run_strategy(None, **by_share)
    four = run_strategy(word("examples", 4 * 24), **by_share)
    for said in (4 * 24 + 1, 2**53):
        assert torch.equal(
            run_strategy(word("examples", said), **by_share).server.weights, four.server.weights
        )
    assert not torch.equal(four.server.weights, honest.server.weights)

    said = iter([24, 2**53, 1])
    later = run_strategy(lambda words, arrays: words.__setitem__("examples", next(said)), **by_share)
    assert torch.equal(later.server.weights, honest.server.weights)


@pytest.mark.parametrize("value", [3.4e38, 1e30, 1e-45])
@pytest.mark.parametrize("preset", [None, "best"])
def test_a_scale_that_is_huge_ends_no_run(value: float, preset: str | None) -> None:
    """An app is bounded unless it says otherwise: one device of five has the say of one."""
    changes: dict[str, Any] = {"rounds": 5} | ({} if preset is None else {"method__preset": preset})
    net, honest = Net(normalised, devices=5), Net(normalised, devices=5)
    net.grid.nodes[54] = packet_only(net.grid.nodes[54], with_scale(value))
    moved = []
    for each in (net, honest):
        strategy = OneBitStrategy(app_settings(**changes), normalised())
        before = strategy.server.weights.clone()
        strategy.start(each.grid, timeout=1.0)
        assert strategy.validator.faults == []
        moved.append(float((strategy.server.weights - before).norm()))
    assert moved[0] < 10 * moved[1]


def packet_only(node: Node, change: Callable[[bytes], bytes]) -> Node:
    return changing(node, lambda words, arrays: words.__setitem__("packet", change(words["packet"])))


def test_without_bounds_it_does() -> None:
    """So the test above tests something."""
    net = Net(normalised, devices=5)
    net.grid.nodes[54] = packet_only(net.grid.nodes[54], with_scale(3.4e38))
    strategy = OneBitStrategy(app_settings(rounds=6, defence__bound_scales=False), normalised())
    with pytest.raises(RunFailed):
        strategy.start(net.grid, timeout=1.0)


def test_a_gradient_in_full_is_shortened_to_ten_times_the_usual_one() -> None:
    def huge(words: dict[str, Any], arrays: dict[str, Any]) -> None:
        words["gradient"] = struct.pack("<f", 3.4e38) * (len(words["gradient"]) // 4)

    strategy = run_strategy(huge, method__aggregator="ideal")
    assert strategy.validator.faults == []
    assert strategy.server.weights.abs().max() < 100


@pytest.mark.parametrize(("hostile", "ends"), [(3, 3), (2, None)])
def test_a_run_of_which_most_is_refused_fails(hostile: int, ends: int | None, tmp_path: Path) -> None:
    """Three of five: after three rounds. Two of five: it goes on with the others."""
    net = Net(normalised, devices=5)
    for node in range(50, 50 + hostile):
        net.grid.nodes[node] = changing(net.grid.nodes[node], word("loss", math.nan))
    strategy = OneBitStrategy(app_settings(rounds=6), normalised(), folder=tmp_path / "run")
    if ends is None:
        strategy.start(net.grid, timeout=1.0)
    else:
        expected = (
            "round 3: more than half of the replies were refused in 3 rounds in a row; the last one: round 3"
        )
        with pytest.raises(
            RunFailed, match=f"^{expected}: refused: node 52: its loss must be a finite number"
        ):
            strategy.start(net.grid, timeout=1.0)
    assert RunFolder(tmp_path / "run").finished == (ends is None)


def test_a_run_fails_at_its_end_if_most_of_it_was_refused(tmp_path: Path) -> None:
    """Two rounds refused of every three, never three in a row; also if it was continued in between."""
    bad = [True, True, False] * 3
    net = Net(normalised, devices=3)
    for node in (50, 51, 52):
        good = net.grid.nodes[node]
        spoilt = changing(good, word("loss", math.nan))
        net.grid.nodes[node] = lambda message, good=good, spoilt=spoilt: (
            spoilt if bad[int(message.metadata.group_id) - 1] else good
        )(message)
    run = app_settings(rounds=9, data__devices=3, checkpoint_every=1)
    cut = CallingGrid({number: cutting(node, after=4) for number, node in net.grid.nodes.items()})
    with pytest.raises(PowerCut):
        OneBitStrategy(run, normalised(), folder=tmp_path / "run").start(cut, timeout=1.0)
    with pytest.raises(RunFailed, match="round 9: 18 of 27 replies of the run were refused; the last one: "):
        OneBitStrategy(run, normalised(), folder=tmp_path / "run").start(net.grid, timeout=1.0)


class PowerCut(BaseException):
    """The server's machine goes dark."""


def cutting(node: Node, after: int) -> Node:
    def answer(message: Message) -> Message | None:
        if int(message.metadata.group_id) > after:
            raise PowerCut
        return node(message)

    return answer


@pytest.mark.parametrize("spoilt", ["weights", "momentum"])
def test_a_checkpoint_that_is_not_finite_is_not_written(spoilt: str, tmp_path: Path) -> None:
    run = resolve({"rounds": 4, "data.name": "gaussian", "data.size": 50, "checkpoint_every": 1})
    experiment = Experiment(run)
    state = experiment.state

    def spoil() -> dict[str, torch.Tensor]:
        found = state()
        if experiment.round == 3:
            found[f"server.model.{spoilt}"] = torch.full_like(found[f"server.model.{spoilt}"], torch.inf)
        return found

    experiment.state = spoil  # type: ignore[method-assign]
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(
        RunFailed, match=rf"round 3: .*server\.model\.{spoilt} is not finite.* no checkpoint is written"
    ):
        run_rounds(experiment, folder)
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 2


def test_a_deployment_of_the_simulators_task_is_bounded_too() -> None:
    """As `signfade deploy` does it: one of four devices with a scale of 3.4e38."""
    run = with_bounds(resolve({"rounds": 3, "data.devices": 4, "model.name": "linear", "cell.snr_db": 5.0}))
    assert run.defence.bound_scales
    grid: CallingGrid = cell_of(run)
    grid.nodes[998] = packet(with_scale(3.4e38))(grid.nodes[998])
    strategy = OneBitStrategy(run, Start.of_task(make_task(run)))
    strategy.start(grid, timeout=1.0)
    assert strategy.validator.faults == []
    assert strategy.server.weights.abs().max() < 10
