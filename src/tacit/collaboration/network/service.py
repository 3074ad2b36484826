"""What the server answers to whom: the parameter server, its store and the turns, without any transport.

A message that is refused (`Refused`) changes nothing. Any number of threads may call; none of them ever waits for a
participant.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tacit.collaboration.exchange import Lease, LeaseHeld, Protocol, Rota
from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network import codec
from tacit.collaboration.network.masking import Card
from tacit.collaboration.network.pool import HELD, Pool
from tacit.collaboration.network.pool import NAME as POOL
from tacit.collaboration.network.store import Entry, Store
from tacit.collaboration.server import Checked, ParameterServer, Reason, Refused

log = logging.getLogger("tacit")

APPLIED, ALREADY = b"\x00", b"\x01"
_T = TypeVar("_T")
_SNAPSHOT_BYTES = 64 << 20


@dataclass(kw_only=True)
class Traffic:
    """What went over the wire since the server was started."""

    up: int = 0
    down: int = 0
    refused: int = 0
    last: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Pending:
    """An upload on its way to the disk."""

    participant: str
    token: int
    sequence: int
    indices: Positions
    values: Vector
    body: bytes
    digest: bytes
    answer: bytes | None = None
    refusal: tuple[Reason, str] | None = (
        None  # not the exception: it would keep the caller's frame, and its call, alive
    )

    @property
    def done(self) -> bool:
        return self.answer is not None or self.refusal is not None


class Service:
    """One server. ``lease`` and ``patience`` are seconds: how long a turn lasts, and how long it waits to be taken.

    ``snapshot_every`` uploads (or 64 MiB of them) the whole state is written, so that a restart is quick.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = 600.0,
        patience: float = 10.0,
        snapshot_every: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement, self.traffic = store.agreement, Traffic()
        self._store, self._clock, self._every = store, clock, snapshot_every
        self._server: ParameterServer = store.server()
        self._lock = threading.RLock()
        self._queue_lock = threading.Lock()
        self._queue: list[_Pending] = []
        self._since_snapshot = self._bytes_since = 0
        self._changes = -1
        self._people: dict[str, bool] = {}
        self._whole: tuple[int, bytes] = (-1, b"")
        self._failed: str | None = None
        self._refresh()
        first = secrets.randbits(62)  # a token from before a restart means nothing now
        self._turns: Lease | Rota | None = None
        if self.agreement.protocol is Protocol.RANDOM_ORDER:
            self._turns = Lease(lease, first=first)
        elif self.agreement.protocol is Protocol.ROUND_ROBIN:
            self._turns = Rota(list(self._people), lease, patience=patience, first=first)
        self._contributed: Counter[str] = Counter()  # to pooled sums, since the start
        self._pool: Pool | None = None
        if self.agreement.pool:
            self._pool = Pool(
                least=self.agreement.pool,
                size=self.agreement.size,
                count=self.agreement.most,
                bound=self.agreement.bound,
                patience=patience,
                duration=lease,
                everybody=lambda: [name for name, revoked in self._people.items() if not revoked],
            )

    # -- what is asked -----------------------------------------------------------------------------------------------

    def agree(self, name: str) -> bytes:
        """The agreement, after the number of the next upload of ``name``."""
        with self._lock:
            self._check_person(name)
            return codec.pack_token(self._due(name)) + self.agreement.to_json().encode()

    def turn(self, name: str) -> bytes:
        """A token to download and upload with; in asynchronous exchange everybody may at any time."""
        with self._lock:
            self._check_person(name)
            self._check_individual()
            if self._turns is None:
                return codec.pack_token(0)
            try:
                return codec.pack_token(self._turns.acquire(name, now=self._clock()))
            except LeaseHeld as held:
                raise Refused(Reason.WAIT, str(held)) from None

    def give_back(self, name: str, request: bytes) -> bytes:
        """End one's turn without an upload; one that has passed on stays where it is."""
        token, _ = codec.split_token(request)
        with self._lock:
            self._check_person(name)
            self._end_turn(name, token)
        return APPLIED

    def _end_turn(self, name: str, token: int) -> None:
        if self._turns is not None:
            with suppress(LeaseHeld):
                self._turns.check(name, token, now=self._clock())
                self._turns.release(token)

    def pull(self, name: str, request: bytes) -> bytes:
        """A download."""
        fraction = codec.unpack_fraction(request)
        with self._lock:
            self._check_person(name)
            uploads = self._uploads
            if fraction < 1 or self._whole[0] != uploads:
                download = self._server.pull(fraction)
                message = codec.pack_download(download)
                if download.indices is None:
                    self._whole = uploads, message
            else:
                message = self._whole[1]
            self.traffic.down += len(message)
            return message

    def push(self, name: str, request: bytes) -> bytes:
        """Take an upload: check it, commit it, apply it. `ALREADY` if exactly this one had been taken before."""
        token, body = codec.split_token(request)
        sequence, indices, values = codec.unpack_upload(body, size=self.agreement.size)
        upload = _Pending(
            participant=name,
            token=token,
            sequence=sequence,
            indices=indices,
            values=values,
            body=body,
            digest=hashlib.sha256(body).digest(),
        )
        with self._queue_lock:
            self._queue.append(upload)
        with self._lock:  # whoever gets here first commits for all who wait: one write to the disk for many
            if not upload.done:
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._take(batch)
        if upload.refusal is not None:
            raise Refused(*upload.refusal)
        assert upload.answer is not None
        return upload.answer

    def report(self, name: str, request: bytes) -> bytes:
        """Keep what a participant says about its budget, for the status page."""
        statement = codec.unpack_statement(request)
        with self._lock:
            self._check_person(name)
            self._guarded(lambda: self._store.state(name, statement))
        return APPLIED

    # -- masked uploads ----------------------------------------------------------------------------------------------

    def round(self, name: str) -> bytes:
        """The round in which one can enrol."""
        return self._pooled(name, lambda pool: pool.current(self._clock()))

    def enrol(self, name: str, request: bytes) -> bytes:
        """Take part in a round with a key; whether somebody vouches for it is for the others to check."""
        round_id, rest = codec.split_round(request)
        card = Card.unpack(rest)
        self._pooled(name, lambda pool: pool.enrol(name, round_id, card, self._clock()))
        return APPLIED

    def roster(self, name: str, request: bytes) -> bytes:
        """Who is in a round."""
        return self._pooled(name, lambda pool: pool.roster(name, codec.split_round(request)[0], self._clock()))

    def outcome(self, name: str, request: bytes) -> bytes:
        """Whether the sum of a round was applied."""
        return self._pooled(name, lambda pool: pool.outcome(codec.split_round(request)[0], self._clock()))

    def masked(self, name: str, request: bytes) -> bytes:
        """Keep a masked upload in memory; when it is the last of its round, commit and apply the sum."""
        round_id, data = codec.split_round(request)

        def send(pool: Pool) -> bytes:
            found = pool.send(name, round_id, data, self._clock())
            self.traffic.up += len(data)
            self.traffic.last[name] = time.time()
            if found is None:
                return HELD
            sequence = self._server.next_sequence(POOL)
            checked = self._server.check(POOL, sequence, found.indices, found.values)
            body = codec.pack_upload(sequence, found.indices, found.values, size=self.agreement.size)
            entry = Entry(participant=POOL, sequence=sequence, digest=hashlib.sha256(body).digest(), body=body)
            self._guarded(lambda: self._store.commit([entry]))
            self._server.apply(checked)
            pool.applied(round_id)
            self._contributed.update(found.participants)
            self._count(1, len(body))
            return APPLIED

        return self._pooled(name, send)

    def _pooled(self, name: str, ask: Callable[[Pool], _T]) -> _T:
        with self._lock:
            self._check_person(name)
            if self._pool is None:
                raise Refused(Reason.SHAPE, "this server takes no masked uploads.")
            return ask(self._pool)

    # -- uploads -----------------------------------------------------------------------------------------------------

    def _take(self, batch: list[_Pending]) -> None:
        while batch:
            together = len(batch) if self._server.headroom(len(batch)) else 1
            names: set[str] = set()
            accepted: list[tuple[_Pending, Checked]] = []
            later: list[_Pending] = []
            for upload in batch:
                if upload.participant in names or len(accepted) == together:
                    later.append(upload)
                    continue
                names.add(upload.participant)
                try:
                    checked = self._checked(upload)
                except Refused as refusal:
                    upload.refusal = refusal.reason, str(refusal)
                else:
                    if checked is not None:
                        accepted.append((upload, checked))
            self._commit(accepted)
            batch = later

    def _checked(self, upload: _Pending) -> Checked | None:
        """What is to be applied, or None if it was before."""
        name = upload.participant
        self._check_person(name)
        self._check_individual()
        if upload.sequence < self._due(name) and self._store.digest(name, upload.sequence) == upload.digest:
            upload.answer = ALREADY
            self._end_turn(name, upload.token)
            return None
        checked = self._server.check(name, upload.sequence, upload.indices, upload.values)
        if self._turns is not None:
            try:
                self._turns.check(name, upload.token, now=self._clock())
            except LeaseHeld as held:
                raise Refused(Reason.LEASE, str(held)) from None
        return checked

    def _commit(self, accepted: list[tuple[_Pending, Checked]]) -> None:
        if not accepted:
            return
        entries = [
            Entry(participant=upload.participant, sequence=upload.sequence, digest=upload.digest, body=upload.body)
            for upload, _ in accepted
        ]
        try:
            self._guarded(lambda: self._store.commit(entries))
        except Refused as refusal:
            for upload, _ in accepted:
                upload.refusal = refusal.reason, str(refusal)
            return
        for upload, checked in accepted:
            self._server.apply(checked)
            self._end_turn(upload.participant, upload.token)
            self.traffic.up += len(upload.body)
            self.traffic.last[upload.participant] = time.time()
            upload.answer = APPLIED
        self._count(len(accepted), sum(len(upload.body) for upload, _ in accepted))

    def _count(self, uploads: int, size: int) -> None:
        self._since_snapshot += uploads
        self._bytes_since += size
        if self._since_snapshot >= self._every or self._bytes_since >= _SNAPSHOT_BYTES:
            with suppress(Refused):  # logged; the uploads themselves are safe
                self._guarded(lambda: self._store.snapshot(self._server))
            self._since_snapshot = self._bytes_since = 0

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write to the disk. After a failure nobody knows what it holds: nothing more is taken until a restart."""
        if self._failed is None:
            try:
                return write()
            except sqlite3.Error as error:
                self._failed = str(error)
                log.error("the server's state cannot be written: %s; restart it when that is mended", error)
        raise Refused(Reason.UNAVAILABLE, "the server cannot write its state; it must be mended and restarted.")

    # -- who asks ----------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Notice who was admitted or revoked by another process."""
        changes = self._store.changes()
        if changes == self._changes:
            return
        self._changes, self._people = changes, self._store.people()
        if self.agreement.pool:
            if POOL not in self._server.participants:
                self._server.admit(POOL)
            return
        for name, revoked in self._people.items():
            if name not in self._server.participants:
                self._server.admit(name)
            if revoked and name not in self._server.revoked:
                log.warning("%s was revoked", name)
                self._server.revoke(name)

    def _check_person(self, name: str) -> None:
        self._refresh()
        if name not in self._people:
            raise Refused(Reason.UNKNOWN, f"participant {name[:80]!r} is not known; it must be admitted.")
        if self._people[name]:
            raise Refused(Reason.REVOKED, f"participant {name!r} was revoked; nothing more is taken from it.")

    def _check_individual(self) -> None:
        if self.agreement.pool:
            raise Refused(Reason.SHAPE, "this server takes masked uploads only; join a round.")

    def _due(self, name: str) -> int:
        return 0 if self.agreement.pool else self._server.next_sequence(name)

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def _uploads(self) -> int:
        return sum(self._server.participants.values())

    def parameters(self) -> tuple[int, Vector]:
        """The number of uploads so far, and what they led to."""
        with self._lock:
            return self._uploads, self._server.parameters

    def admit(self, name: str) -> None:
        with self._lock:
            self._store.admit(name)
            self._changes = -1
            self._refresh()

    def overview(self) -> list[dict[str, object]]:
        """A line for each participant."""
        with self._lock:
            self._refresh()
            statements, taken = self._store.statements(), self._server.participants
            return [
                {
                    "name": name,
                    "uploads": self._contributed[name] if self.agreement.pool else taken.get(name, 0),
                    "revoked": revoked,
                    "statement": statements.get(name, ""),
                    "last": self.traffic.last.get(name),
                }
                for name, revoked in self._people.items()
            ]

    def close(self) -> None:
        """Write a snapshot and let go of the store."""
        with self._lock:
            if self._failed is None:
                self._guarded(lambda: self._store.snapshot(self._server))
            self._store.close()
