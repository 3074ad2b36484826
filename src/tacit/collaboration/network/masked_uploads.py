"""The questions of a round of masked uploads, as a service answers them: a `Pool` behind a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tacit.collaboration.network import codec
from tacit.collaboration.network.intake import APPLIED, Traffic
from tacit.collaboration.network.phases import Sum
from tacit.collaboration.network.pool import HELD, Pool
from tacit.collaboration.network.roster import MOST, Card
from tacit.collaboration.network.sharing import ENTRY_BYTES
from tacit.collaboration.refusals import Reason, Refused

METHODS = (
    "Round", "Enrol", "Roster", "Leave", "Deal", "Shares",
    "Masked", "Survivors", "Vouch", "Vouchers", "Reveal", "Outcome",
)  # fmt: skip
"""The questions of the protocol of rounds."""
LONGEST_DEAL = (MOST + 1) * ENTRY_BYTES
"""Bytes of the longest message about shares."""


class MaskedUploads:
    """Answers questions about ``pool`` from names that ``check`` passes.

    A complete sum goes to ``apply``, within ``lock``.
    ``check_card`` refuses a card whose certificate was revoked. ``finished`` says of a participant and a
    round that its sum was applied with this one in it, perhaps before a restart.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        lock: threading.RLock,
        clock: Callable[[], float],
        traffic: Traffic,
        check: Callable[[str], None],
        apply: Callable[[Sum], None],
        check_card: Callable[[str, Card], None] = lambda name, card: None,
        finished: Callable[[str, bytes], bool] = lambda name, round_id: False,
    ) -> None:
        self.pool, self._lock, self._clock, self._traffic = pool, lock, clock, traffic
        self._check, self._apply, self._check_card, self._finished = check, apply, check_card, finished

    def methods(self) -> dict[str, Callable[[str, bytes], bytes]]:
        """Return what can be asked: each takes the name of who asks and a message that begins with the round's name."""
        pool, now = self.pool, self._clock
        return {
            "Round": lambda name, _: self._ask(name, lambda: pool.current(now())),
            "Enrol": self._enrol,
            "Roster": self._about(lambda name, which, _: pool.roster(name, which, now())),
            "Leave": self._about(lambda name, which, _: pool.leave(name, which, now())),
            "Deal": self._about(lambda name, which, data: pool.deal(name, which, data, now())),
            "Shares": self._about(lambda name, which, _: pool.shares(name, which, now())),
            "Masked": self._about(self._send),
            "Survivors": self._about(lambda name, which, _: pool.survivors(name, which, now())),
            "Vouch": self._about(lambda name, which, data: pool.vouch(name, which, data, now())),
            "Vouchers": self._about(lambda name, which, _: pool.vouchers(name, which, now())),
            "Reveal": self._about(self._reveal),
            "Outcome": self._about(self._outcome),
        }

    def _ask(self, name: str, ask: Callable[[], bytes | None]) -> bytes:
        with self._lock:
            self._check(name)
            answer = ask()
            return APPLIED if answer is None else answer

    def _about(self, ask: Callable[[str, bytes, bytes], bytes | None]) -> Callable[[str, bytes], bytes]:
        def answer(name: str, request: bytes) -> bytes:
            round_id, data = codec.split_round(request)
            return self._ask(name, lambda: ask(name, round_id, data))

        return answer

    def _enrol(self, name: str, request: bytes) -> bytes:
        """Enrol a participant in a round with its keys, whose certificate the others check as well."""
        round_id, rest = codec.split_round(request)
        card = Card.unpack(rest)
        self._check_card(name, card)
        return self._ask(name, lambda: self.pool.enrol(name, round_id, card, self._clock()))

    def _send(self, name: str, round_id: bytes, data: bytes) -> bytes:
        self.pool.send(name, round_id, data, self._clock())
        self._traffic.up += len(data)
        self._traffic.last[name] = time.time()
        return HELD

    def _reveal(self, name: str, round_id: bytes, data: bytes) -> bytes:
        """Keep revealed shares; when they are enough, commit and apply the sum."""
        found = self.pool.reveal(name, round_id, data, self._clock())
        if found is None:
            return HELD
        try:
            self._apply(found)
        except Refused as refusal:
            # The sum is refused here; the participant that sent last need not be to blame.
            if refusal.reason in (Reason.BOUND, Reason.OVERFLOW):
                raise Refused(Reason.ROUND, f"the round was abandoned: {refusal}") from None
            raise
        self.pool.applied(found)
        return APPLIED

    def _outcome(self, name: str, round_id: bytes, data: bytes) -> bytes:
        return APPLIED if self._finished(name, round_id) else self.pool.outcome(name, round_id, self._clock())


def no_masked_uploads(name: str, request: bytes) -> bytes:
    """Refuse a question about rounds: this server has none."""
    raise Refused(Reason.SHAPE, "this server takes no masked uploads.")
