"""Who is who in a federation: a certificate authority, the server's certificate, and a key for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from clusterfl.errors import ClusterflError

DAYS = 825  # what most verifiers accept of a server's certificate


def write_secret(path: Path, data: bytes) -> None:
    """A file that only its owner can read, from its first byte on; an existing one stays."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as f:
        f.write(data)


def make_authority(certificate: Path, key: Path, name: str) -> None:
    """A certificate authority of this federation's own."""
    _sign(certificate, key, f"clusterfl {name}", [], None)


def make_server(certificate: Path, key: Path, hosts: list[str], authority: tuple[Path, Path]) -> None:
    """The server's certificate, for the names and addresses that nodes reach it by."""
    _sign(certificate, key, hosts[0], hosts, authority)


def make_own(certificate: Path, key: Path) -> None:
    """A certificate that signs itself, for what a node says to its own processes on loopback."""
    _sign(certificate, key, "localhost", ["localhost", "127.0.0.1"], None)


def make_node_key(private: Path, public: Path) -> None:
    """A node's key pair, in OpenSSH's format: the node proves by it who it is."""
    serialization, ec = _cryptography()[:2]
    key = ec.generate_private_key(ec.SECP384R1())
    none = serialization.NoEncryption()
    write_secret(
        private, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, none) + b"\n"
    )
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*form) + b"\n")


def public_pem(public: Path) -> bytes:
    """A node's public key as the server is told it."""
    serialization = _cryptography()[0]
    try:
        key = serialization.load_ssh_public_key(public.read_bytes())
    except (OSError, ValueError) as e:
        raise ClusterflError(f"{public} should be the public key of a node, but: {e}") from None
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    found: bytes = key.public_bytes(*form)
    return found


def _sign(certificate: Path, key: Path, name: str, hosts: list[str], authority: tuple[Path, Path] | None) -> None:
    serialization, ec, x509, hashes = _cryptography()
    mine = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    issuer, signer = subject, mine
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority[0].read_bytes()).subject
        signer = serialization.load_pem_private_key(authority[1].read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    root = not hosts
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(mine.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=10 * 365 if root else DAYS))
        .add_extension(x509.BasicConstraints(ca=root or authority is None, path_length=0 if root else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(mine.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )
    if hosts:
        names = [_name(x509, host) for host in dict.fromkeys(hosts)]
        made = made.add_extension(x509.SubjectAlternativeName(names), False)
    signs = {"key_cert_sign": root or authority is None, "crl_sign": root}
    uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = {**dict.fromkeys((*uses, "encipher_only", "decipher_only"), False), "digital_signature": True, **signs}
    made = made.add_extension(x509.KeyUsage(**usage), True)
    signed = made.sign(signer, hashes.SHA256())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_secret(key, mine.private_bytes(*form))
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _name(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as e:
        raise ClusterflError("a federation should have Flower installed: pip install 'clusterfl[flower]'") from e
    return serialization, ec, x509, hashes
