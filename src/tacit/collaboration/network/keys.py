"""Certificates for a collaboration: an authority of one's own, a server, participants.

Enough for a test or for a few organisations that trust whoever runs this command; larger ones have an authority
already, and any certificates will do whose common name is the participant's name. What each may be used for is part of
it: a participant's certificate does not pass for a server's, nor the other way round. Masked uploads want more: the
authority is the first certificate in ca.pem and issues participants' certificates directly, for keys of an elliptic
curve and with client authentication among the extended key usages. Revoking is for the server to do: participants know
of no revoked certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,61}[A-Za-z0-9._-])?")
_DAYS = 825
_SKEW = datetime.timedelta(minutes=10)  # clocks differ


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The authority's certificate, and one's own with its key, in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path, name: str) -> Credentials:
        """The files that `make_keys` wrote for ``name``."""
        paths = {"authority": folder / "ca.pem", "certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"}
        for path in paths.values():
            if not path.is_file():
                raise ValueError(f"there is no {path}; make it with `tacit collaborate keys`.")
        return cls(**{part: path.read_bytes() for part, path in paths.items()})

    @property
    def name(self) -> str:
        """The common name: who one is."""
        return common_name(x509.load_pem_x509_certificate(self.certificate))


def check_name(name: str) -> str:
    """Return ``name`` if it can be a participant's: names end up in certificates, file names and pages."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is not a name; use at most 63 of the letters A-Z and a-z, digits, dots, dashes and "
            "underscores, with spaces between them."
        )
    return name


def common_name(certificate: x509.Certificate) -> str:
    """Return the one name that a certificate is for, exactly as it stands there.

    Whoever compares it compares every character: names that differ in case or are written in another way are the names
    of different participants. A second name, or a character that a name cannot have (NUL, a line break, a letter that
    looks like another one), is refused: what reads only the beginning of a name would take it for another's.
    """
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise ValueError(f"the certificate has {len(found)} common names; it must have one.")
    value = found[0].value
    if not isinstance(value, str):
        raise ValueError("the certificate's common name is not text.")
    return check_name(value)


@lru_cache(maxsize=1024)
def peer_name(certificate: bytes) -> str:
    """Return who the certificate (in PEM) of a connection's other end is for."""
    return common_name(x509.load_pem_x509_certificate(certificate))


def make_keys(folder: Path, *, servers: Sequence[str] = (), participants: Sequence[str] = ()) -> list[Path]:
    """Write ca.pem and ca.key, unless they are there, then NAME.pem and NAME.key for each name that has none.

    A server's name is the host name or address under which participants reach it; its files are called ``server``
    followed by the number, from the second on. Keys are readable by their owner alone.
    """
    for name in participants:
        check_name(name)
        if name == "ca" or name.startswith("server"):
            raise ValueError(f"{name!r} is the name of other files here; call the participant something else.")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    authority, authority_key = _authority(folder, written)
    for number, host in enumerate(servers, start=1):
        name = "server" if number == 1 else f"server{number}"
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        _leaf(folder, name, host, usage, authority, authority_key, written, hosts=[host, "localhost", "127.0.0.1"])
    for name in participants:
        _leaf(folder, name, name, ExtendedKeyUsageOID.CLIENT_AUTH, authority, authority_key, written)
    return written


def _authority(folder: Path, written: list[Path]) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = folder / "ca.pem", folder / "ca.key"
    if certificate_path.exists():
        if not key_path.exists():
            raise ValueError(f"{key_path} is missing; only whoever has it can make more certificates.")
        loaded = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path} is not a key that this command made; use another folder.")
        return x509.load_pem_x509_certificate(certificate_path.read_bytes()), loaded
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("Tacit collaboration")
    usage = x509.KeyUsage(**{**_NOTHING, "key_cert_sign": True, "crl_sign": True})
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    _write(folder, "ca", certificate, key, written)
    return certificate, key


def _leaf(
    folder: Path,
    name: str,
    subject: str,
    usage: x509.ObjectIdentifier,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    written: list[Path],
    *,
    hosts: Sequence[str] = (),
) -> None:
    if (folder / f"{name}.pem").exists():
        held = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()).subject
        if held != _subject(subject):
            raise ValueError(
                f"{folder / name}.pem is for {held.rfc4514_string()!r}, not {subject!r}; remove it or "
                "use another folder."
            )
        return
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(subject), authority.subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.KeyUsage(**{**_NOTHING, "digital_signature": True}), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)]), critical=False
        )
    _write(folder, name, builder.sign(authority_key, hashes.SHA256()), key, written)


_NOTHING = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, written: list[Path]
) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle = os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(private)
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    written += [folder / f"{name}.pem", folder / f"{name}.key"]
