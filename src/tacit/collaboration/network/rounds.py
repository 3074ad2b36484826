"""A participant whose uploads are masked: the server learns the sum of a round and no single term."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tacit.collaboration.network import codec
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.masking import encode, places
from tacit.collaboration.network.membership import Membership, Shard
from tacit.collaboration.network.outbox import Letter, Outbox
from tacit.collaboration.network.seat import Seat, take_seat
from tacit.collaboration.participant import Participant
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import Agreed

log = logging.getLogger("tacit")


class MaskedMembership(Membership):
    """As `Membership`, in rounds. ``agreed`` is the selection that the participant's uploads are made with.

    The upload is made, and charged if that is where the noise is, once it is known who is in the round and that all
    of them are what they say. One that does not come about costs nothing: what was trained is for the next (DP-SGD is
    charged while it trains). One that is abandoned afterwards, or went on without this participant, is lost: what it
    cost stays spent, and the next upload is another. ``ready`` raises `BudgetExceeded` if there is no money for an
    upload: then one does not enrol. If it is noticed only afterwards, one leaves the round, and the others go on.

    A round is answered once, with an upload or not at all: a server that repeated it among others, on the same
    parameters, could subtract the two sums. A participant whose process dies after it has sent cannot reveal
    shares any more; the others do without it, and its upload counts.
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

    def exchange(self) -> None:
        """Train for an epoch and take part in a round. At the end the sum was applied, or the upload is lost."""
        self.deliver()
        self.participant.begin(self._pull(self._download))
        self.participant.train()
        self._ready()
        terms = self._agreement
        seat = take_seat(
            self._link, self._credentials, collaboration=terms.collaboration, least=terms.pool, outbox=self.outbox
        )
        self.company |= set(seat.mask.roster.names)
        try:
            self._agreed.places = places(seat.round_id, size=terms.size, count=terms.most)
            values = self.participant.finish().values
            masked = seat.mask.hide(encode(values, terms.bound)).astype("<u8", copy=False)
        except Exception:  # the budget is spent, or something is not in order: nothing was sent, and nothing will be
            self.outbox.answer(seat.round_id)
            seat.leave()
            raise
        self.keep([[seat.round_id, masked.data.cast("B")]], round_id=seat.round_id)
        self._deliver(seat)

    def deliver(self, tokens: Sequence[int] | None = None) -> None:
        """Send what is in the outbox, as it is, and see what became of it."""
        self._deliver(None)

    def _deliver(self, seat: Seat | None) -> None:
        """Send what is in the outbox; with a ``seat`` in its round help to unmask the sum."""
        for letter in self.outbox.unsent():
            body = self.outbox.body(letter)
            round_id = body[: codec.ROUND_BYTES]
            try:
                self._link.call("Masked", body)
                if seat is not None:
                    seat.finish()
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
            try:
                self._link.call("Outcome", round_id)
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                self._lose(letter, str(refusal))
            self.outbox.acknowledged(letter)

    def _lose(self, letter: Letter, why: str) -> None:
        self.lost += 1
        log.warning("upload %d is lost and stays charged: %s", letter.sequence, why)
