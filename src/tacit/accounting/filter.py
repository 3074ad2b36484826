"""Budgets enforced: a gate in front of the ledger that refuses the step that would overrun.

Two situations, two proofs (Rogers et al. 2016):

* `Budget`: the parameters of the steps do not depend on what was released, only *when to stop* may. The cost of
  everything recorded plus the next step, by any accountant, must fit.
* `AdaptiveBudget`: later parameters may be chosen from earlier releases. Then the sum of the Rényi divergences at
  one order, fixed beforehand, must stay below that order's share of the budget (Feldman & Zrnic 2021, Theorem 4.3):
  it bounds the divergence of the whole interaction at that order, whatever was chosen on the way.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tacit.accounting.accountants import find
from tacit.accounting.composition import Composition, Gaussian, Policy, Unproved
from tacit.accounting.entries import compose
from tacit.accounting.mixture import Array
from tacit.accounting.rdp import DEFAULT_ORDERS, between, divergences
from tacit.accounting.tail import MOST_ORDER
from tacit.ledger import AdaptiveBudget, Budget, BudgetExceeded, Ledger, Step
from tacit.ledger.events import (
    Adjacency,
    Allocated,
    CyclicPoisson,
    Everyone,
    GaussianSum,
    Header,
    Poisson,
    Sampling,
    Shuffled,
)

_LEASE = 4096
_MARGIN = 1.05


class Filter:
    """Decides, before each step, whether it still fits; meant for `tacit.Ledger.guard`.

    A few costly accounts are made for a lease of many steps, of as many as fit if the steps are all alike; those that
    cost no more than the step leased for are then counted down. A clip norm that changes together with its noise costs
    the same. Where the steps do change in cost, the lease is for somewhat worse ones, as long as the budget has room
    for them, so that it lasts. The lots of one shuffled epoch cost nothing beyond the first, those of an allocated one
    what the epoch costs, so there a lease ends with the epoch; with cyclic sampling it ends with the block, whose steps
    are accounted together.
    """

    def __init__(self, budget: Budget | AdaptiveBudget, *, accountant: str = "pld") -> None:
        self.budget = budget
        self._accountant = find(accountant)
        self._lease: _Lease | None = None

    def __call__(self, ledger: Ledger, step: Step) -> None:
        lease, length = self._lease, len(ledger)
        kind = compose([(step, 1)], ledger.header.adjacency)
        epoch = step.sampling if isinstance(step.sampling, Shuffled | Allocated | CyclicPoisson) else None
        if lease is not None and lease.covers(ledger, kind, epoch):
            self._lease = replace(lease, length=length + 1, left=lease.left - 1)
            return
        if lease is not None and lease.asked != kind and length and (worse := _worse(step)) is not None:
            # The step itself is asked about too: an accountant that has no proof for several kinds says so here.
            left, _ = self._fitting(ledger, worse, [(step, 1)])
            if left >= 2:
                dearest = compose([(worse, 1)], ledger.header.adjacency)
                self._lease = _Lease(weakref.ref(ledger), dearest, kind, epoch, length + 1, left - 1, cheaper=True)
                return
        left, over = self._fitting(ledger, step)
        if not left:
            raise BudgetExceeded.before(self.budget, steps=length)
        while lease is not None and lease.asked == kind and over - left > 1:  # steps do not change: find the last one
            middle = (left + over) // 2
            fits = self._fits([*ledger.entries, (step, middle)], ledger.header)
            left, over = (middle, over) if fits else (left, middle)
        self._lease = _Lease(weakref.ref(ledger), kind, kind, epoch, length + 1, left - 1, cheaper=False)

    def remaining(self, ledger: Ledger, step: Step, most: int = 10**9) -> int:
        """How many more steps like ``step`` fit, up to ``most``."""
        entries, header = ledger.entries, ledger.header
        most = min(most, _lots_left(ledger, step.sampling))
        low, high = 0, 1
        while high <= most and self._fits([*entries, (step, high)], header):
            low, high = high, 4 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits([*entries, (step, middle)], header) else (low, middle)
        return low

    def _fitting(self, ledger: Ledger, step: Step, others: Sequence[tuple[Step, int]] = ()) -> tuple[int, int]:
        """Return a number of steps that fit, and the least one tried above it that does not or is not asked for."""
        lease = min(_LEASE, _lots_left(ledger, step.sampling))
        over = lease + 1
        while lease and not self._fits([*ledger.entries, *others, (step, lease)], ledger.header):
            lease, over = lease // 4, lease
        return lease, over

    def _fits(self, entries: Sequence[tuple[Step, int]], header: Header) -> bool:
        if isinstance(self.budget, AdaptiveBudget):
            return fits_adaptively(entries, header.adjacency, self.budget)
        composition = compose(entries, header.adjacency)
        return self._accountant.epsilon(composition, self.budget.delta).upper <= self.budget.epsilon


@dataclass(frozen=True)
class _Lease:
    """So many more steps of this ``kind`` fit into the budget, if the ledger has this length.

    ``asked`` is the kind of the step that it was made for: another one of it after the lease shows that steps do not
    change in cost. ``cheaper`` ones are covered too if the lease was made with some room: their own cost, as it is
    computed, need not be less to the last digit.
    """

    ledger: weakref.ref[Ledger]
    kind: Composition
    asked: Composition
    epoch: Shuffled | Allocated | CyclicPoisson | None
    length: int
    left: int
    cheaper: bool

    def covers(self, ledger: Ledger, kind: Composition, epoch: Shuffled | Allocated | CyclicPoisson | None) -> bool:
        if self.ledger() is not ledger or self.length != len(ledger) or not self.left or self.epoch != epoch:
            return False
        return self.kind == kind or (self.cheaper and epoch is None and _costs_no_more(kind, self.kind))


def _costs_no_more(kind: Composition, other: Composition) -> bool:
    """Return True if one is plainly a Gaussian sum of no less noise on a sample of no greater rate than the other.

    More noise is post-processing. At a lower Poisson rate the output is that of the higher one where each drawn
    record is kept by a coin, and joint convexity of the divergences does the rest. One step that dominates another
    does so in every composition.
    """
    if kind.slack or other.slack or len(kind.terms) != 1 or len(other.terms) != 1:
        return False
    (ours, count), (theirs, most) = kind.terms[0], other.terms[0]
    return (
        isinstance(ours.base, Gaussian)
        and isinstance(theirs.base, Gaussian)
        and count <= most
        and ours.policy is theirs.policy in (Policy.ALWAYS, Policy.POISSON)
        and ours.rate <= theirs.rate
        and ours.members <= theirs.members
        and ours.base.noise_multiplier >= theirs.base.noise_multiplier
    )


def _worse(step: Step) -> Step | None:
    """A step like this one that costs some percent more, where that is plain to see."""
    sampling = step.sampling
    if not all(isinstance(query, GaussianSum) for query in step.queries):
        return None
    if isinstance(sampling, Poisson) and _MARGIN * sampling.rate < 1:
        sampling = replace(sampling, rate=_MARGIN * sampling.rate)
    elif not isinstance(sampling, Everyone):
        return None
    sums = (query for query in step.queries if isinstance(query, GaussianSum))
    return Step(sampling, tuple(replace(query, noise_std=query.noise_std / _MARGIN) for query in sums))


def _lots_left(ledger: Ledger, sampling: Sampling) -> int:
    """How many more lots of the same epoch of dealt lots there can be, at least the one that is asked about."""
    if not isinstance(sampling, Shuffled | Allocated):
        return sys.maxsize
    done = sum(count for step, count in ledger.entries if step.sampling == sampling)
    return max(sampling.lots - done, 1)


def filter_order(budget: AdaptiveBudget, first: Composition) -> float:
    """The order of the Rényi filter: the one that admits most steps like the first one, of a ladder and then finer.

    The theorem wants an order fixed beforehand. The first step's parameters depend on no release, so neither does an
    order that is a function of them and of the budget.
    """

    def admitted(orders: tuple[float, ...]) -> Array:
        shares = np.array([share(budget, order) for order in orders])
        return np.asarray(shares / np.maximum(divergences(first, orders), 1e-300))

    orders = (*DEFAULT_ORDERS, MOST_ORDER)
    for _ in range(3):
        best = int(np.argmax(admitted(orders)))
        order = orders[best]
        orders = between(orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)])
    return order


def share(budget: AdaptiveBudget, order: float) -> float:
    """The Rényi divergence of this order that the budget pays for; see `tacit.accounting.tail.epsilons`."""
    return budget.epsilon + (math.log(budget.delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)


def fits_adaptively(entries: Sequence[tuple[Step, int]], adjacency: Adjacency, budget: AdaptiveBudget) -> bool:
    """Return True if the filter lets these steps through, in the order they are given."""
    if not entries:
        return True
    if any(isinstance(step.sampling, CyclicPoisson) for step, _ in entries):
        raise Unproved(
            "an adaptive budget has no proof here for blocks of steps with cyclic sampling; use tacit.Budget, with the "
            "parameters of all steps fixed beforehand."
        )
    order = filter_order(budget, compose([(entries[0][0], 1)], adjacency))
    return float(divergences(compose(entries, adjacency), (order,))[0]) <= share(budget, order)
