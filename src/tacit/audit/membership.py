"""Measure how well an attack tells members of the training records from others, with confidence limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from tacit.audit.bounds import at_least, at_most, distinguishing_epsilon
from tacit.randomness import Floats

RATES = (0.001, 0.01)
"""The false-positive rates at which an attack is measured (Carlini et al. 2022)."""
_THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The share of members found when so many others are accused; ``low`` and ``high`` are Clopper–Pearson limits.

    ``accused`` is the share of others that were accused, at most ``false_positive_rate``, ``accused_high`` its upper
    limit: with fewer than a thousand others, 0.1 % cannot be measured and the limit says so.
    """

    false_positive_rate: float
    true_positive_rate: float
    low: float
    high: float
    accused: float
    accused_high: float

    def __str__(self) -> str:
        return (
            f"finds {self.true_positive_rate:.2%} of the members ({self.low:.2%} to {self.high:.2%}) and accuses "
            f"{self.accused:.2%} of the others (at most {self.accused_high:.2%})"
        )


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A membership attack on natural records: rates, the area under the curve, and a lower bound on ε.

    The bound assumes that members and others were drawn alike (a random split): a difference between the two that
    training did not make counts as membership. ``epsilon`` says nothing about worst-case records; `Audit` does. The
    rates are counted on the records without noise: no guarantee covers their publication.
    """

    attack: str
    members: int
    others: int
    rates: tuple[Rate, ...]
    area: float
    epsilon: float
    delta: float
    confidence: float
    details: str

    def __str__(self) -> str:
        lines = [f"{self.attack}: {self.details}"]
        lines += [f"  at FPR {rate.false_positive_rate:.1%}  {rate}" for rate in self.rates]
        lines.append(f"  area under the curve {self.area:.3f} (0.5 is a guess)")
        lines.append(
            f"  audited  ε ≥ {math.floor(self.epsilon * 1000) / 1000:.3f} (natural records, {self.confidence:.2%} "
            "confidence, if members and others were drawn alike)"
        )
        lines.append("  not private: these rates are counted on the records without noise; no guarantee covers them")
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {
            "attack": self.attack,
            "members": self.members,
            "others": self.others,
            "rates": [vars(rate) for rate in self.rates],
            "area": self.area,
            "epsilon_audited": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "details": self.details,
            "private": False,
        }


def measure(
    members: Floats, others: Floats, *, attack: str, details: str, delta: float, confidence: float = 0.99
) -> Membership:
    """Return how well scores tell members (high) from others (low).

    A rate's threshold is the lowest that accuses at most the wanted share of the others. The ε bound takes its
    threshold from every second record of each side, the best of several, and its two error rates from the rest, each
    bounded by Clopper & Pearson at half the level: looking for the threshold costs nothing.
    """
    if min(members.size, others.size) < 20:
        raise ValueError(
            f"there are {members.size} members and {others.size} others; an attack is measured on at least 20 of each."
        )
    level = 1 - confidence
    ranks = rankdata(np.concatenate([members, others]))[: members.size].sum()
    area = float((ranks - members.size * (members.size + 1) / 2) / (members.size * others.size))
    return Membership(
        attack=attack,
        members=members.size,
        others=others.size,
        rates=tuple(_rate(members, others, rate, level) for rate in RATES),
        area=area,
        epsilon=_epsilon(members, others, delta, level),
        delta=delta,
        confidence=confidence,
        details=details,
    )


def _rate(members: Floats, others: Floats, wanted: float, level: float) -> Rate:
    threshold = np.sort(others)[::-1][math.floor(wanted * others.size)]
    found, wrong = int((members > threshold).sum()), int((others > threshold).sum())
    return Rate(
        false_positive_rate=wanted,
        true_positive_rate=found / members.size,
        low=at_least(found, members.size, level / 2),
        high=at_most(found, members.size, level / 2),
        accused=wrong / others.size,
        accused_high=at_most(wrong, others.size, level / 2),
    )


def _epsilon(members: Floats, others: Floats, delta: float, level: float) -> float:
    def bound(inside: Floats, outside: Floats, threshold: float) -> float:
        right = at_least(int((inside > threshold).sum()), inside.size, level / 2)
        wrong = at_most(int((outside > threshold).sum()), outside.size, level / 2)
        return distinguishing_epsilon(wrong, right, delta)

    thresholds = np.quantile(others[::2], 1 - np.array(_THRESHOLDS)).tolist()
    best = max(thresholds, key=lambda threshold: bound(members[::2], others[::2], threshold))
    return bound(members[1::2], others[1::2], best)
