"""δ(ε) of sampled sums on lattices of several steps, as fine as it takes to certify the answer.

An upper bound (`tacit.accounting.upper_law`) is compared with a lower one (`tacit.accounting.lower_law`) from lattices
of the same steps; they meet quadratically, so that the distance between them says how fine the next lattices must be.
An upper bound within `CLOSE` of a lower one falls by no more than that when the truth rises: with more steps, a higher
rate or less noise. Where the effort allowed ends before, the best bound so far is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tacit.accounting import lower_law, nested, upper_law
from tacit.accounting.convolution import cumulants
from tacit.accounting.effort import OutOfReach, left, searching, spent
from tacit.accounting.lattice import LARGEST_LOSS, sketch
from tacit.accounting.losses import Array, Pair
from tacit.accounting.lower_law import Merged
from tacit.accounting.nested import Law
from tacit.accounting.upper_law import Upwards

CLOSE = 8e-7
"""Upper bounds this close to a lower one, relatively, are close enough."""

# Points of the main lattice between 0 and ε, multiples of 2^4: where only the size is looked for, and the most.
_ROUGH, _MOST = 800, 64_000
# Bounds meet nearly as the square of the step; a lattice is at most so many times as fine as the one before.
_POWER, _FINER = 0.53, 20.0
_BOTH = 1.6  # upper and lower bound cost about so much, in units of the lower one

# A δ below this is answered by it: products of masses so small would no longer be ordinary numbers, and slow.
_LEAST = 1e-130
_LEAST_DELTA = 1e-300

Pairs = Sequence[tuple[Pair, int]]


def epsilon_above(pairs: Pairs, delta: float, near: float) -> float:
    """An ε with δ(ε) <= ``delta`` for sure, infinite if a loss is beyond the lattices; ``near`` is about ε or above."""
    near, weight = min(near, LARGEST_LOSS / 4), None
    for _ in range(6):
        if not 0 < near <= LARGEST_LOSS / 4:
            return math.inf
        rough = nested.total(Upwards(), pairs, near, delta, _ROUGH, weight)
        found = upper_law.epsilon(rough, delta)
        if not 0 < found < math.inf:
            return found
        # An ε far below the spread of the losses needs no finer lattice than they do.
        before, near = near, max(found, rough.width / 8)
        weight = _weight(rough, found, near)
        if 0.8 * before < near < 1.25 * before:
            break
    if searching():
        return found
    return _certified(
        pairs,
        near,
        delta,
        found,
        weight,
        lambda law: upper_law.epsilon(law, delta),
        lambda law, upper: lower_law.epsilon(law, delta, upper),
    )


def delta_above(pairs: Pairs, epsilon: float, near: float) -> float:
    """A bound on δ(``epsilon``); ``near`` is one already, which decides what is next to no mass."""
    size = max(epsilon, min(_spread(pairs), LARGEST_LOSS / 4))  # a lattice coarser than it need be costs little
    weight = None
    for _ in range(6):
        if not size <= LARGEST_LOSS / 4 or not near > 1e-250:
            return 1.0
        rough = nested.total(Upwards(), pairs, size, near, _ROUGH, weight)
        found = upper_law.delta(rough, epsilon)
        if 2 * rough.infinite > found:  # what was left out is felt
            if near <= _LEAST:
                return found
            near = max(min(found, near * near), _LEAST)
            continue
        before, size = size, max(epsilon, rough.width / 8)
        enough, near = found > 0.1 * near, found
        weight = _weight(rough, epsilon, size)
        if enough and 0.8 * before < size < 1.25 * before:
            break
    if searching():
        return found
    return _certified(
        pairs,
        size,
        near,
        found,
        weight,
        lambda law: upper_law.delta(law, epsilon),
        lambda law, _: lower_law.delta(law, epsilon),
    )


def _spread(pairs: Pairs) -> float:
    """Return about how far the sum of the losses strays; far more where they have long tails."""
    return math.sqrt(cumulants([(sketch(pair), count) for pair, count in pairs], 0.0).variance)


def _weight(law: Law, epsilon: float, near: float) -> Callable[[Array], Array]:
    """How much likelier it is that one summand is x where the sum is near ε: about D(ε - x) / D(ε), D the law's δ."""
    away = near * np.linspace(-1.0, 2.0, 193)
    log = np.log([max(upper_law.delta(law, epsilon - x), _LEAST_DELTA) for x in [0.0, *away]])
    return lambda x: np.exp(np.minimum(np.interp(x, away, log[1:] - log[0]), 600.0))


def _certified(
    pairs: Pairs,
    near: float,
    delta: float,
    upper: float,
    weight: Callable[[Array], Array] | None,
    above: Callable[[Law], float],
    below: Callable[[Law, float], float],
) -> float:
    """The upper bound, from lattices fine enough that a lower one is within `CLOSE` of it, as far as effort allows."""
    points, lower = _ROUGH, 0.0
    while True:
        before = spent()
        try:
            lower = max(lower, below(nested.total(Merged(), pairs, near, delta, points, weight), upper))
            gap = upper / lower - 1 if lower > 0 else math.inf
            if gap <= CLOSE or points >= _MOST:
                return upper
            affordable = points * left() / (_BOTH * (spent() - before))
            finer = points * min(max(1.1 * (gap / CLOSE) ** _POWER, 1.3), _FINER)
            more = min(math.ceil(min(finer, affordable) / 16) * 16, _MOST)
            if more < 1.1 * points:
                return upper
            points = more
            upper = min(upper, above(nested.total(Upwards(), pairs, near, delta, points, weight)))
        except OutOfReach:
            return upper
        if not upper > 0:
            return upper
