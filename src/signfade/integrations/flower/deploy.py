"""`signfade deploy`: a run on real processes of this machine, from settings to summary."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from signfade import __version__
from signfade.experiments.folder import RunFolder
from signfade.experiments.planned_runs import check_startable, folder_name
from signfade.experiments.stopping import on_stop_signal
from signfade.experiments.toml import to_toml
from signfade.experiments.training import Interrupted, RunFailed
from signfade.integrations.flower.deployed import PID_FILE
from signfade.integrations.flower.exchange import Patience
from signfade.integrations.flower.layout import Start
from signfade.integrations.flower.loopback import Loopback
from signfade.integrations.flower.options import bounded
from signfade.integrations.flower.server_core import DeployedServer
from signfade.settings import RunSettings
from signfade.simulation.run import make_task

__all__ = ["deploy", "deploy_folder", "write_app"]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
_POLL = 0.3
_LAST_LINES = 5.0  # seconds to read the end of a run after its process has gone
_RESTARTS = 3  # of a SuperLink that ends by itself
_PACKAGE = "signfade_deployed"


def deploy_folder(settings: RunSettings) -> Path:
    """Return the folder of a deployment: beside that of the same run simulated."""
    return Path(settings.out) / f"{folder_name(settings.name)}-deploy"


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
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> dict[str, Any]:
    """Run on one SuperLink and `data.devices` SuperNodes, and return its summary.

    Everything is in the run folder, that of a simulated run and a folder `flower` with logs, certificates and
    keys. Whatever happens, every process that was started is stopped. A SuperLink that ends is started again.

    Args:
        settings: The run; with `cell.perfect` its links are Flower's own, otherwise bits also pass through
            the simulated radio. `defence.bound_scales` is on unless they say otherwise.
        folder: Its own folder.
        tls: Encrypt connections to the SuperLink.
        auth: Accept only SuperNodes that prove who they are; turns tls on.
        timeout: Seconds a round waits for its devices at most.
        quorum: Share of the devices asked whose replies are enough to close a round, in (0, 1].
        deadline: Seconds until which a round that has a quorum waits for the others; by default half as long
            again as the quorum took.
        resume: Whether a run that is there, unfinished, is continued.
        on_round: Called with the metrics of each round.
        on_note: Called with what a person should know, such as replies that were refused.

    Raises:
        FolderError: The folder holds something else.
        ValueError: Settings that cannot be deployed.
        RunFailed: The run did not reach its last round.
        Interrupted: SIGINT or SIGTERM; the rounds so far are saved.
    """
    note = on_note or (lambda text: None)
    if "checkpoint_every" not in settings.model_fields_set:  # rounds take seconds here, checkpoints do not
        settings = settings.model_copy(update={"checkpoint_every": 1})
    settings = bounded(settings)
    _check(settings, timeout)
    patience = Patience(timeout, quorum, deadline)
    run = RunFolder(folder)
    if check_startable(settings, folder, resume) == "finished":
        note(f"{folder} is already finished")
        return run.read_summary() or {}
    own = settings.model_copy(update={"variants": {}})
    run.create(run.config_text() if run.exists else to_toml(own))
    place = run.path / "flower"
    place.mkdir(exist_ok=True)
    (place / PID_FILE).unlink(missing_ok=True)
    stops: list[None] = []

    def proceed() -> None:
        if stops:
            raise Interrupted(f"stopped after round {len(run.read_metrics())} of {settings.rounds}")

    # Every signal is only noted: the processes must be stopped in peace.
    with on_stop_signal(lambda: stops.append(None)), RunFolder(place).claimed():
        app = write_app(place / "app", settings, run.path.absolute(), patience, keys=auth)
        note(f"starting a SuperLink and {settings.data.devices} SuperNodes; logs are in {place}")
        with Loopback(place, settings.data.devices, tls=tls or auth, auth=auth, proceed=proceed) as flower:
            progress = _Progress(run, on_round or (lambda record: None), note)
            _follow(flower, app, run, progress, proceed)
    summary = run.read_summary()
    if summary is None:
        why = run.failure() or f"the server ended before the last round; see {place / 'run.log'}"
        raise RunFailed(why)
    return summary


def _check(settings: RunSettings, timeout: float) -> None:
    """Raise at once what would otherwise fail in another process."""
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a positive number of seconds; got {timeout}")
    if settings.data.name in ("gaussian", "own"):
        raise ValueError(
            f"data.name must be digits, mnist, idx or regression here; got {settings.data.name!r}"
        )
    DeployedServer(settings, Start.of_task(make_task(settings)))


def write_app(
    folder: Path, settings: RunSettings, run: Path, patience: Patience, *, keys: bool = True
) -> Path:
    """Write the Flower app that is submitted: two imports, and the settings.

    Args:
        folder: Of the app.
        settings: All of the run.
        run: The run folder on the server's machine.
        patience: How long a round waits for its devices.
        keys: Whether SuperNodes have keys that they keep when they are started again.
    """
    code = folder / _PACKAGE
    code.mkdir(parents=True, exist_ok=True)
    (code / "__init__.py").write_text('"""A run of signfade on Flower."""\n')
    for kind in ("client", "server"):
        text = f"from signfade.integrations.flower.deployed import {kind}_app as app\n\n__all__ = ['app']\n"
        (code / f"{kind}_app.py").write_text(text)
    own = to_toml(settings.model_copy(update={"variants": {}}))
    (folder / "pyproject.toml").write_text(
        f"""[project]
