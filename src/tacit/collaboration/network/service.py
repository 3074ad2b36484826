"""The service without its transport: the parameter server, its store and the turns.

A message that is refused (`Refused`) changes nothing. Any number of threads may call; none waits for a participant.
"""

from __future__ import annotations

import datetime
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from cryptography import x509

from tacit.collaboration.messages import Download, Vector
from tacit.collaboration.network import codec
from tacit.collaboration.network.certificates import Peer, serial_text
from tacit.collaboration.network.intake import APPLIED, Intake, Traffic, Turns, check_individual
from tacit.collaboration.network.masked_uploads import LONGEST_DEAL, METHODS, MaskedUploads, no_masked_uploads
from tacit.collaboration.network.masking import decode, places
from tacit.collaboration.network.phases import Sum
from tacit.collaboration.network.pool import NAME as POOL
from tacit.collaboration.network.pool import Pool
from tacit.collaboration.network.roster import Card
from tacit.collaboration.network.state import State
from tacit.collaboration.network.store import Entry, Store
from tacit.collaboration.refusals import Reason, Refused


class Service:
    """One server. ``lease`` and ``patience`` are seconds: how long a turn lasts, and how long it waits to be taken.

    ``snapshot_every`` uploads (or many bytes of them) the whole state is written, so that a restart is quick.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = 60.0,
        patience: float = 10.0,
        snapshot_every: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement, self.traffic = store.agreement, Traffic()
        self._state, self._clock = State(store, snapshot_every=snapshot_every), clock
        self._lock, self._revoked = threading.RLock(), store.revocations()
        self._peers: dict[str, Peer] = {}
        self._closed = False
        self._done: set[str] = set()  # who has said that it is, and is not waited for until it comes again
        self._pulled: tuple[tuple[float, ...], bytes] = ((), b"")
        self._turns = Turns(
            self.agreement.protocol, list(self._state.people), lease=lease, patience=patience, clock=clock
        )
        self._intake = Intake(self._state, self._turns, self.traffic, self._lock)
        self._masked: MaskedUploads | None = None
        if self.agreement.pool:
            pool = Pool(
                collaboration=self.agreement.collaboration,
                least=self.agreement.pool,
                count=self.agreement.most,
                patience=patience,
                duration=lease,
                everybody=lambda: self._state.people.keys() - self._gone(),
                done=lambda: self._done,
            )
            self._masked = MaskedUploads(
                pool, lock=self._lock, clock=clock, traffic=self.traffic, check=self._state.check_person,
                apply=self._apply, check_card=self._check_card, finished=store.finished,
            )  # fmt: skip

    @property
    def longest(self) -> int:
        """Return the bytes of the longest message: an upload of as many entries as are allowed, or shares for all."""
        return max(8 * self.agreement.most, 0 if self._masked is None else LONGEST_DEAL) + codec.OVERHEAD

    def methods(self) -> dict[str, Callable[[str, bytes], bytes]]:
        """Return what can be asked: each takes the name of who asks and a message."""
        masked = dict.fromkeys(METHODS, no_masked_uploads) if self._masked is None else self._masked.methods()
        return {
            "Agree": lambda name, _: self.agree(name), "Turn": lambda name, _: self.turn(name),
            "GiveBack": self.give_back, "Pull": self.pull, "PullPart": self.pull_part, "Push": self.push,
            "Report": self.report, "Done": lambda name, _: self.done(name),
            **masked,
        }  # fmt: skip

    def check_certificate(self, peer: Peer) -> None:
        """Refuse a certificate that is revoked or has expired at this moment.

        TLS looks at the date when a connection is made; a connection can last longer than its certificate.
        """
        if peer.expires is not None and datetime.datetime.now(datetime.UTC) >= peer.expires:
            raise Refused(
                Reason.REVOKED,
                f"the certificate of {peer.name!r} expired on {peer.expires:%Y-%m-%d}; go on with a new one, in the "
                "same folder and with the same ledger.",
            )
        if peer.serial is not None:
            self._check_serial(peer.name, peer.serial)
            if peer.name in self._state.people:
                self._peers[peer.name] = peer

    def _check_serial(self, name: str, serial: int) -> None:
        try:
            revoked = serial in self._revoked
        except sqlite3.Error as error:
            raise Refused(Reason.UNAVAILABLE, f"the server cannot read its state: {error}.") from None
        if revoked:
            raise Refused(
                Reason.REVOKED,
                f"the certificate {serial_text(serial)} of {name!r} was revoked; go on with a new one, in the same "
                "folder and with the same ledger.",
            )

    # -- what is asked -----------------------------------------------------------------------------------------------

    def agree(self, name: str) -> bytes:
        """Return the number of the next upload of ``name`` and the agreement."""
        with self._lock:
            self._state.check_person(name)
            self._done.discard(name)
            return codec.pack_token(self._state.due(name)) + self.agreement.to_json().encode()

    def turn(self, name: str) -> bytes:
        """Return a token to download and upload with; in asynchronous exchange everybody may at any time."""
        with self._lock:
            self._state.check_person(name)
            self._state.check_storage()
            check_individual(self._state)
            for other in self._gone() - {name}:
                self._turns.leave(other)
            return codec.pack_token(self._turns.acquire(name))

    def done(self, name: str) -> bytes:
        """Wait no more for a participant that has made all its uploads or spent its budget."""
        with self._lock:
            self._state.check_person(name)
            self._done.add(name)
        return APPLIED

    def _gone(self) -> set[str]:
        return self._done | {name for name, revoked in self._state.people.items() if revoked}

    def give_back(self, name: str, request: bytes) -> bytes:
        """End one's turn without an upload; one that has passed on stays where it is."""
        token, _ = codec.split_token(request)
        with self._lock:
            self._state.check_person(name)
            self._turns.end(name, token)
        return APPLIED

    def pull(self, name: str, request: bytes) -> bytes:
        """Return a download of the most updated parameters."""
        fraction = codec.unpack_fraction(request)
        return self._download(name, (fraction,), lambda: self._state.server.peek(fraction))

    def pull_part(self, name: str, request: bytes) -> bytes:
        """Return a download of some parameters in a row; all parts together are the whole model."""
        first, count = codec.unpack_range(request, size=self.agreement.size)
        return self._download(name, (first, count), lambda: self._state.server.peek_part(first, count))

    def _download(self, name: str, asked: tuple[float, ...], read: Callable[[], Download]) -> bytes:
        with self._lock:
            self._state.check_person(name)
            asked = (self._state.uploads, *asked)  # participants that come between two uploads share one message
            if self._pulled[0] != asked:
                self._pulled = asked, codec.pack_download(read())
            self.traffic.down += len(self._pulled[1])
            return self._pulled[1]

    def push(self, name: str, request: bytes) -> bytes:
        """Take an upload: check it, commit it, apply it. `ALREADY` if exactly this one had been taken before."""
        return self._intake.push(name, request)

    def report(self, name: str, request: bytes) -> bytes:
        """Keep what a participant says about its budget, for the status page."""
        statement = codec.unpack_statement(request)
        with self._lock:
            self._state.check_person(name)
            self._state.guarded(lambda: self._state.store.state(name, statement))
        return APPLIED

    # -- masked uploads ----------------------------------------------------------------------------------------------

    def trust(self, authority: bytes) -> None:
        """Take only those keys of a round that a certificate of this authority (in PEM) vouches for."""
        if self._masked is not None:
            self._masked.pool.authority = x509.load_pem_x509_certificate(authority)

    def _check_card(self, name: str, card: Card) -> None:
        serial: int | None = None
        with suppress(ValueError):  # what cannot be read is refused with its reason later
            serial = x509.load_der_x509_certificate(card.certificate).serial_number
        if serial is not None:
            self._check_serial(name, serial)

    def _apply(self, found: Sum) -> None:
        """Commit and apply the sum of a round."""
        agreed, sequence = self.agreement, self._state.server.next_sequence(POOL)
        indices = places(found.round_id, size=agreed.size, count=agreed.most)
        values = decode(found.total, agreed.bound, terms=len(found.participants))
        checked = self._state.server.check(POOL, sequence, indices, values)
        body = codec.pack_upload(sequence, indices, values, size=agreed.size)
        entry = Entry(
            participant=POOL,
            sequence=sequence,
            digest=hashlib.sha256(body).digest(),
            body=body,
            round_id=found.round_id,
            contributors=found.participants,
        )
        self._state.commit([(entry, checked)])

    # -- what can be seen --------------------------------------------------------------------------------------------

    def parameters(self) -> tuple[int, Vector]:
        """Return the number of uploads so far, and what they led to."""
        with self._lock:
            return self._state.uploads, self._state.server.parameters

    @property
    def unready(self) -> str | None:
        """Why no uploads are taken at the moment; None if they are."""
        failure = self.storage_failure
        why = None if failure is None else f"the server cannot write its state: {failure}"
        return "the server is being stopped" if self._closed else why

    @property
    def storage_failure(self) -> str | None:
        """Why the disk takes nothing more, or None."""
        return self._state.failure

    def uploads(self) -> int:
        """Return how many uploads were applied."""
        return self._state.uploads

    def retire(self) -> None:
        """Say from now on that the server is about to stop; what was begun is still answered."""
        self._closed = True

    def admit(self, name: str) -> None:
        with self._lock:
            self._state.admit(name)

    def overview(self) -> list[dict[str, object]]:
        """Return a line for each participant."""
        with self._lock:
            self._state.refresh()
            statements = self._state.store.statements()
            taken = self._state.store.contributions() if self.agreement.pool else self._state.server.participants
            return [
                {
                    "name": name,
                    "uploads": taken.get(name, 0),
                    "revoked": revoked,
                    "statement": statements.get(name, ""),
                    "last": self.traffic.last.get(name),
                    **_certificate(self._peers.get(name)),
                }
                for name, revoked in self._state.people.items()
            ]

    def close(self) -> None:
        """Write a snapshot and let go of the store."""
        with self._lock:
            self._revoked.close()
            self._state.close()


def _certificate(peer: Peer | None) -> dict[str, object]:
    """Return serial number and expiry of the certificate that a participant used last."""
    if peer is None or peer.serial is None or peer.expires is None:
        return {"serial": None, "expires": None}
    return {"serial": serial_text(peer.serial), "expires": peer.expires.timestamp()}
