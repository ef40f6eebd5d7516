"""A certificate and keys for a deployment on one machine, made on the fly."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

__all__ = ["Certificate", "NodeKey", "make_certificate", "make_node_key", "private_folder"]

_VALID = datetime.timedelta(days=30)


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
