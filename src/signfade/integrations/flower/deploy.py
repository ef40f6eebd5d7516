"""`signfade deploy`: a run on real processes of this machine, from settings to summary."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from signfade.experiments.folder import RunFolder
from signfade.experiments.toml import to_toml
from signfade.experiments.planned_runs import check_startable, folder_name
from signfade.experiments.training import Interrupted, RunFailed
from signfade.integrations.flower.app import write_app
from signfade.integrations.flower.exchange import Patience
from signfade.integrations.flower.loopback import Loopback
from signfade.integrations.flower.options import bounded
from signfade.settings import RunSettings

__all__ = ["deploy", "deploy_folder"]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
_POLL = 0.3
_LAST_WORDS = 5.0  # seconds for the run's end to be told after its process has gone
_RESTARTS = 3  # of a SuperLink that ends by itself


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
    """Play a run on one SuperLink and `data.devices` SuperNodes, and return its summary.

    Everything is in the run folder, that of a simulated run and a folder `flower` with logs, certificates and
    keys. Whatever happens, every process that was started is stopped. A SuperLink that ends is started again.

    Args:
        settings: The run; with `cell.perfect` its links are Flower's own, otherwise bits also pass through
            the simulated radio. `defence.bound_scales` is on unless they say otherwise.
        folder: Its own folder.
        tls: Encrypt connections to the SuperLink.
        auth: Accept SuperNodes that prove who they are only; turns tls on.
        timeout: Seconds a round waits for its devices at most.
        quorum: Share of the devices asked whose replies are enough to close a round, in (0, 1].
        deadline: Seconds until which a round that has a quorum waits for the others; by default half as long
            again as the quorum took.
        resume: Whether a run that is there, unfinished, is continued.
        on_round: Told the metrics of each round.
        on_note: Told what a person should know, such as replies that were refused.

    Raises:
        FolderError: The folder holds something else.
        ValueError: Settings that cannot be deployed.
        RunFailed: The run has not come to its end.
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
    run.create(run.config_text() if run.config_path.exists() else to_toml(own))
    place = run.path / "flower"
    place.mkdir(exist_ok=True)
    (place / "server.pid").unlink(missing_ok=True)
    with _interruptible(run, settings.rounds) as proceed, RunFolder(place).claimed():
        app = write_app(place / "app", settings, run.path.absolute(), patience, keys=auth)
        note(f"starting a SuperLink and {settings.data.devices} SuperNodes; logs are in {place}")
        with Loopback(place, settings.data.devices, tls=tls or auth, auth=auth, proceed=proceed) as flower:
            teller = _Teller(run, on_round or (lambda record: None), note)
            _follow(flower, app, run, teller, proceed)
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
    from signfade.integrations.flower.layout import Start
    from signfade.integrations.flower.server_core import BaseStation
    from signfade.simulation.tasks import make_task

    BaseStation(settings, Start.of_task(make_task(settings)))


def _follow(
    flower: Loopback, app: Path, run: RunFolder, teller: _Teller, proceed: Callable[[], None]
) -> None:
    """Submit the run and wait for its end, telling what happens."""
    stream = flower.submit(app)
    server_gone: float | None = None
    ended: set[int] = set()
    restarts = 0
    while not run.finished:
        proceed()
        teller.look()
        for k, node in enumerate(flower.nodes):
            if node.poll() is not None and k not in ended:
                ended.add(k)
                teller.note(f"the SuperNode of device {k} ended; see {flower.log(f'supernode-{k}')}")
        if flower.link_ended is not None and restarts < _RESTARTS:
            restarts += 1
            server_gone = None
            stream = _start_again(flower, app, run, teller)
        flower.check()
        if stream.poll() is not None or _has_ended(run.path / "flower" / "server.pid"):
            server_gone = server_gone or time.monotonic()
            if time.monotonic() - server_gone > _LAST_WORDS:
                break
        time.sleep(_POLL)
    teller.look()


def _start_again(flower: Loopback, app: Path, run: RunFolder, teller: _Teller) -> subprocess.Popen[bytes]:
    """Start a SuperLink that has ended again, and the run from its newest checkpoint."""
    teller.note(f"the SuperLink ended with code {flower.link_ended}; it is started again")
    pid_file = run.path / "flower" / "server.pid"
    if pid_file.exists():  # the server lives only as long as its SuperLink, but may take a while to notice
        flower.end(int(pid_file.read_text()))
        pid_file.unlink()
    flower.restart_link()
    return flower.submit(app)


def _has_ended(pid_file: Path) -> bool:
    """Whether the process that wrote its number there is no more; not if none has yet."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    except (FileNotFoundError, ValueError):
        return False
    return False


class _Teller:
    """Reads what the server writes to the run folder, and tells it on."""

    def __init__(self, run: RunFolder, on_round: OnRound, note: OnNote) -> None:
        self._run, self._on_round, self.note = run, on_round, note
        self._rounds = len(run.read_metrics())
        self._read = run.log_path.stat().st_size if run.log_path.exists() else 0

    def look(self) -> None:
        """Tell what is new."""
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


@contextmanager
def _interruptible(run: RunFolder, rounds: int) -> Iterator[Callable[[], None]]:
    """Catch SIGINT and SIGTERM meanwhile; what is yielded raises `Interrupted` once one came."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    def proceed() -> None:
        if asked:
            raise Interrupted(f"stopped after round {len(run.read_metrics())} of {rounds}")

    if threading.current_thread() is not threading.main_thread():
        yield proceed
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield proceed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
