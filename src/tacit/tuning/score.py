"""Scores from a validation set that is itself private."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tacit.ledger import Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import SecureSource, Source
from tacit.sampling import EveryoneSampler


@dataclass(frozen=True, kw_only=True)
class PrivateAccuracy:
    """The share of the ``records`` of a validation set that each of ``models`` labels rightly, with noise.

    Formal guarantee: a record adds a vector of ±1/2, one number a model, to a sum: L2 norm sqrt(models)/2. It is one
    Gaussian sum query with ``noise_multiplier`` z; dividing by ``records``, which is public, is post-processing. The
    standard deviation of each accuracy is z·sqrt(models)/(2·records).

    With ``models=1`` it is the score of one run of `tacit.tuning.choose`, declared as ``((accuracy.step(), 1),)``; with
    as many as there are candidates it compares all models of `tacit.tuning.try_all` at once.
    """

    records: int
    noise_multiplier: float
    models: int = 1
    unit: str = "example"

    def __post_init__(self) -> None:
        for name, value in (("records", self.records), ("models", self.models)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier is {self.noise_multiplier!r}; it must be a finite number above 0.")

    def step(self) -> Step:
        """Return what is recorded."""
        return Step(self._sampler().event(), (self._query().event(),))

    def release(self, correct: torch.Tensor, *, ledger: Ledger, source: Source | None = None) -> torch.Tensor:
        """The noisy accuracies, given which answers are right: (records, models), true or false; charged first."""
        if correct.shape != (self.records, self.models) or correct.dtype != torch.bool:
            raise ValueError(
                f"correct is {correct.dtype} of shape {tuple(correct.shape)}; "
                f"it must be bool of shape {(self.records, self.models)}."
            )
        source = source or SecureSource()
        receipt = ledger.record(self.step(), secure=source.secure)
        rows = self._sampler().draw(receipt)
        total = self._query().total((self.models,))
        total.add(correct[torch.from_numpy(rows)].to(torch.float64) - 0.5)
        return 0.5 + total.mean(receipt, source, lot_size=float(self.records))

    def _query(self) -> SumQuery:
        bound = math.sqrt(self.models) / 2
        return SumQuery(group="validation accuracy", clip_norm=bound, noise_std=self.noise_multiplier * bound)

    def _sampler(self) -> EveryoneSampler:
        return EveryoneSampler(self.records, unit=self.unit)
