"""A SuperLink and its SuperNodes on this machine, with their certificate and keys, stopped when we leave."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from signfade.integrations.flower.children import Children
from signfade.simulation.run import RunFailed

__all__ = ["Certificate", "Loopback", "NodeKey", "make_certificate", "make_node_key", "quiet_environment"]

_HOST = "127.0.0.1"
_START = 180.0  # seconds a busy machine may need to start a SuperLink
_POLL = 0.2
_VALID = datetime.timedelta(days=30)
_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
Command = list[str | Path]


class Certificate(NamedTuple):
    """Files of the SuperLink's certificate, which is its own authority, and of its key, PEM."""

    public: Path
    key: Path


class NodeKey(NamedTuple):
    """Files of a node's private and public key, as ssh-keygen writes them."""

    private: Path
    public: Path


def private_folder(folder: Path) -> Path:
    """Make a folder that nobody but its owner may enter, or make it so if it is there; return it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate of this machine, valid for 30 days; its key can sign no other certificate."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .sign(key, hashes.SHA384())
    )
    private_folder(folder)
    files = Certificate(folder / "ca.crt", folder / "server.key")
    files.public.write_bytes(signed.public_bytes(Encoding.PEM))
    _write_private(files.key, key, PrivateFormat.PKCS8)
    return files


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make the key pair by which a SuperNode proves who it is: NIST P-384, OpenSSH format.

    A pair that is there is kept: it is who the node is, in a run that is continued as in a new one.
    """
    private_folder(folder)
    files = NodeKey(folder / name, folder / f"{name}.pub")
    if files.private.exists() and files.public.exists():
        return files
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(files.private, key, PrivateFormat.OpenSSH)
    files.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return files


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    """Write a key that nobody else may read, from its first byte."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def quiet_environment(home: Path) -> dict[str, str]:
    """Keep Flower from reporting home, checking for updates, installing packages and using `~/.flwr`."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": _PATH,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


class Loopback:
    """A deployment of Flower on the loopback interface; use as a context.

    The SuperLink keeps its state in a database, so that it can end and be started again: it then still knows
    its SuperNodes, which end if they are not known. SuperNode k gets `partition-id=k`.

    Args:
        folder: Where logs, certificates, keys and Flower's own files go.
        devices: Number of SuperNodes.
        tls: Whether connections to the SuperLink are encrypted, by a certificate made on the fly.
        auth: Whether SuperNodes must prove who they are, by keys made on the fly; needs tls.
        proceed: Called while waiting; raises to give up.
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
        self._home, self._state = self.folder / "home", self.folder / "state"
        self._devices, self._tls, self._auth, self._proceed = devices, tls, auth, proceed
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.certificate: Certificate | None = None
        self.children = Children(quiet_environment(self._home))
        self._link: subprocess.Popen[bytes] | None = None
        self._keys: dict[int, NodeKey] = {}
        port, *self._node_ports = free_ports(1 + devices)
        self.address = f"{_HOST}:{port}"

    def __enter__(self) -> Loopback:
        try:
            self._prepare()
            self.start_link()
            if self._auth:
                self._register_keys()
            self.nodes = [self.start_node(k) for k in range(self._devices)]
        except BaseException:
            self.children.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.children.stop()

    @property
    def node_address(self) -> str:
        """Where SuperNodes find the SuperLink."""
        return self.address

    def _prepare(self) -> None:
        for folder in (self._home, self._state):
            shutil.rmtree(folder, ignore_errors=True)
            private_folder(folder)
        security = "insecure = true"
        if self._tls:
            self.certificate = make_certificate(self.folder / "certificates")
            # a literal string: paths may hold what TOML would take for an escape
            security = f"root-certificates = '{self.certificate.public}'"
        connection = f'[superlink.loopback]\naddress = "{self.address}"\n{security}\n'
        (self._home / "config.toml").write_text(f'[superlink]\ndefault = "loopback"\n\n{connection}')

    def start_link(self) -> None:
        """Start the SuperLink; after a restart SuperNodes connect by themselves, and runs are over."""
        host, port = self.address.split(":")
        command: Command = ["flower-superlink", "--host", host, "--port", port]
        command += ["--disable-runtime-dependency-installation", "--database", self._state / "superlink.db"]
        if self.certificate is None:
            command.append("--insecure")
        else:
            public, key = self.certificate
            command += ["--ssl-ca-certfile", public, "--ssl-certfile", public, "--ssl-keyfile", key]
        if self._auth:
            command.append("--enable-supernode-auth")
        self._link = self._started(command, "superlink")
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

    def _register_keys(self) -> None:
        """Make a key for each device, and tell the SuperLink to accept it."""
        self._keys = {k: make_node_key(self.folder / "keys", f"node-{k}") for k in range(self._devices)}
        register: Command = ["flwr", "supernode", "register"]
        commands = [[*register, key.public, "loopback"] for key in self._keys.values()]
        for process in [self._started(command, "register") for command in commands]:
            while process.poll() is None:
                self.check()
                time.sleep(_POLL)
            if process.returncode != 0:
                raise RunFailed(f"a SuperNode could not be registered; see {self.log('register')}")

    def start_node(self, device: int, key: NodeKey | None = None) -> subprocess.Popen[bytes]:
        """Start the SuperNode of a device, again if it has ended; it proves who it is by its own key."""
        port = self._node_ports[device] if device < self._devices else free_ports(1)[0]
        key = key or self._keys.get(device)
        command: Command = ["flower-supernode", "--superlink", self.node_address, "--port", str(port)]
        command += ["--node-config", f"partition-id={device}"]
        if self.certificate is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", self.certificate.public]
        if key is not None:
            command += ["--auth-supernode-private-key", key.private]
        return self._started(command, f"supernode-{device}")

    def submit(self, app: Path) -> subprocess.Popen[bytes]:
        """Submit a Flower app; the process that is returned logs the run and ends with it."""
        return self._started(["flwr", "run", app, "loopback", "--stream"], "run")

    def check(self) -> None:
        """Raise if the SuperLink has ended, or if `proceed` does."""
        self._proceed()
        if (code := self.link_ended) is not None:
            raise RunFailed(f"the SuperLink ended with code {code}; see {self.log('superlink')}")

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def _started(self, command: Command, name: str) -> subprocess.Popen[bytes]:
        return self.children.start(self._found(command), self.log(name))

    def _found(self, command: Command) -> Command:
        """Return the command with the program of our own environment."""
        program, *rest = command
        found = shutil.which(str(program), path=_PATH)
        if found is None:
            raise ValueError(
                f"the program {program} is not there; in the checkout: pip install -e '.[flower]'"
            )
        return [found, *rest]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as trying:
        trying.settimeout(1)
        return trying.connect_ex((host, port)) == 0