name = "signfade-deployed"
version = "{__version__}"
description = "A run of signfade"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "signfade"

[tool.flwr.app.components]
serverapp = "{_PACKAGE}.server_app:app"
clientapp = "{_PACKAGE}.client_app:app"

[tool.flwr.app.config]
folder = {_string(str(run))}
timeout = {patience.timeout!r}
quorum = {patience.quorum!r}
deadline = {-1.0 if patience.deadline is None else patience.deadline!r}
remember-keys = {str(keys).lower()}
settings = {_string(own)}
"""
    )
    return folder


def _string(text: str) -> str:
    """Return a text as TOML; JSON's strings are TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _follow(
    flower: Loopback, app: Path, run: RunFolder, progress: _Progress, proceed: Callable[[], None]
) -> None:
    """Submit the run and report its progress until it ends."""
    stream = flower.submit(app)
    server_gone: float | None = None
    ended: set[int] = set()
    restarts = 0
    while not run.finished:
        proceed()
        progress.update()
        for k, node in enumerate(flower.nodes):
            if node.poll() is not None and k not in ended:
                ended.add(k)
                progress.note(f"the SuperNode of device {k} ended; see {flower.log(f'supernode-{k}')}")
        if flower.link_ended is not None and restarts < _RESTARTS:
            restarts += 1
            server_gone = None
            stream = _start_again(flower, app, run, progress)
        flower.check()
        if stream.poll() is not None or _has_ended(run.path / "flower" / PID_FILE):
            server_gone = server_gone or time.monotonic()
            if time.monotonic() - server_gone > _LAST_LINES:
                break
        time.sleep(_POLL)
    progress.update()


def _start_again(flower: Loopback, app: Path, run: RunFolder, progress: _Progress) -> subprocess.Popen[bytes]:
    """Start a SuperLink that has ended again, and the run from its newest checkpoint."""
    progress.note(f"the SuperLink ended with code {flower.link_ended}; it is started again")
    pid_file = run.path / "flower" / PID_FILE
    if pid_file.exists():  # the server lives only as long as its SuperLink, but may take a while to notice
        flower.end(int(pid_file.read_text()))
        pid_file.unlink()
    flower.start_link()
    return flower.submit(app)


def _has_ended(pid_file: Path) -> bool:
    """Tell whether the process that wrote its number there has ended; False if none has yet."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    except (FileNotFoundError, ValueError):
        return False
    return False


class _Progress:
    """Reports what the server writes to the run folder."""

    def __init__(self, run: RunFolder, on_round: OnRound, note: OnNote) -> None:
        self._run, self._on_round, self.note = run, on_round, note
        self._rounds = len(run.read_metrics())
        self._read = run.log_path.stat().st_size if run.log_path.exists() else 0

    def update(self) -> None:
        """Report what is new."""
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
                self.note(text)
