"""A participant whose uploads are masked: the server learns the sum of a round and no single term."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tacit.collaboration.messages import Upload
from tacit.collaboration.network import codec
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.masking import Card, Goodbye, Mask, among, places, unpack_roster
from tacit.collaboration.network.membership import Membership, Shard
from tacit.collaboration.network.outbox import Letter, Outbox
from tacit.collaboration.participant import Participant
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import Agreed

log = logging.getLogger("tacit")

_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in a round: its first name, one's mask, who was in it when it closed, and who has left since."""

    round_id: bytes
    mask: Mask
    roster: list[Card]
    gone: list[Goodbye]


class MaskedMembership(Membership):
    """As `Membership`, in rounds. ``agreed`` is the selection that the participant's uploads are made with.

    The upload is made, and charged if that is where the noise is, once it is known who is in the round and that all
    of them are what they say. One that does not come about costs nothing: what was trained is for the next (DP-SGD is
    charged while it trains). One that is abandoned afterwards is lost: what it cost stays spent, and the next upload is
    another. ``ready`` raises `BudgetExceeded` if there is no money for an upload: then one does not enrol. If it is
    noticed only afterwards, one leaves the round, and the others go on without.

    A round is answered once, with an upload or a goodbye: a server that repeated it among others, on the same
    parameters, could subtract the two sums.
    """

    def __init__(
        self,
        participant: Participant,
        shard: Shard,
        outbox: Outbox,
        *,
        credentials: Credentials,
        agreed: Agreed,
        download: float = 1.0,
        charged: Callable[[], int] = lambda: 0,
        ready: Callable[[], None] = lambda: None,
        lost_key: bool = False,
        older_server: bool = False,
    ) -> None:
        if not shard.agreement.pool:
            raise ValueError(f"the server {shard.link.address} takes no masked uploads; join without them.")
        super().__init__(
            participant,
            [shard],
            outbox,
            download=download,
            charged=charged,
            lost_key=lost_key,
            older_server=older_server,
        )
        self._link, self._agreement = shard.link, shard.agreement
        self._credentials, self._agreed, self._ready = credentials, agreed, ready

    def exchange(self) -> Upload:
        """One epoch and one round. When this returns the sum was applied, or the round was abandoned."""
        self.deliver()
        self.participant.begin(self._pull(self._download))
        self.participant.train()
        self._ready()
        seat = self._enrolled()
        try:
            self._agreed.places = places(seat.round_id, size=self._agreement.size, count=self._agreement.most)
            upload = self.participant.finish()
            body = self._hidden(seat, upload)
        except Exception:  # the budget is spent, or the roster is not in order: nothing was sent, and nothing will be
            self._leave(seat)
            raise
        self.keep([body], round_id=seat.round_id)
        self._deliver(seat, upload)
        return upload

    def deliver(self, tokens: Sequence[int] | None = None) -> None:
        """Send what is in the outbox, as it is, and see what became of it."""
        for letter in self.outbox.unsent():
            if not self._sent(letter):
                self._lose(letter)
            self.outbox.acknowledged(letter)

    def _deliver(self, seat: Seat, upload: Upload) -> None:
        """Send an upload; the same values again, masked among those who remain, whenever somebody has left."""
        (letter,) = self.outbox.unsent()
        while not self._sent(letter):
            left = self._remaining(seat)
            if left is None:
                self._lose(letter)
                break
            seat = left
            letter = self.outbox.replace(letter, self._hidden(seat, upload))
        self.outbox.acknowledged(letter)

    def _hidden(self, seat: Seat, upload: Upload) -> bytes:
        terms = self._agreement
        words = seat.mask.hide(upload.values, bound=terms.bound, roster=seat.roster, least=terms.pool, gone=seat.gone)
        return among(seat.round_id, seat.gone) + words.astype("<u8").tobytes()

    def _remaining(self, seat: Seat) -> Seat | None:
        """The round without those who have left it since; None if there is no such round any more."""
        try:
            roster, gone = unpack_roster(self._link.call("Roster", seat.round_id))
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:
                raise
            return None
        if roster != seat.roster or gone[: len(seat.gone)] != seat.gone:
            raise ValueError("the server shows others in the round than before; nothing more was sent.")
        return None if len(gone) == len(seat.gone) else replace(seat, gone=gone)

    def _leave(self, seat: Seat) -> None:
        self.outbox.answer(seat.round_id)
        try:
            self._link.call("Leave", seat.round_id + seat.mask.goodbye())
        except Refused as refusal:
            log.info("the round could not be left: %s", refusal)

    def _lose(self, letter: Letter) -> None:
        self.lost += 1
        log.warning("the round of upload %d was abandoned; it stays charged", letter.sequence)

    def _sent(self, letter: Letter) -> bool:
        """Return True if the sum with this in it was applied; if not, it never will be."""
        round_id = letter.body[: codec.ROUND_BYTES]
        try:
            self._link.call("Masked", letter.body)
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:
                raise
        try:
            self._link.call("Outcome", round_id)
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:
                raise
            return False
        return True

    def _enrolled(self) -> Seat:
        """A round with enough others in it, all of whom somebody vouches for."""
        attempts = 0
        while True:
            round_id = self._link.call("Round", b"")
            if self.outbox.answered(round_id):
                raise ValueError(
                    f"the server {self._link.address} repeats a round that was answered before; nothing was sent."
                )
            mask = Mask(self._credentials, collaboration=self._agreement.collaboration, round_id=round_id)
            try:
                self._link.call("Enrol", round_id + mask.card().pack())
                roster, gone = unpack_roster(self._link.call("Roster", round_id))
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                continue  # it closed just before
            seat = Seat(round_id=round_id, mask=mask, roster=roster, gone=gone)
            try:
                names = mask.check(roster, least=self._agreement.pool, gone=gone)
            except ValueError as error:
                self._leave(seat)
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise
                log.warning("a round was not in order and is left: %s", error)
                continue
            log.info("a round of %s", ", ".join(sorted(names)))
            self.company |= names.keys()
            return seat
