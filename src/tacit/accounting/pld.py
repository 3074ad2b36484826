"""Privacy loss distributions: the default accountant, with a certified upper and lower bound on ε.

The losses of the elementary mechanisms are put on one lattice (`tacit.accounting.lattice`), once pessimistically and
once optimistically, and added up by FFT (`tacit.accounting.convolution`); infinite losses add 1 - Π (1 - infinite)^T
to δ. The lattice is as fine as ``tolerance`` needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.accounting import composition as comp
from tacit.accounting import gaussian
from tacit.accounting.composition import Composition, Interval, Policy, Term, Unproved
from tacit.accounting.convolution import (
    TiltedSum,
    WindowTooLarge,
    cumulants,
    tilt_for_delta,
    tilt_for_epsilon,
    tilted,
)
from tacit.accounting.lattice import Lattice, Sketch, optimistic, pessimistic, sketch
from tacit.accounting.losses import Added, Base, GaussianLoss, LaplaceLoss, Mirrored, Pair, Plain, Removed, ResponseLoss
from tacit.accounting.tail import LEAST_NOISE, MOST_NOISE, check_delta, check_epsilon, finite
from tacit.ledger.events import Adjacency

_LARGEST_WINDOW = 2**22
_LARGEST_SUPPORT = 2**21
# An ε below this is found to an absolute, not a relative, tolerance.
_SMALL = 1e-2
# A pure loss above this is charged as if it always happened: e^-40 of it does not.
_CERTAIN = 40.0
# Beyond this many steps the rounding of the transform is not bounded by what is charged for it.
_MOST_STEPS = 10**13
# A record sampled more rarely is treated as if it were sampled this often: e^loss / rate stays a finite double.
_LEAST_RATE = 1e-40


@dataclass(frozen=True)
class Side:
    """One direction of the neighbouring relation: pairs with counts, a total Gaussian shift, a certain loss."""

    pairs: tuple[tuple[Pair, int], ...]
    shift: float
    certain: float

    @property
    def lattice_pairs(self) -> tuple[tuple[Pair, int], ...]:
        return (*self.pairs, (Plain(GaussianLoss(self.shift)), 1)) if self.shift else self.pairs


@dataclass(frozen=True)
class Pld:
    """The default accountant: ε within ``tolerance`` (relative) of the truth wherever the pairs are tight."""

    tolerance: float = 2e-4
    name: str = "pld"

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        """Bounds on the smallest ε at which the composition is (ε, δ)-DP."""
        delta = check_delta(delta)
        _check_counts(composition)
        if _next_to_no_noise(composition):
            finite(math.inf, self.name)
        sides, concrete = _sides(composition), _sides(composition, concrete=True)
        found = self._worst(sides, delta=delta)
        upper = min(found.upper, _basic(composition))
        if math.isinf(upper):
            upper = max(_unsampled_epsilon(side, delta) for side in sides)
        lower = (found if sides == concrete else self._worst(concrete, delta=delta)).lower or 0.0
        return Interval(upper, min(lower, upper))

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        """Bounds on the smallest δ at which the composition is (ε, δ)-DP."""
        epsilon = check_epsilon(epsilon)
        _check_counts(composition)
        if _next_to_no_noise(composition):
            return Interval(1.0, 0.0)
        if epsilon >= _basic(composition) * (1 + 1e-12):  # the sum of the losses is rounded
            return Interval(0.0, 0.0)
        sides, concrete = _sides(composition), _sides(composition, concrete=True)
        found = self._worst(sides, epsilon=epsilon)
        lower = (found if sides == concrete else self._worst(concrete, epsilon=epsilon)).lower or 0.0
        return Interval(found.upper, min(lower, found.upper))

    def _worst(self, sides: Sequence[Side], *, delta: float | None = None, epsilon: float | None = None) -> Interval:
        """The larger of the directions; the lower bound comes from the direction that decides the upper one."""
        upper = lower = step = 0.0
        for side in sides:
            if not side.pairs:
                found = _closed_form(side, delta, epsilon)
            else:
                found, step = self._bounds(side, delta, epsilon, floor=upper, coarse=step)
            if math.isnan(found.upper):
                raise ArithmeticError(f"the pld accountant computed no number for {side}; use accountant 'rdp'.")
            upper, lower = max(upper, found.upper), max(lower, found.lower or 0.0)
        return Interval(upper, lower)

    def _bounds(
        self, side: Side, delta: float | None, epsilon: float | None, *, floor: float, coarse: float
    ) -> tuple[Interval, float]:
        """Both bounds in one direction, and the step used; only an upper one as soon as that is at most ``floor``.

        The step is chosen for the tolerance. Where the two bounds do not show that it was met, the lattice is refined
        until the upper bound settles; every upper bound on the way is valid.
        """
        total = sum(count for _, count in side.lattice_pairs)
        tail = 1e-7 * (delta if delta is not None else 1e-13) / total
        sketches = [(sketch(pair).without_tails(tail), count) for pair, count in side.lattice_pairs]
        if delta is not None:
            tilt = tilt_for_delta(sketches, delta)
            near = (cumulants(sketches, tilt).value - math.log(delta)) / tilt
            least, tolerance = _SMALL, 10 * self.tolerance
        else:
            assert epsilon is not None
            tilt = tilt_for_epsilon(sketches, epsilon - side.certain)
            near, least, tolerance = epsilon, 0.0, 100 * self.tolerance
        lattice = _Lattices(side, sketches, tilt, delta, epsilon)
        step = _step(sketches, tilt, self.tolerance * max(near, _SMALL)) / (1 + 2 / total)
        if floor and (quick := lattice.upper(max(8 * step, coarse))) <= floor:
            return Interval(quick, 0.0), step
        upper, lower = lattice.upper(step), 0.0
        if upper > floor:
            lower = min(lattice.lower(step), upper)
        while upper - lower > tolerance * max(upper, least) and upper > floor and step > lattice.finest:
            step /= 3
            before, upper = upper, min(upper, lattice.upper(step))
            if before - upper <= tolerance * max(upper, least):
                lower = max(lower, min(lattice.lower(step), upper))
                break
        return Interval(upper, lower), step


def _closed_form(side: Side, delta: float | None, epsilon: float | None) -> Interval:
    """Only Gaussian sums over everyone, and losses that are certain."""
    if delta is not None:
        value = side.certain + (gaussian.epsilon(side.shift, delta) if side.shift else 0.0)
        # With next to no shift rounding takes digits; the upper value allows for it by itself.
        return Interval(value, value * (1 - (1e-9 if side.shift > 1e-3 else 1e-3)))
    assert epsilon is not None
    if not side.shift:
        return Interval(1.0 if epsilon < side.certain else 0.0, 0.0)
    value = gaussian.delta(side.shift, epsilon - side.certain)
    return Interval(min(value * (1 + 1e-9), 1.0), value * (1 - 1e-9))


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

    @property
    def support(self) -> float:
        """The smallest step the largest support allows."""
        return max(float(part.edges[-1] - part.edges[0]) for part, _ in self.sketches) / _LARGEST_SUPPORT

    @property
    def finest(self) -> float:
        """The smallest step worth trying."""
        return max(self.support, 3 * self.too_fine)

    def upper(self, step: float) -> float:
        parts = self._parts(pessimistic, step)
        if any(lattice.infinite >= 1 for lattice, _ in parts):
            return math.inf if self.delta is not None else 1.0
        infinite = -math.expm1(sum(count * math.log1p(-lattice.infinite) for lattice, count in parts))
        try:
            if self.delta is None:
                assert self.epsilon is not None
                rest = self.epsilon - self.side.certain
                found = TiltedSum(parts, self.tilt, _LARGEST_WINDOW).delta_at(rest, +1)
                if found >= 1 and self.tilt > 0:  # ε is beyond the end of the sketches: their tilt means nothing there
                    found = _delta_at(parts, rest, +1)
                return min(found + infinite, 1.0)
            if self.delta <= infinite:
                return math.inf
            return max(_solve(parts, self.tilt, self.delta - infinite, +1) + self.side.certain, 0.0)
        except WindowTooLarge:
            self.too_fine = max(step, self.finest)
            return self.upper(3 * self.too_fine)

    def lower(self, step: float) -> float:
        # A coarser lattice where the optimistic recurrence, which is not vectorised, would take long.
        parts = self._parts(optimistic, max(step, 8 * self.support))
        try:
            if self.delta is not None:
                return max(_solve(parts, self.tilt, self.delta, -1) + self.side.certain, 0.0)
            assert self.epsilon is not None
            return TiltedSum(parts, self.tilt, _LARGEST_WINDOW).delta_at(self.epsilon - self.side.certain, -1)
        except WindowTooLarge:
            self.too_fine = max(step, self.finest)
            return self.lower(3 * self.too_fine)

    def _parts(self, discretise: Callable[[Pair, Sketch, float], Lattice], step: float) -> list[tuple[Lattice, int]]:
        step = _fit(self.side.lattice_pairs, max(step, self.finest))
        places = zip(self.side.lattice_pairs, self.sketches, strict=True)
        return [(discretise(pair, near, step), count) for (pair, count), (near, _) in places]


def _solve(parts: Sequence[tuple[Lattice, int]], tilt: float, delta: float, sign: int) -> float:
    """ε from a tilted sum; where its window cannot tell, by bisection on δ(ε), each with its own saddle point."""
    total = TiltedSum(parts, tilt, _LARGEST_WINDOW)
    found = total.epsilon_above(delta) if sign > 0 else total.epsilon_below(delta)
    if found is not None:
        return found
    if sign < 0:
        # A lower bound may be poor: what the window's own answer would be, if it can be confirmed.
        low = max(total.centre.mean - 3 * math.sqrt(total.centre.variance), 0.0)
        return low if _delta_at(parts, low, -1) >= delta else -math.inf
    low, high = 0.0, max(total.centre.mean, 10 * total.step)
    if _delta_at(parts, low, +1) <= delta:
        return 0.0
    end = sum(count * (lattice.offset + float(lattice.points[-1])) for lattice, count in parts)
    while high < end and _delta_at(parts, high, +1) > delta:
        low, high = high, 2 * high
    high = min(high, max(end, 0.0))  # no loss is larger: there δ is 0
    for _ in range(50):
        middle = (low + high) / 2
        if high - low <= 2e-3 * high + 1e-6:
            break
        low, high = (middle, high) if _delta_at(parts, middle, +1) > delta else (low, middle)
    return high


def _delta_at(parts: Sequence[tuple[Lattice, int]], epsilon: float, sign: int) -> float:
    return TiltedSum(parts, tilt_for_epsilon(parts, epsilon), _LARGEST_WINDOW).delta_at(epsilon, sign)


def _fit(pairs: Sequence[tuple[Pair, int]], step: float) -> float:
    """A step near ``step`` that puts the atoms of the most frequent bounded loss on the lattice."""
    atoms = [
        (count, _largest_loss(pair.base))
        for pair, count in pairs
        if isinstance(pair, Plain) and isinstance(pair.base, LaplaceLoss | ResponseLoss)
    ]
    if not atoms:
        return step
    size = max(atoms)[1]
    return size / math.ceil(size / step)


def _base(term: Term, factor: int, concrete: bool) -> Base | None:
    """The pair of one release; ``concrete``: one that real neighbours attain, or None where none is known."""
    if isinstance(term.base, comp.Gaussian | comp.Laplace) and concrete and term.base.noise_multiplier > MOST_NOISE:
        return None
    if isinstance(term.base, comp.Gaussian):
        return GaussianLoss(factor / min(term.base.noise_multiplier, MOST_NOISE))
    if isinstance(term.base, comp.Laplace):
        size = factor / min(term.base.noise_multiplier, MOST_NOISE)
        # Several coordinates under one L1 bound: only the pure guarantee is proved here.
        return LaplaceLoss(size) if term.base.dimension == 1 or concrete else ResponseLoss(size)
    if isinstance(term.base, comp.Pure):
        return None if concrete else ResponseLoss(term.base.epsilon)
    raise Unproved("the pld accountant has no loss distribution for the best of a random number of runs; use 'rdp'.")


def _sides(composition: Composition, *, concrete: bool = False) -> list[Side]:
    """The directions of the neighbouring relation, each with its dominating pairs.

    ``concrete`` gives pairs that some neighbours attain, for lower bounds. Under replace-one these are, for fixed-size
    lots, a record that contributes the opposite of all others and is replaced by one of their kind; for Poisson lots,
    a record replaced by one that contributes nothing.
    """
    replace = composition.adjacency is Adjacency.REPLACE_ONE
    pairs: tuple[list[tuple[Pair, int]], list[tuple[Pair, int]]] = ([], [])
    certain, squared = 0.0, 0.0
    for term, count in composition.parts:
        lone = concrete and replace and term.policy is Policy.POISSON
        base = _base(term, 1 if lone else composition.shift_factor, concrete)
        if base is None or (concrete and term.rate < _LEAST_RATE):
            continue
        rate = max(term.rate, _LEAST_RATE)
        if isinstance(base, GaussianLoss) and term.policy is Policy.ALWAYS:
            squared += count * base.shift**2
        elif isinstance(base, ResponseLoss) and base.epsilon > _CERTAIN and term.policy is Policy.ALWAYS:
            certain += count * base.epsilon
        elif term.policy is Policy.ALWAYS:
            pairs[0].append((Plain(base), count))
            pairs[1].append((Plain(base), count))
        elif replace and not concrete:
            pairs[0].append((Mirrored(base, rate), count))
            pairs[1].append((Mirrored(base, rate), count))
        else:
            pairs[0].append((Removed(base, rate), count))
            pairs[1].append((Added(base, rate), count))
    sides = [Side(tuple(side), math.sqrt(squared), certain) for side in pairs]
    return sides[:1] if sides[0] == sides[1] else sides


def _check_counts(composition: Composition) -> None:
    total = sum(count for _, count in composition.parts)
    if total > _MOST_STEPS:
        shown = total if total < 10**30 else f"about 10^{math.floor(math.log10(total))}"
        raise ValueError(f"the number of steps is {shown}; the pld accountant takes at most {_MOST_STEPS}.")


def _next_to_no_noise(composition: Composition) -> bool:
    """Whether some release is as good as exact, so that nothing is claimed."""
    bases = [term.base for term, _ in composition.parts]
    return any(isinstance(base, comp.Gaussian | comp.Laplace) and base.noise_multiplier < LEAST_NOISE for base in bases)


def _basic(composition: Composition) -> float:
    """The sum of the pure losses; infinite as soon as one release is not pure."""
    total = 0.0
    for term, count in composition.parts:
        base = _base(term, composition.shift_factor, concrete=False)
        if isinstance(base, GaussianLoss) or base is None:
            return math.inf
        pure = _largest_loss(base)
        total += count * (math.log1p(term.rate * math.expm1(pure)) if pure < 700 else pure)
    return total


def _largest_loss(base: Base) -> float:
    """Of a bounded loss."""
    assert isinstance(base, LaplaceLoss | ResponseLoss)
    return base.shift if isinstance(base, LaplaceLoss) else base.epsilon


def _unsampled_epsilon(side: Side, delta: float) -> float:
    """A bound for losses too large for the lattice: every record in every sample, bounded losses certain.

    By convexity H_a((1-r) Q + r P ‖ Q) <= H_a(P‖Q), and the same with the roles exchanged.
    """
    squared, certain = side.shift**2, side.certain
    for pair, count in side.pairs:
        base = pair.base
        if isinstance(base, GaussianLoss):
            squared += count * base.shift**2
        else:
            certain += count * _largest_loss(base)
    return certain + (gaussian.epsilon(math.sqrt(squared), delta) if squared else 0.0)
