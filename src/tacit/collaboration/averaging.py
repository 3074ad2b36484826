"""Federated averaging that protects whole participants (McMahan, Ramage et al. 2018), without a transport.

Formal guarantee
----------------
*Record*: a participant, with everything it ever holds; neighbouring federations have one participant more or fewer
(a slot that is taken or empty). One node is one participant: somebody who runs two is two.

*Sensitivity*: in a round a participant adds at most one vector, which the *server* clips to L2 norm S; one that is not
finite counts as zero, and so does one that was drawn and did not answer. So a participant moves the sum by at most S.

*Theorem*: each participant has a slot of its own and is drawn with probability q = lot_size / population, independently
of the others and of other rounds, however many there are (nobody has another's slot, so that somebody who leaves lets
nobody in), and the sum gets Gaussian noise of standard deviation z·S: the Poisson-sampled Gaussian
mechanism, composed over rounds by Tacit's accountant. All else is post-processing: the sum is divided by the public
lot_size, never by how many answered, and moves the parameters. Who is absent can depend on anything that was
released before, since absence only takes a bounded vector away.

*Trusted*: the server (the process of the ServerApp, the SuperLink and its database), which sees the vectors without
noise and who was drawn. It must show neither: to whoever can see where messages go, on the network or in logs, sampling
hides nothing, and the guarantee is that of q = 1. Flower shows it too: ``flwr list`` counts bytes and seconds, and
``flwr log`` repeats what a ServerApp logs; both are for those who are trusted. *Not trusted*: participants, and whoever
sees every released model. They can spoil the model, but not what is promised to others. *Not covered*: when a round
ends, which depends on who answers and how fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import nn

from tacit.accounting import Filter, Guarantee, account, plan
from tacit.collaboration.messages import Vector
from tacit.collaboration.network.database import Sole, connect, transaction
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.privacy import UNIT
from tacit.ledger import Budget, Header, Ledger, Poisson, Receipt, Step
from tacit.mechanisms import SumQuery
from tacit.mechanisms.sums import Total
from tacit.randomness import SecureSource, SeededSource, Source
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
    most. With a ``seed`` everything is repeatable and protects nobody; the ledger says so.
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

    @property
    def noise(self) -> float:
        """The noise multiplier z."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return plan(
            records=self.population,
            lot_size=self.lot_size,
            steps=self.rounds,
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
        ).noise_multiplier


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
        """The noisy sum; once."""
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
        self._terms = json.dumps(
            [averaging.population, averaging.lot_size, norm, averaging.noise, *astuple(averaging.budget)]
        )
        initial = FlatParameters(averaging.network()).vector
        self._sole = Sole(averaging.folder)
        self._db = connect(averaging.folder / "averaging.sqlite")
        try:
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
            self._save()

    def begin(self, slots: int = 0) -> Round:
        """Charge a round, then draw who takes part in it: of ``slots`` that are taken, and of the population."""
        receipt = self.ledger.record(Step(self._event, (self._query.event(),)), secure=self._source.secure)
        most = max(slots, self._averaging.population)
        sampler = PoissonSampler(most, self._event.rate, source=self._source, unit=UNIT)
        drawn = frozenset(int(slot) for slot in sampler.draw(receipt))
        return Round(receipt, drawn, self._query.total(self.parameters.shape), self.parameters.size)

    def end(self, current: Round) -> None:
        """Release the round's mean change and take the step; on the disk when this returns."""
        mean = current.release(self._source).numpy() / self._averaging.lot_size
        self.parameters = (self.parameters + self._averaging.learning_rate * mean).astype(np.float32)
        self.rounds += 1
        self._save()

    def guarantee(self) -> Guarantee:
        """Return the cost of all rounds so far to each participant."""
        return account(self.ledger, delta=self._averaging.budget.delta)

    def _save(self) -> None:
        with transaction(self._db):
            held = self.parameters.astype("<f4").tobytes()
            facts = (self.rounds, held, len(self.ledger), self._terms)
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
