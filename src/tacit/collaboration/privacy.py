"""Uploads that promise something about the records behind them, each charged to the participant's own ledger.

Three ways, which differ in what is protected and in what it costs:

* `SparseVectorPrivacy`, the paper's: few changes, chosen and released with Laplace noise. Protects the participant's
  whole data set, at an ε that is in the thousands where the paper's experiments are.
* `GaussianPrivacy`: the change of a random choice of parameters, clipped as one vector, with Gaussian noise. Protects
  the same, for less.
* `LocalDpSgd`: the local training itself is private (Poisson lots, clipped gradients, Gaussian noise). Protects each
  example; what is selected from its result afterwards, and how, costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from tacit.accounting import Guarantee, account, plan
from tacit.accounting.guarantee import rounded_up
from tacit.collaboration.dataset import Loss, count
from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.normalisation import charges
from tacit.collaboration.participant import inside
from tacit.collaboration.selection import Agreed, AtRandom
from tacit.ledger import Adjacency, Everyone, Header, Ledger, Step
from tacit.mechanisms import Flat, SparseVectorQuery, SumQuery
from tacit.randomness import Source
from tacit.training import PrivateRun, make_private

UNIT = "participant"
_CHARGED = 5 / 9  # of the ε in Figure 12: see SparseVectorQuery


def whole_data_set(*, secure: bool) -> Header:
    """Return the header of a ledger for uploads that protect a data set against exchange for any other."""
    return Header(adjacency=Adjacency.REPLACE_ONE, unit=UNIT, secure_randomness=secure, purpose="collaboration")


@dataclass(frozen=True, kw_only=True)
class SparseVectorPrivacy:
    """Figure 12 of the paper; ``epsilon_per_epoch`` is its ε, for all of one participant's uploads of one epoch."""

    epsilon_per_epoch: float

    @property
    def charged(self) -> float:
        """Return what one upload costs."""
        return self.epsilon_per_epoch * _CHARGED

    @classmethod
    def whole(cls, epsilon: float, *, epochs: int) -> SparseVectorPrivacy:
        """Return what may be spent in each of ``epochs`` epochs if all of it may cost ``epsilon``."""
        return cls(epsilon_per_epoch=epsilon / _CHARGED / epochs * (1 - 1e-9))


class SparseVectorUploads:
    """At most c changes by the sparse vector technique; ``query`` says how.

    Formal guarantee: the record is whatever the ledger's unit is, up to the whole data set: between any two changes,
    whatever they were computed from, one upload is 5/9 ε-differentially private (`SparseVectorQuery`). That also holds
    given all that was uploaded or downloaded before and the parameters kept back, so the charges of uploads add up.
    """

    def __init__(self, query: SparseVectorQuery, *, ledger: Ledger, source: Source) -> None:
        _check_source(ledger, source)
        self._query, self._ledger, self._source = query, ledger, source

    def __call__(self, change: Vector) -> tuple[Positions, Vector]:
        receipt = self._ledger.record(Step(Everyone(unit=self._ledger.header.unit), (self._query.event(),)))
        chosen = self._query.release(receipt, torch.from_numpy(change), self._source)
        order = np.argsort(chosen.indices)
        limit = inside(self._query.bound)
        return chosen.indices[order], np.clip(chosen.values.numpy()[order].astype(np.float32), -limit, limit)


@dataclass(frozen=True, kw_only=True)
class GaussianPrivacy:
    """(``epsilon``, ``delta``) for all uploads of a participant together; a change is clipped to L2 ``clip_norm``."""

    epsilon: float
    delta: float
    clip_norm: float

    def noise_multiplier(self, *, epochs: int, spent: Sequence[tuple[Step, int]] = ()) -> float:
        """Return the least noise with which ``epochs`` uploads, after what was ``spent``, stay within the budget."""
        return plan(
            records=1,
            lot_size=1,
            steps=epochs,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency="replace-one",
            also=spent,
        ).noise_multiplier


class GaussianUploads:
    """The changes at random or agreed places, as one vector clipped to the query's norm, with Gaussian noise.

    Formal guarantee: the record is the participant's whole data set. The places are drawn without looking at the
    change, so each upload is one Gaussian sum over one record of norm at most ``clip_norm``; exchanging the data set
    for another moves it by at most twice that (replace-one, which the accountants know). Bounding is post-processing.
    """

    def __init__(
        self, query: SumQuery, selection: AtRandom | Agreed, *, bound: float, ledger: Ledger, source: Source
    ) -> None:
        if ledger.header.unit != UNIT:
            raise ValueError(f"the ledger's unit is {ledger.header.unit}; these uploads protect a {UNIT} as a whole.")
        _check_source(ledger, source)
        self._query, self._selection, self._bound = query, selection, inside(bound)
        self._ledger, self._source = ledger, source

    def __call__(self, change: Vector) -> tuple[Positions | None, Vector]:
        indices = self._selection.choose(change, self._source)
        chosen = change if indices is None else change[indices]
        total = self._query.total(chosen.shape)
        total.add(torch.from_numpy(chosen)[None])
        receipt = self._ledger.record(Step(Everyone(unit=UNIT), (self._query.event(),)))
        noisy = total.release(receipt, self._source).numpy().astype(np.float32, copy=False)
        return indices, np.clip(noisy, -self._bound, self._bound, out=noisy)


