"""`signfade deploy` without Flower's processes: what is refused before any is started, what is reported,
what is stopped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.config import resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.training import Interrupted, RunFailed
from signfade.integrations.flower import deployment as deploying
from signfade.integrations.flower.children import marked
from signfade.integrations.flower.deployment import deploy, deploy_folder, write_app
from signfade.integrations.flower.exchange import Patience
from signfade.integrations.flower.loopback import Loopback, quiet_environment
from signfade.settings import RunSettings


def settings(**changes: Any) -> RunSettings:
    base = {"rounds": 3, "data.devices": 2, "model.name": "linear", "cell.perfect": True}
    return resolve(base | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"data__name": "gaussian"}, {}, r"data\.name must be a set with samples here"),
        ({"data__name": "own"}, {}, r"data\.name must be .* got 'own'"),
        ({}, {"timeout": 0.0}, "timeout must be a positive number of seconds; got 0"),
        ({}, {"timeout": float("inf")}, "timeout must be a positive number"),
        ({}, {"quorum": 0.0}, r"quorum must be a share of the devices in \(0, 1\]; got 0"),
        ({}, {"quorum": 2.0}, "quorum must be a share"),
        ({}, {"deadline": -1.0}, "deadline must be a number of seconds, 0 or more; got -1"),
        ({"method__aggregator": "bfl", "method__correlation": "genie"}, {}, "no genie is there"),
        ({"model__name": "paper-cnn"}, {}, "at least 16x16 pixels"),
        ({"data__devices": 5000}, {}, "devices"),
    ],
)
def test_what_cannot_be_deployed_leaves_no_trace(
    changes: dict[str, Any], options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        deploy(settings(**changes), tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_it_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "--devices", "2", "--set", "data.name=gaussian", "--out", str(tmp_path)]
    assert signfade(words) == 2
    assert capsys.readouterr().err.startswith("signfade: data.name must be a set with samples here")
    assert signfade(["deploy", "--devices", "0", "--out", str(tmp_path)]) == 2
    assert "data.devices must be greater than or equal to 1; got 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_or_unfinished_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(deploying.to_toml(settings(defence__bound_scales=True)))
    folder.append_metrics({"round": 1})
    with pytest.raises(FolderError, match="stopped after round 1 of 3; add --resume"):
        deploy(settings(), folder.path)
    with pytest.raises(FolderError, match="another config"):
        deploy(settings(seed=5), folder.path, resume=True)
    folder.write_summary({"rounds": 3, "name": "done"})
    notes: list[str] = []
    assert deploy(settings(), folder.path, on_note=notes.append) == {"rounds": 3, "name": "done"}
    assert notes == [f"{folder.path} is already finished"]


def test_time_is_estimated_in_proportion_to_rounds_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying, "available_threads", lambda: 2)
    assert deploying._estimate(1, 2) == deploying._estimate(2, 2).replace("2 Python", "1 Python")
    few, many = (re.search(r"(\d+) s each", deploying._estimate(devices, 6)) for devices in (2, 20))
    assert few is not None
    assert many is not None
    assert int(few[1]) < int(many[1]) < 10 * int(few[1])
    assert deploying._estimate(20, 60).startswith(f"60 rounds take about {int(many[1])} min: ")
    assert re.match(r"one round takes about \d+ s, most of it", deploying._estimate(2, 1))
    # what others compute takes as long as devices would: 2 cores, 2 devices, 18 other processes
    busy = deploying._estimate(2, 6, load=19)
    assert busy.replace("2 Python", "20 Python").startswith(deploying._estimate(20, 6))
    assert busy.endswith(", beside 18 others that keep this machine busy")
    assert deploying._estimate(2, 6, load=1) == deploying._estimate(2, 6)


def test_the_folder_stands_beside_that_of_the_simulation() -> None:
    assert deploy_folder(settings(name="my run", out="there")) == Path("there/my-run-deploy")


def test_the_app_says_the_same_settings(tmp_path: Path) -> None:
    run = settings(name='a "quoted" name \\ and ünï', method__preset="best", method__side_bits=7)
    app = write_app(tmp_path / "app", run, tmp_path / 'odd "folder"', Patience(12.5, quorum=0.75))
    project = tomllib.loads((app / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert resolve(tomllib.loads(config["settings"])) == run
    assert (config["folder"], config["timeout"]) == (str(tmp_path / 'odd "folder"'), 12.5)
    assert (config["quorum"], config["deadline"], config["remember-keys"]) == (0.75, -1.0, True)
    for kind, reference in project["tool"]["flwr"]["app"]["components"].items():
        module, name = reference.split(":")
        text = (app / f"{module.replace('.', '/')}.py").read_text()
        assert f"import {kind.removesuffix('app')}_app as {name}" in text


def test_flower_reports_to_nobody_and_installs_nothing(tmp_path: Path) -> None:
    environment = quiet_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path)
    # the names are Flower's own
    from flwr.common import constant as common
    from flwr.supercore import constant
    from flwr.supercore.superexec import run_superexec

    assert constant.FLWR_DISABLE_UPDATE_CHECK in environment
    assert common.FLWR_HOME in environment
    assert common.FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION in environment
    assert run_superexec._TASK_POLL_INTERVAL_ENV in environment


def test_authentication_needs_encryption(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auth needs tls"):
        Loopback(tmp_path, 2, auth=True)


def replace_programs(monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Let Python code stand for Flower's programs; each is given its arguments."""

    def found(self: Loopback, command: list[Any]) -> list[Any]:
        name, *rest = command
        return [sys.executable, "-c", programs[str(name).replace("-", "_")], *rest]

    monkeypatch.setattr(Loopback, "_found", found)
    monkeypatch.setattr("signfade.integrations.flower.children._GRACE", 1.0)


