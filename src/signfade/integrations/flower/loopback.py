"""A SuperLink and its SuperNodes on this machine, from the installed Flower, stopped when we leave."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from signfade.experiments.training import RunFailed
from signfade.integrations.flower.certificates import (
    Certificates,
    NodeKey,
    make_certificates,
    make_node_key,
    private_folder,
)
from signfade.integrations.flower.children import Children

__all__ = ["Loopback", "free_ports"]

_HOST = "127.0.0.1"
_START = 180.0  # seconds a busy machine may need to start a SuperLink
_POLL = 0.2


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now.

    Example:
        >>> len(set(free_ports(3)))
        3
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((_HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def quiet_environment(home: Path) -> dict[str, str]:
    """Keep Flower from reporting home, checking for updates, installing packages and using `~/.flwr`."""
    environment = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    return environment | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


class Loopback:
    """A deployment of Flower on the loopback interface; use as a context.

    The SuperLink keeps its state in a database, so that it can end and be started again: it then still knows
    its SuperNodes, which end if they are not known.

    Args:
        folder: Where logs, certificates, keys and Flower's own files go.
        devices: Number of SuperNodes; node k gets `partition-id=k`.
        tls: Whether connections to the SuperLink are encrypted, by certificates made on the fly.
        auth: Whether SuperNodes must prove who they are, by keys made on the fly; needs tls.
        proceed: Called while waiting; raises to give up.

    Attributes:
        nodes: The SuperNodes' processes.
        certificates: Files; None without tls.
        address: Of the SuperLink.
    """

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        tls: bool = False,
        auth: bool = False,
        proceed: Callable[[], None] = lambda: None,
    ) -> None:
        if auth and not tls:
            raise ValueError(
                "auth needs tls: Flower authenticates SuperNodes over encrypted connections only"
            )
        self.folder = folder.absolute()
        self.home = self.folder / "home"
        self._state = self.folder / "state"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.certificates: Certificates | None = None
        self._devices, self._tls, self._auth, self._proceed = devices, tls, auth, proceed
        self._children = Children(quiet_environment(self.home))
        self._link: subprocess.Popen[bytes] | None = None
        self._keys: list[NodeKey] = []
        port, *self._node_ports = free_ports(1 + devices)
        self.address = f"{_HOST}:{port}"

    def __enter__(self) -> Loopback:
        try:
            self._prepare()
            self.start_link()
            if self._auth:
                names = [f"node-{k}" for k in range(self._devices)]
                self._keys = [make_node_key(self.folder / "keys", name) for name in names]
                self._register(self._keys)
            self.nodes = [self.start_node(k) for k in range(self._devices)]
        except BaseException:
            self._children.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._children.stop()

    @property
    def node_address(self) -> str:
        """Where SuperNodes find the SuperLink."""
        return self.address

    @property
    def mark(self) -> str:
        """What all processes of the deployment carry in their environment."""
        return self._children.mark

    def _prepare(self) -> None:
        for folder in (self.home, self._state):
            shutil.rmtree(folder, ignore_errors=True)
            private_folder(folder)
        connection = f'address = "{self.address}"\ninsecure = true\n'
        if self._tls:
            self.certificates = make_certificates(self.folder / "certificates")
            # a literal string: paths may hold what TOML would take for an escape
            connection = (
                f"address = \"{self.address}\"\nroot-certificates = '{self.certificates.authority}'\n"
            )
        config = f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n{connection}'
        (self.home / "config.toml").write_text(config)

    def start_link(self) -> None:
        """Start the SuperLink; after a restart SuperNodes connect by themselves, and runs are over."""
        host, port = self.address.split(":")
        command: list[str | Path] = ["flower-superlink", "--host", host, "--port", port]
        command += ["--disable-runtime-dependency-installation", "--database", self._state / "superlink.db"]
        if self.certificates is None:
            command.append("--insecure")
        else:
            ca, certificate, key = self.certificates
            command += ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        if self._auth:
            command.append("--enable-supernode-auth")
        self._link = self._children.start(self._found(command), self.log("superlink"))
        end = time.monotonic() + _START
        while not _listens(host, int(port)):
            self.check()
            if time.monotonic() > end:
                raise RunFailed(f"the SuperLink did not start in {_START:g} s; see {self.log('superlink')}")
            time.sleep(_POLL)

    @property
    def link_ended(self) -> int | None:
        """The code with which the SuperLink ended; None while it runs."""
        return None if self._link is None else self._link.poll()

    def end(self, process: int) -> None:
        """End a process of the deployment, if it is one."""
        self._children.end(process)

    def _register(self, keys: list[NodeKey]) -> None:
        """Tell the SuperLink whose proofs to accept."""
        log = self.log("register")
        commands = [self._found(["flwr", "supernode", "register", key.public, "loopback"]) for key in keys]
        for process in [self._children.start(command, log) for command in commands]:
            while process.poll() is None:
                self.check()
                time.sleep(_POLL)
            if process.returncode != 0:
                raise RunFailed(f"a SuperNode could not be registered; see {log}")

    def start_node(self, device: int, key: NodeKey | None = None) -> subprocess.Popen[bytes]:
        """Start the SuperNode of a device; again, if it has ended.

        Args:
            device: Its number.
            key: By which it proves who it is; its own by default, if it has one.
        """
        port = self._node_ports[device] if device < len(self._node_ports) else free_ports(1)[0]
        if key is None and device < len(self._keys):
            key = self._keys[device]
        command: list[str | Path] = [
            "flower-supernode",
            "--superlink",
            self.node_address,
            "--port",
            str(port),
        ]
        command += ["--node-config", f"partition-id={device}"]
        if self.certificates is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", self.certificates.authority]
        if key is not None:
            command += ["--auth-supernode-private-key", key.private]
        return self._children.start(self._found(command), self.log(f"supernode-{device}"))

    def submit(self, app: Path) -> subprocess.Popen[bytes]:
        """Submit a Flower app; the process that is returned logs the run and ends with it."""
        command = self._found(["flwr", "run", app, "loopback", "--stream"])
        return self._children.start(command, self.log("run"))

    def check(self) -> None:
        """Raise if the SuperLink has ended, or whoever uses this wants to."""
        self._proceed()
        if (code := self.link_ended) is not None:
            raise RunFailed(f"the SuperLink ended with code {code}; see {self.log('superlink')}")

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def _found(self, command: list[str | Path]) -> list[str | Path]:
        """Return the command with the program of our own environment."""
        program, *rest = command
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        found = shutil.which(str(program), path=path)
        if found is None:
            raise ValueError(f"the program {program} is not there; install signfade[flower]")
        return [found, *rest]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as trying:
        trying.settimeout(1)
        return trying.connect_ex((host, port)) == 0
