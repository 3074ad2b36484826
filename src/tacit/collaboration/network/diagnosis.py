"""Why a server does not answer: TCP and TLS are tried by hand, since gRPC says little more than UNAVAILABLE."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass

from cryptography import x509

from tacit.collaboration.network.certificates import identify, serial_text
from tacit.collaboration.network.keys import Credentials

_SECONDS = 1.5
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class Finding:
    """A sentence, and ``final`` if waiting is of no use until a setting is changed."""

    text: str
    final: bool = False


def diagnose(address: str, credentials: Credentials | None) -> Finding:
    """Return what is wrong with the server at ``address``, HOST:PORT, as seen from here."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(port)
    except ValueError:
        return Finding(f"{address!r} is not an address; write HOST:PORT.", final=True)
    proxy = next((name for name in _PROXIES if credentials is not None and os.environ.get(name)), None)
    if proxy is not None:
        return Finding(
            f"{address} does not answer; connections to it go through the proxy that {proxy} names, unless no_proxy "
            "lists it."
        )
    try:
        with socket.create_connection((host, number), timeout=_SECONDS):
            pass
    except socket.gaierror:
        return Finding(f"there is no host called {host!r}; is the address right?")
    except ConnectionRefusedError:
        return Finding(f"nothing listens on {address}: is the server running, and is the port right?")
    except TimeoutError:
        return Finding(f"{address} does not answer: is the address right, and does a firewall let it pass?")
    except (OSError, OverflowError) as error:
        return Finding(f"{address} cannot be reached: {getattr(error, 'strerror', None) or error}.")
    if credentials is None:
        return Finding(f"{address} takes connections but does not answer without TLS; does it want --keys?")
    try:
        return _handshake(host, number, address, credentials)
    except (OSError, ValueError) as error:
        return Finding(
            f"{address} takes connections but does not answer ({type(error).__name__}): is it the port of serve "
            "--listen, and not that of the status page?"
        )


def _handshake(host: str, port: int, address: str, credentials: Credentials) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=credentials.authority.decode("ascii"))
    try:
        _shake(context, host, port)
    except ssl.SSLCertVerificationError as error:
        code = error.verify_code
        if code in (62, 63, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_, _IP_ADDRESS_
            names = _names(host, port) or "no name at all"
            return Finding(
                f"the certificate of {address} is for {names}, not for {host!r}; use a name that it has as --server, "
                f"or have one made for this one (tacit collaborate keys --server {host}).",
                final=True,
            )
        if code in (10, 9):  # X509_V_ERR_CERT_HAS_EXPIRED, _NOT_YET_VALID
            return Finding(f"the certificate of {address} is not valid now ({error.verify_message}); it needs another.")
        return Finding(
            f"the certificate of {address} is not of the authority in our ca.pem ({error.verify_message}); compare the "
            "ca.pem here and on the server.",
            final=True,
        )
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            return Finding(f"{address} does not speak TLS; was it started with --insecure-loopback?", final=True)
        raise
    own = identify(credentials.certificate)
    number = "" if own.serial is None else f" (serial {serial_text(own.serial)})"
    return Finding(
        f"{address} is there and its certificate is in order, but it does not take ours, of {own.name!r}{number}: is "
        "it of an authority in the server's ca.pem, for client authentication?"
    )


def _shake(context: ssl.SSLContext, host: str, port: int) -> bytes | None:
    with (
        socket.create_connection((host, port), timeout=_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return secure.getpeercert(binary_form=True)


def _names(host: str, port: int) -> str:
    """Return the names that the server's certificate has, to be shown and not to be believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    shown = _shake(context, host, port)
    if shown is None:
        return ""
    try:
        extensions = x509.load_der_x509_certificate(shown).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return ""
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return ", ".join(repr(name) for name in found[:5])
