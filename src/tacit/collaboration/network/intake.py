"""Uploads on their way into the state: checked, committed together, acknowledged; and whose turn it is."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tacit.collaboration.exchange import Lease, LeaseHeld, Protocol, Rota
from tacit.collaboration.network import codec
from tacit.collaboration.network.state import State
from tacit.collaboration.network.store import Entry
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.server import Checked, Contents

log = logging.getLogger("tacit")

APPLIED, ALREADY = b"\x00", b"\x01"


@dataclass(kw_only=True)
class Traffic:
    """Bytes and messages since the server was started."""

    up: int = 0
    down: int = 0
    refused: int = 0
    last: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Pending:
    """An upload on its way to the disk; ``contents`` is its values and places, or why they are refused.

    Refusals are not kept as exceptions: those would keep the caller's frame, and its call, alive.
    """

    participant: str
    token: int
    sequence: int
    contents: Contents | tuple[Reason, str]
    body: memoryview
    digest: bytes
    gate: threading.Lock = field(default_factory=threading.Lock)
    answer: bytes | None = None
    refusal: tuple[Reason, str] | None = None

    def __post_init__(self) -> None:
        self.gate.acquire()

    @property
    def done(self) -> bool:
        return self.answer is not None or self.refusal is not None

    @property
    def entry(self) -> Entry:
        return Entry(participant=self.participant, sequence=self.sequence, digest=self.digest, body=self.body)


class Turns:
    """Turns by tokens; in asynchronous exchange every participant has token 0 at any time."""

    def __init__(
        self,
        protocol: Protocol,
        names: Sequence[str],
        *,
        lease: float,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        first = secrets.randbits(62)  # a token from before a restart means nothing now
        self._clock, self._duration = clock, lease
        self._lease: Lease | Rota | None = None
        if protocol is Protocol.RANDOM_ORDER:
            self._lease = Lease(lease, first=first, patience=patience)
        elif protocol is Protocol.ROUND_ROBIN:
            self._lease = Rota(names, lease, patience=patience, first=first)

    def acquire(self, name: str) -> int:
        """Return a token, or refuse a participant that must wait."""
        if self._lease is None:
            return 0
        now = self._clock()
        lapsed = self._lease.take_lapsed(now)
        if lapsed is not None:
            log.warning(
                "%s let its turn lapse (%g s) and the next one has it; if its epochs take longer, serve with a longer "
                "--lease",
                lapsed,
                self._duration,
            )
        try:
            return self._lease.acquire(name, now=now)
        except LeaseHeld as held:
            raise Refused(Reason.WAIT, str(held)) from None

    def check(self, name: str, token: int) -> None:
        """Refuse a token whose turn is over."""
        if self._lease is not None:
            try:
                self._lease.check(name, token, now=self._clock())
            except LeaseHeld as held:
                raise Refused(Reason.LEASE, str(held)) from None

    def end(self, name: str, token: int) -> None:
        """End a turn; one that has passed on stays where it is."""
        if self._lease is not None:
            with suppress(LeaseHeld):
                self._lease.check(name, token, now=self._clock())
                self._lease.release(token)

    def leave(self, name: str) -> None:
        """Wait no more for a participant that is done or was revoked, until it asks."""
        if self._lease is not None:
            self._lease.leave(name)


class Intake:
    """Takes uploads of any number of threads. One of them leads: it commits for all who wait, in one write to the disk,
    and then lets the first of those who came meanwhile lead. Each of the others is woken once, by its answer: if they
    all waited for ``lock``, they would go through it one after the other before the next write could begin.
    """

    def __init__(self, state: State, turns: Turns, traffic: Traffic, lock: threading.RLock) -> None:
        self._state, self._turns, self._traffic, self._lock = state, turns, traffic, lock
        self._queue_lock = threading.Lock()
        self._queue: list[_Pending] = []
        self._led = False

    def push(self, name: str, request: bytes) -> bytes:
        """Check an upload, commit it, apply it. `ALREADY` if exactly this one had been taken before."""
        upload = self._read(name, request)
        with self._queue_lock:
            self._queue.append(upload)
            follows, self._led = self._led, True
        if follows:
            upload.gate.acquire()  # until it is answered, or is to lead
        if not upload.done:
            self._lead()
        if upload.refusal is not None:
            raise Refused(*upload.refusal)
        assert upload.answer is not None
        return upload.answer

    def _read(self, name: str, request: bytes) -> _Pending:
        """Read an upload and check all that does not depend on the state, while others wait for the disk."""
        token, body = codec.split_token(request)
        sequence, indices, values = codec.unpack_upload(body, size=self._state.agreement.size)
        contents: Contents | tuple[Reason, str]
        try:
            contents = self._state.server.inspect(indices, values)
        except Refused as refusal:
            contents = refusal.reason, str(refusal)
        return _Pending(
            participant=name,
            token=token,
            sequence=sequence,
            contents=contents,
            body=body,
            digest=hashlib.sha256(body).digest(),
        )

    def _lead(self) -> None:
        """Answer all that wait; after an unforeseen error the answer says that the server failed."""
        batch: list[_Pending] = []
        try:
            with self._lock:
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._take(batch)
        finally:
            with self._queue_lock:
                following = self._queue[:1]
                self._led = bool(following)
            for upload in following:
                upload.gate.release()
            for upload in batch:
                if not upload.done:
                    upload.refusal = Reason.UNAVAILABLE, "the server failed; whether the upload was taken, ask again."
                upload.gate.release()

    def _take(self, batch: list[_Pending]) -> None:
        self._state.refresh()
        while batch:
            roomy = self._state.server.headroom(len(batch))
            together = len(batch) if roomy else 1
            names: set[str] = set()
            accepted: list[tuple[_Pending, Checked]] = []
            later: list[_Pending] = []
            for upload in batch:
                if upload.participant in names or len(accepted) == together:
                    later.append(upload)
                    continue
                names.add(upload.participant)
                try:
                    checked = self._checked(upload, roomy=roomy)
                except Refused as refusal:
                    upload.refusal = refusal.reason, str(refusal)
                else:
                    if checked is not None:
                        accepted.append((upload, checked))
            self._commit(accepted)
            batch = later

    def _checked(self, upload: _Pending, *, roomy: bool) -> Checked | None:
        """Return what is to be applied, or None if it was before."""
        name, server = upload.participant, self._state.server
        self._state.check_known(name)
        check_individual(self._state)
        if upload.sequence < self._state.due(name) and self._state.store.digest(name, upload.sequence) == upload.digest:
            upload.answer = ALREADY
            self._turns.end(name, upload.token)
            return None
        server.check_sender(name, upload.sequence)
        if isinstance(upload.contents, tuple):
            raise Refused(*upload.contents)
        if not roomy:
            server.check_sum(upload.contents)
        self._turns.check(name, upload.token)
        return Checked(participant=name, contents=upload.contents)

    def _commit(self, accepted: list[tuple[_Pending, Checked]]) -> None:
        if not accepted:
            return
        taken = [(upload.entry, checked) for upload, checked in accepted]
        try:
            self._state.commit(taken)
        except Refused as refusal:
            for upload, _ in accepted:
                upload.refusal = refusal.reason, str(refusal)
            return
        for upload, _ in accepted:
            self._turns.end(upload.participant, upload.token)
            self._traffic.up += len(upload.body)
            self._traffic.last[upload.participant] = time.time()
            upload.answer = APPLIED


def check_individual(state: State) -> None:
    """Refuse a single upload where only masked ones are taken."""
    if state.agreement.pool:
        raise Refused(Reason.SHAPE, "this server takes masked uploads only; join a round.")
