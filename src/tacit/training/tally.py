"""Values released from the same sample as the gradients: metrics and statistics, bounded, noised and charged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit.ledger import GaussianSum, Receipt
from tacit.mechanisms import SumQuery
from tacit.randomness import Source

RELATIVE_NOISE = 10.0
"""By default a metric has this many times the step's noise multiplier: it then costs the gradients 0.5 % more noise."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number each record has, with absolute value at most ``bound`` (larger ones are clipped to it).

    Its mean over the lot is released with every step, with noise ``noise_multiplier`` times the bound on the sum; by
    default `RELATIVE_NOISE` times the noise multiplier of the step.
    """

    bound: float
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("bound", self.bound), ("noise multiplier", self.noise_multiplier)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} of a metric is {value!r}; it must be a finite number above 0.")


class Tally:
    """Adds up one metric or statistic over a lot.

    Formal guarantee: each row is clipped to L2 norm ``bound``; a record brings at most ``contributions`` rows, so it
    moves the sum by at most contributions · bound, which is the clip norm recorded (with rounding, where noise is
    discrete).
    """

    def __init__(
        self,
        group: str,
        *,
        bound: float,
        noise_multiplier: float | None,
        step_noise: float | None,
        contributions: int,
        shape: Sequence[int] = (),
        discrete: bool = False,
    ) -> None:
        if noise_multiplier is None:
            if step_noise is None:
                raise ValueError(f"{group!r} needs a noise multiplier of its own: the noise of the step is explicit.")
            noise_multiplier = RELATIVE_NOISE * step_noise
        most = contributions * bound
        self._rows = SumQuery(group=group, clip_norm=bound, noise_std=noise_multiplier * most)
        self._query = SumQuery(
            group=group,
            clip_norm=most,
            noise_std=noise_multiplier * most,
            noise="discrete" if discrete else "gaussian",
            dimension=math.prod(shape),
        )
        self._total = self._query.total(shape)

    def event(self) -> GaussianSum:
        return self._query.event()

    def add(self, rows: torch.Tensor) -> None:
        """Add a batch; each row is one contribution."""
        self._total.add_bounded(self._rows.clip(rows).sum(dim=0))

    def mean(self, receipt: Receipt, source: Source, *, lot_size: float) -> torch.Tensor:
        return self._total.mean(receipt, source, lot_size=lot_size)
