"""The Rényi accountant: divergences of many orders, added over the terms, and the best order's (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tacit.accounting import renyi, selection
from tacit.accounting.composition import Best, Composition, Interval, Policy, Term, Unproved
from tacit.accounting.mixture import Array
from tacit.accounting.tail import (
    LEAST_ORDER,
    MOST_ORDER,
    check_delta,
    check_epsilon,
    deltas,
    epsilons,
    finite,
    times,
)
from tacit.ledger.events import Adjacency

_Cost = Callable[[Array, Array], Array]


def _ladder() -> tuple[float, ...]:
    low = 1 + np.concatenate([np.geomspace(LEAST_ORDER - 1, 0.3, 8, endpoint=False), np.geomspace(0.3, 14, 20)])
    high = np.unique(np.rint(np.geomspace(18, 8192, 18)))
    return tuple(float(order) for order in np.concatenate([low, high]))


DEFAULT_ORDERS = _ladder()


@dataclass(frozen=True)
class Rdp:
    """Rényi differential privacy (Mironov 2017) with the conversion of Canonne, Kamath & Steinke 2020.

    Without ``orders`` the order is chosen to fit: a ladder from 1.001 to 8192 first, then finer between the neighbours
    of the best, which comes within about 0.1 % of the best possible. The bound holds at every order looked at, so it
    holds at the best one. With ``orders`` those are used and no others.

    >>> from tacit.accounting.composition import Gaussian
    >>> steps = ((Term(Gaussian(4.0), Policy.POISSON, 0.01), 10_000),)
    >>> round(Rdp().epsilon(Composition(Adjacency.ADD_REMOVE, steps), 1e-5).upper, 3)
    1.035
    """

    orders: tuple[float, ...] | None = None
    name: ClassVar[str] = "rdp"

    def __post_init__(self) -> None:
        if self.orders is None:
            return
        object.__setattr__(self, "orders", tuple(self.orders))
        if not self.orders:
            raise ValueError("orders is empty; give at least one order, or None to have them chosen.")
        for order in self.orders:
            number = isinstance(order, int | float) and not isinstance(order, bool)
            if not number or not LEAST_ORDER <= order <= MOST_ORDER:
                raise ValueError(f"order is {order!r}; it must be in [{LEAST_ORDER}, {MOST_ORDER:g}].")

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        """The least ε over the orders at this δ."""
        delta = check_delta(delta)
        if not composition.parts:
            return Interval(0.0)
        best = self._least(composition, lambda orders, values: epsilons(orders, values, delta))
        return Interval(finite(best, self.name))

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        """The least δ over the orders at this ε, never above 1."""
        epsilon = check_epsilon(epsilon)
        if not composition.parts:
            return Interval(0.0)
        return Interval(min(1.0, self._least(composition, lambda orders, values: deltas(orders, values, epsilon))))

    def curve(self, composition: Composition) -> tuple[Array, Array]:
        """Orders and the Rényi divergence bound at each; add the bounds of two compositions to compose them."""
        orders = self.orders or DEFAULT_ORDERS
        return np.array(orders, dtype=np.float64), divergences(composition, orders)

    def _least(self, composition: Composition, cost: _Cost) -> float:
        orders, values = self.curve(composition)
        costs = cost(orders, values)
        at = int(np.argmin(costs))
        best = float(costs[at])
        if self.orders is not None:
            return best
        low, high = float(orders[max(at - 1, 0)]), float(orders[min(at + 1, len(orders) - 1)])
        for _ in range(3):
            finer = between(low, high)
            costs = cost(np.array(finer), divergences(composition, finer))
            at = int(np.argmin(costs))
            best = min(best, float(costs[at]))
            low = finer[at - 1] if at > 0 else low
            high = finer[at + 1] if at + 1 < len(finer) else high
        return best


def between(low: float, high: float) -> tuple[float, ...]:
    """Eight orders from ``low`` to ``high``, whole ones where fractions bring nothing, and the whole ones if few."""
    finer = 1 + np.geomspace(low - 1, high - 1, 10)[1:-1]
    whole = finer > 64
    finer[whole] = np.rint(finer[whole])
    # Bounds that are chords between whole orders have their best values there.
    if high - low <= 8:
        finer = np.concatenate([finer, np.arange(math.ceil(low), math.floor(high) + 1)])
        finer = finer[finer >= LEAST_ORDER]
    return tuple(float(order) for order in np.unique(finer))


def divergences(composition: Composition, orders: tuple[float, ...]) -> Array:
    """The Rényi divergence bound of a whole composition at each of ``orders``."""
    total = np.zeros(len(orders))
    with np.errstate(over="ignore"):
        for term, count in composition.parts:
            total += times(count, _divergences(term, composition.adjacency, orders))
    return np.where(np.isnan(total), math.inf, total)


@lru_cache(maxsize=4096)
def _divergences(term: Term, adjacency: Adjacency, orders: tuple[float, ...]) -> Array:
    alpha = np.array(orders, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(term.base, Best):
            if term.policy is not Policy.ALWAYS:
                raise Unproved(f"the rdp accountant has no proof for selection with {term.policy} sampling.")
            candidate = term.base.candidate
            inner = divergences(candidate, DEFAULT_ORDERS)
            own = divergences(candidate, orders)
            out = selection.curve(term.base.selection, np.array(DEFAULT_ORDERS), inner, alpha, own)
        else:
            out = renyi.curve(term, adjacency, alpha) / (alpha - 1)
    out = np.where(np.isnan(out), math.inf, out)
    out.setflags(write=False)
    return out
