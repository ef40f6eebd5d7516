"""Certificates that TLS accepts for this machine and for nobody else; keys that Flower can load."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from signfade.integrations.flower.loopback import Certificate, make_certificate, make_node_key


def handshake(files: Certificate, name: str, trusted: Path) -> None:
    """Let a client that trusts an authority connect to a server under a name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.public, files.key)
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does by default from 3.13 on
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"hello")
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            assert connection.recv(5) == b"hello"
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_connects(name: str, tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    handshake(files, name, trusted=files.public)


def test_other_names_and_other_authorities_are_refused(tmp_path: Path) -> None:
    files, others = make_certificate(tmp_path / "a"), make_certificate(tmp_path / "b")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'example\.org'"):
        handshake(files, "example.org", trusted=files.public)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost", trusted=others.public)


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)  # also where it was there before
    files = [make_certificate(tmp_path / "tls").key, make_node_key(tmp_path / "keys", "node").private]
    for path in files:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700


def test_a_node_keeps_its_key(tmp_path: Path) -> None:
    first = make_node_key(tmp_path, "node").public.read_bytes()
    assert make_node_key(tmp_path, "node").public.read_bytes() == first


def test_a_nodes_keys_belong_together_and_to_nobody_else(tmp_path: Path) -> None:
    one, two = make_node_key(tmp_path, "one"), make_node_key(tmp_path, "two")
    private = load_ssh_private_key(one.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert load_ssh_public_key(one.public.read_bytes()) == private.public_key()
    assert load_ssh_public_key(two.public.read_bytes()) != private.public_key()
