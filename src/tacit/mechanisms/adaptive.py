"""Adaptive clipping: the clip norm follows a quantile of the gradient norms, and pays for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tacit.ledger.events import GaussianSum
from tacit.mechanisms.allocation import Allocation
from tacit.mechanisms.clipping import Flat
from tacit.mechanisms.groups import Clipping, Group, Shapes, Spendable, positive
from tacit.mechanisms.quantile import QuantileTracker
from tacit.randomness import Source

COUNT = "unclipped count"


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Flat clipping at a norm that follows a quantile of the gradients' norms (Andrew et al. 2021).

    The count of unclipped records is one more Gaussian sum of the same sample, of sensitivity 1/2, and is charged in
    the same step: when the step's noise multiplier is given, the gradients get a little more noise so that the whole
    has it. ``count_noise_std`` is the noise of that count; by default a twentieth of the expected lot size.
    """

    initial: float = 1.0
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float | None = None

    def __post_init__(self) -> None:
        positive("initial clip norm", self.initial)
        positive("learning rate", self.learning_rate)
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile!r}; it must be in (0, 1).")
        if self.count_noise_std is not None:
            positive("noise of the count", self.count_noise_std)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> AdaptiveClipping:
        if lot_size is None:
            raise ValueError("lot_size is missing; adaptive clipping divides its count by the expected lot size.")
        return AdaptiveClipping(self, shapes, lot_size=lot_size)


class AdaptiveClipping(Clipping):
    """`Adaptive` for one model. The norm changes only in `release_`, so a step is clipped as it was recorded.

    `weights` also counts, so it must see every record of the lot exactly once, between `queries` and `release_`.
    """

    def __init__(self, config: Adaptive, shapes: Shapes, *, lot_size: float, contributions: int = 1) -> None:
        super().__init__(Flat(config.initial).bind(shapes).groups)
        self._config, self._shapes, self._lot_size, self._contributions = config, shapes, lot_size, contributions
        self._tracker = QuantileTracker(
            group=COUNT,
            initial=config.initial,
            quantile=config.quantile,
            learning_rate=config.learning_rate,
            noise_std=lot_size / 20 if config.count_noise_std is None else config.count_noise_std,
            lot_size=lot_size,
            contributions=contributions,
        )

    @property
    def clip_norm(self) -> float:
        return self._tracker.value

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(
            replace(group, clip_norm=self._tracker.value, contributions=self._contributions) for group in self._groups
        )

    def weights(self, norms: torch.Tensor) -> torch.Tensor:
        weights = super().weights(norms)
        self._tracker.observe(norms[:, 0])
        return weights

    def queries(self, noise: Allocation) -> tuple[GaussianSum, ...]:
        count = self._tracker.query()
        return (*super().queries(noise.after([count])), count)

    def release_(self, receipt: Spendable, sums: Mapping[str, torch.Tensor], source: Source) -> None:
        """Add the recorded noise to the sums, then release the count and move the clip norm for the next step."""
        super().release_(receipt, sums, source)
        self._tracker.update(receipt, source)

    def repeated(self, contributions: int) -> AdaptiveClipping:
        return AdaptiveClipping(
            self._config,
            self._shapes,
            lot_size=self._lot_size,
            contributions=self._contributions * contributions,
        )

    def state(self) -> dict[str, Any]:
        """What to keep in a checkpoint: the clip norm, which is a released value."""
        return {"clip_norm": self._tracker.value}

    def restore(self, state: dict[str, Any]) -> None:
        positive("saved clip norm", state["clip_norm"])
        self._tracker.value = float(state["clip_norm"])
