"""Averaging in which participants add the noise, under masks: the server sees one noisy sum of a round and no change.

The guarantee and who is trusted are in `tacit.collaboration.averaging` ("Noise by the participants").
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from cryptography import x509

from tacit.collaboration.averaging import Averager, Averaging
from tacit.collaboration.messages import Download
from tacit.collaboration.network import codec
from tacit.collaboration.network.averaging import WORK, Storage, check_date, over, slots_of
from tacit.collaboration.network.averaging_terms import AveragingTerms
from tacit.collaboration.network.certificates import Peer
from tacit.collaboration.network.intake import Traffic
from tacit.collaboration.network.masked_uploads import LONGEST_DEAL, MaskedUploads
from tacit.collaboration.network.phases import Sum
from tacit.collaboration.network.pool import Pool
from tacit.collaboration.refusals import Reason, Refused
from tacit.ledger import BudgetExceeded

log = logging.getLogger("tacit")


class SharedAveragingService:
    """Rounds of masked uploads whose sums move the parameters; ``people`` may take part.

    A round closes when all are there, or ``averaging.patience`` seconds after the first; a participant that is silent
    for as long is left out, as long as the round's threshold remain.
    """

    def __init__(
        self, averaging: Averaging, people: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.averaging, self.traffic = averaging, Traffic()
        self._people = frozenset(slots_of(averaging, people))
        if len(self._people) < averaging.least:
            raise ValueError(f"{len(people)} participants are named; a round needs at least {averaging.least}.")
        self._averager = Averager(averaging)
        self._terms = AveragingTerms.of(averaging, averaging.network(), self._averager.parameters.size).pack()
        self._lock = threading.RLock()
        self._stopped, self._storage = "", Storage()
        pool = Pool(
            collaboration=hashlib.sha256(self._terms).hexdigest(),
            least=averaging.least,
            count=self._averager.parameters.size,
            patience=averaging.patience,
            duration=averaging.patience,
            everybody=lambda: self._people,
        )
        self._masked = MaskedUploads(
            pool, lock=self._lock, clock=clock, traffic=self.traffic, check=self._check, apply=self._apply
        )

    @property
    def longest(self) -> int:
        """Return the bytes of the longest message: a masked change of the whole model, or shares for all."""
        return max(8 * self._averager.parameters.size, LONGEST_DEAL) + codec.OVERHEAD

    @property
    def rounds(self) -> int:
        """Return how many rounds are over."""
        return self._averager.rounds

    def methods(self) -> dict[str, Callable[[str, bytes], bytes]]:
        """Return what can be asked: each takes the name of who asks and a message."""
        masked = self._masked.methods()
        return {**masked, "Terms": self._tell_terms, "Work": self._work, "Round": self._round}

    def check_certificate(self, peer: Peer) -> None:
        """Refuse a certificate that has expired since the connection was made."""
        check_date(peer)

    def trust(self, authority: bytes) -> None:
        """Take only those keys of a round that a certificate of this authority (in PEM) vouches for."""
        self._masked.pool.authority = x509.load_pem_x509_certificate(authority)

    def _tell_terms(self, name: str, _: bytes) -> bytes:
        self._check(name)
        return self._terms

    def _work(self, name: str, _: bytes) -> bytes:
        """Return the parameters to train, after the number of the round; or, when all is over, the last message."""
        with self._lock:
            self._check(name)
            if self._is_over():
                return over(self._averager, self._stopped)
            body = codec.pack_download(Download(indices=None, values=self._averager.parameters))
            self.traffic.down += len(body)
            return WORK + codec.pack_token(self.rounds) + body

    def _round(self, name: str, request: bytes) -> bytes:
        with self._lock:
            if self._is_over():
                raise Refused(Reason.ROUND, f"there are no more rounds: {self._stopped}.")
            return self._masked.methods()["Round"](name, request)

    def _is_over(self) -> bool:
        if not self._stopped and self.rounds >= self.averaging.rounds:
            self._stopped = f"all {self.averaging.rounds} rounds were made"
        return bool(self._stopped)

    def _apply(self, found: Sum) -> None:
        try:
            with self._storage.guarded():
                self._averager.take(found.total.view(np.int64), len(found.participants))
        except BudgetExceeded as error:
            self._stopped = str(error)
            raise Refused(Reason.ROUND, f"the round was abandoned: {error}") from None
        log.info("round %d of %d is over: %d took part", self.rounds, self.averaging.rounds, len(found.participants))

    def _check(self, name: str) -> None:
        if name not in self._people:
            raise Refused(Reason.UNKNOWN, f"participant {name[:80]!r} is not known; average with --admit {name[:80]}.")
        self._storage.check()

    def close(self) -> None:
        """Let go of the state; a round that is not finished is abandoned."""
        with self._lock:
            self._averager.close()
