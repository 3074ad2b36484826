"""A participant of averaging that adds its own share of the noise and masks it, on a ledger of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from tacit.accounting import Filter, Guarantee, account
from tacit.collaboration.network.averaging_terms import AveragingTerms
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.link import Link
from tacit.collaboration.network.seat import take_seat
from tacit.collaboration.privacy import UNIT
from tacit.collaboration.refusals import Reason, Refused
from tacit.ledger import Budget, BudgetExceeded, Everyone, Header, Ledger, Step
from tacit.mechanisms import SharedSum
from tacit.randomness import SecureSource

LEDGER = "participant-ledger.jsonl"


class _Answers:
    """Rounds answered in this process. A repeated one would get other noise, charged again."""

    def __init__(self) -> None:
        self._found: set[bytes] = set()

    def answered(self, round_id: bytes) -> bool:
        return round_id in self._found

    def answer(self, round_id: bytes) -> None:
        self._found.add(round_id)


class SharedRounds:
    """The rounds of one participant under ``terms``; what it sends is charged to FOLDER/participant-ledger.jsonl first.

    The ledger's budget is that of the terms: whatever the server says, no more is released.
    """

    def __init__(self, link: Link, credentials: Credentials, text: bytes, folder: Path) -> None:
        terms = AveragingTerms.unpack(text)
        self._link, self._credentials, self._terms = link, credentials, terms
        self._collaboration = hashlib.sha256(text).hexdigest()
        self._query = SharedSum(
            group="update",
            clip_norm=terms.clip_norm,
            noise_multiplier=terms.noise_multiplier,
            parts=terms.least - terms.colluding,
            dimension=terms.parameters,
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.ledger = Ledger.open(folder / LEDGER, Header(unit=UNIT, purpose="averaging with the participants' noise"))
        self._step = Step(Everyone(unit=UNIT), (self._query.event(),))
        self._gate = Filter(Budget(terms.epsilon, terms.delta))
        self.ledger.guard(self._gate)
        self._answers = _Answers()

    def send(self, change: torch.Tensor) -> None:
        """Charge, draw one's share of the noise, mask, send, and help to open the sum."""
        if not self._gate.remaining(self.ledger, self._step, most=1):  # who has no budget left does not enrol
            raise BudgetExceeded.before(self._gate.budget, steps=len(self.ledger))
        seat = take_seat(
            self._link,
            self._credentials,
            collaboration=self._collaboration,
            least=self._terms.least,
            outbox=self._answers,
        )
        self._answers.answer(seat.round_id)
        if len(seat.mask.roster.names) > self._terms.population:
            seat.leave()
            raise ValueError(
                f"the round has {len(seat.mask.roster.names)} participants, and the server's terms are for "
                f"{self._terms.population}; nothing was sent."
            )
        receipt = self.ledger.record(self._step)
        steps = self._query.share(receipt, change, SecureSource())
        self._link.call("Masked", seat.round_id + seat.mask.hide(steps.view(np.uint64)).astype("<u8").tobytes())
        try:
            seat.finish()
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:  # others have finished it before
                raise
        self._link.call("Outcome", seat.round_id)

    def guarantee(self) -> Guarantee | None:
        """Return what one's own ledger says of everything that was sent; None if nothing was."""
        return account(self.ledger, delta=self._terms.delta) if len(self.ledger) else None

    @property
    def assumed(self) -> str:
        """Return under which condition the guarantee holds: see `tacit.collaboration.network.masking`."""
        terms = self._terms
        lies = terms.colluding == 0 or 2 * terms.least > terms.population + terms.colluding  # so that 2t > n + c
        few = f"if at most {terms.colluding} of {terms.least} tell the server theirs"
        return few if lies else f"{few}, and the server keeps to the protocol"

    def close(self) -> None:
        self.ledger.close()
