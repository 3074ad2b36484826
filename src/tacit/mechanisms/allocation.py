"""How much noise each group gets, for a given noise multiplier of the whole step.

With S_g the sensitivity and sigma_g the noise of group g, the step as a whole has the noise multiplier
z = (sum_g (S_g / sigma_g)^2)^(-1/2) (McMahan, Andrew et al. 2019, section 4). Each allocation below makes it exactly
the one asked for, up to rounding; what counts for the guarantee is in any case the noise in the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tacit.ledger.events import Everyone, Query, Step

Sensitivity = tuple[str, float, int]
"""The name, sensitivity and dimension of a group."""


class Allocation(Protocol):
    """Noise standard deviations for groups."""

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]: ...

    def after(self, queries: Sequence[Query]) -> Allocation:
        """The allocation for what is left when ``queries`` are answered from the same sample."""
        ...


@dataclass(frozen=True)
class Proportional:
    """sigma_g = z sqrt(G) S_g: the noise is the same multiple of every group's sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(self.noise_multiplier)

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]:
        return tuple(self.noise_multiplier * math.sqrt(len(groups)) * bound for _, bound, _ in groups)

    def after(self, queries: Sequence[Query]) -> Proportional:
        return Proportional(remaining(self.noise_multiplier, queries))


@dataclass(frozen=True)
class DimensionAdjusted:
    """sigma_g = z sqrt(D / d_g) S_g: the noise is the same multiple of the largest root mean square of a coordinate."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(self.noise_multiplier)

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]:
        total = sum(dimension for _, _, dimension in groups)
        return tuple(self.noise_multiplier * math.sqrt(total / dimension) * bound for _, bound, dimension in groups)

    def after(self, queries: Sequence[Query]) -> DimensionAdjusted:
        return DimensionAdjusted(remaining(self.noise_multiplier, queries))


@dataclass(frozen=True)
class Explicit:
    """The noise standard deviation of each group's sum, by group name."""

    noise_std: Mapping[str, float]

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]:
        names = [name for name, _, _ in groups]
        if set(names) != set(self.noise_std):
            raise ValueError(f"noise is given for {sorted(self.noise_std)}; the groups are {sorted(names)}.")
        return tuple(self.noise_std[name] for name in names)

    def after(self, queries: Sequence[Query]) -> Explicit:
        return self


def remaining(noise_multiplier: float, queries: Sequence[Query]) -> float:
    """The noise multiplier left for the other queries of a step that has ``queries`` in it, for the given total.

    >>> from tacit.ledger.events import GaussianSum
    >>> round(remaining(1.0, [GaussianSum(group="loss", clip_norm=1.0, noise_std=10.0)]), 4)
    1.005
    """
    _check(noise_multiplier)
    own = Step(Everyone(), tuple(queries)).noise_multiplier
    if own <= noise_multiplier:
        groups = ", ".join(repr(query.group) for query in queries)
        raise ValueError(
            f"the noise multiplier is {noise_multiplier:g}, but the noise of {groups} allows no more than {own:g}; "
            "give them more noise, or lower the noise multiplier of the step."
        )
    return 1 / math.sqrt((1 / noise_multiplier - 1 / own) * (1 / noise_multiplier + 1 / own))


def _check(noise_multiplier: float) -> None:
    if isinstance(noise_multiplier, bool) or not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise multiplier is {noise_multiplier!r}; it must be a finite number above 0.")
