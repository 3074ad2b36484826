"""Private mean of each channel of features, so that they can be centred.

    mean = Statistics(noise_multiplier=4.0, sampling_rate=0.1).release(rows, channels=…, records=…, ledger=…, source=…)

Noise is added at one scale for all channels, so channels must be of comparable size beforehand: scale them by something
that was not learned from the records, such as the statistics of synthetic images. That also does away with the private
variances one would otherwise need; with both, accuracy was lower (`tacit.recipes.scattering`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.ledger import Everyone, Ledger, Poisson, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Integers, Source
from tacit.sampling import EveryoneSampler, PoissonSampler, Sampler

ROWS = 256  # records read at once


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The way the means are released.

    ``noise_multiplier`` is that of the sum and ``sampling_rate`` the chance of a record to take part; ``bound`` is how
    large the means of one record may be, as root mean square over the channels: a longer vector is clipped.
    """

    noise_multiplier: float = 4.0
    sampling_rate: float = 0.1
    bound: float = 1.0

    def __post_init__(self) -> None:
        self.charges(1)

    def charges(self, records: int) -> tuple[Step, ...]:
        """Return the steps that `release` will record."""
        event = Everyone() if self.sampling_rate == 1 else Poisson(rate=self.sampling_rate, records=records)
        return (Step(event, (self._query().event(),)),)

    def _query(self) -> SumQuery:
        return SumQuery(group="statistics/mean", clip_norm=self.bound, noise_std=self.noise_multiplier * self.bound)

    def release(
        self, rows: Callable[[Integers], Tensor], *, channels: int, records: int, ledger: Ledger, source: Source
    ) -> Tensor:
        """The mean of each channel over records and positions; ``rows`` gives (n, channels, …) for n records.

        Formal guarantee. A record is one row, made from that record alone. It contributes one vector with an entry for
        each channel: the channel's mean over positions, divided by √channels, the vector clipped to L2 norm ``bound``;
        a row that is not finite contributes zeros. One record more or fewer moves the sum by at most ``bound``. The sum
        gets Gaussian noise of noise_multiplier · bound: a Gaussian query of all records or of a Poisson sample,
        recorded in the ledger before the sample is drawn. The divisor is the expected size of the sample, which is
        public. All else is post-processing.
        """
        (step,) = self.charges(records)
        receipt = ledger.record(step, secure=source.secure)
        sampler = self._sampler(records, source)
        chosen = sampler.draw(receipt)
        scale, total = math.sqrt(channels), self._query().total((channels,))
        for start in range(0, len(chosen), ROWS):
            flat = rows(chosen[start : start + ROWS]).flatten(2).to(torch.float64)
            total.add(flat.mean(dim=2) / scale)
        return (total.mean(receipt, source, lot_size=sampler.expected) * scale).float()

    def _sampler(self, records: int, source: Source) -> Sampler:
        if self.sampling_rate == 1:
            return EveryoneSampler(records)
        return PoissonSampler(records, self.sampling_rate, source=source)
