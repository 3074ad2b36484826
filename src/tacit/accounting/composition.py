"""The ledger in the shape accountants work on: elementary mechanisms, each with how often it ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from tacit.ledger import events as ev
from tacit.ledger.events import Adjacency


class Unproved(ValueError):
    """There is no proof here for this combination of sampling, noise and adjacency."""


class Policy(StrEnum):
    """How a record gets into the sample, as far as amplification is concerned."""

    ALWAYS = "none"
    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"
    ALLOCATED = "random-allocation"


@dataclass(frozen=True)
class Gaussian:
    """A sum with Gaussian noise; ``noise_multiplier`` = noise std / one record's largest L2 contribution."""

    noise_multiplier: float


@dataclass(frozen=True)
class DiscreteGaussian:
    """A sum with discrete Gaussian noise, alone or with Gaussian sums of the same sample; see `Gaussian`.

    It is a post-processing of the Gaussian sum with noise multiplier ``smoothed``, up to next to nothing, and that is
    how it gets a privacy loss distribution; 0 where the lattice is too coarse for that (`tacit.accounting.smoothing`).
    """

    noise_multiplier: float
    smoothed: float


@dataclass(frozen=True)
class Laplace:
    """A sum with Laplace noise; ``noise_multiplier`` = noise scale / one record's largest L1 contribution."""

    noise_multiplier: float
    dimension: int


@dataclass(frozen=True)
class Pure:
    """Anything that is (epsilon, 0)-DP under the composition's own adjacency."""

    epsilon: float


@dataclass(frozen=True)
class Best:
    """The best of a random number of runs of ``candidate`` (see `tacit.ledger.events.Selection`)."""

    selection: ev.Selection
    candidate: Composition


Base = Gaussian | DiscreteGaussian | Laplace | Pure | Best


@dataclass(frozen=True)
class Term:
    """One elementary mechanism on a sample; ``rate`` is 1 when every record takes part.

    With random allocation it is an epoch of ``lots`` answers, of which ``taken`` were given. ``members``: so many
    records may be one unit's, each in the sample by its own coin (`tacit.ledger.events.OwnedPoisson`).
    """

    base: Base
    policy: Policy = Policy.ALWAYS
    rate: float = 1.0
    lots: int = 1
    taken: int = 1
    members: int = 1


@dataclass(frozen=True)
class Composition:
    """All that was done: the terms with their counts. Order does not matter, equal terms are merged.

    ``slack`` is to be added to δ: the probability that something shows which the terms do not cover. The accountants
    that are found by name see to it; one that is not prepared for slack cannot get at the parts. ``unattained``: terms
    stand for epochs of which a record is in some lots, or for blocks of which it is in one group, unknown which;
    no neighbours attain what those terms cost.
    """

    adjacency: Adjacency
    terms: tuple[tuple[Term, int], ...]
    slack: float = 0.0
    unattained: bool = False

    @property
    def parts(self) -> tuple[tuple[Term, int], ...]:
        """The terms, where they are all there is, of one record each."""
        if self.members > 1:
            raise Unproved(
                f"an owner has up to {self.members} records here; that is accounted for as a group, and this way of "
                "accounting has no proof for it."
            )
        if self.slack:
            raise Unproved(
                "values found by a threshold, or lots cut to a size, add to δ; there is no proof for that here."
            )
        return self.terms

    @property
    def members(self) -> int:
        """The largest number of records of one unit in a term."""
        return max((term.members for term, _ in self.terms), default=1)

    @property
    def alone(self) -> Composition:
        """The same as one record's."""
        counts: Counter[Term] = Counter()
        for term, count in self.terms:
            counts[replace(term, members=1)] += count
        return replace(self, terms=tuple(sorted(counts.items(), key=repr)))

    @property
    def discrete(self) -> bool:
        """True if some noise is discrete Gaussian, also in runs that were chosen among."""
        bases = [term.base for term, _ in self.terms]
        return any(
            isinstance(base, DiscreteGaussian) or (isinstance(base, Best) and base.candidate.discrete) for base in bases
        )

    @property
    def smooth(self) -> Composition | None:
        """The same with Gaussian noise in the place of discrete, where one stands for the other."""
        if any(isinstance(term.base, DiscreteGaussian) and not term.base.smoothed for term, _ in self.terms):
            return None
        counts: Counter[Term] = Counter()
        for term, count in self.terms:
            base = term.base
            counts[replace(term, base=Gaussian(base.smoothed)) if isinstance(base, DiscreteGaussian) else term] += count
        return replace(self, terms=tuple(sorted(counts.items(), key=repr)))

    @property
    def shift_factor(self) -> int:
        """How far one neighbour can move a sum, in units of one record's largest contribution."""
        return 2 if self.adjacency is Adjacency.REPLACE_ONE else 1


@dataclass(frozen=True)
class Interval:
    """A certified upper bound and, where there is one, a certified lower bound on the same quantity."""

    upper: float
    lower: float | None = None


class Accountant(Protocol):
    """Turns a composition into (ε, δ). Both directions are upper bounds; what has no proof raises `Unproved`."""

    @property
    def name(self) -> str: ...

    def epsilon(self, composition: Composition, delta: float) -> Interval: ...

    def delta(self, composition: Composition, epsilon: float) -> Interval: ...
