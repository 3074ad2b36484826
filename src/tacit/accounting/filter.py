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
from collections.abc import Iterable

from tacit.accounting.accountants import find
from tacit.accounting.composition import Composition, compose
from tacit.accounting.rdp import divergences
from tacit.ledger import AdaptiveBudget, Budget, BudgetExceeded, Ledger, Step
from tacit.ledger.events import Header, Sampling, Shuffled

_LEASE = 4096


class Filter:
    """Decides, before each step, whether it still fits; meant for `tacit.Ledger.guard`.

    One costly account is made for a lease of many equal steps; the steps themselves are then counted down. Equal
    means equal in cost: a clip norm that changes together with its noise costs the same. The lots of one shuffled
    epoch cost nothing beyond the first, so there a lease ends with the epoch.
    """

    def __init__(self, budget: Budget | AdaptiveBudget, *, accountant: str = "pld") -> None:
        self.budget = budget
        self._accountant = find(accountant)
        self._lease: tuple[object, int, int] = (None, 0, 0)  # whose steps of which cost, ledger length, steps left

    def __call__(self, ledger: Ledger, step: Step) -> None:
        length = len(ledger)
        epoch = step.sampling if isinstance(step.sampling, Shuffled) else None
        kind = weakref.ref(ledger), compose([(step, 1)], ledger.header.adjacency), epoch
        cost, at, left = self._lease
        if cost != kind or at != length or not left:
            left = self._fitting(ledger.entries, ledger.header, step, min(_LEASE, _lots_left(ledger, step.sampling)))
        if not left:
            raise BudgetExceeded.before(self.budget, steps=length)
        self._lease = (kind, length + 1, left - 1)

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

    def _fitting(self, entries: tuple[tuple[Step, int], ...], header: Header, step: Step, lease: int) -> int:
        while lease and not self._fits([*entries, (step, lease)], header):
            lease //= 4
        return lease

    def _fits(self, entries: Iterable[tuple[Step, int]], header: Header) -> bool:
        composition = compose(entries, header.adjacency)
        if isinstance(self.budget, AdaptiveBudget):
            return fits_adaptively(composition, self.budget)
        return self._accountant.epsilon(composition, self.budget.delta).upper <= self.budget.epsilon


def _lots_left(ledger: Ledger, sampling: Sampling) -> int:
    """How many more lots of the same shuffled epoch there can be, at least the one that is asked about."""
    if not isinstance(sampling, Shuffled):
        return sys.maxsize
    done = sum(count for step, count in ledger.entries if step.sampling == sampling)
    return max(sampling.lots - done, 1)


def filter_order(budget: AdaptiveBudget) -> float:
    """The order of the Rényi filter: the best one for Gaussian noise, a function of the budget alone.

    A Gaussian composition with divergence order·r at every order costs r + 2 sqrt(r log(1/δ)) at the order
    1 + sqrt(log(1/δ)/r); r is taken so that this is the whole budget.
    """
    log = math.log(1 / budget.delta)
    root = math.sqrt(log + budget.epsilon) - math.sqrt(log)
    return 1 + math.sqrt(log) / root


def fits_adaptively(composition: Composition, budget: AdaptiveBudget) -> bool:
    order = filter_order(budget)
    share = budget.epsilon + (math.log(budget.delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)
    return float(divergences(composition, (order,))[0]) <= share
