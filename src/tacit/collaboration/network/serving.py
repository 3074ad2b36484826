"""The service over gRPC with mutual TLS: the certificate says which participant asks."""

from __future__ import annotations

import datetime
import ipaddress
import logging
from collections.abc import Callable
from concurrent import futures
from typing import Any, Protocol

import grpc

from tacit.collaboration.network.certificates import SOON, Peer, identify, serial_text
from tacit.collaboration.network.intake import Traffic
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.refusals import Reason, Refused
from tacit.training.malloc_tuning import share_one_heap

log = logging.getLogger("tacit")

SERVICE = "tacit.Collaboration"
PARTICIPANT, REASON = "tacit-participant", "tacit-reason"
STATUS = {
    Reason.UNKNOWN: grpc.StatusCode.PERMISSION_DENIED,
    Reason.REVOKED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.REPLAYED: grpc.StatusCode.ALREADY_EXISTS,
    Reason.REORDERED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.RANGE: grpc.StatusCode.OUT_OF_RANGE,
    Reason.OVERFLOW: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.LEASE: grpc.StatusCode.ABORTED,
    Reason.ROUND: grpc.StatusCode.ABORTED,
    Reason.ALONE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WAIT: grpc.StatusCode.UNAVAILABLE,
    Reason.UNAVAILABLE: grpc.StatusCode.INTERNAL,
}
"""All other refusals are of what was sent: INVALID_ARGUMENT."""

_WORKERS = 4, 128  # most of them wait for the disk, together: the more wait, the more share one write
_WAITING_BYTES = 64 << 20  # of uploads that wait; where they are long there are fewer workers
_LONG = 1 << 20  # bytes of a message from which on threads share their memory; short ones are quicker apart
_STREAMS = 32  # requests of one connection at a time; the others wait with their sender


class Served(Protocol):
    """A service: it answers named questions of certified people."""

    traffic: Traffic

    @property
    def longest(self) -> int: ...

    def methods(self) -> dict[str, Callable[[str, bytes], bytes]]: ...

    def check_certificate(self, peer: Peer) -> None: ...

    def trust(self, authority: bytes) -> None: ...

    def close(self) -> None: ...


class GrpcServer:
    """A service that listens. ``credentials`` of None (no TLS) is for tests on this machine: names are then believed.

    Messages may be as long as an upload can be, and no longer: gRPC refuses what is longer (RESOURCE_EXHAUSTED) before
    it is in memory.
    """

    def __init__(self, service: Served, listen: str, credentials: Credentials | None) -> None:
        if credentials is None and not is_loopback(listen):
            raise ValueError(f"listen is {listen!r}; without certificates only a loopback address is served.")
        self._service, self._secure = service, credentials is not None
        self._reminded: dict[int, datetime.date] = {}
        if credentials is not None:
            service.trust(credentials.authority)
        longest = service.longest
        options = [
            ("grpc.max_receive_message_length", longest),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.http2.max_pings_without_data", 2),
        ]
        least, most = _WORKERS
        workers = min(max(_WAITING_BYTES // longest, least), most)
        if longest >= _LONG:
            share_one_heap()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=workers), options=options)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._answering(name, answer))
            for name, answer in service.methods().items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                own = grpc.ssl_server_credentials(
                    [(credentials.key, credentials.certificate)],
                    root_certificates=credentials.authority,
                    require_client_auth=True,
                )
                self.port = self._server.add_secure_port(listen, own)
        except RuntimeError as error:
            raise ValueError(
                f"cannot listen on {listen!r}; the port may be taken, or the address is not ours."
            ) from error

    def start(self) -> None:
        self._server.start()

    def stop(self, grace: float = 5.0) -> None:
        """Finish what was begun, then close the service."""
        self._server.stop(grace).wait()
        self._service.close()

    def _answering(self, method: str, answer: Callable[[str, bytes], bytes]) -> Callable[[bytes, Any], bytes]:
        def handle(request: bytes, context: Any) -> bytes:
            try:
                peer = _certified(context) if self._secure else _claimed(context)
            except ValueError as error:
                self._refuse(context, method, "unknown", str(error), grpc.StatusCode.UNAUTHENTICATED)
                raise AssertionError from error  # abort does not return
            try:
                self._service.check_certificate(peer)
                self._remind(peer)
                return answer(peer.name, request)
            except Refused as refusal:
                code = STATUS.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
                context.set_trailing_metadata(((REASON, refusal.reason.name),))
                self._refuse(context, method, peer.name, str(refusal), code)
                raise AssertionError from refusal

        return handle

    def _remind(self, peer: Peer) -> None:
        """Warn, once a day, that a participant's certificate expires soon."""
        if peer.expires is None or peer.serial is None:
            return
        now = datetime.datetime.now(datetime.UTC)
        if peer.expires - now < SOON and self._reminded.get(peer.serial) != now.date():
            self._reminded[peer.serial] = now.date()
            log.warning(
                "the certificate of %s (serial %s) expires on %s; without another it is then refused",
                peer.name,
                serial_text(peer.serial),
                f"{peer.expires:%Y-%m-%d}",
            )

    def _refuse(self, context: Any, method: str, name: str, text: str, code: grpc.StatusCode) -> None:
        if code is grpc.StatusCode.ABORTED:  # the turn or the round went on, as it does without any fault
            log.debug("%s of %r came too late: %s", method, name[:80], text)
        elif code is not grpc.StatusCode.UNAVAILABLE:  # waiting for a turn is no offence
            self._service.traffic.refused += 1
            log.warning("%s of %r refused (%s): %s", method, name[:80], code.name, text)
        context.abort(code, text)


def _certified(context: Any) -> Peer:
    """Return whose certificate the connection was made with; raises ValueError if it has not exactly one name.

    The certificate itself is read, not gRPC's ``x509_common_name``: that is the first name up to the first NUL.
    """
    certificates = context.auth_context().get("x509_pem_cert", ())
    if len(certificates) != 1:
        raise ValueError("the connection has no certificate.")
    return identify(certificates[0])


def _claimed(context: Any) -> Peer:
    names = [value for key, value in context.invocation_metadata() if key == PARTICIPANT]
    if len(names) != 1:
        raise ValueError(f"the call says {len(names)} times who makes it.")
    return Peer(name=str(names[0]))


def is_loopback(address: str) -> bool:
    """Return True if ``address``, HOST:PORT, can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
