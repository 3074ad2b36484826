"""ε of sampled sums from a lattice of masses that are each accurate relative to themselves, however small.

With rare sampling and a small δ the loss has a bulk and a far tail, and its density is convex between them: no
exponential tilt puts the weight near ε, so the rounding of a Fourier transform, relative to the largest mass, leaves
little of δ there. Here masses are convolved in *bands*, runs of neighbouring points whose masses differ by at most a
factor `_BAND`: a transform of two bands is off by a small part of their own product (the idea of Wilson & Keich 2016).
Bands of few points are convolved without one.

What is proved: the lattice is pessimistic (`tacit.accounting.lattice`); what leaves it above counts as infinite loss; a
transform of vectors a, b gives every entry to within `_rounding` |a| |b| (L2 norms), which is *added* to every entry it
touches. More mass at a loss can only raise δ, so the bound holds. How fine the lattice is decides only how close it is:
with c points between 0 and ε and T steps it exceeds the least ε by a part of about T/c².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacit.accounting.effort import OutOfReach, spend
from tacit.accounting.lattice import Lattice, pessimistic, sketch
from tacit.accounting.losses import Array, Pair

_EXCESS = 5e-7
_MOST_BELOW, _FEWER_BELOW, _MANY = 20_000, 6_000, 4096  # points between 0 and ε; the fewer for more steps than the last
_OUTSIDE = 5e-7  # of δ, beyond the lattice
_MOST_POINTS = 150_000
_BAND = 1e3
_FEW = 48
_ROUNDING = 1e-10
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class _Sum:
    """Masses of a sum of ``steps`` losses at (first + i) · step + offset, none too small, and at infinity."""

    steps: int
    offset: float
    first: int
    p: Array
    infinite: float

    def plus(self, other: _Sum, least: float) -> _Sum:
        """The law of the sum of two independent losses. At either end ``least`` a step may be moved upwards."""
        steps, masses = self.steps + other.steps, _convolved(self.p, other.p)
        upwards, downwards = np.cumsum(masses), np.cumsum(masses[::-1])[::-1]
        begin = min(int(np.searchsorted(upwards, least * steps, side="right")), len(masses) - 1)
        end = max(int(np.count_nonzero(downwards > least * steps)), begin + 1)
        beyond = float(downwards[end]) if end < len(masses) else 0.0
        kept = masses[begin:end].copy()
        kept[0] += float(upwards[begin - 1]) * (1 + _ROUNDING) if begin else 0.0
        infinite = (beyond + self.infinite + other.infinite) * (1 + _ROUNDING)
        return _Sum(steps, self.offset + other.offset, self.first + other.first + begin, kept, min(infinite, 1.0))


def epsilon_above(pairs: Sequence[tuple[Pair, int]], delta: float, near: float) -> float:
    """An ε with δ(ε) <= ``delta`` for sure, infinite where a loss is beyond the lattice; ``near`` is about ε."""
    steps = sum(count for _, count in pairs)
    step = near / min(math.sqrt(steps / _EXCESS), _MOST_BELOW if steps <= _MANY else _FEWER_BELOW)
    shapes = [sketch(pair).without_tails(_OUTSIDE * delta / steps) for pair, _ in pairs]
    if not all(shape.p.size for shape in shapes):
        return math.inf
    step = max(step, *(float(shape.edges[-1] - shape.edges[0]) / _MOST_POINTS for shape in shapes))
    parts = [(pessimistic(pair, shape, step), count) for (pair, count), shape in zip(pairs, shapes, strict=True)]
    least = _OUTSIDE * delta / steps / (2 * steps.bit_length() + 2 * len(parts))
    total: _Sum | None = None
    for lattice, count in parts:
        power = _power(lattice, count, least)
        total = power if total is None else total.plus(power, least)
    assert total is not None
    return _solve(total, step, delta)


def _power(lattice: Lattice, count: int, least: float) -> _Sum:
    """``count`` independent losses, by repeated squaring."""
    square = _Sum(1, lattice.offset, lattice.first, lattice.p, lattice.infinite)
    result: _Sum | None = None
    while True:
        if count & 1:
            result = square if result is None else result.plus(square, least)
        count >>= 1
        if not count:
            assert result is not None
            return result
        square = square.plus(square, least)
        if len(square.p) > 2 * _MOST_POINTS:
            raise OutOfReach(f"{len(square.p)} lattice points")


def _bands(p: Array) -> list[tuple[int, Array]]:
    """Runs of neighbouring positive masses within a factor `_BAND` of one another, each with its first place.

    Bands are found from the logarithm rounded down to multiples of log `_BAND` (shifted so that the largest mass begins
    one); a band is a run of equal values.
    """
    places = np.flatnonzero(p > 0)
    if not places.size:
        return []
    level = np.floor((math.log(float(p.max())) - np.log(p[places])) / math.log(_BAND))
    ends = np.flatnonzero((np.diff(level) != 0) | (np.diff(places) != 1)) + 1
    return [(int(run[0]), p[run[0] : run[-1] + 1]) for run in np.split(places, ends)]


def _convolved(a: Array, b: Array) -> Array:
    """An upper bound, close to it, on the convolution of two vectors of masses."""
    out = np.zeros(len(a) + len(b) - 1)
    ours = _bands(a)
    theirs = ours if a is b else _bands(b)
    spend(40.0 * len(ours) * len(theirs))
    for i, (start, left) in enumerate(ours):
        for j, (begin, right) in enumerate(theirs):
            if a is b and j < i:
                continue
            twice = 2.0 if a is b and j > i else 1.0
            place = out[start + begin : start + begin + len(left) + len(right) - 1]
            if min(len(left), len(right)) <= _FEW:
                spend(len(left) * len(right) / 50)
                place += twice * np.convolve(left, right)
                continue
            size = next_fast_len(len(place), real=True)
            spend(20 * size)
            product = irfft(rfft(left, size) * rfft(right, size), size)[: len(place)]
            off = _rounding(size) * math.sqrt(float(left @ left) * float(right @ right))
            place += twice * (np.maximum(product, 0.0) + off)
    return out * (1 + _ROUNDING / 64)


def _rounding(size: int) -> float:
    """What two transforms, a product and a transform back can be off by, relative to the L2 norms of the two."""
    return 3 * (4 * math.log2(size) + 64) * _EPS


def _solve(total: _Sum, step: float, delta: float) -> float:
    """Where Σ_{s > ε} p(s) (1 - e^(ε-s)), rounded up, meets δ less the infinite mass."""
    target = delta - total.infinite
    if target <= 0:
        return math.inf
    points = total.offset + step * np.arange(total.first, total.first + len(total.p), dtype=np.float64)
    above = np.cumsum(total.p[::-1])[::-1] * (1 + _ROUNDING)
    less = np.cumsum((total.p * np.exp(-np.clip(points, -600.0, 600.0)))[::-1])[::-1] * (1 - _ROUNDING)
    # δ at each point: the masses from it on count.
    over = np.flatnonzero(above - np.exp(np.clip(points, -600.0, 600.0)) * less > target)
    index = int(over[-1]) + 1 if over.size else 0
    if index >= len(points) or float(points[index]) > 600:
        return math.inf
    rest = float(above[index]) - target
    if rest <= 0:
        return max(float(points[index]) if not index else float(points[index - 1]), 0.0)
    return max(min(math.log(rest / float(less[index])), float(points[index])), 0.0)
