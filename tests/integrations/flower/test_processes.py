"""Real processes on the loopback interface: TLS, authentication, kills, and nothing left behind.

Nearly all of the time goes into starting Python: every message to a SuperNode is a process of its own there.
So there are few rounds here, and nothing depends on how long one takes: what is waited for is progress, and a
killed SuperNode is given up by Flower's heartbeat, not by a time-out of ours.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord

from signfade.experiments.config import parse_override, resolve
from signfade.experiments.folder import RunFolder
from signfade.experiments.toml import to_toml
from signfade.integrations.flower.children import marked
from signfade.integrations.flower.deployment import write_app
from signfade.integrations.flower.exchange import Patience
from signfade.integrations.flower.loopback import Loopback, make_node_key
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment, make_task

from .grids import cell_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")  # each is a dozen processes

SILENCE = (
    400.0  # seconds in which nobody writes a line; Flower's heartbeat takes 60, the rest is a busy machine
)
TAG = "SIGNFADE_TEST"


def wait_for(condition: Callable[[], bool], what: str, folder: Path) -> None:
    """Wait as long as something is written in a run folder: a slow machine is no failure, a silent one is."""

    def written() -> int:
        # all but the SuperLink's log, which grows by its being asked
        files = [*folder.glob("flower/supernode-*.log"), folder / "metrics.jsonl", folder / "log"]
        return sum(file.stat().st_size for file in files if file.exists())

    size, end = -1, 0.0
    while not condition():
        if (now := written()) != size:
            size, end = now, time.monotonic() + SILENCE
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.2)


def weights_of(folder: Path) -> torch.Tensor:
    checkpoint = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    return checkpoint.tensors["server.model.weights"]


def tagged(place: Path) -> dict[int, str]:
    """Numbers and command lines of the processes that have `place` as their tag, whoever started them."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{TAG}={place}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = line
    return found


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """For a process of ours and all that come of it; whatever is left of them afterwards is ended."""
    yield os.environ | {TAG: str(tmp_path)}
    while left := tagged(tmp_path):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left behind in /proc")
