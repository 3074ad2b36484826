"""The distribution of a sum of lattice losses, near the ε that is asked for, with every error bounded.

With K the cumulant generating function of the sum under P and a tilt t ≥ 0, the tilted masses
p̃(s) = p(s) e^(ts - K(t)) are computed by FFT, and

    δ(ε) = e^K(t) Σ_{s > ε} p̃(s) e^(-ts) (1 - e^(ε-s)).

At the saddle point p̃ is centred near ε, so rounding errors, which are relative to the largest p̃, are relative to δ
itself, however small δ is. What the computed p̃ can be off by:

* *aliasing and truncation*: the window is chosen by Chernoff's bound, with the exact K of the lattice distributions,
  so that at most `OUTSIDE` of p̃ lies beyond either end. Aliasing adds to p̃: nothing to charge for an upper bound,
  and charged for a lower one; what lies above the window is charged to the upper bound;
* *rounding*: with e the error of one transform's output (at most 1 in size), Π p̂_k^T_k at a frequency is off by at
  most Π (|p̂_k| + e)^T_k - Π |p̂_k|^T_k. By Parseval the root mean square of that over the frequencies is the L2 norm
  of the error of p̃, and by Cauchy–Schwarz a sum Σ w(s) p̃(s) is off by at most that norm times the L2 norm of w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacit.accounting.effort import spend
from tacit.accounting.lattice import Lattice
from tacit.accounting.losses import Array

OUTSIDE = 1e-11
_EPS = float(np.finfo(np.float64).eps)
# Exponents are clipped here, so that sums of millions of exponentials stay finite; no answer is taken from beyond.
_CLIP = 650.0


class WindowTooLarge(ValueError):
    """The lattice is too fine for the memory allowed."""


@dataclass(frozen=True)
class Cumulants:
    """K(t) of a sum and its first two derivatives."""

    value: float
    mean: float
    variance: float


Parts = Sequence[tuple[Lattice, int]]


class Weighted(Protocol):
    """Masses on the line, for cumulants."""

    @property
    def points(self) -> Array: ...

    @property
    def log_p(self) -> Array: ...


def cumulants(parts: Sequence[tuple[Weighted, int]], tilt: float) -> Cumulants:
    value = mean = variance = 0.0
    for lattice, count in parts:
        weight, log_mass = tilted(lattice, tilt)
        first = float(weight @ lattice.points)
        value += count * log_mass
        mean += count * first
        variance += count * max(float(weight @ lattice.points**2) - first * first, 0.0)
    return Cumulants(value, mean, variance)


def tilted(lattice: Weighted, tilt: float) -> tuple[Array, float]:
    """The tilted masses and the logarithm of what they were divided by."""
    spend(4 * len(lattice.points))
    exponent = tilt * lattice.points
    exponent += lattice.log_p
    top = float(exponent.max())
    exponent -= top
    weight = np.exp(exponent, out=exponent)
    total = float(weight.sum())
    weight /= total
    return weight, top + math.log(total)


def tilt_for_delta(parts: Sequence[tuple[Weighted, int]], delta: float) -> float:
    """The tilt that minimises Chernoff's ε = (K(t) + log 1/δ)/t: the root of t K'(t) - K(t) = log 1/δ, roughly.

    Where the losses are bounded there may be no root; then a tilt beyond which little changes.
    """
    target = math.log(1 / delta)
    tilt = math.sqrt(2 * target / max(cumulants(parts, 0.0).variance, 1e-30))
    low, high, before = 0.0, math.inf, 0.0
    for _ in range(60):
        k = cumulants(parts, tilt)
        reached = tilt * k.mean - k.value
        if abs(reached - target) < 0.1 * target + 0.1 or (low and reached - before < 0.02 * target):
            break
        if reached > target:
            high = tilt
        else:
            low, before = tilt, reached
        tilt = _next(tilt, (reached - target) / max(tilt * k.variance, 1e-300), low, high)
    return tilt


def tilt_for_epsilon(parts: Sequence[tuple[Weighted, int]], epsilon: float) -> float:
    """The saddle point K'(t) = ε, roughly, or 0 where ε is below the mean loss."""
    epsilon -= sum(count * getattr(part, "offset", 0.0) for part, count in parts)
    start = cumulants(parts, 0.0)
    if epsilon <= start.mean:
        return 0.0
    tilt, low, high = (epsilon - start.mean) / max(start.variance, 1e-30), 0.0, math.inf
    for _ in range(60):
        k = cumulants(parts, tilt)
        if abs(k.mean - epsilon) < 0.3 * math.sqrt(k.variance):
            break
        if k.mean < epsilon and tilt * k.mean - k.value > 700:
            break  # beyond what doubles tell apart
        low, high = (low, tilt) if k.mean > epsilon else (tilt, high)
        tilt = _next(tilt, (k.mean - epsilon) / max(k.variance, 1e-300), low, high)
    return tilt


