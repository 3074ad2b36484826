"""Private averaging over our own service: the server draws participants, adds noise to their sum, and takes a step.

The guarantee, its record (a whole participant) and who is trusted (the server) are in `tacit.collaboration.averaging`.
The ledger is the server's, and protects every participant as a whole; a participant that trains by DP-SGD has a ledger
of its own beside it, which protects its examples from everybody, the server included.
"""

from __future__ import annotations

import datetime
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tacit.collaboration.averaging import Averager, Averaging, Round
from tacit.collaboration.messages import Download
from tacit.collaboration.network import codec
from tacit.collaboration.network.averaging_terms import AveragingTerms
from tacit.collaboration.network.certificates import Peer, check_name
from tacit.collaboration.network.intake import APPLIED, Traffic
from tacit.collaboration.refusals import Reason, Refused
from tacit.ledger import BudgetExceeded

log = logging.getLogger("tacit")

WORK, OVER = b"\x00", b"\x01"


def slots_of(averaging: Averaging, people: Sequence[str]) -> dict[str, int]:
    """Return the slot of each participant; refuse more than there are, and a name that is there twice."""
    slots = {check_name(name): slot for slot, name in enumerate(people)}
    if not len(slots) == len(people) <= averaging.population:
        raise ValueError(
            f"{len(people)} participants are named, for a population of {averaging.population}; name each once, "
            "and at most as many."
        )
    return slots


def over(averager: Averager, stopped: str) -> bytes:
    """Return the last message: why there are no more rounds, what they cost, and the model."""
    found = averager.guarantee() if len(averager.ledger) else None
    facts = {"stopped": stopped, "rounds": averager.rounds, "guarantee": str(found)}
    facts["epsilon"] = 0.0 if found is None else found.epsilon
    text = json.dumps(facts).encode()
    whole = codec.pack_download(Download(indices=None, values=averager.parameters))
    return OVER + codec.pack_token(len(text)) + text + whole


def check_date(peer: Peer) -> None:
    """Refuse a certificate that has expired since the connection was made."""
    if peer.expires is not None and datetime.datetime.now(datetime.UTC) >= peer.expires:
        raise Refused(Reason.REVOKED, f"the certificate of {peer.name!r} expired on {peer.expires:%Y-%m-%d}.")


class Storage:
    """The server's disk: once it has failed, nothing more is charged or taken until a restart."""

    def __init__(self) -> None:
        self._failure = ""

    def check(self) -> None:
        """Refuse if the disk has failed."""
        if self._failure:
            raise Refused(Reason.UNAVAILABLE, f"the server cannot write its state: {self._failure}")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse if the disk has failed before, or fails in the block."""
        self.check()
        try:
            yield
        except OSError as error:
            self._failure = str(error)
            log.error(
                "the server's state cannot be written: %s Restart it then; all participants wait for that.", error
            )
            self.check()


class AveragingService:
    """The rounds of `Averager`, asked for by participants: ``people``, each with a slot of its own.

    A round ends when all participants drawn have answered, or ``averaging.patience`` seconds after it began: one that
    has not answered by then adds nothing. The server neither logs the draw nor shows it to other participants.
    """

    def __init__(
        self, averaging: Averaging, people: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.averaging, self.traffic, self._clock = averaging, Traffic(), clock
        self._slots = slots_of(averaging, people)
        model = averaging.network()
        self._averager = Averager(averaging)
        self._terms = AveragingTerms.of(averaging, model, self._averager.parameters.size).pack()
        self._lock = threading.RLock()
        self._here: set[str] = set()
        self._round: Round | None = None
        self._waiting: set[str] = set()
        self._began, self._stopped = 0.0, ""
        self._storage = Storage()

    @property
    def longest(self) -> int:
        """Return the bytes of the longest message: a change of the whole model."""
        return 4 * self._averager.parameters.size + codec.OVERHEAD

    @property
    def rounds(self) -> int:
        """Return how many rounds are over."""
        return self._averager.rounds

    def methods(self) -> dict[str, Callable[[str, bytes], bytes]]:
        """Return what can be asked: each takes the name of who asks and a message."""
        return {
            "Terms": lambda name, _: self.terms(name),
            "Work": lambda name, _: self.work(name),
            "Change": self.change,
        }

    def check_certificate(self, peer: Peer) -> None:
        """Refuse a certificate that has expired since the connection was made."""
        check_date(peer)

    def trust(self, authority: bytes) -> None:
        """Certificates are checked by TLS alone."""

    def terms(self, name: str) -> bytes:
        """Return the terms of all: the network, and how much a participant is protected."""
        self._check(name)
        return self._terms

    def work(self, name: str) -> bytes:
        """Return the round's number and the parameters to train, to a participant drawn that has not answered."""
        with self._lock:
            self._check(name)
            self._here.add(name)
            self._advance()
            if self._round is None and self._stopped:
                return over(self._averager, self._stopped)
            if self._round is None or name not in self._waiting:
                raise Refused(Reason.WAIT, f"round {self.rounds} is being finished, or others are waited for.")
            body = codec.pack_download(Download(indices=None, values=self._averager.parameters))
            self.traffic.down += len(body)
            return WORK + codec.pack_token(self.rounds) + body

    def change(self, name: str, request: bytes) -> bytes:
        """Take the change of a participant that was drawn, and clip it here."""
        number, body = codec.split_token(request)
        size = self._averager.parameters.size
        _, indices, values = codec.unpack_upload(body, size=size)
        if indices is not None:
            raise Refused(Reason.SHAPE, f"the change has {values.size} values; the model has {size} parameters.")
        with self._lock:
            self._check(name)
            self._advance()
            if self._round is None or number != self.rounds or name not in self._waiting:
                raise Refused(Reason.ROUND, "the round is over, or you were not drawn in it; ask for the next.")
            self._round.add(self._slots[name], values.copy())
            self._waiting.discard(name)
            self.traffic.up += len(body)
            self.traffic.last[name] = time.time()
            self._advance()
        return APPLIED

    def _check(self, name: str) -> None:
        if name not in self._slots:
            raise Refused(Reason.UNKNOWN, f"participant {name[:80]!r} is not known; average with --admit {name[:80]}.")
        self._storage.check()

    def _advance(self) -> None:
        """End a round that is complete or has lasted long enough, and begin the next."""
        with self._storage.guarded():
            self._end_and_begin()

    def _end_and_begin(self) -> None:
        own, now = self.averaging, self._clock()
        if self._round is not None and (not self._waiting or now - self._began >= own.patience):
            self._averager.end(self._round)
            self._round = None
            log.info("round %d of %d is over", self.rounds, own.rounds)
        if self._round is None and not self._stopped:
            if self.rounds >= own.rounds:
                self._stopped = f"all {own.rounds} rounds were made"
            elif len(self._here) >= own.least:
                try:
                    self._round = self._averager.begin()
                except BudgetExceeded as error:
                    self._stopped = str(error)
                    log.warning("stopped after %d of %d rounds: %s", self.rounds, own.rounds, error)
                    return
                slots = self._round.slots
                self._waiting, self._began = {name for name, slot in self._slots.items() if slot in slots}, now

    def close(self) -> None:
        """A round that was charged and did not end is lost, and stays charged."""
        with self._lock:
            self._averager.close()
