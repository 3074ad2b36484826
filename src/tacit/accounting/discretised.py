"""Bounds for any losses, by way of the lattice: how fine it has to be, and what to do where a window does not do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.accounting import direct
from tacit.accounting.composition import Interval
from tacit.accounting.convolution import (
    TiltedSum,
    WindowTooLarge,
    cumulants,
    tilt_for_delta,
    tilt_for_epsilon,
    tilted,
)
from tacit.accounting.effort import OutOfReach, half, searching, spend
from tacit.accounting.groups import Several
from tacit.accounting.lattice import Lattice, Sketch, pessimistic, sketch
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
# An ε below this is found to an absolute, not a relative, tolerance.
_SMALL = 1e-2
_LEAST_NEAR = 1e-4
_LARGEST_STEP = 50.0
# Bounds further apart do not come close on finer lattices of one step; these are at most so many times as fine.
_HOPELESS, _FINER = 0.3, 30.0
_ROUGHLY = 2e-5  # how close is close enough in a search, whose queries share one limit
_GAUSSIAN = Plain | Removed | Added | Mirrored | Replaced | Several


def bounds(
    side: Side,
    accuracy: float,
    delta: float | None,
    epsilon: float | None,
    *,
    floor: float,
    coarse: float,
    fine: bool = True,
) -> tuple[Interval, float]:
    """Both bounds in one direction, and the step used; only an upper one as soon as that is at most ``floor``.

    Without ``fine`` the upper bound is as close as ``accuracy`` says, and no closer.

    The step is chosen for the tolerance. Where the two bounds do not show that it was met, the lattice is refined
    until the upper bound settles; every upper bound on the way is valid. Where no lattice holds the losses, or the
    effort allowed is spent before there is one, the upper bound is the trivial one. Lattices of one step may take half
    of the effort, so that some is left for lattices of several; the least of valid upper bounds is one.
    """
    found = _Found(math.inf if delta is not None else 1.0)
    try:
        _refine(found, side, accuracy, delta, epsilon, floor, coarse, fine=fine and side.fine)
    except OutOfReach:
        return Interval(found.upper, found.lower), found.step
    return Interval(found.upper, found.lower), found.step


@dataclass
class _Found:
    """The best bounds so far, and the step they come from."""

    upper: float
    lower: float = 0.0
    step: float = 0.0

    @property
    def gap(self) -> float:
        return self.upper / self.lower - 1 if self.lower > 0 else math.inf

    @property
    def close(self) -> bool:
        """True if the upper bound is certified: it falls by no more than `CLOSE` when the truth rises."""
        return self.gap <= _goal() or self.upper == 0


def _goal() -> float:
    return _ROUGHLY if searching() else direct.CLOSE


def _refine(
    found: _Found,
    side: Side,
    accuracy: float,
    delta: float | None,
    epsilon: float | None,
    floor: float,
    coarse: float,
    fine: bool,
) -> None:
    total = sum(count for _, count in side.lattice_pairs)
    tail = 1e-7 * (delta if delta is not None else 1e-13) / total
    sketches = [(sketch(pair).without_tails(tail), count) for pair, count in side.lattice_pairs]
    if not all(part.p.size for part, _ in sketches):
        raise OutOfReach("all of some loss is beyond the lattice")
    if delta is not None:
        tilt = tilt_for_delta(sketches, delta)
        near = (cumulants(sketches, tilt).value - math.log(delta)) / tilt
        least, tolerance = _SMALL, 10 * accuracy
    else:
        assert epsilon is not None
        tilt = tilt_for_epsilon(sketches, epsilon - side.certain)
        near, least, tolerance = epsilon, 0.0, 100 * accuracy
    lattice = _Lattices(side, sketches, tilt, delta, epsilon)
    step = _step(sketches, tilt, accuracy * max(near, _SMALL)) / (1 + 2 / total)
    found.step = step
    quick = delta is None and near < _LEAST_NEAR  # lattices of one step then give a lower bound in no time
    share: AbstractContextManager[None] = half() if fine else nullcontext()
    try:
        with share:
            if floor:
                found.upper = min(found.upper, lattice.upper(max(8 * step, coarse)))
                if found.upper <= floor:
                    return
            found.upper = min(found.upper, lattice.upper(step))
            if found.upper > floor:
                found.lower = min(lattice.lower(step), found.upper)
            if fine and near > _SMALL / 10:  # smaller losses leave P and Q too alike for the rounding of one transform
                _certify(found, lattice, floor)
            if quick:
                _settle(found, lattice, floor, tolerance, least)
    except OutOfReach:
        if not fine:
            raise
    if fine and found.upper > floor and not found.close:
        found.upper = max(min(found.upper, _nested(side, delta, epsilon, found.upper)), found.lower)
    if not quick:
        _settle(found, lattice, floor, tolerance, least)


def _settle(found: _Found, lattice: _Lattices, floor: float, tolerance: float, least: float) -> None:
    """Finer lattices until the bounds are within ``tolerance``, or the upper one settles."""
    while found.upper - found.lower > tolerance * max(found.upper, least) and found.upper > floor:
        if found.step <= lattice.finest:
            break
        found.step /= 3
        before, found.upper = found.upper, min(found.upper, lattice.upper(found.step))
        if before - found.upper <= tolerance * max(found.upper, least):
            found.lower = max(found.lower, min(lattice.lower(found.step), found.upper))
            break
    found.lower = min(found.lower, found.upper)


def _certify(found: _Found, lattice: _Lattices, floor: float) -> None:
    """Finer lattices until the bounds are close, as long as they come closer as the square of the step."""
    step = found.step
    while found.upper > floor and not found.close and found.gap < _HOPELESS:
        before, finer = found.gap, max(0.7 * math.sqrt(_goal() / found.gap), 1 / _FINER)
        step *= finer
        if step < lattice.finest:
            return
        found.upper = min(found.upper, lattice.upper(step))
        found.lower = max(found.lower, min(lattice.lower(step), found.upper))
        if found.gap > 4 * finer**2 * before:
            return


def _nested(side: Side, delta: float | None, epsilon: float | None, upper: float) -> float:
    """By lattices of several steps, where no tilt puts the weight near ε."""
    if delta is not None:
        return direct.epsilon_above(side.lattice_pairs, delta, upper)
    assert epsilon is not None
    return direct.delta_above(side.lattice_pairs, epsilon, upper)


def uppers(side: Side, accuracy: float, epsilons: Sequence[float]) -> list[float]:
    """An upper bound on δ at each ε, all from one lattice, as fine as the largest ε needs."""
    total = sum(count for _, count in side.lattice_pairs)
    sketches = [(sketch(pair).without_tails(1e-20 / total), count) for pair, count in side.lattice_pairs]
    if not all(part.p.size for part, _ in sketches):
        return [1.0] * len(epsilons)
    tilts = [tilt_for_epsilon(sketches, epsilon - side.certain) for epsilon in epsilons]
    step = _step(sketches, max(tilts), 10 * accuracy * max(*epsilons, _SMALL)) / (1 + 2 / total)
    lattice = _Lattices(side, sketches, 0.0, None, None)
    found = []
    for tilt, epsilon in zip(tilts, epsilons, strict=True):
        try:
            found.append(replace(lattice, tilt=tilt, epsilon=epsilon).upper(step))
        except OutOfReach:
            found.append(1.0)
    return found


def _step(sketches: Sequence[tuple[Sketch, int]], tilt: float, excess: float) -> float:
    """The lattice step at which the pessimistic ε exceeds the truth by about ``excess``.

    Connecting the dots moves a loss l in the cell (a, b] to its ends, which raises the tilted moment by
    t (t+1)/2 (l-a)(b-l) and with it Chernoff's ε by (t+1)/2 of that; on average over a cell (l-a)(b-l) is step²/6,
    and at most step·|l - centre| for the bulk, which sits on a lattice point.
    """
    tilts = [(*part, tilted(part[0], tilt)[0]) for part in sketches]
    widest = max(float(part.edges[-1] - part.edges[0]) for part, _ in sketches)

    def cost(step: float) -> float:
        total = 0.0
        for part, count, weight in tilts:
            total += count * float(weight @ np.minimum(np.abs(part.points - part.centre) * step, step * step / 6))
        return (tilt + 1) / 2 * total

    low, high = 1e-9, widest
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= excess else (low, middle)
    return low


@dataclass
class _Lattices:
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
