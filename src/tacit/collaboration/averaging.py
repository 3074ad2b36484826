"""Federated averaging that protects whole participants (McMahan, Ramage et al. 2018), without a transport.

Formal guarantee
----------------
*Record*: a participant, with everything it ever holds; neighbouring federations have one participant more or fewer
(a slot that is taken or empty). One node is one participant: an organisation that runs two nodes is two.

*Sensitivity*: in a round a participant adds at most one vector, which the *server* clips to L2 norm S; one that is not
finite counts as zero, and so does one that was drawn and did not answer. So a participant moves the sum by at most S.

*Theorem*: each participant has a slot of its own and is drawn with probability q = lot_size / population, independently
of the others and of other rounds, however many there are (no slot is given to another, so that one who leaves lets none
in), and the sum gets Gaussian noise of standard deviation z·S: the Poisson-sampled Gaussian
mechanism, composed over rounds by Tacit's accountant. All else is post-processing: the sum is divided by the public
lot_size, never by how many answered, and moves the parameters. Who is absent can depend on anything that was
released before, since absence only takes a bounded vector away.

*Trusted*: the server (the process of the ServerApp, the SuperLink and its database), which sees the vectors without
noise and who was drawn. It must show neither: for a reader who sees where messages go, on the network or in logs,
sampling hides nothing, and the guarantee is that of q = 1. Flower shows it too: ``flwr list`` counts bytes and seconds,
and ``flwr log`` repeats what a ServerApp logs; both are for those who are trusted. *Not trusted*: participants, and all
readers of released models. They can spoil the model, but not what is promised to others. *Not covered*: when a round
ends, which depends on who answers and how fast.

Noise by the participants
-------------------------
With ``noise_by="participants"`` the server is not trusted with the changes either: each participant clips its own, adds
its share of discrete noise and masks it (`tacit.collaboration.network.masking`), and the server learns one sum over at
least t participants, t >= ``least``, with the noise of all of them. *Record*, *sensitivity* and *theorem* are those of
`tacit.mechanisms.shared_noise`: neighbouring federations have a participant's change, or zeros in its place; there is
no sampling; each adds 1/(least - colluding) of the variance σ², so that the noise of those who remain suffices when
others vanish and if ``colluding`` of them know or tell theirs. One participant that reads the released models knows its
own noise, so with ``colluding`` 0 the guarantee holds against the server and outsiders only; 1, the default, covers
each single participant too. *Trusted*: that at most so many collude, and the authority that tells participants apart;
for a server that does not keep to the protocol also least > (population + colluding) / 2. Every participant charges a
ledger of its own before it sends. *Not trusted*: the server. A dishonest participant can send a vector that is too
long: that spoils the model, and weakens no other guarantee.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit.accounting import Filter, Guarantee, account, plan
from tacit.collaboration.messages import Vector
from tacit.collaboration.network.database import Sole, connect, explained, transaction
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.privacy import UNIT
from tacit.collaboration.refusals import Reason, Refused
from tacit.ledger import Budget, Everyone, Header, Ledger, Poisson, Receipt, Step
from tacit.mechanisms import SharedSum, SumQuery
from tacit.mechanisms.sums import Total
from tacit.randomness import Integers, SecureSource, SeededSource, Source
from tacit.sampling import PoissonSampler

_SCHEMA = """CREATE TABLE IF NOT EXISTS state (
    one INTEGER PRIMARY KEY CHECK (one = 1), rounds INTEGER NOT NULL, parameters BLOB NOT NULL,
    charged INTEGER NOT NULL, terms TEXT NOT NULL
) STRICT"""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Private averaging: all of it is public and must not come from the participants' records.

    ``population`` is about how many participants there are; in a round each takes part with probability ``lot_size`` /
    ``population``, and the sum is divided by ``lot_size``. Without ``noise_multiplier`` the least is taken with which
    ``rounds`` rounds fit in ``budget``; the budget ends training in any case. The mean change moves the parameters by
    ``learning_rate`` times itself.

    State and ledger are in ``folder``. The first round waits for ``least`` nodes, a round for ``patience`` seconds at
    most. With a ``seed`` everything is repeatable and gives no protection; the ledger says so.

    ``noise_by`` "participants" needs masks, and so our own service: every round has at least ``least`` participants, of
    whom ``colluding`` may tell the server everything; all take part in every round (``lot_size`` is the population).
    """

    network: Callable[[], nn.Module]
    folder: Path
    population: int
    lot_size: int
    clip_norm: float
    rounds: int
    budget: Budget
    noise_multiplier: float | None = None
    learning_rate: float = 1.0
    least: int = 1
    patience: float = 600.0
    pause: float = 0.2
    seed: int | None = None
    noise_by: Literal["server", "participants"] = "server"
    colluding: int = 1

    def __post_init__(self) -> None:
        for name in ("population", "lot_size", "rounds", "least"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        if self.lot_size > self.population:
            raise ValueError(f"lot_size is {self.lot_size}; it must be at most the population, {self.population}.")
        for name in ("clip_norm", "learning_rate", "patience", "pause"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a finite number above 0.")
        if self.noise_by not in ("server", "participants"):
            raise ValueError(f"noise_by is {self.noise_by!r}; choose 'server' or 'participants'.")
        if self.noise_by == "participants":
            self._check_shared()

    def _check_shared(self) -> None:
        if self.lot_size != self.population or self.seed is not None:
            raise ValueError(
                f"lot_size is {self.lot_size} of {self.population} and seed {self.seed!r}; noise by the participants "
                "is for rounds of all of them, without a seed."
            )
        check_people(self.population, least=self.least, colluding=self.colluding)

    def shared_sum(self, parameters: int) -> SharedSum:
        """Return the sum of a round in which participants add the noise."""
        return SharedSum(
            group="update",
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise,
            parts=self.least - self.colluding,
            dimension=parameters,
        )

    @property
    def noise(self) -> float:
        """Return the noise multiplier z."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return plan(
            records=self.population,
            lot_size=self.lot_size,
            steps=self.rounds,
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            noise="gaussian" if self.noise_by == "server" else "discrete",
        ).noise_multiplier


def check_people(population: int, *, least: int, colluding: int) -> None:
    """Refuse sums over too few participants, or as many colluding ones: the noise would not suffice."""
    if not 2 <= least <= population or not 0 <= colluding < least:
        raise ValueError(
            f"least is {least} and colluding {colluding}; at least two of {population} are in a sum, and fewer collude "
            "than are in it."
        )


class Round:
    """One round that was charged: who was drawn, and what they have sent so far."""

    def __init__(self, receipt: Receipt, slots: frozenset[int], total: Total, size: int) -> None:
        self.slots, self.size = slots, size
        self._receipt, self._total, self._waiting = receipt, total, set(slots)

    def add(self, slot: int, change: Vector) -> None:
        """Add the change that the participant in a drawn slot sent, clipped; once."""
        if slot not in self._waiting:
            raise ValueError(f"slot {slot} was not drawn in this round, or has answered before.")
        self._waiting.remove(slot)
        self._total.add(torch.from_numpy(change)[None])

    def release(self, source: Source) -> torch.Tensor:
        """Return the noisy sum; once."""
        return self._total.release(self._receipt, source)


class Averager:
    """The server's side: parameters and ledger on the disk, rounds one after the other.

        with Averager(averaging) as averager:
            while averager.rounds < averaging.rounds:
                current = averager.begin()              # charged, then drawn; raises BudgetExceeded
                current.add(slot, change)               # for those of current.slots who answer
                averager.end(current)                   # noise, mean, a step; on the disk

    Whenever the process is killed, a round that was charged and did not end is lost and stays charged.
    """

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._source: Source = SecureSource() if averaging.seed is None else SeededSource(averaging.seed)
        norm = averaging.clip_norm
        self._query = SumQuery(group="update", clip_norm=norm, noise_std=averaging.noise * norm)
        self._event = Poisson(rate=averaging.lot_size / averaging.population, unit=UNIT)
        terms = [averaging.population, averaging.lot_size, norm, averaging.noise, *astuple(averaging.budget)]
        initial = FlatParameters(averaging.network()).vector
        self._shared: SharedSum | None = None
        if averaging.noise_by == "participants":
            self._shared = averaging.shared_sum(initial.size)
            terms += [averaging.noise_by, averaging.least, averaging.colluding]
        self._terms = json.dumps(terms)
        self._sole = Sole(averaging.folder)
        self._db = connect(averaging.folder / "averaging.sqlite")
        try:
            with explained(self._db):
                self._db.execute(_SCHEMA)
            row = self._db.execute("SELECT rounds, parameters, charged, terms FROM state").fetchone()
            self.rounds, self.parameters, charged = 0, initial.copy(), 0
            if row is not None:
                self.rounds, self.parameters = int(row[0]), np.frombuffer(row[1], dtype="<f4").astype(np.float32)
                charged = int(row[2])
                if row[3] != self._terms:
                    raise ValueError(
                        f"{averaging.folder} was begun with another population, lot size, clip norm, noise or budget; "
                        "go on with the same ones, or begin anew in another folder."
                    )
            if self.parameters.shape != initial.shape:
                raise ValueError(
                    f"{averaging.folder} has {self.parameters.size} parameters, the network {initial.size}; it belongs "
                    "to another model."
                )
            self.ledger = Ledger.open(
                averaging.folder / "ledger.jsonl",
                Header(unit=UNIT, secure_randomness=self._source.secure, purpose="federated averaging"),
            )
            if len(self.ledger) < charged:
                held = len(self.ledger)
                self.ledger.close()
                raise ValueError(
                    f"the ledger in {averaging.folder} has {held} rounds, and {charged} were charged before the last "
                    "model was released; put the right one back."
                )
        except BaseException:
            self._db.close()
            self._sole.release()
            raise
        self.ledger.guard(Filter(averaging.budget))
        if row is None:
            self._save(self.rounds, self.parameters)

    def begin(self, slots: int = 0) -> Round:
        """Charge a round, then draw who takes part in it: of ``slots`` that are taken, and of the population."""
        receipt = self.ledger.record(Step(self._event, (self._query.event(),)), secure=self._source.secure)
        most = max(slots, self._averaging.population)
        sampler = PoissonSampler(most, self._event.rate, source=self._source, unit=UNIT)
        drawn = frozenset(int(slot) for slot in sampler.draw(receipt))
        return Round(receipt, drawn, self._query.total(self.parameters.shape), self.parameters.size)

    def end(self, current: Round) -> None:
        """Release the round's mean change and take the step; on the disk when this returns."""
        self._step(current.release(self._source).numpy())

    def take(self, steps: Integers, people: int) -> None:
        """Charge a round whose sum, over ``people`` participants, has their noise in it already, and take the step.

        A sum that is longer than clipped vectors and their noise can be is not taken: P(|noise| > σ (√d + 10)) < 2^-70.
        """
        if self._shared is None:
            raise ValueError("noise is added by the server here; use begin and end.")
        query = self._shared.event()
        self.ledger.record(Step(Everyone(unit=UNIT), (query,)), secure=self._source.secure)
        total = self._shared.total(steps).numpy()
        noise = query.noise_std * math.sqrt(people / self._shared.parts) * (math.sqrt(total.size) + 10)
        if not float(np.linalg.norm(total)) <= people * query.clip_norm + noise:
            raise Refused(Reason.BOUND, "the sum of the round is longer than what its participants could have sent.")
        self._step(total)

    def _step(self, total: npt.NDArray[np.float64]) -> None:
        mean = total / self._averaging.lot_size
        parameters = (self.parameters + self._averaging.learning_rate * mean).astype(np.float32)
        self._save(self.rounds + 1, parameters)
        self.rounds, self.parameters = self.rounds + 1, parameters

    def guarantee(self) -> Guarantee:
        """Return the cost of all rounds so far to each participant."""
        return account(self.ledger, delta=self._averaging.budget.delta)

    def _save(self, rounds: int, parameters: Vector) -> None:
        with transaction(self._db):
            facts = (rounds, parameters.astype("<f4").tobytes(), len(self.ledger), self._terms)
            self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?)", facts)

    def close(self) -> None:
        self.ledger.close()
        self._db.close()
        self._sole.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
