"""The law of a sum of independent lognormals, rounded so that convex expectations only grow, or only fall.

The grid is that of floating-point numbers: 2^b steps an octave, so that sums on one octave are convolutions on a
lattice, and 2^b grows with the square root of the number of terms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.accounting.lattice import shares
from tacit.accounting.losses import ROUNDING, Array, GaussianLoss, Plain
from tacit.accounting.relative import convolved

_TAIL = 1e-24  # of the mass of an epoch, counted as infinite loss or moved down to 0
_SPECK = 1e-40  # a mass this small, or a mean, is rounded
_COARSENESS = 2e-5  # of the variance, added by the rounding of one partial sum
_LEAST_BITS, _FAR_BITS = 7, 9
_EPS = float(np.finfo(np.float64).eps)


class Rounding(NamedTuple):
    """The direction of rounding: a bound from below or not, and larger or smaller W where it cannot be exact."""

    below: bool
    raises: bool

    @property
    def sign(self) -> int:
        return -1 if self.below else 1


class Part(NamedTuple):
    """Mass ``mass[i]`` at place first + i of a lattice."""

    first: int
    mass: Array

    @property
    def places(self) -> Array:
        return np.arange(self.first, self.first + len(self.mass), dtype=np.float64)


_NONE = Part(0, np.zeros(0))


class Law(NamedTuple):
    """A law on the places of lattices of step unit · 2^scale; ``zero`` is at 0, ``infinite`` the mean at infinity."""

    unit: float
    parts: dict[int, Part]
    zero: float
    infinite: float


def lognormal_sum(shift: float, lots: int, taken: int, rounding: Rounding) -> Law:
    """The law of S, by doubling from the first binary digit on."""

    def tail(terms: int) -> float:
        # It grows faster than the number of terms: what a half has at 0 is then cut off from the whole with the rest.
        return _TAIL * lots * (terms / taken) ** 3

    one = law = _single(shift, _bits(shift, 1), rounding, tail(1))
    terms, left = 1, taken.bit_length() - 1
    while left:
        left -= 1
        law, terms = _plus(law, law, rounding), 2 * terms
        law = _settled(law, _bits(shift, terms), rounding, terms, tail(terms))
        if taken >> left & 1:
            law, terms = _plus(law, one, rounding), terms + 1
            law = _settled(law, _bits(shift, terms), rounding, terms, tail(terms))
    return law


def _bits(shift: float, terms: int) -> int:
    """b, 2^b steps an octave: a spread adds about the step² / 6 to the variance, which is terms (e^shift² - 1)."""
    variance = math.expm1(shift * shift)
    return max(_LEAST_BITS, math.ceil(0.5 * math.log2(max(terms / (6 * _COARSENESS * variance), 1.0))))


def _single(shift: float, bits: int, rounding: Rounding, tail: float) -> Law:
    """One lognormal on the grid."""
    reach = math.sqrt(2 * math.log(1 / tail)) + 1
    lowest = math.floor((-shift * shift / 2 - reach * shift) / math.log(2)) - 1
    highest = math.ceil((shift * shift / 2 + reach * shift) / math.log(2)) + 1
    steps = 1 << bits
    unit = math.ldexp(1.0, lowest - bits)
    octaves: list[Array] = [np.arange(2 * steps, dtype=np.float64)]
    octaves += [
        np.arange(steps, 2 * steps, dtype=np.float64) * math.ldexp(1.0, scale) for scale in range(1, highest - lowest)
    ]
    grid = unit * np.append(np.concatenate(octaves), math.ldexp(2.0 * steps, highest - lowest - 1))
    with np.errstate(divide="ignore"):
        cells = Plain(GaussianLoss(shift)).cells(np.append(np.log(grid), np.inf))
    inner, over = np.maximum(cells.q[:-1], 0.0), float(cells.q[-1])
    beyond = max(float(cells.rise[-1] + cells.slack[-1]), 0.0)
    widths = np.diff(grid)
    slack = cells.slack[:-1] if rounding.raises else -cells.slack[:-1]
    rise = np.clip(cells.rise[:-1] + slack, 0.0, inner * widths)
    mass = np.zeros(len(grid))
    if rounding.below:
        up = inner - _kept_low(rise, inner * widths - rise, inner, raises=rounding.raises)
    else:
        up = np.minimum(rise / widths, inner)
    mass[:-1] += inner - up
    mass[1:] += up
    if not (rounding.below and rounding.raises):
        mass[-1] += over
    parts = {0: Part(1, mass[1 : 2 * steps])}
    for scale in range(1, highest - lowest):
        begin = 2 * steps + (scale - 1) * steps
        parts[scale] = Part(steps, mass[begin : begin + steps])
    parts[highest - lowest] = Part(steps, mass[-1:])
    law = Law(unit, parts, float(mass[0]), beyond)
    return _settled(law, bits, rounding, 1, tail)


def _kept_low(rise: Array, fall: Array, mass: Array, *, raises: bool) -> Array:
    """How much of each cell is merged at its lower end; see `tacit.accounting.lattice.shares`."""
    if raises:
        return mass - _kept_low(fall[::-1], rise[::-1], mass[::-1], raises=False)[::-1]
    return mass * shares(rise.tolist(), fall.tolist(), int(np.argmax(mass)))


def _plus(one: Law, other: Law, rounding: Rounding) -> Law:
    """The law of the sum of two independent variables: on each lattice, what the larger of the two is on."""
    same = one is other
    parts: dict[int, Part] = {}
    ours = theirs = _NONE
    for scale in range(min(*one.parts, *other.parts), max(*one.parts, *other.parts) + 1):
        ours, theirs = _coarser(ours, rounding), _coarser(theirs, rounding)
        mine, yours = one.parts.get(scale, _NONE), other.parts.get(scale, _NONE)
        if same:
            found = _convolved(mine, _added(mine, ours, 2.0), rounding, same=not len(ours.mass))
        else:
            found = _added(_convolved(mine, _added(yours, theirs), rounding), _convolved(ours, yours, rounding))
        for zero, part in ((one.zero, yours), (other.zero, mine)):
            if zero and len(part.mass):
                found = _added(found, part, zero)
        if len(found.mass):
            parts[scale] = Part(found.first, found.mass * (1 + rounding.sign * 8 * _EPS))
        ours, theirs = _added(mine, ours), _added(yours, theirs)
    return Law(one.unit, parts, one.zero * other.zero * (1 + rounding.sign * _EPS), one.infinite + other.infinite)


def _convolved(one: Part, other: Part, rounding: Rounding, *, same: bool = False) -> Part:
    if not len(one.mass) or not len(other.mass):
        return _NONE
    mass = convolved(one.mass, one.mass if same else other.mass, same=same, sign=rounding.sign)
    return Part(one.first + other.first, mass)


def _added(one: Part, other: Part, times: float = 1.0) -> Part:
    if not len(one.mass) or not len(other.mass):
        return one if len(one.mass) else Part(other.first, times * other.mass)
    first = min(one.first, other.first)
    mass = np.zeros(max(one.first + len(one.mass), other.first + len(other.mass)) - first)
    mass[one.first - first :][: len(one.mass)] += one.mass
    mass[other.first - first :][: len(other.mass)] += times * other.mass
    return Part(first, mass)


def _coarser(part: Part, rounding: Rounding) -> Part:
    """The part on a lattice of twice the step: an odd place's mass goes to both neighbours, or is merged with theirs.

    From below: of an odd place's mass u_j a part r_j goes up and the rest down. What an even place gets, r_(j-1) from
    the place below it and u_j - r_j from the one above, has a mean of at least the place if r_(j-1) <= u_j - r_j; then
    it is moved down to it. r_j = (u_j + u_(j+1)) / 4 nearly gives equality, and is reduced where it does not do. Where
    means are to be moved up the same is done from the other end.
    """
    if not len(part.mass):
        return part
    first = part.first - part.first % 2
    mass = np.zeros(2 * ((part.first - first + len(part.mass) + 1) // 2))
    mass[part.first - first :][: len(part.mass)] = part.mass
    even, odd = mass[::2], mass[1::2]
    if not rounding.below:
        up = odd / 2
    elif rounding.raises:
        up = odd - _rising(odd[::-1])[::-1]
    else:
        up = _rising(odd)
    out = np.append(even + (odd - up), 0.0)
    out[1:] += up
    return Part(first // 2, out * (1 + rounding.sign * 4 * _EPS))


def _rising(odd: Array) -> Array:
    after = np.append(odd[1:], 0.0)
    up = np.minimum((odd + after) / 4, odd)
    room = np.append((odd - up)[1:], 0.0)
    return np.asarray(np.minimum(up, room) * (1 - 8 * _EPS))


def _settled(law: Law, bits: int, rounding: Rounding, terms: int, tail: float) -> Law:
    """The law with at most 2^(bits + 1) places a lattice, and without the tails that hold next to nothing.

    Far above the mean fewer places do: there the distance to the mean is what a step is small beside.
    """
    far = min(bits, _FAR_BITS)
    kept: dict[int, Part] = {}
    waiting, scale, last = dict(law.parts), min(law.parts), max(law.parts)
    while scale <= last or scale in waiting:
        part = waiting.pop(scale, _NONE)
        near = law.unit * math.ldexp(1.0, scale + bits) <= 2 * terms
        most = 2 << (bits if near else far)
        end = max(min(most - part.first, len(part.mass)), 0)
        if end < len(part.mass):
            above = _coarser(Part(part.first + end, part.mass[end:]), rounding)
            waiting[scale + 1] = _added(waiting.get(scale + 1, _NONE), above)
            part = Part(part.first, part.mass[:end])
        mass = _without_specks(part, law.unit * math.ldexp(1.0, scale), rounding)
        if mass.any():
            begin, end = np.flatnonzero(mass)[[0, -1]]
            kept[scale] = Part(part.first + int(begin), mass[begin : end + 1])
        scale += 1
    return _trimmed(law._replace(parts=kept), rounding, tail)


def _without_specks(part: Part, step: float, rounding: Rounding) -> Array:
    """The masses, none so small that convolutions take long for its sake: those are raised, or dropped from below."""
    least = _SPECK / max(step * (part.first + len(part.mass)), 1.0)
    if rounding.below:
        return np.where(part.mass < least, 0.0, part.mass)
    return np.where((part.mass > 0) & (part.mass < least), least, part.mass)


def _trimmed(law: Law, rounding: Rounding, tail: float) -> Law:
    """The law without the ends of parts of a mass and a mean of at most ``tail``: those go to 0 and infinity, which
    keeps both, or are dropped from below.
    """
    kept, zero, infinite = {}, law.zero, law.infinite
    for scale, part in law.parts.items():
        step = law.unit * math.ldexp(1.0, scale)
        weight = part.mass * np.maximum(step * part.places, 1.0)
        begin = int(np.searchsorted(np.cumsum(weight), tail, side="right"))
        end = len(weight) - int(np.searchsorted(np.cumsum(weight[::-1]), tail, side="right"))
        if begin < end:
            kept[scale] = Part(part.first + begin, part.mass[begin:end])
        for cut in (slice(0, begin), slice(end, None)) if begin < end else (slice(None),):
            zero += float(part.mass[cut].sum()) * (1 + ROUNDING)
            infinite += float(part.mass[cut] @ part.places[cut]) * step * (1 + ROUNDING)
    if rounding.below:
        return law._replace(parts=kept)
    return Law(law.unit, kept, zero, infinite)
