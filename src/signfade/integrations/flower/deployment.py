"""`signfade deploy`: a run on real processes of this machine, from settings to summary."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from signfade import __version__
from signfade.experiments.files import folder_name, move_aside
from signfade.experiments.folder import RunFolder
from signfade.experiments.stopping import Interrupted, on_stop_signal
from signfade.experiments.toml import to_toml
from signfade.experiments.training import check_options, check_startable, open_run
from signfade.integrations.flower.exchange import Patience
from signfade.integrations.flower.loopback import Loopback
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.server_core import DeployedServer, with_bounds
from signfade.kernels.threads import available_threads
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment, RunFailed, make_task

__all__ = ["deploy", "deploy_folder", "deployed_settings", "write_app"]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
_POLL = 0.3
_LAST_LINES = 5.0  # seconds to read the end of a run after its process has gone
_ROUNDS = 10  # unless the settings say it
_PROCESS = 6.5  # seconds of a core: Flower starts a process for every message, which imports Flower and torch
_WAITING = 4.0  # seconds of a round in which nobody computes: Flower's processes ask each other for news
_RESTARTS = 3  # of a SuperLink that ends by itself
_PACKAGE = "signfade_deployed"
_PROJECT = """[project]
name = "signfade-deployed"
version = "{version}"
description = "A run of signfade"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "signfade"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
"""


def deploy_folder(settings: RunSettings) -> Path:
    """Return the folder of a deployment: beside that of the same run simulated."""
    return Path(settings.out) / f"{folder_name(settings.name)}-deploy"


def deployed_settings(settings: RunSettings) -> RunSettings:
    """Return the settings with what is sensible for real processes where they do not say it.

    A round takes many seconds here, so there are 10 and each has a checkpoint; scales are bounded.

    Example:
        >>> from signfade.experiments.config import load
        >>> deployed_settings(load(None)).rounds, deployed_settings(load(None, ["rounds=3"])).rounds
        (10, 3)
    """
    defaults = {"rounds": _ROUNDS, "checkpoint_every": 1}
    unsaid = {key: value for key, value in defaults.items() if key not in settings.model_fields_set}
    return with_bounds(settings.model_copy(update=unsaid))


def _estimate(devices: int, rounds: int, load: float = 0.0) -> str:
    """Say about how long the rounds will take, from what each device's process has to load.

    `load` is the number of processes that want to compute now, this one among them: the others go on.
    """
    cores, others = available_threads(), max(0.0, load - 1)
    each = max(1.0, (devices + others) / cores) * _PROCESS + _WAITING
    total = rounds * each
    words = f"{total / 60:.0f} min" if total >= 90 else f"{total:.0f} s"
    length = f"{rounds} rounds take about {words}: {each:.0f} s each"
    if rounds == 1:
        length = f"one round takes about {words}"
    busy = f", beside {others:.0f} others that keep this machine busy" if others > cores else ""
    return f"{length}, most of it to start {devices} Python processes{busy}"


def deploy(
    settings: RunSettings,
    folder: Path,
    *,
    tls: bool = False,
    auth: bool = False,
    timeout: float = 120.0,
    quorum: float = 1.0,
    deadline: float | None = None,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> dict[str, Any]:
    """Run on one SuperLink and `data.devices` SuperNodes, and return its summary.

    Everything is in the run folder, that of a simulated run and a folder `flower` with logs, certificates and
    keys. Whatever happens, every process that was started is stopped. A SuperLink that ends is started again.

    Args:
        settings: The run, completed by `deployed_settings`.
        folder: Its own folder.
        tls: Encrypt connections to the SuperLink.
        auth: Accept only SuperNodes that prove who they are; turns tls on.
        timeout: Seconds a round waits for its devices at most; `quorum` and `deadline` as in `Patience`.
        resume: Continue a run that is there, unfinished or of fewer rounds.
        force: Move a run that is there aside.
        on_round: Called with the metrics of each round.
        on_note: Called with what a person should know, such as replies that were refused.

    Raises:
        FolderError: The folder holds something else.
        ValueError: Settings that cannot be deployed.
        RunFailed: The run did not reach its last round.
        Interrupted: SIGINT or SIGTERM; the rounds so far are saved.
    """
    note = on_note or (lambda text: None)
    settings = deployed_settings(settings)
    _check(settings, timeout)
    patience = Patience(timeout, quorum, deadline)
    run = RunFolder(folder)
    check_options(resume, force)
    if force and (aside := move_aside(folder)) is not None:
        note(f"the run in {folder} is now in {aside}")
    if check_startable(settings, folder, resume) == "finished":
        note(f"{folder} is already finished")
        return run.read_summary() or {}
    open_run(settings, run)
    place = run.path / "flower"
    place.mkdir(exist_ok=True)
    stops: list[None] = []

    def proceed() -> None:
        if stops:
            raise Interrupted(f"stopped after round {len(run.read_metrics())} of {settings.rounds}")

    # Signals are only noted, so that every process can be stopped in order.
    with on_stop_signal(lambda: stops.append(None)), RunFolder(place).claimed():
        app = write_app(place / "app", settings, run.path.absolute(), patience, keys=auth)
        note(f"starting a SuperLink and {settings.data.devices} SuperNodes; logs are in {place}")
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        note(_estimate(settings.data.devices, settings.rounds - len(run.read_metrics()), load))
        with Loopback(place, settings.data.devices, tls=tls or auth, auth=auth, proceed=proceed) as flower:
            _Followed(flower, app, run, on_round or (lambda record: None), note).run_to_end()
    summary = run.read_summary()
    if summary is None:
        raise RunFailed(run.failure() or f"the server ended before the last round; see {place / 'run.log'}")
    return summary


def _check(settings: RunSettings, timeout: float) -> None:
    """Raise at once what would otherwise fail in another process, and compile what all of them need.

    On a new machine every device would otherwise compile the kernels in its first round, all at once and
    for longer than a round may last.
    """
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a positive number of seconds; got {timeout}")
    if settings.data.name in ("gaussian", "own"):
        raise ValueError(
            f"data.name must be a set with samples here, or regression; got {settings.data.name!r}"
        )
    task = make_task(settings)
    DeployedServer(settings, Start.of_task(task))
    Experiment(settings, task).advance()


def _toml(settings: RunSettings) -> str:
    return to_toml(settings.model_copy(update={"variants": {}}))


def _pid_file(run: Path) -> Path:
    return run / "flower" / "server.pid"


def write_app(
    folder: Path, settings: RunSettings, run: Path, patience: Patience, *, keys: bool = True
) -> Path:
    """Write the Flower app that is submitted, two imports and the settings, and return its folder.

    `run` is the run folder on the server's machine; `keys` says whether SuperNodes keep their keys when they
    are started again.
    """
    code = folder / _PACKAGE
    code.mkdir(parents=True, exist_ok=True)
    (code / "__init__.py").write_text('"""A run of signfade on Flower."""\n')
    for kind in ("client", "server"):
        text = f"from signfade.integrations.flower.deployed import {kind}_app as app\n\n__all__ = ['app']\n"
        (code / f"{kind}_app.py").write_text(text)
    config = {
        "folder": str(run),
        "pid-file": str(_pid_file(run)),
        "timeout": patience.timeout,
        "quorum": patience.quorum,
        "deadline": -1.0 if patience.deadline is None else patience.deadline,
        "remember-keys": keys,
        "settings": _toml(settings),
    }
    project = _PROJECT.format(version=__version__, package=_PACKAGE)
    # JSON's strings, numbers and booleans are TOML's.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in config.items()]
    (folder / "pyproject.toml").write_text(project + "".join(lines))
    return folder


class _Followed:
    """A run that is submitted to a deployment and followed by what its server writes to the run folder."""

    def __init__(self, flower: Loopback, app: Path, run: RunFolder, on_round: OnRound, note: OnNote) -> None:
        self._flower, self._app, self._run = flower, app, run
        self._on_round, self._note = on_round, note
        self._pid_file = _pid_file(run.path)
        self._rounds = len(run.read_metrics())
        self._read = run.log_path.stat().st_size if run.log_path.exists() else 0

    def run_to_end(self) -> None:
        """Submit the run and report its progress until it ends."""
        flower, restarts = self._flower, 0
        ended: set[int] = set()
        server_gone: float | None = None
        self._pid_file.unlink(missing_ok=True)
        stream = flower.submit(self._app)
        while not self._run.finished:
            self._report()
            for k, node in enumerate(flower.nodes):
                if node.poll() is not None and k not in ended:
                    ended.add(k)
                    self._note(f"the SuperNode of device {k} ended; see {flower.log(f'supernode-{k}')}")
            if flower.link_ended is not None and restarts < _RESTARTS:
                restarts += 1
                server_gone = None
                self._restart_link()
                stream = flower.submit(self._app)
            flower.check()
            if stream.poll() is not None or self._server_ended():
                server_gone = server_gone or time.monotonic()
                if time.monotonic() - server_gone > _LAST_LINES:
                    break
            time.sleep(_POLL)
        self._report()

    def _restart_link(self) -> None:
        self._note(f"the SuperLink ended with code {self._flower.link_ended}; it is started again")
        if self._pid_file.exists():  # the server lives only as long as its SuperLink, but may notice late
            self._flower.children.kill(int(self._pid_file.read_text()))
            self._pid_file.unlink()
        self._flower.start_link()

    def _server_ended(self) -> bool:
        """Tell whether the server has ended; False if it has not started yet."""
        try:
            os.kill(int(self._pid_file.read_text()), 0)
        except ProcessLookupError:
            return True
        except (FileNotFoundError, ValueError):
            pass
        return False

    def _report(self) -> None:
        """Report new rounds, and new lines of the log."""
        records = self._run.read_metrics()
        self._rounds = min(self._rounds, len(records))  # a resumed run first goes back to its checkpoint
        for record in records[self._rounds :]:
            self._on_round(record)
        self._rounds = len(records)
        if not self._run.log_path.exists():
            return
        with open(self._run.log_path, "rb") as file:
            file.seek(self._read)
            *lines, torn = file.read().split(b"\n")
            self._read = file.tell() - len(torn)
        for line in lines:
            text = line.decode(errors="replace")[20:]  # after the time
            if text != "finished" and not text.endswith("going on"):
                self._note(text)