@dataclass(frozen=True, kw_only=True)
class LocalDpSgd:
    """Local training by DP-SGD: (``epsilon``, ``delta``) for all epochs of a participant, for each example.

    ``lots_per_epoch`` lots are drawn from the participant's records in an epoch, by Poisson sampling. The learning rate
    is 0.5, or 0.5 / z where the noise multiplier z is above 1, unless it is given: the server adds up all noise.

    ``normalisation``, if given, is the noise multiplier with which the mean and standard deviation of the inputs are
    released beforehand, within the same budget (`tacit.collaboration.normalisation`); else they are taken to be public.
    """

    epsilon: float
    delta: float
    lots_per_epoch: int = 4
    clip_norm: float = 1.0
    learning_rate: float | None = None
    normalisation: float | None = None

    def noise_multiplier(self, *, records: int, epochs: int, spent: Sequence[tuple[Step, int]] = ()) -> float:
        """The least noise with which ``epochs`` epochs on ``records`` records stay within the budget, beside what was
        ``spent`` before.
        """
        also = () if self.normalisation is None else charges(self.normalisation, records)
        return plan(
            records=records,
            lot_size=self.lot_size(records),
            steps=epochs * self.lots_per_epoch,
            epsilon=self.epsilon,
            delta=self.delta,
            also=[*spent, *((step, 1) for step in also)],
        ).noise_multiplier

    def lot_size(self, records: int) -> int:
        """Return the expected size of a lot."""
        if not 1 <= self.lots_per_epoch <= records:
            raise ValueError(f"lots_per_epoch is {self.lots_per_epoch}; it must be from 1 to the records, {records}.")
        return math.ceil(records / self.lots_per_epoch)

    def trainer(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        *,
        epochs: int,
        noise_multiplier: float,
        ledger: Ledger,
        seed: int | None,
        loss: Loss = F.cross_entropy,
    ) -> PrivateTraining:
        """Return local training of one participant."""
        rate = self.learning_rate if self.learning_rate is not None else 0.5 / max(noise_multiplier, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        run = make_private(
            model,
            optimizer,
            dataset,
            lot_size=self.lot_size(count(dataset)),
            steps=epochs * self.lots_per_epoch,
            clipping=Flat(self.clip_norm),
            noise_multiplier=noise_multiplier,
            ledger=ledger,
            seed=seed,
        )
        return PrivateTraining(run, lots=self.lots_per_epoch, loss=loss)


class PrivateTraining:
    """One local epoch of DP-SGD for each call: ``lots`` lots of a private run.

    Formal guarantee: the record is one example of this participant. The parameters after each lot are functions of the
    noisy sums in the ledger and of what was downloaded, which depends on this participant's records only through what
    it uploaded before. So the change over an epoch, and whatever is selected from it by any rule, is post-processing.
    """

    def __init__(self, run: PrivateRun, *, lots: int, loss: Loss = F.cross_entropy) -> None:
        self.run = run
        self._lots, self._loss = lots, loss

    @property
    def steps(self) -> int:
        """Return the number of completed lots."""
        return self.run.step

    @steps.setter
    def steps(self, done: int) -> None:
        self.run.step = done

    def __call__(self) -> None:
        model, optimizer = self.run.model, self.run.optimizer
        model.train()
        for _ in range(self._lots):
            for *inputs, target in self.run.lot():
                torch.autograd.backward(self._loss(model(*inputs), target))
                optimizer.step()
                optimizer.zero_grad()


Privacy = SparseVectorPrivacy | GaussianPrivacy | LocalDpSgd


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The cost of participation to a participant, from its ledger.

    ``whole`` is the guarantee: all parameters, all epochs. ``per_parameter`` is the number on the axes of the paper's
    Figure 13: the ε of one epoch divided by the number of its uploads. It is no guarantee: an
    upload shows all its parameters at once, and every epoch adds another upload.
    """

    whole: Guarantee
    per_parameter: float | None = None

    def __str__(self) -> str:
        text = f"whole model, whole training: {self.whole}"
        if self.per_parameter is None:
            return text
        return f"{text}; per parameter, as the paper counts (not a guarantee): ε/c = {_short(self.per_parameter)}"


def claim(ledgers: Sequence[Ledger], *, delta: float, query: SparseVectorQuery | None = None) -> Claim:
    """Return the claim of the participant with the largest ε; ``query`` is that of sparse vector uploads, if any."""
    if not ledgers:
        raise ValueError("there are no ledgers to draw a claim from.")
    different = {ledger.entries: ledger for ledger in ledgers}
    worst = max((account(ledger, delta=delta) for ledger in different.values()), key=lambda found: found.epsilon)
    return Claim(whole=worst, per_parameter=None if query is None else query.epsilon / query.releases)


def _check_source(ledger: Ledger, source: Source) -> None:
    if ledger.header.secure_randomness and not source.secure:
        raise ValueError("the ledger promises secure randomness; seeded uploads need a ledger of their own.")


def _short(value: float) -> str:
    return rounded_up(value) if value >= 1e-3 else f"{value:.3g}"
