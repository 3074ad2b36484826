"""Trials that succeed with probability exp(-x), exactly, for rational x: whole-number arithmetic on random bits.

A trial compares a uniform real number, of which only as many bits are drawn as it takes, with exp(-x), which is
enclosed by whole numbers as narrowly as it takes. No trial is ever decided by an approximation: where the bits drawn so
far lie inside the enclosure, more bits are drawn and the enclosure is narrowed. It ends with probability one, as each
64 bits more leave the trial open with probability below 2^-60.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tacit.randomness import Source

_GUARD = 32


@dataclass
class Uniform:
    """A uniform number in [0, 1) as far as it is known: ``prefix`` / 2^``bits`` and less than 2^-``bits`` more."""

    prefix: int
    bits: int

    def below_exp(self, x: Fraction, source: Source) -> bool:
        """Return True if the number is below exp(-x), x >= 0. The same number may be compared again with another x."""
        if x == 0:
            return True
        while True:
            low, high = exp_bounds(x, self.bits)
            if self.prefix < low:
                return True
            if self.prefix >= high:
                return False
            self.prefix, self.bits = self.prefix << 64 | int(source.words(1)[0]), self.bits + 64


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers with low <= 2^bits exp(-x) <= high, for x >= 0; high - low is 1, seldom 2.

    With x = n + f, 0 <= f < 1, exp(-f) is summed by its series in units of 2^-(bits + 32). f is rounded down, which
    moves exp(-f) by at most one unit. Each term is the one before times f / k, rounded down twice: its error e_k obeys
    e_k <= (e_(k-1) + 1) / k + 1, so it is below 3 units. The terms fall and alternate, so what is left out is smaller
    than the first term left out, which is below 3 + 1 units. Multiplying by exp(-1), n times, is rounded outward.
    """
    whole, rest = divmod(x, 1)
    if whole > bits:
        return 0, 1
    unit = bits + _GUARD
    low, high = _series((rest.numerator << unit) // rest.denominator, unit)
    if whole:
        least, most = _series(1 << unit, unit)
        for _ in range(whole):
            low, high = low * least >> unit, -(-high * most >> unit)
    return low >> _GUARD, -(-high >> _GUARD)


def _series(f: int, unit: int) -> tuple[int, int]:
    """Bounds on exp(-f) for f up to one, everything in units of 2^-unit."""
    term = total = 1 << unit
    k = 0
    while term:
        k += 1
        term = (term * f >> unit) // k
        total += -term if k % 2 else term
    error = 3 * k + 5
    return max(total - error, 0), total + error
