"""A participant's end of the line: calls that are made again, with the same bytes, until they are answered."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

import grpc

from tacit.collaboration.messages import Download
from tacit.collaboration.network import codec
from tacit.collaboration.network.codec import Agreement
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.serving import PARTICIPANT, REASON, SERVICE, is_loopback
from tacit.collaboration.server import Reason, Refused

log = logging.getLogger("tacit")

LARGEST_DOWNLOAD = 1 << 30
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_DEADLINE = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_LONGEST_DETAILS = 500
_WAITING_PAUSE = 0.5  # between questions whether it is one's turn


class Unreachable(OSError):
    """The server could not be reached for a long time. Nothing is lost: join again later."""


class Link:
    """The connection to one server. Without ``credentials`` (and TLS) only to this machine, as ``name``.

    A server that does not answer is asked again for ``patience`` seconds; a refusal is raised as `Refused`.
    """

    def __init__(
        self, address: str, credentials: Credentials | None, *, name: str = "", patience: float = 3600.0
    ) -> None:
        options = [
            ("grpc.max_receive_message_length", LARGEST_DOWNLOAD),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.enable_retries", 0),
        ]
        self.address, self._patience = address, patience
        self._metadata: list[tuple[str, str]] = []
        if credentials is None:
            if not is_loopback(address):
                raise ValueError(f"the server is {address!r}; without certificates only this machine is spoken to.")
            # Else what is not encrypted would go to the proxy of the environment, on whatever machine.
            self._channel = grpc.insecure_channel(address, options=[*options, ("grpc.enable_http_proxy", 0)])
            self._metadata = [(PARTICIPANT, name)]
        else:
            own = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
            self._channel = grpc.secure_channel(address, own, options=options)
        self._calls: dict[str, Callable[..., bytes]] = {}

    def agree(self) -> tuple[int, Agreement]:
        """The number of one's next upload, and what everybody has agreed on."""
        due, rest = codec.split_token(self.call("Agree", b""))
        return due, Agreement.from_json(rest)

    def turn(self) -> int:
        """Wait for one's turn."""
        return codec.split_token(self.call("Turn", b""))[0]

    def give_back(self, token: int) -> None:
        """Let the next one have its turn."""
        self.call("GiveBack", codec.pack_token(token))

    def pull(self, fraction: float, *, size: int) -> Download:
        return codec.unpack_download(self.call("Pull", codec.pack_fraction(fraction)), size=size)

    def push(self, token: int, body: bytes) -> None:
        """Send an upload. A lease that expired meanwhile is taken again; the bytes stay the same."""
        while True:
            try:
                self.call("Push", codec.pack_token(token) + body)
                return
            except Refused as refusal:
                if refusal.reason is not Reason.LEASE:
                    raise
                log.info("the lease on %s expired; asking for another turn", self.address)
                token = self.turn()

    def report(self, statement: str) -> None:
        self.call("Report", statement.encode()[: codec.LONGEST_STATEMENT])

    def call(self, method: str, request: bytes) -> bytes:
        """One question, asked until there is an answer."""
        if method not in self._calls:
            self._calls[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        started, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return self._calls[method](request, timeout=_DEADLINE, metadata=self._metadata)
            except grpc.RpcError as error:
                reason = _reason(error)
                if reason is Reason.WAIT:
                    started, pause = time.monotonic(), _WAITING_PAUSE  # the server is well
                elif error.code() not in _AGAIN:
                    raise _refusal(error, reason) from None
                elif time.monotonic() - started > self._patience:
                    raise Unreachable(
                        f"the server {self.address} has not answered for {self._patience:g} s ({_details(error)}); "
                        "join again when it does."
                    ) from None
                else:
                    log.info("%s is not answering (%s); trying again", self.address, _details(error))
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        self._channel.close()


def _reason(error: grpc.RpcError) -> Reason | None:
    named = str(dict(error.trailing_metadata() or ()).get(REASON))
    return Reason[named] if named in Reason.__members__ else None


def _refusal(error: grpc.RpcError, reason: Reason | None) -> Exception:
    if reason is not None:
        return Refused(reason, f"the server refused: {_details(error)}")
    return ValueError(f"the server refused ({error.code().name}): {_details(error)}")


def _details(error: grpc.RpcError) -> str:
    """What the server says, as one line that does nothing to a terminal."""
    text = str(error.details() or "")[:_LONGEST_DETAILS]
    return "".join(character if character.isprintable() else " " for character in text)
