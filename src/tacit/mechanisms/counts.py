"""Counts of values that cannot be listed beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch

from tacit.ledger.events import ThresholdedCounts
from tacit.mechanisms.groups import Spendable
from tacit.mechanisms.noise import add_gaussian_
from tacit.randomness import Source

_GRID = 2.0**-14  # of the noise: noisy counts are rounded to a grid finer than that


@dataclass(frozen=True, kw_only=True)
class CountsQuery:
    """Noisy counts of values, of which only those above a threshold are released.

    Formal guarantee: a record adds one to the count of one value. On values that others have too this is a Gaussian
    sum of sensitivity 1; a value that only this record has is released with probability at most ``slack``, which the
    accountants add to δ (Korolova et al. 2009; the proof is in `tacit.accounting.composition`). Values come out in
    their own order, not in that of the records.
    """

    group: str
    noise_std: float
    slack: float

    def __post_init__(self) -> None:
        if not 0 < self.slack < 0.5:
            raise ValueError(f"slack is {self.slack!r}; it must be in (0, 0.5).")
        self.event()

    def event(self) -> ThresholdedCounts:
        """Return the event to record for a step."""
        height = 1 + self.noise_std * -NormalDist().inv_cdf(self.slack * (1 - 1e-6)) + self.noise_std * _GRID
        return ThresholdedCounts(group=self.group, noise_std=self.noise_std, threshold=height)

    def release(self, receipt: Spendable, counts: Mapping[str, int], source: Source) -> dict[str, float]:
        """The values that pass, with their noisy counts. Values that no record has must not be in ``counts``."""
        query = receipt.spend(self.group)
        if query != self.event():
            raise ValueError(f"the ledger has {query} for group {self.group!r}, which is not what is to be released.")
        assert isinstance(query, ThresholdedCounts)
        empty = [value for value, count in counts.items() if count < 1]
        if empty:
            raise ValueError(f"{len(empty)} values have a count below 1; leave out what does not occur.")
        values = sorted(counts)
        noisy = torch.tensor([float(counts[value]) for value in values], dtype=torch.float64)
        add_gaussian_([(noisy, query.noise_std)], source)
        return {value: count for value, count in zip(values, noisy.tolist(), strict=True) if count > query.threshold}