LISTEN = """
import socket, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
server = socket.create_server(("127.0.0.1", port))
time.sleep(600)
"""
SLEEP = "import time; time.sleep(600)"


def test_a_superlink_that_does_not_start_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_programs(monkeypatch, flower_superlink="raise SystemExit(3)")
    with pytest.raises(RunFailed, match=r"the SuperLink ended with code 3; see .*superlink\.log"):
        deploy(settings(), tmp_path / "run")


def test_a_server_that_dies_is_a_failure_and_all_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's stream would go on for a while: Flower takes a minute to notice."""
    monkeypatch.setattr(deploying, "_LAST_LINES", 0.2)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "run"
    run = f"""
import time
open({str(folder / "flower" / "server.pid")!r}, "w").write("{dead.pid}")
time.sleep(600)
"""
    marks = remember_marks(monkeypatch)
    replace_programs(monkeypatch, flower_superlink=LISTEN, flower_supernode="raise SystemExit(1)", flwr=run)
    notes: list[str] = []
    with pytest.raises(RunFailed, match=r"the server ended before the last round; see .*run\.log"):
        deploy(settings(), folder, on_note=notes.append)
    assert sum("the SuperNode of device" in note for note in notes) == 2
    assert marked(marks[0]) == []
    (folder / "log").write_text("2026-01-01 00:00:00 failed: round 2: the model has diverged\n")
    with pytest.raises(RunFailed, match=r"^round 2: the model has diverged$"):
        deploy(settings(), folder, resume=True)


def test_a_superlink_that_ends_is_started_again_and_the_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times, under the same database; then it is a failure."""
    monkeypatch.setattr(deploying, "_LAST_LINES", 60.0)
    log = tmp_path / "said"
    link = f"""
import sys, time
open({str(log)!r}, "a").write("link " + sys.argv[sys.argv.index("--database") + 1] + chr(10))
import socket, threading
port = int(sys.argv[sys.argv.index("--port") + 1])
server = socket.create_server(("127.0.0.1", port))
time.sleep(2)
raise SystemExit(5)
"""
    submit = f"""
import time
open({str(log)!r}, "a").write("run" + chr(10))
time.sleep(600)
"""
    replace_programs(monkeypatch, flower_superlink=link, flower_supernode=SLEEP, flwr=submit)
    notes: list[str] = []
    with pytest.raises(RunFailed, match=r"the SuperLink ended with code 5; see .*superlink\.log"):
        deploy(settings(), tmp_path / "run", on_note=notes.append)
    assert notes[2:] == ["the SuperLink ended with code 5; it is started again"] * 3
    database = tmp_path / "run" / "flower" / "state" / "superlink.db"
    assert log.read_text().splitlines() == [f"link {database}", "run"] * 4


def remember_marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    marks: list[str] = []
    enter = Loopback.__enter__

    def remembering(self: Loopback) -> Loopback:
        marks.append(self.children.mark)
        return enter(self)

    monkeypatch.setattr(Loopback, "__enter__", remembering)
    return marks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["starting", "running"])
def test_an_interrupt_stops_everything(
    number: signal.Signals, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SLEEP if when == "starting" else LISTEN  # one that never listens
    marks = remember_marks(monkeypatch)
    replace_programs(monkeypatch, flower_superlink=link, flower_supernode=SLEEP, flwr=SLEEP)
    expected = 1 if when == "starting" else 4
    before = signal.getsignal(number)

    def interrupt() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and (not marks or len(marked(marks[0])) < expected):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupted, match="stopped after round 0 of 3"):
        deploy(settings(), tmp_path / "run")
    assert marked(marks[0]) == []
    assert signal.getsignal(number) == before


def test_rounds_and_faults_are_reported_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    run = f"""
import time
from signfade.experiments.folder import RunFolder
run = RunFolder({str(folder)!r})
log = open(run.log_path, "a")
log.write("2026-01-01 00:00:00 round 0 of 3 is done, going on" + chr(10))
for number in (1, 2, 3):
    run.append_metrics({{"round": number, "devices": 2, "seconds": 0.1}})
    log.write(f"2026-01-01 00:00:00 round {{number}}: missing: node 7: no answer in time" + chr(10))
    log.flush()
    time.sleep(0.5)
log.write("2026-01-01 00:00:00 finished" + chr(10))
log.close()
run.write_summary({{"rounds": 3}})
"""
    replace_programs(monkeypatch, flower_superlink=LISTEN, flower_supernode=SLEEP, flwr=run)
    rounds: list[int] = []
    notes: list[str] = []
    summary = deploy(
        settings(), folder, on_round=lambda record: rounds.append(record["round"]), on_note=notes.append
    )
    assert summary == {"rounds": 3}
    assert rounds == [1, 2, 3]
    assert notes[0].startswith("starting a SuperLink and 2 SuperNodes; logs are in ")
    assert notes[1].startswith("3 rounds take about ")
    assert notes[2:] == [f"round {number}: missing: node 7: no answer in time" for number in (1, 2, 3)]
