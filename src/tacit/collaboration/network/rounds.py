"""A participant whose uploads are masked: the server learns the sum of a round and no single term."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tacit.collaboration.messages import Upload
from tacit.collaboration.network import codec
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.masking import Card, Mask, places, unpack_roster
from tacit.collaboration.network.membership import Membership, Shard
from tacit.collaboration.participant import Participant
from tacit.collaboration.selection import Agreed
from tacit.collaboration.server import Reason, Refused

log = logging.getLogger("tacit")


class MaskedMembership(Membership):
    """As `Membership`, in rounds. ``agreed`` is the selection that the participant's uploads are made with.

    The release is made, and charged, once it is known who is in the round, so that a round that does not come about
    costs nothing. One that is abandoned afterwards is lost: what it cost stays spent, and the next upload is another.
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
        round_id, mask, roster = self._enrolled()
        terms = self._agreement
        self._agreed.places = places(round_id, size=terms.size, count=terms.most)
        upload = self.participant.finish()
        hidden = mask.hide(upload.values, bound=terms.bound, roster=roster, least=terms.pool)
        self.keep([round_id + hidden.astype("<u8").tobytes()])
        self.deliver()
        return upload

    def deliver(self, tokens: Sequence[int] | None = None) -> None:
        """Send what is in the outbox, as it is, and see what became of it."""
        for letter in self.outbox.unsent():
            round_id = letter.body[: codec.ROUND_BYTES]
            try:
                self._link.call("Masked", letter.body)
                self._link.call("Outcome", round_id)
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                if not self._was_applied(round_id):
                    self.lost += 1
                    log.warning("the round of upload %d was abandoned; it stays charged", letter.sequence)
            self.outbox.acknowledged(letter)

    def _was_applied(self, round_id: bytes) -> bool:
        try:
            self._link.call("Outcome", round_id)
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:
                raise
            return False
        return True

    def _enrolled(self) -> tuple[bytes, Mask, list[Card]]:
        """A round with enough others in it, all of whom somebody vouches for."""
        while True:
            round_id = self._link.call("Round", b"")
            mask = Mask(self._credentials, collaboration=self._agreement.collaboration, round_id=round_id)
            try:
                self._link.call("Enrol", round_id + mask.card().pack())
                roster = unpack_roster(self._link.call("Roster", round_id))
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                continue  # it closed just before
            mask.check(roster, least=self._agreement.pool)
            return round_id, mask, roster
