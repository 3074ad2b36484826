"""Following a quantile of a value over the steps, by one noisy count a step."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tacit.ledger.events import GaussianSum
from tacit.mechanisms.groups import Spendable, positive, recorded_gaussian
from tacit.mechanisms.lattice import add_noise_, gaussian_sum, usual_lattice
from tacit.randomness import Source


class QuantileTracker:
    """An estimate of a quantile, moved geometrically by how many records lie below it (Andrew et al. 2021).

    Formal guarantee: a record contributes +1/2 to the sum if its value is at most the estimate and -1/2 otherwise
    (NaN included), so the sensitivity is 1/2 times ``contributions``. The noisy sum, divided by the fixed and public
    ``lot_size`` and never by the number of records seen, gives the fraction; the new estimate is a post-processing.
    """

    def __init__(
        self,
        *,
        group: str,
        initial: float,
        quantile: float,
        learning_rate: float,
        noise_std: float,
        lot_size: float,
        contributions: int = 1,
    ) -> None:
        positive("initial estimate", initial)
        positive("learning rate", learning_rate)
        if not 0 < quantile < 1:
            raise ValueError(f"quantile is {quantile!r}; it must be in (0, 1).")
        self.value = float(initial)
        self._quantile, self._rate = quantile, learning_rate
        self._query = GaussianSum(group=group, clip_norm=0.5 * contributions, noise_std=noise_std)
        self.expect(lot_size, noise_std)
        self._tally = 0.0

    def expect(self, lot_size: float, noise_std: float) -> None:
        """Continue with another expected lot size and noise."""
        positive("expected lot size", lot_size)
        self._lot_size = lot_size
        self._query = replace(self._query, noise_std=noise_std)

    def query(self, *, discrete: bool = False) -> GaussianSum:
        """Return the event to record. A new count begins, so that a step broken off leaves nothing behind."""
        self._tally = 0.0
        plain = self._query
        if not discrete:
            return plain
        return gaussian_sum(
            group=plain.group,
            sensitivity=plain.clip_norm,
            noise_std=plain.noise_std,
            lattice=usual_lattice(plain.clip_norm, 1),
            dimension=1,
        )

    def observe(self, values: torch.Tensor) -> None:
        """Count the values of some records of the lot, each record once."""
        below = int((values.detach() <= self.value).sum())
        self._tally += below - 0.5 * values.numel()

    def update(self, receipt: Spendable, source: Source) -> float:
        """Release the count of the lot and move the estimate; call it once a step, also when the lot was empty."""
        query = recorded_gaussian(receipt, self._query.group, self._query.clip_norm, 1)
        total = torch.tensor([self._tally], dtype=torch.float64, device="cpu")
        self._tally = 0.0
        add_noise_([(total, query, 1.0)], source)
        fraction = 0.5 + total.item() / self._lot_size
        moved = self.value * math.exp(min(max(-self._rate * (fraction - self._quantile), -50.0), 50.0))
        self.value = min(max(moved, 1e-9), 1e12)  # sums are proved for clip norms down to 1e-9
        return self.value
