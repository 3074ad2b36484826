"""The accountants by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.accounting import groups
from tacit.accounting.composition import Accountant, Best, Composition, Gaussian, Interval, Laplace, Policy, Unproved
from tacit.accounting.moments import Moments
from tacit.accounting.pld import Pld, Smoothed
from tacit.accounting.rdp import Rdp
from tacit.accounting.selected import Selected, only_selection
from tacit.accounting.strong import Strong
from tacit.ledger.events import Adjacency


@dataclass(frozen=True)
class Slackened:
    """An accountant that leaves the composition's slack out of the δ it may use, so that none has to think of it.

    The pld accountant has no proof for discrete Gaussian noise on a lattice too coarse for it, nor for the best of
    several runs beside other steps: rdp answers instead. `used` says so, and so does every guarantee.
    """

    method: Accountant

    @property
    def name(self) -> str:
        return self.method.name

    def used(self, composition: Composition) -> Slackened:
        """The accountant that answers for this composition."""
        if isinstance(self.method, Pld) and any(isinstance(term.base, Best) for term, _ in composition.terms):
            return Slackened(Selected(self.method) if only_selection(composition) is not None else Rdp())
        if not isinstance(self.method, Pld) or not composition.discrete:
            return self
        return Slackened(Rdp() if composition.smooth is None else Smoothed(self.method))

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        if composition.members > 1:
            return self.group(composition, 1, delta=delta)
        if (moved := _removed_and_added(composition)) is not None:
            return self.group(moved, 2, delta=delta)
        method = self.used(composition).method
        if not composition.slack:
            return _attained(composition, method.epsilon(composition, delta))
        left = math.nextafter(delta - composition.slack, -math.inf)
        return Interval(method.epsilon(_tight(composition), left).upper if left > 0 else math.inf)

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        if composition.members > 1:
            return self.group(composition, 1, epsilon=epsilon)
        if (moved := _removed_and_added(composition)) is not None:
            return self.group(moved, 2, epsilon=epsilon)
        found = self.used(composition).method.delta(_tight(composition), epsilon)
        return Interval(_with(composition.slack, found.upper)) if composition.slack else _attained(composition, found)

    def deltas(self, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε."""
        if composition.members > 1 or _removed_and_added(composition) is not None:
            return [self.delta(composition, epsilon).upper for epsilon in epsilons]
        tight, method = _tight(composition), self.used(composition).method
        if isinstance(method, Pld | Smoothed | Selected):
            found = method.deltas(tight, epsilons)
        else:
            found = [method.delta(tight, epsilon).upper for epsilon in epsilons]
        return [_with(composition.slack, upper) for upper in found]

    def group(
        self, composition: Composition, size: int, *, delta: float | None = None, epsilon: float | None = None
    ) -> Interval:
        """Bounds on ε at ``delta``, or on δ at ``epsilon``, for ``size`` records or owners together (see `groups`)."""
        if size < 1:
            raise ValueError(f"group is {size}; it must be a whole number of records, at least 1.")
        # Records of different groups of a block share noise; for them together only the general rule is proved.
        blocks = composition.unattained and any(term.policy is Policy.POISSON for term, _ in composition.terms)
        if isinstance(self.method, Pld) and not composition.slack and not composition.discrete and not blocks:
            found = self.method.group(composition, size, delta=delta, epsilon=epsilon)
            if found is not None:
                return _attained(composition, found)
        size, composition = size * composition.members, composition.alone
        if delta is not None:
            return groups.epsilon(lambda least: self.epsilon(composition, least).upper, delta, size)
        assert epsilon is not None
        return groups.delta(lambda at: self.delta(composition, at).upper, epsilon, size)


def _removed_and_added(composition: Composition) -> Composition | None:
    """The composition under add/remove, if it has lots of random allocation and is asked about under replace-one.

    No pair for a replacement is proved for those: given its lot a record may move the answer in two directions, from
    one place to any other, and no one pair of mixtures stands for all. But replacing a record removes one and
    adds another: two records' worth of add/remove, for everything that is proved under both relations.
    """
    if composition.adjacency is not Adjacency.REPLACE_ONE:
        return None
    if not any(term.policy is Policy.ALLOCATED for term, _ in composition.terms):
        return None
    for term, _ in composition.terms:
        if not isinstance(term.base, Gaussian | Laplace) or term.policy is Policy.FIXED_SIZE:
            raise Unproved(
                f"random allocation together with {type(term.base).__name__} and {term.policy} sampling has no proof "
                "here under replace-one; use add/remove."
            )
    if composition.slack:
        raise Unproved(
            "random allocation beside discovered values has no proof here under replace-one; use add/remove."
        )
    return replace(composition, adjacency=Adjacency.ADD_REMOVE)


def _attained(composition: Composition, found: Interval) -> Interval:
    """The bounds, without a lower one where no neighbours attain what the terms cost."""
    return Interval(found.upper) if composition.unattained else found


def _with(slack: float, delta: float) -> float:
    return min(math.nextafter(delta + slack, math.inf), 1.0) if slack else delta


def _tight(composition: Composition) -> Composition:
    return replace(composition, slack=0.0)


ACCOUNTANTS: dict[str, Slackened] = {method.name: Slackened(method) for method in (Pld(), Rdp(), Moments(), Strong())}
"""The accountants by name: ``pld``, ``rdp``, ``moments`` and ``strong``."""


def find(name: str) -> Slackened:
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is {name!r}; choose one of {', '.join(ACCOUNTANTS)}.")
    return ACCOUNTANTS[name]
