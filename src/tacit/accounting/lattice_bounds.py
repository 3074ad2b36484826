"""Upper and lower bounds of one question in one direction, on a lattice of one step for all losses.

The upper bound rounds every loss up (`tacit.accounting.lattice`), the lower one merges what falls into a cell
(`tacit.accounting.merged`); both are added up by FFT around their saddle points (`tacit.accounting.convolution`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tacit.accounting.convolution import TiltedSum, WindowTooLarge, tilt_for_epsilon
from tacit.accounting.effort import OutOfReach, spend
from tacit.accounting.groups import Several
from tacit.accounting.lattice import Lattice, Sketch, pessimistic
from tacit.accounting.losses import (
    Added,
    GaussianLoss,
    LaplaceLoss,
    Mirrored,
    Pair,
    Plain,
    Removed,
    Replaced,
    ResponseLoss,
)
from tacit.accounting.merged import Measures, MergedSum, merged
from tacit.accounting.rounding import COARSE
from tacit.accounting.sides import Side, largest_loss

_LARGEST_WINDOW = 2**22
_LARGEST_SUPPORT = 2**21
_LARGEST_STEP = 50.0
_GAUSSIAN = Plain | Removed | Added | Mirrored | Replaced | Several


@dataclass
class LatticeBounds:
    """The bounds of one question in one direction, for any lattice step."""

    side: Side
    sketches: Sequence[tuple[Sketch, int]]
    tilt: float
    delta: float | None
    epsilon: float | None
    too_fine: float = 0.0  # the largest step met whose window did not fit
    made: dict[float, list[tuple[Lattice, int]]] = field(default_factory=dict)

    @property
    def support(self) -> float:
        """The smallest step the largest support allows."""
        return max(float(part.edges[-1] - part.edges[0]) for part, _ in self.sketches) / _LARGEST_SUPPORT

    @property
    def finest(self) -> float:
        """The smallest step worth trying."""
        return max(self.support, 3 * self.too_fine)

    def upper(self, step: float) -> float:
        parts = self._pessimistic(step)
        if any(lattice.infinite >= 1 for lattice, _ in parts):
            return math.inf if self.delta is not None else 1.0
        infinite = -math.expm1(sum(count * math.log1p(-lattice.infinite) for lattice, count in parts))
        try:
            if self.delta is None:
                assert self.epsilon is not None
                rest = self.epsilon - self.side.certain
                found = TiltedSum(parts, self.tilt, _LARGEST_WINDOW).delta_above(rest)
                if found >= 1 and self.tilt > 0:  # ε is beyond the end of the sketches: their tilt means nothing there
                    found = _delta_above(parts, rest)
                return min(found + infinite, 1.0)
            if self.delta <= infinite:
                return math.inf
            return max(_epsilon_above(parts, self.tilt, self.delta - infinite) + self.side.certain, 0.0)
        except WindowTooLarge:
            self.too_fine = max(step, self.finest)
            return self.upper(3 * self.too_fine)

    def lower(self, step: float) -> float:
        try:
            total = MergedSum(self._merged(step), self.tilt, _LARGEST_WINDOW)
        except WindowTooLarge:
            self.too_fine = max(step, self.finest)
            return self.lower(3 * self.too_fine)
        if self.delta is not None:
            return max(total.epsilon_below(self.delta) + self.side.certain, 0.0)
        assert self.epsilon is not None
        return total.delta_below(self.epsilon - self.side.certain)

    def _pessimistic(self, step: float) -> list[tuple[Lattice, int]]:
        step = _fit(self.side.lattice_pairs, self._allowed(step))
        if step not in self.made:
            self.made[step] = [(pessimistic(pair, near, step), count) for pair, near, count in self._each(step)]
        return self.made[step]

    def _merged(self, step: float) -> list[tuple[Measures, int]]:
        step = _fit(self.side.lattice_pairs, self._allowed(step))
        return [(merged(_quieter(pair), near, step), count) for pair, near, count in self._each(step)]

    def _allowed(self, step: float) -> float:
        if max(step, self.finest) > _LARGEST_STEP:
            raise OutOfReach(f"a lattice step of {step:g}")
        return max(step, self.finest)

    def _each(self, step: float) -> Iterator[tuple[Pair, Sketch, int]]:
        for (pair, count), (near, _) in zip(self.side.lattice_pairs, self.sketches, strict=True):
            spend(10 * float(near.edges[-1] - near.edges[0]) / step)
            yield pair, near, count


def _quieter(pair: Pair) -> Pair:
    """The pair with as much more noise as its multiplier may have been rounded down by: for lower bounds."""
    if not isinstance(pair.base, GaussianLoss) or not isinstance(pair, _GAUSSIAN):
        return pair
    return replace(pair, base=GaussianLoss(pair.base.shift * (1 - COARSE)))


def _epsilon_above(parts: Sequence[tuple[Lattice, int]], tilt: float, delta: float) -> float:
    """ε from a tilted sum; where its window cannot tell, by bisection on δ(ε), each with its own saddle point."""
    total = TiltedSum(parts, tilt, _LARGEST_WINDOW)
    found = total.epsilon_above(delta)
    if found is not None:
        return found
    low, high = 0.0, max(total.centre.mean, 10 * total.step)
    left = _log_ratio(parts, low, delta)
    if left <= 0:
        return 0.0
    end = max(sum(count * (lattice.offset + float(lattice.points[-1])) for lattice, count in parts), 0.0)
    high = min(high, end)  # no loss is larger: there δ is 0
    while high < end and (right := _log_ratio(parts, high, delta)) > 0:
        low, high, left = high, min(2 * high, end), right
    return _crossing(lambda epsilon: _log_ratio(parts, epsilon, delta), low, high, left)


def _crossing(excess: Callable[[float], float], low: float, high: float, left: float) -> float:
    """Where a falling function, ``left`` at ``low``, is at most 0: within 1e-8 if effort allows (Illinois method)."""
    right = min(excess(high), 0.0)
    for _ in range(60):
        if high - low <= 1e-8 * high:
            break
        share = min(max(left / (left - right), 1e-3), 1 - 1e-3)
        middle = low + share * (high - low)
        try:
            found = excess(middle)
        except OutOfReach:
            break
        if found > 0:
            low, left, right = middle, found, right / 2
        else:
            high, right, left = middle, found, left / 2
    return high


def _log_ratio(parts: Sequence[tuple[Lattice, int]], epsilon: float, delta: float) -> float:
    return math.log(max(_delta_above(parts, epsilon), 1e-320) / delta)


def _delta_above(parts: Sequence[tuple[Lattice, int]], epsilon: float) -> float:
    return TiltedSum(parts, tilt_for_epsilon(parts, epsilon), _LARGEST_WINDOW).delta_above(epsilon)


def _fit(pairs: Sequence[tuple[Pair, int]], step: float) -> float:
    """A step near ``step`` that puts the atoms of the most frequent bounded loss on the lattice."""
    atoms = [
        (count, largest_loss(pair.base))
        for pair, count in pairs
        if isinstance(pair, Plain) and isinstance(pair.base, LaplaceLoss | ResponseLoss)
    ]
    if not atoms:
        return step
    size = max(atoms)[1]
    return size / math.ceil(size / step)