def _next(tilt: float, move: float, low: float, high: float) -> float:
    """Newton's step where it stays in the bracket and does not more than double, else a bisection."""
    newton = tilt - move
    if low < newton < min(high, 2 * tilt):
        return newton
    return 2 * tilt if math.isinf(high) else (low + high) / 2


class TiltedSum:
    """p̃ of a sum of lattice losses in a window around its tilted mean, and δ(ε) from it."""

    def __init__(self, parts: Parts, tilt: float, largest_window: int) -> None:
        self.tilt, self.step = tilt, parts[0][0].step
        offset = sum(count * lattice.offset for lattice, count in parts)
        self.centre = cumulants(parts, tilt)
        low, high = self._window(parts)
        start, length = math.floor(low / self.step), math.ceil((high - low) / self.step) + 2
        if length > largest_window:
            raise WindowTooLarge(f"{length} lattice points")
        self.start, self.length = start, next_fast_len(max(length, 16), real=True)
        self.mass, self.error = self._convolve(parts, start)
        # From here on with the offset: K(t), the mean and the points.
        self.points = offset + np.arange(start, start + self.length) * self.step
        k = self.centre
        self.centre = Cumulants(k.value + tilt * offset, k.mean + offset, k.variance)
        # Rounding of the exponent K - t s: each term's logarithm enters count times.
        size = abs(self.centre.value) + tilt * float(np.abs(self.points[[0, -1]]).max())
        self.doubt = 64 * _EPS * (sum(count for _, count in parts) + size)

    def _window(self, parts: Parts) -> tuple[float, float]:
        """Chernoff: P̃(S > high) <= e^(K(t+u) - K(t) - u high) = OUTSIDE, and the same below."""
        deviation = max(math.sqrt(self.centre.variance), self.step)
        ends_found = []
        for side in (+1, -1):
            # The best u is about sqrt(2 log 1/OUTSIDE) deviations for a light tail, less for a heavy one.
            width, shift = math.inf, 7.0 / deviation
            while True:
                moved = cumulants(parts, self.tilt + side * shift)
                found = (moved.value - self.centre.value - math.log(OUTSIDE)) / shift
                if found > width:
                    break
                width, shift = found, shift / 1.7
            ends_found.append(side * width)
        high, low = ends_found
        ends = [(count * lattice.points[0], count * lattice.points[-1]) for lattice, count in parts]
        return max(low, sum(end[0] for end in ends)), min(high, sum(end[1] for end in ends))

    def _convolve(self, parts: Parts, start: int) -> tuple[Array, float]:
        n, centre = self.length, 0
        spend(20 * n * (1 + len(parts)))
        log_size = np.zeros(n // 2 + 1)
        log_bound, angle = np.zeros_like(log_size), np.zeros_like(log_size)
        rounding = (4 * math.log2(n) + 64) * _EPS
        for lattice, count in parts:
            weight, _ = tilted(lattice, self.tilt)
            middle = int(np.argmax(weight))
            centre += count * (lattice.first + middle)
            largest, weight[middle] = float(weight[middle]), 0.0
            rest = float(weight.sum())
            spectrum = rfft(np.bincount((np.arange(len(weight)) - middle) % n, weights=weight, minlength=n))
            if rest < 0.4:
                # Rare sampling: nearly all mass is at one point, whose transform is a constant. With logarithms of
                # 1 - (rest - rest's transform) rounding hurts only in proportion to the rest.
                real, imaginary = rest - spectrum.real, -spectrum.imag
                logarithm = 0.5 * np.log1p(real * (real - 2) + imaginary**2)
                turn, hurt = np.arctan2(-imaginary, 1 - real), rounding * rest
            else:
                spectrum += largest
                logarithm = np.log(np.maximum(np.abs(spectrum), 1e-300))
                turn, hurt = np.angle(spectrum), rounding
            log_size += count * logarithm
            log_bound += count * (logarithm + np.log1p((hurt + 4 * _EPS * np.abs(turn)) * np.exp(-logarithm)))
            angle += count * turn
        size, bound = np.exp(log_size), np.exp(np.minimum(log_bound, 1.0))
        mass = np.roll(irfft(size * np.exp(1j * angle), n), -((start - centre) % n))
        off = np.sqrt(2 * np.mean((bound - size) ** 2)) + rounding * np.sqrt(2 * np.mean(bound**2))
        return mass, float(off)

    def epsilon_above(self, delta: float) -> float | None:
        """An ε at which δ(ε) is at most ``delta`` for sure; None if this window cannot tell.

        An answer is given only well inside the window, within six tilted deviations of its centre, where no exponential
        was clipped.
        """
        # Σ_{s ≥ point} p̃ e^(-t(s-c)), and the same with e^(-(t+1)(s-c)), in units of e^(K - tc), c the centre.
        away = self.points - self.centre.mean
        mass = np.maximum(self.mass, 0)
        first = np.cumsum((mass * np.exp(np.clip(-self.tilt * away, -700, _CLIP)))[::-1])[::-1]
        second = np.cumsum((mass * np.exp(np.minimum(-(self.tilt + 1) * away, _CLIP)))[::-1])[::-1]
        rounding = self.length * _EPS
        log_target = math.log(delta) - self.centre.value + self.tilt * self.centre.mean - self.doubt
        if not -600 < log_target < 600:
            return None
        target = math.exp(log_target)
        with np.errstate(over="ignore", invalid="ignore"):
            # δ at each point: masses strictly above it count.
            found = np.append(
                first[1:] * (1 + rounding) - np.exp(np.minimum(away[:-1], 700)) * second[1:] * (1 - rounding), 0.0
            )
        # The mass above the window, and the effect of rounding on the sums.
        extra = OUTSIDE * math.exp(max(min(-self.tilt * float(away[-1]), _CLIP), -700.0)) + self._rounding(away)
        over = np.flatnonzero(found + extra > target)
        if not len(over) or over[-1] + 1 >= self.length:
            return None
        index = int(over[-1])
        reach = 6 * math.sqrt(self.centre.variance) + 2 * self.step
        if abs(float(away[index])) > reach or -(self.tilt + 1) * float(away[index]) > _CLIP - 50:
            return None
        rest = first[index + 1] * (1 + rounding) - (target - extra[index])
        if rest <= 0 or second[index + 1] <= 0:
            return float(self.points[index + 1])
        epsilon = self.centre.mean + math.log(rest / (second[index + 1] * (1 - rounding)))
        return float(np.clip(epsilon, self.points[index], self.points[index + 1]))

    def _rounding(self, away: Array) -> Array:
        """Return what rounding of p̃ can do to the sums over the points from each one on.

        Squares of the weights e^(-t(s-c)) are a geometric series; squared themselves they would leave the doubles.
        """
        points = np.arange(len(away), 0, -1, dtype=np.float64)
        fall = 2 * self.tilt * self.step
        squares = np.minimum(points, 1 / -math.expm1(-fall)) if fall > 1e-300 else points
        return np.asarray(self.error * np.exp(np.clip(-self.tilt * away, -700, _CLIP)) * np.sqrt(squares))

    def delta_above(self, epsilon: float) -> float:
        """An upper bound on δ(epsilon)."""
        above = self.points > epsilon
        s, p = self.points[above], self.mass[above]
        weight = np.exp(np.minimum(self.centre.value - self.tilt * s + self.doubt, 340)) * -np.expm1(epsilon - s)
        inside = float(np.maximum(p, 0) @ weight) + self.error * float(np.sqrt(weight @ weight))
        # Tilted masses beyond an end of the window weigh at most what they would weigh at that end, or at ε.
        ends = [float(self.points[-1]), *([epsilon] if epsilon < self.points[0] else [])]
        outside = sum(OUTSIDE * math.exp(min(self.centre.value - self.tilt * end, 700.0)) for end in ends)
        return float(min(max(inside * (1 + self.length * _EPS) + outside, 0.0), 1.0))