def test_a_deployment_interrupted_and_resumed_is_the_simulation(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """With TLS and authentication: the simulator's weights to the last bit."""
    changes = ["rounds=3", "cell.perfect=true", "eval.every=2", "name=three", "method.side_bits=8"]
    command = [sys.executable, "-m", "signfade", "deploy", "--devices", "2", "--auth", "--timeout", "3600"]
    command += ["--out", str(tmp_path), *(word for change in changes for word in ("--set", change))]
    folder = RunFolder(tmp_path / "three-deploy")

    with (tmp_path / "first").open("wb") as said:
        first = subprocess.Popen(command, stderr=said, stdout=subprocess.PIPE, env=environment)
    assert first.stdout is not None
    with first.stdout:
        wait_for(lambda: len(folder.read_metrics()) >= 1 or first.poll() is not None, "a round", folder.path)
        assert any("flower-supernode" in line for line in tagged(tmp_path).values())
        first.send_signal(signal.SIGINT)
        wait_for(lambda: first.poll() is not None, "its end", folder.path)
        assert first.stdout.read() == b""
    expected = (tmp_path / "first").read_text()
    assert first.returncode == 130, expected
    assert re.fullmatch(
        r"signfade: stopped after round [12] of 3; resume with: signfade deploy .*--resume",
        expected.splitlines()[-1],
    )
    assert tagged(tmp_path) == {}
    checkpoint = folder.load_checkpoint()
    done = 0 if checkpoint is None else checkpoint.round
    assert len(folder.read_metrics()) - done in (0, 1)  # it may have been between the two

    with (tmp_path / "second").open("wb") as said:
        again = subprocess.Popen(
            [*command, "--resume"], stderr=said, stdout=subprocess.PIPE, text=True, env=environment
        )
    assert again.stdout is not None
    with again.stdout:
        wait_for(lambda: again.poll() is not None, "the end", folder.path)
        out = again.stdout.read()
    assert again.returncode == 0, (tmp_path / "second").read_text()
    assert out.startswith("three, best, seed 0: accuracy ")
    assert tagged(tmp_path) == {}

    bounds = {"defence.bound_scales": True}  # which a deployment has by default
    settings = resolve({"data.devices": 2} | bounds | dict(map(parse_override, changes)))
    simulated = Experiment(settings)
    records = [simulated.advance() for _ in range(3)]
    assert torch.equal(weights_of(folder.path), simulated.weights)
    metrics = folder.read_metrics()
    assert [record["test_accuracy"] for record in metrics] == [r["test_accuracy"] for r in records]
    assert all((r["devices"], r["refused"], r["failed"], r["missing"]) == (2, 0, 0, 0) for r in metrics)
    # a packet of a bit a weight, and less than half a kilobyte around it
    size, sent = simulated.parameters, metrics[0]["wire_uplink_bits"] / 8 / 2
    assert size / 8 < sent < size / 8 + 500
    assert [line[20:] for line in folder.log_path.read_text().splitlines()] == [
        "round 0 of 3 is done, going on",
        f"round {done} of 3 is done, going on",
        "finished",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the SuperLink in /proc")
def test_a_superlink_that_is_killed_is_started_again(tmp_path: Path, environment: dict[str, str]) -> None:
    """With TLS and authentication: its SuperNodes stay, connect again, and the run ends as the simulation."""
    changes = ["rounds=2", "cell.perfect=true", "data.name=regression", "data.batch=none", "name=link"]
    command = [sys.executable, "-m", "signfade", "deploy", "--devices", "2", "--auth", "--timeout", "3600"]
    command += ["--out", str(tmp_path), *(word for change in changes for word in ("--set", change))]
    folder = RunFolder(tmp_path / "link-deploy")

    def processes(program: str) -> set[int]:
        return {pid for pid, line in tagged(tmp_path).items() if f"/{program} " in line}

    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, stderr=said, stdout=said, env=environment)
    wait_for(lambda: len(folder.read_metrics()) >= 1 or run.poll() is not None, "a round", folder.path)
    [link], nodes = processes("flower-superlink"), processes("flower-supernode")
    os.kill(link, signal.SIGKILL)
    wait_for(
        lambda: bool(processes("flower-superlink") - {link}) or run.poll() is not None, "it", folder.path
    )
    assert len(nodes) == 2
    wait_for(lambda: folder.finished or run.poll() is not None, "the end", folder.path)
    still_there = processes("flower-supernode") if run.poll() is None else nodes
    wait_for(lambda: run.poll() is not None, "the end", folder.path)
    expected = (tmp_path / "said").read_text()
    assert run.returncode == 0, expected
    assert still_there == nodes
    assert "the SuperLink ended with code -9; it is started again" in expected
    assert "the SuperNode of device" not in expected

    bounds = {"defence.bound_scales": True}
    simulated = Experiment(resolve({"data.devices": 2} | bounds | dict(map(parse_override, changes))))
    for _ in range(2):
        simulated.advance()
    assert torch.equal(weights_of(folder.path), simulated.weights)
    assert [record["devices"] for record in folder.read_metrics()] == [2, 2]
    assert "refused" not in folder.log_path.read_text()  # device numbers are still those of their keys
    for private in ("certificates", "keys", "state", "home"):
        assert stat.S_IMODE((folder.path / "flower" / private).stat().st_mode) == 0o700


# Round 1: device 1 sends garbage, device 2 a scale that is no number. Round 2: device 1 sends another model's
# packet, device 3 pulls the plug of its own SuperNode. Round 3: device 0 kills the server, once. All else is
# as it should be. What needs no torch does not wait for it.
MISCHIEF = """
import os, signal, struct, time, tomllib, zlib
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def sealed(body, old):
    crc = int.from_bytes(old[-4:], "big") ^ zlib.crc32(old[:-4]) ^ zlib.crc32(body)
    return body + crc.to_bytes(4, "big")


@app.train()
def train(message, context):
    device, number = context.node_config["partition-id"], int(message.metadata.group_id)
    folder = Path(context.run_config["folder"])
    if (device, number) == (1, 1):
        words = {"loss": 1.0, "examples": 1, "packet": bytes(range(256)) * 2}
        return Message(RecordDict({"signfade": ConfigRecord(words)}), reply_to=message)
    if (device, number) == (3, 2):
        os.kill(parent(os.getppid()), signal.SIGKILL)  # we, SuperExec, SuperNode
        time.sleep(600)
    if number == 3 and not (folder / "flower" / "killed").exists():
        if device == 0:
            os.kill(int((folder / "flower" / "server.pid").read_text()), signal.SIGKILL)
            (folder / "flower" / "killed").touch()
        raise RuntimeError("there is nobody to answer")

    import torch

    from signfade.device import Packet
    from signfade.integrations.flower.deployed import train_on
    from signfade.experiments.config import resolve

    torch.set_num_threads(1)
    reply = train_on(message, context, resolve(tomllib.loads(context.run_config["settings"])))
    words = dict(reply.content["signfade"])
    data = words["packet"]
    if (device, number) == (2, 1):
        words["packet"] = sealed(data[:10] + struct.pack(">f", float("nan")) + data[14:-4], data)
    if (device, number) == (1, 2):
        other = Packet.make(torch.ones(4321), torch.zeros(1), torch.ones(1), device=1, round=1)
        words["packet"] = other.to_bytes()
    return Message(RecordDict({"signfade": ConfigRecord(words)}), reply_to=message)
"""
HEARD = {1: {0, 3}, 2: {0, 2}, 3: {0, 1, 2, 3}}


def reference(settings: RunSettings, replied: dict[int, set[int]]) -> torch.Tensor:
    """The weights if in each round exactly these devices had replied."""
    strategy, grid = OneBitStrategy(settings, Start.of_task(make_task(settings))), cell_of(settings)
    for number, devices in replied.items():
        messages = strategy.configure_train(number, strategy.arrays(), ConfigRecord(), grid)
        replies = [grid.nodes[m.metadata.dst_node_id](m) for m in messages]
        strategy.aggregate_train(
            number, [reply for reply in replies if reply and 1000 - reply.metadata.src_node_id in devices]
        )
    return strategy.server.weights


@pytest.mark.skipif(sys.platform != "linux", reason="finds a process's parent in /proc")
def test_kills_garbage_and_strangers_change_nothing_else(tmp_path: Path) -> None:
    settings = resolve(
        {
            "rounds": 3,
            "data.name": "regression",  # whose processes start faster than those of images
            "data.devices": 4,
            "data.batch": None,
            "cell.perfect": True,
            "checkpoint_every": 1,
        }
    )
    folder = RunFolder(tmp_path / "run").create(to_toml(settings))
    place = folder.path / "flower"
    place.mkdir()
    app = write_app(place / "app", settings, folder.path, Patience(3600.0))
    (app / "signfade_deployed" / "client_app.py").write_text(MISCHIEF)

    with Loopback(place, 4, tls=True, auth=True) as flower:
        stranger = flower.start_node(7, make_node_key(place / "keys", "stranger"))
        nobody = flower.start_node(8)  # without a key
        run = flower.submit(app)
        wait_for(lambda: (place / "killed").exists() or run.poll() is not None, "round 3", folder.path)
        assert (place / "killed").exists(), flower.log("run").read_text()
        assert len(folder.read_metrics()) == 2
        assert flower.nodes[3].poll() == -signal.SIGKILL
        assert [flower.nodes[k].poll() for k in range(3)] == [None] * 3
        flower.start_node(3)  # it comes back, under its own key
        run = flower.submit(app)  # and so does the server; the other SuperNodes are still there
        wait_for(lambda: folder.finished or run.poll() is not None, "the end", folder.path)
        wait_for(
            lambda: stranger.poll() is not None and nobody.poll() is not None,
            "strangers to give up",
            folder.path,
        )
        refused = [flower.log(f"supernode-{k}").read_text() for k in (7, 8)]
        mark = flower.children.mark
    assert marked(mark) == []

    metrics, log = folder.read_metrics(), folder.log_path.read_text()
    expected = {
        kind: [record[kind] for record in metrics] for kind in ("devices", "refused", "failed", "missing")
    }
    assert expected == {
        "devices": [2, 2, 4],
        "refused": [2, 1, 0],
        "failed": [0, 1, 0],
        "missing": [0, 0, 0],
    }, log
    assert torch.equal(weights_of(folder.path), reference(settings, HEARD))
    for sentence in (
        r"round 1: refused: node \d+: its packet is damaged: a packet of \d+ signs .* bytes; got 512",
        r"round 1: refused: node \d+: its packet is damaged: scale must be finite",
        r"round 2: refused: node \d+: its packet is damaged: a packet of \d+ signs .* bytes; got 559",
        r"round 2: failed: node \d+ \(device 3\): Error: Node Unavailable",
        r"round 2 of 3 is done, going on",
        r"finished",
    ):
        assert re.search(sentence, log), f"{sentence} is not in the log:\n{log}"
    for text, why in zip(refused, ("Failed to activate SuperNode", "must be registered"), strict=True):
        assert why in text
        assert "SuperNode ID" not in text  # which all that are let in are given
