"""Adaptive clipping: clip norms follow a quantile of the gradient norms, group by group, and pay for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tacit.ledger.events import Everyone, GaussianSum, Step
from tacit.mechanisms.allocation import Allocation
from tacit.mechanisms.clipping import ROOT, Flat, Strategy
from tacit.mechanisms.groups import Clipping, Group, Shapes, Spendable, positive
from tacit.mechanisms.lattice import Discrete
from tacit.mechanisms.quantile import QuantileTracker
from tacit.randomness import Source

COUNT = "unclipped count"

LEAST_RATIO = 3.0
"""The noise multiplier of all default counts together is at least so many times the step's: 6 % more for gradients."""


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Clip norms that follow a quantile of the gradients' norms (Andrew et al. 2021).

    ``initial`` is the first clip norm of the whole gradient, or a strategy with the groups and their first clip norms:
    ``Adaptive(initial=PerLayer(each=1.0))`` lets every layer find its own.

    The count of records that a group did not clip is one more Gaussian sum of the same sample, of sensitivity 1/2,
    and is charged in the same step, one for each group: when the step's noise multiplier is given, the gradients get a
    little more noise so that the whole has it. ``count_noise_std`` is the noise of each count; by default a twentieth
    of the expected lot size times the root of the number of groups, so that all counts together cost what one does. In
    small lots it is more, so that the counts take a ninth of the step at most.
    """

    initial: float | Strategy = 1.0
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.initial, "bind", None)):
            positive("initial clip norm", self.initial)  # type: ignore[arg-type]
        positive("learning rate", self.learning_rate)
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile!r}; it must be in (0, 1).")
        if self.count_noise_std is not None:
            positive("noise of the count", self.count_noise_std)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> AdaptiveClipping:
        if lot_size is None:
            raise ValueError("lot_size is missing; adaptive clipping divides its count by the expected lot size.")
        first = Flat(self.initial) if isinstance(self.initial, int | float) else self.initial
        bound = first.bind(shapes, lot_size=lot_size)
        if type(bound) is not Clipping or any(group.stability is not None for group in bound.groups):
            raise ValueError(f"initial is {self.initial}; it must be a strategy with clip norms to begin from.")
        return AdaptiveClipping(self, bound.groups, lot_size=lot_size)


class AdaptiveClipping(Clipping):
    """`Adaptive` for one model. Norms change only in `release_`, so a step is clipped as it was recorded.

    Formal guarantee: as for `Clipping`, with one count for each group besides. A record adds +1/2 or -1/2 to every
    count, by its own norm in that group alone, so it moves each by at most 1/2 times its contributions.

    `weights` also counts, so it must see every record of the lot exactly once, between `queries` and `release_`.
    """

    def __init__(self, config: Adaptive, groups: tuple[Group, ...], *, lot_size: float) -> None:
        super().__init__(groups)
        self._config, self._lot_size = config, lot_size
        self._trackers = {
            group.name: QuantileTracker(
                group=COUNT + group.name.removeprefix(ROOT),
                initial=group.clip_norm,
                quantile=config.quantile,
                learning_rate=config.learning_rate,
                noise_std=config.count_noise_std or 1.0,
                lot_size=lot_size,
                contributions=group.contributions,
            )
            for group in groups
        }

    def expect(self, lot_size: float) -> None:
        """Continue with another expected lot size, for schedules: it divides the counts."""
        self._lot_size = lot_size

    def _count_noise(self, group: Group, step: float | None) -> float:
        """Return the noise of a group's count in a step with this noise multiplier, if it has one."""
        if self._config.count_noise_std is not None:
            return self._config.count_noise_std
        least = 0.0 if step is None else LEAST_RATIO * step * group.contributions / 2
        return max(self._lot_size / 20, least) * math.sqrt(len(self._groups))

    @property
    def clip_norms(self) -> dict[str, float]:
        """The clip norm of each group; released values."""
        return {name: tracker.value for name, tracker in self._trackers.items()}

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(replace(group, clip_norm=self._trackers[group.name].value) for group in self._groups)

    def weights(self, norms: torch.Tensor) -> torch.Tensor:
        weights = super().weights(norms)
        for tracker, joint in zip(self._trackers.values(), self.joint(norms).unbind(dim=1), strict=True):
            tracker.observe(joint)
        return weights

    def queries(self, noise: Allocation) -> tuple[GaussianSum, ...]:
        for group in self._groups:
            std = self._count_noise(group, getattr(noise, "noise_multiplier", None))
            self._trackers[group.name].expect(self._lot_size, std)
        counts = [tracker.query(discrete=isinstance(noise, Discrete)) for tracker in self._trackers.values()]
        return (*super().queries(noise.after(counts)), *counts)

    def fixes_ratio(self, noise: Allocation) -> bool:
        """Return whether the step's noise multiplier under ``noise`` stays the same, whatever the clip norms become.

        The clip norms are released values. If the multiplier moves with them, a step's parameters depend on releases,
        and only a privacy filter for adaptively chosen parameters bounds the whole. It is tried out at the clip norms
        of now and at others, larger by a different factor in each group.
        """
        moved = tuple(replace(g, clip_norm=g.clip_norm * (2.0 + i)) for i, g in enumerate(self.groups))
        other = AdaptiveClipping(self._config, moved, lot_size=self._lot_size)
        here, there = (Step(Everyone(), each.queries(noise)).noise_multiplier for each in (self, other))
        return math.isclose(here, there, rel_tol=1e-6)

    def release_(
        self, receipt: Spendable, sums: Mapping[str, torch.Tensor], source: Source, *, counts: Source | None = None
    ) -> None:
        """Add the recorded noise to the sums, then release the counts and move the clip norms for the next step."""
        super().release_(receipt, sums, source)
        for tracker in self._trackers.values():
            tracker.update(receipt, source if counts is None else counts)

    def widened(self, margin: float) -> AdaptiveClipping:
        return AdaptiveClipping(self._config, super().widened(margin).groups, lot_size=self._lot_size)

    def repeated(self, contributions: int) -> AdaptiveClipping:
        return AdaptiveClipping(self._config, super().repeated(contributions).groups, lot_size=self._lot_size)

    def state(self) -> dict[str, Any]:
        """Return what to keep in a checkpoint: the clip norms."""
        return {"clip_norms": self.clip_norms}

    def restore(self, state: dict[str, Any]) -> None:
        saved = state["clip_norms"]
        if set(saved) != set(self._trackers):
            raise ValueError(f"the saved clip norms are of {sorted(saved)}; the groups are {sorted(self._trackers)}.")
        for name, tracker in self._trackers.items():
            positive(f"saved clip norm of {name}", saved[name])
            tracker.value = float(saved[name])
