"""Private mean and variance of each channel of features, so that they can be standardised.

    statistics = Statistics(noise_multiplier=4.0, sampling_rate=0.1)
    mean, variance = statistics.release(rows, channels, records, ledger=ledger, source=source)

Noise is added at one scale for all channels, so channels must be of comparable size beforehand: scale them by something
that was not learned from the records (statistics of synthetic images).
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
    """How mean and variance are released.

    ``noise_multiplier`` is that of each of the two sums; ``sampling_rate`` the chance of a record to take part;
    ``bound`` and ``square_bound`` are how large a channel's mean and its mean square may be in one record, as root mean
    square over the channels: what is longer is clipped. ``least`` is the smallest variance believed.
    """

    noise_multiplier: float = 4.0
    sampling_rate: float = 0.1
    bound: float = 1.0
    square_bound: float = 2.0
    least: float = 0.01

    def __post_init__(self) -> None:
        for name in ("bound", "square_bound", "least"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r}; it must be a finite number above 0.")
        self.charges(1)

    def charges(self, records: int) -> tuple[Step, ...]:
        """What `release` will record."""
        event = Everyone() if self.sampling_rate == 1 else Poisson(rate=self.sampling_rate, records=records)
        return (Step(event, tuple(query.event() for query in self._queries())),)

    def _queries(self) -> tuple[SumQuery, SumQuery]:
        noise = self.noise_multiplier
        return (
            SumQuery(group="statistics/mean", clip_norm=self.bound, noise_std=noise * self.bound),
            SumQuery(group="statistics/square", clip_norm=self.square_bound, noise_std=noise * self.square_bound),
        )

    def release(
        self, rows: Callable[[Integers], Tensor], *, channels: int, records: int, ledger: Ledger, source: Source
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel over records and positions; ``rows`` gives (n, channels, …) for n records.

        Formal guarantee. A record is one row, made from that record alone. It contributes two vectors with one entry a
        channel: the channel's mean over positions, divided by √channels and clipped to L2 norm ``bound``, and its mean
        square over positions, divided by √channels and clipped to ``square_bound``; a row that is not finite
        contributes zeros. One record more or fewer moves the sums by at most these bounds. Each sum gets Gaussian noise
        of noise_multiplier times its bound: two Gaussian queries of one sample (all records, or a Poisson sample),
        recorded in the ledger before the sample is drawn. The divisor is the expected size of the sample, which is
        public. Mean, variance and the floor under it, which noise could make negative, are post-processing.
        """
        (step,) = self.charges(records)
        receipt = ledger.record(step)
        scale = math.sqrt(channels)
        sampler = self._sampler(records, source)
        chosen = sampler.draw(receipt)
        first, second = (query.total((channels,)) for query in self._queries())
        for start in range(0, len(chosen), ROWS):
            flat = rows(chosen[start : start + ROWS]).flatten(2).to(torch.float64)
            first.add(flat.mean(dim=2) / scale)
            second.add(flat.square().mean(dim=2) / scale)
        mean = first.mean(receipt, source, lot_size=sampler.expected) * scale
        square = second.mean(receipt, source, lot_size=sampler.expected) * scale
        return mean.float(), (square - mean.square()).clamp(min=self.least).float()

    def _sampler(self, records: int, source: Source) -> Sampler:
        if self.sampling_rate == 1:
            return EveryoneSampler(records)
        return PoissonSampler(records, self.sampling_rate, source=source)
