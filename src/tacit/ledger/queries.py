"""Queries answered from a sample, but for selections among runs. The words are those of `tacit.ledger.events`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.ledger.checks import check_count, check_positive, check_text, is_number
from tacit.ledger.correlation import check_strategy


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """A sum of vectors, each of L2 norm at most ``clip_norm``, plus N(0, noise_std^2) on every coordinate.

    With ``noise`` "discrete" the sum is rounded to whole multiples of ``lattice`` and the noise is ``lattice`` times a
    discrete Gaussian N_Z(0, (noise_std / lattice)^2); ``clip_norm`` then includes what rounding adds.

    With ``noise`` "correlated" the noise is C^-1 z over the steps of a block, z having N(0, noise_std^2) on every
    coordinate and C being the matrix that ``strategy`` and ``parameters`` name (`tacit.ledger.correlation`).
    """

    group: str
    clip_norm: float
    noise_std: float
    noise: str = "gaussian"
    lattice: float | None = None
    strategy: str | None = None
    parameters: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_positive("clip norm", self.clip_norm)
        check_positive("noise standard deviation", self.noise_std)
        check_text("noise", self.noise)
        if self.noise == "correlated":
            object.__setattr__(self, "parameters", tuple(self.parameters or ()))
            check_strategy(str(self.strategy), self.parameters or ())
        elif self.strategy is not None or self.parameters is not None:
            raise ValueError(f"strategy is {self.strategy!r}; leave it out: only correlated noise has one.")
        if self.noise == "discrete":
            check_positive("lattice step", self.lattice if self.lattice is not None else math.nan)
        elif self.lattice is not None:
            raise ValueError(f"lattice is {self.lattice!r}; leave it out: only discrete noise lies on a lattice.")


@dataclass(frozen=True, kw_only=True)
class LaplaceSum:
    """A sum of vectors, each of L1 norm at most ``clip_norm``, plus Laplace noise of scale ``scale`` on every one.

    ``dimension`` is the number of coordinates: one coordinate has a tighter proof than several.
    """

    group: str
    clip_norm: float
    scale: float
    dimension: int

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_positive("clip norm", self.clip_norm)
        check_positive("Laplace scale", self.scale)
        check_count("dimension", self.dimension)


@dataclass(frozen=True, kw_only=True)
class SparseVector:
    """At most ``releases`` answers above a noisy threshold (Shokri & Shmatikov 2015, Figure 12).

    The whole mechanism, all answers included, is (threshold_epsilon + release_epsilon)-DP under the header's
    adjacency: that is what the mechanism that writes this event has to prove.
    """

    group: str
    threshold_epsilon: float
    release_epsilon: float
    releases: int

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_positive("threshold epsilon", self.threshold_epsilon)
        check_positive("release epsilon", self.release_epsilon)
        check_count("releases", self.releases)


@dataclass(frozen=True, kw_only=True)
class ThresholdedCounts:
    """Counts of values that were not listed beforehand, with N(0, noise_std^2); those above ``threshold`` are released.

    One record adds one to one count, and a value that occurs nowhere is not released. Beside the Gaussian sum of
    sensitivity 1 that this is on the values others have too, a record can show by bringing a value of its own, with
    probability ``slack``.
    """

    group: str
    noise_std: float
    threshold: float

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_positive("noise standard deviation", self.noise_std)
        if not is_number(self.threshold) or not self.threshold > 1:
            raise ValueError(f"threshold is {self.threshold!r}; it must be a finite number above 1.")

    @property
    def shared(self) -> GaussianSum:
        """The sum on the values that neighbours share."""
        return GaussianSum(group=self.group, clip_norm=1.0, noise_std=self.noise_std)

    @property
    def slack(self) -> float:
        """The probability that a count of one, with noise rounded to a grid of 2^-14 of it, passes the threshold."""
        distance = (self.threshold - 1) / self.noise_std - 2.0**-14
        return math.erfc(distance / math.sqrt(2)) / 2 * (1 + 1e-9) + 1e-300
