"""The accountants by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.accounting.composition import Accountant, Composition, Interval
from tacit.accounting.moments import Moments
from tacit.accounting.pld import Pld
from tacit.accounting.rdp import Rdp
from tacit.accounting.strong import Strong


@dataclass(frozen=True)
class Slackened:
    """An accountant that leaves the composition's slack out of the δ it may use, so that none has to think of it."""

    method: Accountant

    @property
    def name(self) -> str:
        return self.method.name

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        if not composition.slack:
            return self.method.epsilon(composition, delta)
        left = math.nextafter(delta - composition.slack, -math.inf)
        return Interval(self.method.epsilon(_tight(composition), left).upper if left > 0 else math.inf)

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        found = self.method.delta(_tight(composition), epsilon)
        return Interval(_with(composition.slack, found.upper)) if composition.slack else found

    def deltas(self, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε."""
        tight = _tight(composition)
        if isinstance(self.method, Pld):
            found = self.method.deltas(tight, epsilons)
        else:
            found = [self.method.delta(tight, epsilon).upper for epsilon in epsilons]
        return [_with(composition.slack, upper) for upper in found]


def _with(slack: float, delta: float) -> float:
    return min(math.nextafter(delta + slack, math.inf), 1.0) if slack else delta


def _tight(composition: Composition) -> Composition:
    return replace(composition, slack=0.0)


ACCOUNTANTS: dict[str, Slackened] = {method.name: Slackened(method) for method in (Pld(), Rdp(), Moments(), Strong())}


def find(name: str) -> Slackened:
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is {name!r}; choose one of {', '.join(ACCOUNTANTS)}.")
    return ACCOUNTANTS[name]
