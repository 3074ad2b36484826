"""Bounds for any losses, on a lattice (`tacit.accounting.lattice_bounds`) as fine as the tolerance needs.

Where lattices of one step for all losses do not come close, those of several are tried (`tacit.accounting.direct`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from tacit.accounting import direct
from tacit.accounting.composition import Interval
from tacit.accounting.convolution import cumulants, tilt_for_delta, tilt_for_epsilon, tilted
from tacit.accounting.effort import OutOfReach, half, searching
from tacit.accounting.lattice import Sketch, sketch
from tacit.accounting.lattice_bounds import LatticeBounds
from tacit.accounting.sides import Side

# An ε below this is found to an absolute, not a relative, tolerance.
_SMALL = 1e-2
_LEAST_NEAR = 1e-4
# Bounds further apart do not come close on finer lattices of one step; these are at most so many times as fine.
_HOPELESS, _FINER = 0.3, 30.0
_ROUGHLY = 2e-5  # how close is close enough in a search, whose queries share one limit


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
    lattice = LatticeBounds(side, sketches, tilt, delta, epsilon)
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


def _settle(found: _Found, lattice: LatticeBounds, floor: float, tolerance: float, least: float) -> None:
    """Finer lattices until the bounds are within ``tolerance``, or the upper one settles."""
    while found.upper - found.lower > tolerance * max(found.upper, least) and found.upper > floor:
        if found.step <= lattice.finest:
            break
        found.step /= 3
        before, found.upper = found.upper, min(found.upper, lattice.upper(found.step))
        settled = before - found.upper <= tolerance * max(found.upper, least)
        if settled or found.lower > 0:  # a lower bound costs less than the next upper one, which it may save
            found.lower = max(found.lower, min(lattice.lower(found.step), found.upper))
        if settled:
            break
    found.lower = min(found.lower, found.upper)


def _certify(found: _Found, lattice: LatticeBounds, floor: float) -> None:
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
    lattice = LatticeBounds(side, sketches, 0.0, None, None)
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
