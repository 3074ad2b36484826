"""The privacy loss of random allocation: a record takes part in one step of an epoch, chosen by its own coin.

*The pair.* An epoch has t steps, of which the first d are released (d = t at its end). Let D' be D without the record
x. Draw the other records' coins, alike for both, and then x's step I, uniform on 1..t. Given I, step j's answer under D
is N(c + 1[I = j] g, σ²), where c and g, |g| <= 1, may depend on all earlier answers; under D' it is N(c, σ²). Put
μ = 1/σ and let z_1..z_d be independent, z_j ~ N(μ 1[I = j], 1) under D and N(0, 1) under D'. From z_j and the earlier
answers the answer of step j is made without knowing I or the data set: c + σ |g| z_j in the direction of g, plus
N(0, σ² (1 - |g|²)) there and N(0, σ²) across it. So what is released is a post-processing of z, whatever is chosen
adaptively, and the pair

    P = (1 - d/t) N(0, I) + (1/t) Σ_{j<=d} N(μ e_j, I)    against    Q = N(0, I)

dominates the epoch in both directions; a record that always contributes the same attains it. Epochs have fresh coins,
and products of dominating pairs dominate adaptive compositions. (Feldman & Shenfeld, arXiv 2502.08202, have this pair.)

*Its law.* P/Q = W = 1 + (S - d)/t with S = X_1 + ... + X_d, X_j = e^(μ z_j - μ²/2), independent lognormals under Q.
With n epochs δ(ε) is E_Q[(Π W - e^ε)_+] for a record removed and E_Q[(1 - e^ε Π W)_+] for one added: convex in every X.

* *From above*: X and every partial sum are moved to a grid by mean-preserving spreads: the mass between two points goes
  to both so that its mean stays. By Jensen no convex expectation falls. What lies above the grid goes to its last point
  and to infinity.
* *From below*: outcomes around a grid point are merged into their mean, by Jensen again, and a mean that is not on the
  grid is moved to it, down where δ grows with W, up where it falls. What lies outside the grid is dropped.

`tacit.accounting.lognormal_sums` computes both laws of S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tacit.accounting.effort import spend
from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.lognormal_sums import Rounding, lognormal_sum
from tacit.accounting.losses import ROUNDING, Array, Cells, GaussianLoss

MOST_SHIFT = 12.0
"""Above this shift (noise multipliers below 1/12) the amplification is not computed: it is next to nothing."""

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Allocated:
    """The loss of ``taken`` steps of an epoch of ``lots`` steps; ``added`` exchanges P and Q; ``below`` from below."""

    base: GaussianLoss
    lots: int
    taken: int
    added: bool = False
    below: bool = False
    records: ClassVar[int] = 1

    def cells(self, edges: Array) -> Cells:
        excess, mass, lost = _ratios(self.base.shift, self.lots, self.taken, self.added, self.below)
        spend(20.0 * len(mass))
        with np.errstate(divide="ignore"):
            loss = np.log1p(excess)
        if self.added:
            loss = -loss
        cell = np.searchsorted(edges, loss, side="left") - 1
        inside = (cell >= 0) & (cell < len(edges) - 1)
        cell, excess, mass = cell[inside], excess[inside], mass[inside]
        low, many = edges[cell], len(edges) - 1
        other = mass * (1 + excess)
        with np.errstate(over="ignore", invalid="ignore"):
            factor = np.where(np.isneginf(low), 0.0, np.exp(low))
            if self.added:
                p, q, rise = mass, other, mass * -(np.expm1(low) + factor * excess)
            else:
                p, q, rise = other, mass, mass * (excess - np.expm1(low))
        sums = [np.bincount(cell, weights=part, minlength=many) for part in (p, q, rise, p + factor * q)]
        found = Cells(*(np.asarray(part, dtype=np.float64) for part in sums))
        if np.isposinf(edges[-1]):
            found.p[-1] += lost
            found.rise[-1] += lost
        return Cells(found.p, found.q, found.rise, ROUNDING * found.slack)

    def delta(self, epsilon: float) -> float:
        """δ of one epoch, from its law without a lattice of losses; rounded in the law's own direction."""
        excess, mass, lost = _ratios(self.base.shift, self.lots, self.taken, self.added, self.below)
        spend(4.0 * len(mass))
        sign = -1 if self.below else 1
        if self.added:
            gap = -(math.expm1(epsilon) + math.exp(epsilon) * excess)
            size = 1 + math.exp(epsilon) * (1 + np.abs(excess))
        else:
            gap, size = excess - math.expm1(epsilon), 1 + np.abs(excess) + math.exp(epsilon)
        over = np.maximum(gap + sign * 4 * _EPS * size, 0.0)
        return min(max((float(mass @ over) + lost) * (1 + sign * ROUNDING * 64), 0.0), 1.0)

    def epsilon(self, delta: float) -> float:
        """ε of one epoch, from the side of its law: an end of a bisection."""
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > LARGEST_LOSS:
                return low if self.below else math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return low if self.below else high


@lru_cache(maxsize=64)
def _ratios(shift: float, lots: int, taken: int, added: bool, below: bool) -> tuple[Array, Array, float]:
    """W - 1 and its mass under Q, and the mass of infinite loss."""
    law = lognormal_sum(shift, lots, taken, Rounding(below=below, raises=added == below))
    points = [law.unit * math.ldexp(1.0, scale) * part.places for scale, part in law.parts.items()]
    sums = np.concatenate([np.zeros(1), *points])
    mass = np.concatenate([np.array([law.zero]), *(part.mass for part in law.parts.values())])
    excess = (sums - taken) / lots
    whole = mass > 0 if added else (mass > 0) & (excess > -1)
    lost = 0.0 if added or below else law.infinite / lots
    if added:
        empty = excess <= -1
        lost = float(mass[empty].sum())
        whole &= ~empty
    excess, mass = excess[whole], mass[whole]
    excess.setflags(write=False)
    mass.setflags(write=False)
    return excess, mass, lost
