"""A participant's end of the line: calls that are made again, with the same bytes, until they are answered."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np

from tacit.collaboration.messages import Download, Vector
from tacit.collaboration.network import codec
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.diagnosis import diagnose
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.serving import PARTICIPANT, REASON, SERVICE, is_loopback
from tacit.collaboration.refusals import Reason, Refused

log = logging.getLogger("tacit")

LARGEST_DOWNLOAD = 1 << 30
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_TRANSPORT = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)  # also what gRPC calls a stream that broke
_CRASHED = "Exception calling application"  # and what it says if the server's own code failed
_DEADLINE, _FIRST_DEADLINE = 120.0, 3.0
_SILENCE, _SLOW = 1.0, 3.0  # seconds that may pass before something is said
_DIAGNOSES, _SAY_AGAIN = 20.0, 60.0
_NUMBERS = re.compile(r"[0-9.]+")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_LONGEST_DETAILS = 500
_WAITING_PAUSE = 0.5  # at most, between questions whether it is one's turn


class Unreachable(OSError):
    """The server could not be reached for a long time. Nothing is lost: join again later."""


class Ended(Exception):
    """This process was asked to end while it waited. Nothing is lost: the same command goes on."""


class Link:
    """The connection to one server. Without ``credentials`` (and TLS) only to this machine, as ``name``.

    A server that does not answer is asked again for ``patience`` seconds; a refusal is raised as `Refused`. ``tell`` is
    given a sentence about what is waited for, and why; it is logged otherwise. ``ended`` is asked while one waits: if
    it says yes, `Ended` is raised.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials | None,
        *,
        name: str = "",
        patience: float = 3600.0,
        tell: Callable[[str], None] | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        options = [
            ("grpc.max_receive_message_length", LARGEST_DOWNLOAD),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.enable_retries", 0),
        ]
        self.address, self._patience, self._credentials = address, patience, credentials
        self._ended = ended
        self._tell = tell if tell is not None else lambda text: log.info("%s", text)
        self._met = False  # whether the server has ever answered
        self._saying = threading.Lock()
        self._diagnosed, self._said = -math.inf, ("", -math.inf)
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
        self._pending: float | None = None  # since when a question has no answer
        self._closed = threading.Event()
        if tell is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Say that an answer is slow to come; the question itself waits much longer, for a large model's sake."""
        while not self._closed.wait(1.0):
            since = self._pending
            if since is not None and time.monotonic() - since > _SLOW:
                self._say(f"waiting for an answer of {self.address}.")

    def agree(self) -> tuple[int, Agreement]:
        """Return the number of one's next upload, and what everybody has agreed on."""
        due, rest = codec.split_token(self.call("Agree", b""))
        return due, Agreement.from_json(bytes(rest))

    def turn(self) -> int:
        """Wait for one's turn."""
        return codec.split_token(self.call("Turn", b""))[0]

    def give_back(self, token: int) -> None:
        """Let the next one have its turn; if the server cannot be reached at once, the turn lapses by itself."""
        self._tell_server("GiveBack", codec.pack_token(token))

    def done(self) -> None:
        """Tell the server that the others need not wait for us; if it does not answer at once, they wait once more."""
        self._tell_server("Done", b"")

    def _tell_server(self, method: str, message: bytes) -> None:
        """Try once to say something that the others can do without."""
        try:
            self._stub(method)(message, timeout=_FIRST_DEADLINE, metadata=self._metadata)
        except grpc.RpcError as error:
            log.info("%s could not be told %s: %s", self.address, method, _details(error))

    def pull(self, fraction: float, *, size: int, into: Vector | None = None) -> Download:
        """Return the most updated fraction of the server's ``size`` parameters, or all, ``into`` a vector if given.

        All of them come in parts, so that a large model is in memory once. Uploads of others may come between two
        parts where participants do not take turns.
        """
        if fraction < 1:
            return codec.unpack_download(self.call("Pull", codec.pack_fraction(fraction)), size=size)
        values = np.empty(size, dtype=np.float32) if into is None else into
        for first in range(0, size, codec.PART):
            count = min(codec.PART, size - first)
            part = codec.unpack_download(self.call("PullPart", codec.pack_range(first, count)), size=count)
            if part.indices is not None:
                raise Refused(Reason.MALFORMED, f"{self.address} sent some of {count} parameters; all were asked for.")
            values[first : first + count] = part.values
        return Download(indices=None, values=values)

    def push(self, token: int, body: bytes) -> None:
        """Send an upload. A lease that expired meanwhile is taken again; the bytes stay the same."""
        message = codec.pack_token(token) + body
        del body  # of a large model; the caller need not have kept it either
        while True:
            try:
                self.call("Push", message)
                return
            except Refused as refusal:
                if refusal.reason is not Reason.LEASE:
                    raise
                self._say(f"our turn at {self.address} is over; the upload goes out, as it is, in the next one.")
                message = codec.pack_token(self.turn()) + codec.split_token(message)[1]

    def report(self, statement: str) -> None:
        self.call("Report", statement.encode()[: codec.LONGEST_STATEMENT])

    def call(self, method: str, request: bytes) -> bytes:
        """Ask one question until there is an answer, and say within a few seconds what is waited for.

        A connection that breaks is no answer: every question may be asked twice. If the first contact fails for a
        reason that waiting does not mend, that reason is raised.
        """
        asked = started = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            timeout = _DEADLINE if self._met else _FIRST_DEADLINE
            self._pending = time.monotonic()
            try:
                answer = self._stub(method)(request, timeout=timeout, metadata=self._metadata)
                self._met, self._pending = True, None
                return answer
            except grpc.RpcError as error:
                self._pending = None
                reason, now = _reason(error), time.monotonic()
                self._met = self._met or reason is not None
                if reason is Reason.WAIT:
                    started, pause = now, min(pause, _WAITING_PAUSE)  # the server is well
                    if now - asked > _SILENCE:
                        self._say(f"waiting at {self.address}: {_details(error)}")
                elif not _heals(error, reason):
                    raise _refusal(error, reason) from None
                elif now - started > self._patience:
                    raise Unreachable(
                        f"the server {self.address} has not answered for {self._patience:g} s ({_details(error)}); "
                        "join again when it does."
                    ) from None
                elif now - asked > _SILENCE and now - self._diagnosed > _DIAGNOSES:
                    self._diagnose()
            if self._ended():
                raise Ended(f"asked to end while waiting for {self.address}")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _stub(self, method: str) -> Callable[..., bytes]:
        if method not in self._calls:
            self._calls[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        return self._calls[method]

    def _diagnose(self) -> None:
        """Find out why there is no answer, and say so; raise what cannot be waited for, if nothing was ever heard."""
        found = diagnose(self.address, self._credentials)
        self._diagnosed = time.monotonic()
        if found.final and not self._met:
            raise ValueError(found.text)
        self._say(f"{found.text} Trying again.")

    def _say(self, text: str) -> None:
        """Say something unless it was just said; numbers in it, such as seconds left, do not make it new."""
        alike, now = _NUMBERS.sub("", text), time.monotonic()
        with self._saying:
            if alike != self._said[0] or now - self._said[1] > _SAY_AGAIN:
                self._said = alike, now
                self._tell(text)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()


def _reason(error: grpc.RpcError) -> Reason | None:
    named = str(dict(error.trailing_metadata() or ()).get(REASON))
    return Reason[named] if named in Reason.__members__ else None


def _heals(error: grpc.RpcError, reason: Reason | None) -> bool:
    """Return whether it was the connection that failed, and not a refusal: another try may succeed."""
    if reason is not None:
        return False
    if error.code() in _TRANSPORT:
        return not str(error.details() or "").startswith(_CRASHED)
    return error.code() in _AGAIN


def _refusal(error: grpc.RpcError, reason: Reason | None) -> Exception:
    if reason is not None:
        return Refused(reason, f"the server refused: {_details(error)}")
    return ValueError(f"the server refused ({error.code().name}): {_details(error)}")


def _details(error: grpc.RpcError) -> str:
    """Return what the server says, as one line that does nothing to a terminal."""
    text = str(error.details() or "")[:_LONGEST_DETAILS]
    return "".join(character if character.isprintable() else " " for character in text)
