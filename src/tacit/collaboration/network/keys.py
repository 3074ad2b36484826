"""Certificates for a collaboration: an authority of one's own, a server, participants; and new ones for old.

Enough for a test or for a few organisations that trust the one that runs this command; larger ones have an authority
already, and its certificates will do (docs/collaboration.md says what they need). What each may be used for is part of
it: a participant's certificate does not pass for a server's, nor the other way round. Masked uploads want more: the
authority is the first certificate in ca.pem and issues participants' certificates directly, for keys of an elliptic
curve and with client authentication among the extended key usages. Revoking is for the server to do: participants know
of no revoked certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.collaboration.network.certificates import check_name, common_name, expiry, serial_text

_DAYS, _AUTHORITY_DAYS = 825, 3650
_SKEW = datetime.timedelta(minutes=10)  # clocks differ


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The authority's certificate, and one's own with its key, in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path, name: str) -> Credentials:
        """Return the files that `make_keys` wrote for ``name``."""
        paths = {"authority": folder / "ca.pem", "certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"}
        for path in paths.values():
            if not path.is_file():
                raise ValueError(f"there is no {path}; make it with `tacit collaborate keys`.")
        return cls(**{part: path.read_bytes() for part, path in paths.items()})

    @property
    def name(self) -> str:
        """Return the common name: who one is."""
        return common_name(x509.load_pem_x509_certificate(self.certificate))

    def warnings(self) -> list[str]:
        """Return a sentence for each certificate that expires soon; one that has expired is refused."""
        own = x509.load_pem_x509_certificate(self.certificate).subject.rfc4514_string()
        again = "have a new one made (tacit collaborate keys --renew NAME) and put it in the place of this one"
        return [
            *expiry(f"the certificate of {own}", self.certificate, remedy=again),
            *expiry("the authority's certificate", self.authority, remedy="agree on a new authority with all others"),
        ]


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


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """A name, the serial number of its new certificate, that of the one before, and where the old files are now."""

    name: str
    serial: str
    before: str
    kept: Path


def renew(folder: Path, name: str) -> Renewed:
    """Make another key and certificate for ``name`` (``server`` for the server's), for the same subject and use.

    The old files stay, as NAME.SERIAL.pem and NAME.SERIAL.key. The old certificate is good until it expires or its
    serial number is revoked; the new one is the same participant's, so its folder, ledger and budget go on.
    """
    path = folder / f"{name}.pem"
    if not path.exists() or name == "ca":
        raise ValueError(f"there is no participant or server {name!r} in {folder}; make it with `keys --participant`.")
    old = x509.load_pem_x509_certificate(path.read_bytes())
    authority, authority_key = _authority(folder, [])
    if old.issuer != authority.subject:
        raise ValueError(f"{path} is of another authority than {folder / 'ca.pem'}; ask that one for another.")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(old.subject, authority.subject, key.public_key())
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    before = serial_text(old.serial_number)
    kept = folder / f"{name}.{before}.pem"
    path.rename(kept)
    if (folder / f"{name}.key").exists():
        (folder / f"{name}.key").rename(folder / f"{name}.{before}.key")
    made = builder.sign(authority_key, hashes.SHA256())
    _write(folder, name, made, key, [])
    return Renewed(name=name, serial=serial_text(made.serial_number), before=before, kept=kept)


def _authority(folder: Path, written: list[Path]) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = folder / "ca.pem", folder / "ca.key"
    if certificate_path.exists():
        if not key_path.exists():
            raise ValueError(
                f"{key_path} is missing; give the folder of the authority, which alone can make more certificates."
            )
        loaded = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path} is not a key that this command made; use another folder.")
        return x509.load_pem_x509_certificate(certificate_path.read_bytes()), loaded
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("Tacit collaboration")
    usage = x509.KeyUsage(**{**_NOTHING, "key_cert_sign": True, "crl_sign": True})
    builder = _builder(name, name, key.public_key(), days=_AUTHORITY_DAYS)
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
            other = held.rfc4514_string().removeprefix("CN=")
            raise ValueError(f"{folder / name}.pem is for {other!r}, not {subject!r}; remove it or use another folder.")
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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int = _DAYS
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
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
