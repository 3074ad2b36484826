"""Reading certificates: whose one is, its serial number, and how long it is good for."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,61}[A-Za-z0-9._-])?")
_SERIAL = re.compile(r"(?:serial=)?(?:0x)?([0-9a-f]{1,40})")
SOON = datetime.timedelta(days=30)
"""So long before a certificate expires there are warnings."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end of a connection: the name in its certificate, the serial number (None without TLS) and the end."""

    name: str
    serial: int | None = None
    expires: datetime.datetime | None = None


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

    Callers compare every character: names that differ in case or are written in another way are the names of different
    participants. A second name, or a character that a name cannot have (NUL, a line break, a letter that
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
def identify(certificate: bytes) -> Peer:
    """Return who the certificate (in PEM) of a connection's other end is for."""
    read = x509.load_pem_x509_certificate(certificate)
    return Peer(name=common_name(read), serial=read.serial_number, expires=read.not_valid_after_utc)


def serial_text(serial: int) -> str:
    """Return a serial number as `openssl x509 -serial` prints it."""
    text = f"{serial:X}"
    return text if len(text) % 2 == 0 else f"0{text}"


def serial_number(text: str) -> int:
    """Return the serial number written in hexadecimal digits, also with colons, ``0x`` or ``serial=`` before them.

    >>> serial_number("serial=0A:FF") == serial_number("0xaff") == serial_number("0AFF") == 2815
    True
    """
    match = _SERIAL.fullmatch(text.strip().lower().replace(":", ""))
    if match is None or int(match[1], 16) == 0:
        raise ValueError(
            f"{text[:80]!r} is not a certificate's serial number; give the hexadecimal digits that "
            "`openssl x509 -noout -serial -in NAME.pem` prints."
        )
    return int(match[1], 16)


def expiry(what: str, certificates: bytes, *, remedy: str, now: datetime.datetime | None = None) -> list[str]:
    """Return a warning for each of the ``certificates`` (in PEM) that expires soon.

    Raises ValueError for one that is not valid now: no connection would be made with it, and TLS does not say why.
    ``what`` is what a sentence calls the file, ``remedy`` what to do.
    """
    now, found = now or datetime.datetime.now(datetime.UTC), []
    for certificate in x509.load_pem_x509_certificates(certificates):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now < first:
            raise ValueError(f"{what} is valid from {first:%Y-%m-%d %H:%M} UTC on; is this machine's clock right?")
        if now >= last:
            raise ValueError(f"{what} expired on {last:%Y-%m-%d}; {remedy}.")
        if last - now < SOON:
            days = (last - now).days
            found.append(f"{what} expires in {days} day{'s' * (days != 1)}, on {last:%Y-%m-%d}; {remedy}.")
    return found
