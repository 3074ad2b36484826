"""How many runs are tried: a random number K, of a distribution for which the best of K has a proof.

Papernot & Steinke 2021, "Hyperparameter tuning with Rényi differential privacy": a fixed number of runs, the best of
which is published, can cost as much as all of them together. A random number, drawn before anything runs and never
told, costs little more than one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Protocol

from tacit.accounting.selection import mean_trials
from tacit.ledger import Everyone, Selection, Step
from tacit.randomness import Source

Base = Sequence[tuple[Step, int]]
"""The most that one run does to the records: steps, and how many of each."""

GROUP = "tuning"
_EXACT = Context(prec=100)
_NOTHING: Base = ((Step(Everyone(), ()), 1),)


class Trials(Protocol):
    """A distribution of K."""

    @property
    def mean(self) -> float: ...

    def event(self, base: Base) -> Selection:
        """Return the event to record, where one run costs ``base``."""
        ...

    def draw(self, source: Source) -> int: ...

    def chance_tried(self, candidates: int) -> float:
        """How likely it is that a given one of ``candidates``, drawn anew for each run, is tried at all."""
        ...


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial:
    """P[K = k] = (1-γ)^k / (γ^-η - 1) · Π_{l<k} (l+η)/(l+1) for k = 1, 2, ...; (1-γ)^k / (k log(1/γ)) if η = 0.

    η = 1 is the geometric distribution and η = 0 the logarithmic one. A smaller η > -1 is cheaper and spreads K more
    widely: more often than not K is small. The cost is Theorem 2 of Papernot & Steinke.

    >>> TruncatedNegativeBinomial.of_mean(10, eta=1.0).gamma
    0.1
    """

    eta: float = 0.0
    gamma: float

    def __post_init__(self) -> None:
        self.event(_NOTHING)
        if 0 < abs(self.eta) < 1e-12:
            raise ValueError(f"eta is {self.eta!r}; so close to 0, use 0.")
        if self.gamma < 1e-7:
            raise ValueError(f"gamma is {self.gamma!r}; use at least 1e-7: there would be millions of runs.")

    @classmethod
    def of_mean(cls, mean: float, *, eta: float = 0.0) -> TruncatedNegativeBinomial:
        """The distribution with E[K] = ``mean``, to within rounding."""
        if isinstance(mean, bool) or not isinstance(mean, int | float) or not 1 < mean < math.inf:
            raise ValueError(f"mean is {mean!r}; it must be a finite number above 1, for there is always one run.")
        if eta == 1:
            return cls(eta=eta, gamma=1 / mean)
        low, high = 1e-7, 1 - 1e-12  # the mean falls as γ rises
        if cls(eta=eta, gamma=low).mean < mean or cls(eta=eta, gamma=high).mean > mean:
            raise ValueError(f"mean is {mean!r}; with eta {eta:g} no gamma from 1e-7 to 1 has it.")
        while high / low > 1 + 1e-15 and low < (middle := math.sqrt(low * high)) < high:
            low, high = (middle, high) if cls(eta=eta, gamma=middle).mean > mean else (low, middle)
        return cls(eta=eta, gamma=low)

    @property
    def mean(self) -> float:
        return mean_trials(self.event(_NOTHING))

    def event(self, base: Base) -> Selection:
        return Selection(
            group=GROUP,
            trials="truncated-negative-binomial",
            eta=self.eta,
            gamma=self.gamma,
            candidate=tuple(base),
        )

    def draw(self, source: Source) -> int:
        return _invert(source, self._chances(), first=1)

    def chance_tried(self, candidates: int) -> float:
        _check_candidates(candidates)
        kept = self.gamma + (1 - self.gamma) / candidates  # 1 - (1-γ) x with x = 1 - 1/candidates
        if self.eta == 0:
            return 1 - math.log(kept) / math.log(self.gamma)
        return 1 - math.expm1(-self.eta * math.log(kept)) / math.expm1(-self.eta * math.log(self.gamma))

    def _chances(self) -> Iterator[Decimal]:
        eta, gamma = Decimal(self.eta), Decimal(self.gamma)
        if eta:
            chance = eta * (1 - gamma) / ((-eta * gamma.ln()).exp() - 1)
        else:
            chance = (1 - gamma) / -gamma.ln()
        k = 1
        while True:
            yield chance
            chance *= (1 - gamma) * (k + eta) / (k + 1)
            k += 1


@dataclass(frozen=True, kw_only=True)
class PoissonTrials:
    """K is Poisson with the given mean: well concentrated, and nothing is run at all with chance exp(-mean).

    The cost is Theorem 6 of Papernot & Steinke: at an order α for which one run is (log(1 + 1/(α-1)), δ̂)-DP it adds
    mean·δ̂ + log(mean)/(α-1). So it serves a few dozen runs at most; for a hundred the other distribution is cheaper.
    """

    mean: float

    def __post_init__(self) -> None:
        self.event(_NOTHING)
        if self.mean > 1e6:
            raise ValueError(f"mean is {self.mean!r}; use at most a million runs.")

    def event(self, base: Base) -> Selection:
        return Selection(group=GROUP, trials="poisson", mean=self.mean, candidate=tuple(base))

    def draw(self, source: Source) -> int:
        return _invert(source, self._chances(), first=0)

    def chance_tried(self, candidates: int) -> float:
        _check_candidates(candidates)
        return -math.expm1(-self.mean / candidates)

    def _chances(self) -> Iterator[Decimal]:
        mean = Decimal(self.mean)
        chance, k = (-mean).exp(), 0
        while True:
            yield chance
            k += 1
            chance *= mean / k


def _invert(source: Source, chances: Iterator[Decimal], *, first: int) -> int:
    """The k at which the sum of the chances passes a uniform number of 256 bits.

    In 100 digits: every probability is right to about 2^-256, where float arithmetic would be off by 2^-53 and more,
    which no theorem about K allows for.
    """
    with localcontext(_EXACT):
        left = (Decimal(int.from_bytes(source.bytes(32), "big")) + Decimal("0.5")) / Decimal(2**256)
        for k, chance in enumerate(chances, start=first):
            left -= chance
            if left < 0:
                return k
    raise AssertionError("the chances never end")


def _check_candidates(candidates: int) -> None:
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise ValueError(f"candidates is {candidates!r}; it must be a whole number, at least 1.")
