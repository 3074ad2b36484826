"""Rounds of masked uploads, as the server sees them: who has enrolled, dealt, sent, vouched, revealed; when to give up.

A state machine without I/O; `tacit.collaboration.network.masking` has the protocol and what it hides. Nothing of a
round outlives a restart: it is then abandoned. Uploads are added up as they arrive; no single one is kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection

import numpy as np
from cryptography import x509

from tacit.collaboration.network.codec import ROUND_BYTES
from tacit.collaboration.network.masking import is_vouched
from tacit.collaboration.network.phases import WAITS, Phase, Round, Sum
from tacit.collaboration.network.roster import (
    MOST,
    Card,
    Roster,
    check_card,
    context_of,
    pack_items,
    pack_places,
    pack_roster,
    same_keys,
)
from tacit.collaboration.network.sharing import Deal
from tacit.collaboration.network.unmasking import check_revealed, unmask
from tacit.collaboration.refusals import Reason, Refused

NAME = "(pool)"
"""Under which sums are applied; no participant can have it."""
HELD, APPLIED = b"\x02", b"\x00"
_REMEMBERED = 100


class Pool:
    """``least`` participants enrol, at most ``MOST``; ``patience`` seconds after the first did, or when ``everybody``
    has, the round is closed to more. Each phase then lasts until all have answered, or ``duration`` seconds: it goes on
    without those who are silent, if at least the roster's threshold remain, and is abandoned otherwise.
    """

    def __init__(
        self, *, collaboration: str, least: int, count: int, patience: float, duration: float,
        everybody: Callable[[], Collection[str]], done: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        self._collaboration = collaboration
        self.authority: x509.Certificate | None = None  # who vouches for keys; without it, only the others check them
        self._least, self._count = max(least, 2), count
        self._patience, self._duration, self._everybody, self._done = patience, duration, everybody, done
        self._round: Round | None = None
        self._over: OrderedDict[bytes, str | frozenset[str]] = OrderedDict()  # who is in its sum, or why there is none

    def current(self, now: float) -> bytes:
        """Return the round in which one can enrol; while another is being finished there is none."""
        self._advance(now)
        if self._round is None:
            self._round = Round(id=secrets.token_bytes(ROUND_BYTES), since=now)
        if self._round.phase is not Phase.ENROLLING:
            raise Refused(Reason.WAIT, "a round is being finished; try again later.")
        self._check_company()
        return self._round.id

    def enrol(self, name: str, round_id: bytes, card: Card, now: float) -> None:
        """Enrol a participant; one that was restarted before the round closed can come with other keys."""
        found = self._find(round_id, now)
        if found.phase is not Phase.ENROLLING or (name not in found.cards and len(found.cards) == MOST):
            raise Refused(Reason.ROUND, "the round is closed; join the next.")
        if self.authority is not None:
            owner = check_card(card, self.authority, context_of(self._collaboration, round_id))
            if owner != name:
                raise Refused(Reason.UNKNOWN, f"the round's key is that of {owner!r}, not of {name!r}.")
        if same_keys([card, *(other for who, other in found.cards.items() if who != name)]):
            raise Refused(Reason.UNKNOWN, "another participant of the round has the same key.")
        if not found.cards:
            found.since = now
        found.cards[name] = card
        self._advance(now)

    def roster(self, name: str, round_id: bytes, now: float) -> bytes:
        """Return the keys of all who have enrolled, once the round is closed."""
        found = self._find(round_id, now)
        if name not in found.cards:
            raise Refused(Reason.ROUND, "one must enrol in a round to see who is in it.")
        if found.phase is Phase.ENROLLING:
            self._check_company()
        return pack_roster(found.people.cards)

    def _check_company(self) -> None:
        """Refuse to wait for others who have said that they are done."""
        left = len(self._everybody())
        if self._done() and left < self._least:
            raise Refused(
                Reason.ALONE, f"{left} participants are left, and a round needs {self._least}: others are done."
            )

    def leave(self, name: str, round_id: bytes, now: float) -> None:
        """Stop waiting for a participant that has sent nothing and says that it will not."""
        found = self._find(round_id, now)
        if name not in found.cards:
            raise Refused(Reason.ROUND, "only who has enrolled in a round can leave it.")
        if found.phase is Phase.ENROLLING:
            del found.cards[name]
            return
        place = found.people.names.index(name)
        if found.phase > Phase.SENDING or place in found.digests:
            raise Refused(Reason.ROUND, "only who has sent nothing in a round can leave it.")
        found.left.add(place)
        self._advance(now)

    def deal(self, name: str, round_id: bytes, data: bytes, now: float) -> None:
        """Keep a participant's sealed shares; what was dealt once cannot be changed."""
        found, place = self._member(name, round_id, now, Phase.DEALING)
        deal = Deal.unpack(data, people=len(found.cards))
        if found.deals.setdefault(place, deal) != deal:
            raise Refused(Reason.REPLAYED, "other shares were dealt in this round before.")
        self._advance(now)

    def shares(self, name: str, round_id: bytes, now: float) -> bytes:
        """Return the shares that every dealer has sealed for this participant, once it is known who the dealers are."""
        found, place = self._member(name, round_id, now)
        if found.phase <= Phase.DEALING:
            raise self._wait(found)
        if place not in found.deals:
            raise Refused(Reason.ROUND, "the round went on without you: your shares did not arrive in time.")
        dealers = sorted(found.deals)
        return pack_items([pack_places(dealers), *(found.deals[dealer].entries[place] for dealer in dealers)])

    def send(self, name: str, round_id: bytes, data: bytes, now: float) -> None:
        """Add a masked upload to the sum. What was sent once cannot be changed; what is late is not taken."""
        found, place = self._member(name, round_id, now)
        if len(data) != 8 * self._count:
            raise Refused(
                Reason.SHAPE, f"the upload has {len(data)} bytes; {self._count} numbers take {8 * self._count}."
            )
        digest = hashlib.sha256(data).digest()
        if found.digests.get(place, digest) != digest:
            raise Refused(Reason.REPLAYED, "another upload was sent for this round before.")
        if place in found.digests:
            return
        if found.phase < Phase.SENDING or place not in found.deals:
            raise Refused(Reason.ROUND, "one must deal shares in a round, and see who has, to send.")
        if found.phase > Phase.SENDING or place in found.left:
            raise Refused(Reason.ROUND, "the round went on without you: your upload did not arrive in time.")
        words = np.frombuffer(data, dtype="<u8")
        found.total = words.astype(np.uint64) if found.total is None else found.total + words
        found.digests[place] = digest
        self._advance(now)

    def survivors(self, name: str, round_id: bytes, now: float) -> bytes:
        """Return the places whose uploads are in the sum, once no more are taken."""
        found, place = self._member(name, round_id, now)
        if found.phase <= Phase.SENDING:
            raise self._wait(found)
        if place not in found.digests:
            raise Refused(Reason.ROUND, "the round went on without you: your upload did not arrive in time.")
        return pack_places(found.survivors)

    def vouch(self, name: str, round_id: bytes, signature: bytes, now: float) -> None:
        """Keep a survivor's signature of who the dealers and survivors are."""
        found, place = self._member(name, round_id, now, Phase.VOUCHING)
        good = is_vouched(found.people, found.deals, found.survivors, place, signature)
        if place not in found.digests or not good:
            raise Refused(Reason.UNKNOWN, "that is not the signature of a survivor for this round.")
        found.vouchers.setdefault(place, signature)
        self._advance(now)

    def vouchers(self, name: str, round_id: bytes, now: float) -> bytes:
        """Return the signatures of as many survivors as must have signed, once there are so many."""
        found, _ = self._member(name, round_id, now)
        if found.phase <= Phase.VOUCHING:
            raise self._wait(found)
        signed = sorted(found.vouchers.items())
        return pack_items([pack_places([place for place, _ in signed]), *(signature for _, signature in signed)])

    def reveal(self, name: str, round_id: bytes, data: bytes, now: float) -> Sum | None:
        """Keep a survivor's shares, if they are those that were dealt; the sum when they are enough."""
        found, place = self._member(name, round_id, now, Phase.REVEALING)
        if place not in found.digests:
            raise Refused(Reason.ROUND, "only those whose uploads are in the sum reveal shares.")
        roster = found.people
        found.revealed[place] = check_revealed(roster, found.deals, found.survivors, place, data)
        if len(found.revealed) < roster.threshold or found.total is None:
            return None
        self._end("its sum could not be applied")  # until `applied` says otherwise
        try:
            total = unmask(found.total, roster, found.deals, found.survivors, found.revealed)
        except Refused as refusal:
            self._over[round_id] = str(refusal)
            raise Refused(Reason.ROUND, f"the round was abandoned: {refusal}.") from None
        names = tuple(roster.names[survivor] for survivor in found.survivors)
        return Sum(round_id=round_id, total=total, participants=names)

    def applied(self, found: Sum) -> None:
        """The sum is in the parameters."""
        self._over[found.round_id] = frozenset(found.participants)

    def outcome(self, name: str, round_id: bytes, now: float) -> bytes:
        """`APPLIED` if this participant's upload is in the sum, or refused: not yet, or never."""
        self._advance(now)
        if self._round is not None and self._round.id == round_id:
            raise self._wait(self._round)
        found = self._over.get(round_id, "this server knows nothing of it")
        if isinstance(found, str):
            raise Refused(Reason.ROUND, f"the round was abandoned: {found}.")
        if name not in found:
            raise Refused(Reason.ROUND, "the round went on without you: your upload did not arrive in time.")
        return APPLIED

    def _wait(self, found: Round) -> Refused:
        return Refused(Reason.WAIT, f"the round waits for {WAITS[found.phase]}; try again later.")

    def _find(self, round_id: bytes, now: float) -> Round:
        self._advance(now)
        if self._round is None or round_id != self._round.id:
            why = self._over.get(round_id)
            raise Refused(
                Reason.ROUND, f"the round was abandoned: {why}." if isinstance(why, str) else "the round is over."
            )
        return self._round

    def _member(self, name: str, round_id: bytes, now: float, phase: Phase | None = None) -> tuple[Round, int]:
        """Return the round and the place of who asks; if a ``phase`` is asked for, refused before and after it."""
        found = self._find(round_id, now)
        if name not in found.cards:
            raise Refused(Reason.ROUND, "one must enrol in a round to take part in it.")
        place = found.people.names.index(name)
        if phase is not None and found.phase < phase:
            raise self._wait(found)
        if phase is not None and found.phase > phase:
            raise Refused(Reason.ROUND, f"the round does not take {WAITS[phase]} any more.")
        return found, place

    def _advance(self, now: float) -> None:
        """Go to the next phase, or give up, when all have answered or enough time has passed."""
        found = self._round
        if found is None:
            return
        everybody = set(self._everybody())
        if found.phase is Phase.ENROLLING:
            for name in found.cards.keys() - everybody:  # revoked
                del found.cards[name]
            waited = bool(found.cards) and now - found.since >= self._patience
            if len(found.cards) >= self._least and (waited or everybody <= set(found.cards)):
                context = context_of(self._collaboration, found.id)
                found.roster = Roster.of(found.cards, context=context, least=self._least)
                found.phase, found.since = Phase.DEALING, now
            return
        roster, done = found.people, len(found.done())
        waited_for = {place for place in found.waited_for() if roster.names[place] in everybody}
        if found.phase >= Phase.VOUCHING and done >= roster.threshold and found.phase is not Phase.REVEALING:
            found.phase, found.since = Phase.REVEALING, now
        elif done + len(waited_for) < roster.threshold or (
            done < roster.threshold and now - found.since >= self._duration
        ):
            self._end(f"{done} of {len(roster.names)} participants have sent {WAITS[found.phase]}, and "
                      f"{roster.threshold} must have")  # fmt: skip
        elif found.phase <= Phase.SENDING and (not waited_for or now - found.since >= self._duration):
            found.phase, found.since = Phase(found.phase + 1), now

    def _end(self, why: str) -> None:
        if self._round is not None:
            self._over[self._round.id] = why
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
        self._round = None
