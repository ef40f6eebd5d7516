"""Certificates and keys for a deployment on one machine, made on the fly."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Certificates", "NodeKey", "make_certificates", "make_node_key", "private_folder"]

_VALID = datetime.timedelta(days=30)
_HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates(NamedTuple):
    """Files of the authority's certificate, the server's certificate and the server's key, PEM."""

    authority: Path
    certificate: Path
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


def make_certificates(folder: Path, hosts: Sequence[str] = _HOSTS) -> Certificates:
    """Make an authority and a server's certificate signed by it, valid for 30 days.

    The authority's own key is not kept: nobody can sign anything with it later.

    Args:
        folder: Where the files go, for its owner only.
        hosts: Names and addresses under which the server is reached.
    """
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _name("signfade deployment authority")
    root = (
        _certificate(authority, authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    leaf = (
        _certificate(_name(hosts[0]), authority, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    private_folder(folder)
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    files.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    _write_secret(files.key, _private(key, serialization.PrivateFormat.PKCS8))
    return files


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make the key pair by which a SuperNode proves who it is: NIST P-384, OpenSSH format.

    A pair that is there is kept: it is who the node is, in a run that is continued as in a new one.

    Args:
        folder: Where the files go, for its owner only.
        name: Of the private key's file; the public one has `.pub` added.
    """
    private_folder(folder)
    files = NodeKey(folder / name, folder / f"{name}.pub")
    if files.private.exists() and files.public.exists():
        return files
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(files.private, _private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files.public.write_bytes(public + b"\n")
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """What a key is for: to sign certificates, or to prove who a server is."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALID)
    )


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_secret(path: Path, data: bytes) -> None:
    """Write a file that nobody else may read, from its first byte."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
