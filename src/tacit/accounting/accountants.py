"""The accountants by name."""

from __future__ import annotations

import math
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
        if not composition.slack:
            return found
        return Interval(min(math.nextafter(found.upper + composition.slack, math.inf), 1.0))


def _tight(composition: Composition) -> Composition:
    return replace(composition, slack=0.0)


ACCOUNTANTS: dict[str, Accountant] = {method.name: Slackened(method) for method in (Pld(), Rdp(), Moments(), Strong())}


def find(name: str) -> Accountant:
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is {name!r}; choose one of {', '.join(ACCOUNTANTS)}.")
    return ACCOUNTANTS[name]
