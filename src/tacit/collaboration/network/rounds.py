"""A participant whose uploads are masked: the server learns the sum of a round and no single term."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.collaboration.messages import Upload
from tacit.collaboration.network import codec
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.masking import Card, Goodbye, Mask, among, places, unpack_roster
from tacit.collaboration.network.membership import Membership, Shard
from tacit.collaboration.network.outbox import Letter
from tacit.collaboration.participant import Participant
from tacit.collaboration.selection import Agreed
from tacit.collaboration.server import Reason, Refused

log = logging.getLogger("tacit")


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in a round: its first name, one's mask, who was in it when it closed, and who has left since."""

    round_id: bytes
    mask: Mask
    roster: list[Card]
    gone: list[Goodbye]


class MaskedMembership(Membership):
    """As `Membership`, in rounds. ``agreed`` is the selection that the participant's uploads are made with.

    The release is made, and charged, once it is known who is in the round, so that a round that does not come about
    costs nothing. One that is abandoned afterwards is lost: what it cost stays spent, and the next upload is another.
    If the budget does not allow the release, one leaves the round, and the others go on without.
    """

    def __init__(
        self,
        participant: Participant,
        shard: Shard,
        folder: Path,
        *,
        credentials: Credentials,
        agreed: Agreed,
        download: float = 1.0,
    ) -> None:
        if not shard.agreement.pool:
            raise ValueError(f"the server {shard.link.address} takes no masked uploads; join without them.")
        super().__init__(participant, [shard], folder, download=download)
        self._link, self._agreement = shard.link, shard.agreement
        self._credentials, self._agreed = credentials, agreed

    def exchange(self) -> Upload:
        """One epoch and one round. When this returns the sum was applied, or the round was abandoned."""
        self.deliver()
        self.participant.begin(self._pull(self._download))
        self.participant.train()
        seat = self._enrolled()
        try:
            self._agreed.places = places(seat.round_id, size=self._agreement.size, count=self._agreement.most)
            upload = self.participant.finish()
            body = self._hidden(seat, upload)
        except Exception:  # the budget is spent, or the roster is not in order: nothing was sent, and nothing will be
            self._leave(seat)
            raise
        self.keep([body])
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
        try:
            self._link.call("Leave", seat.round_id + seat.mask.goodbye())
        except Refused as refusal:
            log.info("the round could not be left: %s", refusal)

    def _lose(self, letter: Letter) -> None:
        self.lost += 1
        log.warning("the round of upload %d was abandoned; it stays charged", letter.sequence)

    def _sent(self, letter: Letter) -> bool:
        """Whether the sum with this in it was applied; if not, it never will be."""
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
        while True:
            round_id = self._link.call("Round", b"")
            mask = Mask(self._credentials, collaboration=self._agreement.collaboration, round_id=round_id)
            try:
                self._link.call("Enrol", round_id + mask.card().pack())
                roster, gone = unpack_roster(self._link.call("Roster", round_id))
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                continue  # it closed just before
            mask.check(roster, least=self._agreement.pool, gone=gone)
            return Seat(round_id=round_id, mask=mask, roster=roster, gone=gone)
