"""The sum over frequencies of `tacit.accounting.inversion` for one tilt and period, with its errors charged."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from tacit.accounting.characteristic import SampledGaussians
from tacit.accounting.composition import Interval
from tacit.accounting.effort import OutOfReach, spend
from tacit.accounting.tilted import Tilted

_EPS = sys.float_info.epsilon
EXCESS = 5e-8
"""The relative error that aliasing, and the frequencies left out, may each add to δ, where that can be reached."""
_MOST_WORK = 4e8
_LEAST = sys.float_info.min


@dataclass(frozen=True)
class Saddle:
    """The saddle point of M(s) e^(-sx) / (s (s+1)) at s = t: which x it belongs to, and log δ there, roughly."""

    tilt: float
    law: Tilted

    @property
    def value(self) -> float:
        return self.law.value - math.log(self.tilt) - math.log1p(self.tilt)

    @property
    def at(self) -> float:
        return self.law.centre - 1 / self.tilt - 1 / (self.tilt + 1)

    @property
    def variance(self) -> float:
        return self.law.variance + self.tilt**-2 + (self.tilt + 1) ** -2

    def log_delta_at(self, x: float) -> float:
        return self.value - self.tilt * x - 0.5 * math.log(2 * math.pi * self.variance)


class Window:
    """The right-hand side of the module's formula for one tilt: bounds on log δ at any ε near the saddle point."""

    def __init__(self, losses: SampledGaussians, saddle: Saddle, excess: float = EXCESS) -> None:
        self.tilt, self._saddle, self._excess = saddle.tilt, saddle, excess
        self._infinite = losses.infinite
        reach, self._aliases = self._periods(losses)
        self.period = reach
        frequency = self._last_frequency(saddle.law)
        spacing = 2 * math.pi / self.period
        count = math.ceil(frequency / spacing)
        law = losses.tilted(self.tilt, (count + 1) * spacing)
        if count * law.weight.size > _MOST_WORK:
            raise OutOfReach(f"{count} frequencies, {law.weight.size} nodes")
        spend(count * law.weight.size / 4)
        self._y = spacing * np.arange(1, count + 1)
        log_value, log_bound, log_moved = law.characteristic(spacing, count)
        s = self.tilt + 1j * self._y
        self._terms = 2 * np.exp(log_value) / (s * (s + 1))
        sizes = 2 / np.abs(s * (s + 1))
        self._first = 1 / (self.tilt * (self.tilt + 1))
        # No value is above 1, so none is off by more than 2: a bound of 3 covers whatever was computed.
        self._size = float(sizes @ np.exp(np.minimum(log_bound, math.log(3.0))))
        # |s (s+1)| >= t² + y², and a sum over y of 1 / (t² + y²) is at most the integral from the last y on.
        rest = (
            math.exp(saddle.law.log_decay(float(self._y[-1]))) * math.atan2(self.tilt, float(self._y[-1])) / self.tilt
        )
        self._off = self._size - float(sizes @ np.exp(log_value.real)) + rest * self.period / math.pi
        self._off += 64 * _EPS * (count + 1) * (self._first + self._size)
        self._off += 8 * _EPS * float(np.abs(self._terms) @ np.abs(log_value.imag))
        # For lower bounds: the further error from taking the true noise, which was rounded down.
        self._moved = float(sizes @ np.exp(np.minimum(log_moved, math.log(3.0)))) - self._size
        self._less = law.value_moved
        self._centre, self._value, self._doubt = law.centre, law.value, law.value_doubt
        self._far = float(losses.counts @ np.abs(law.mean)) + abs(law.centre)

    def _periods(self, losses: SampledGaussians) -> tuple[float, list[tuple[float, float]]]:
        """A period whose aliases weigh little, and for each side (v, log C(v) + K(v)) of Chernoff's bound."""
        saddle, t = self._saddle, self.tilt
        near = 0.5 * math.log(2 * math.pi * saddle.variance) - saddle.value - math.log(self._excess)
        aim = math.sqrt(2 * -math.log(self._excess) / saddle.variance)
        period, aliases = 0.0, []
        for side in (+1, -1):
            best, shift = (math.inf, 0.0, 0.0), 1.3 * aim
            for _ in range(12):
                v = t + side * shift
                if side < 0 and v < 0:
                    v, shift = 0.0, t
                law = losses.tilted(v)
                bound = law.value + law.value_doubt + _log_chernoff(v)
                found = (bound - side * shift * saddle.at + near) / shift
                if found > best[0]:
                    break
                best = (found, v, bound)
                shift /= 1.5
            period = max(period, best[0])
            aliases.append((best[1], best[2]))
        return period, aliases

    def _last_frequency(self, law: Tilted) -> float:
        """From where on the frequencies add less than the excess, by bisection."""
        saddle = self._saddle
        size = self.tilt * (self.tilt + 1) * math.sqrt(2 * math.pi * saddle.variance)
        allowed = math.log(self._excess / size)

        def enough(y: float) -> bool:
            return law.log_decay(y) + math.log(math.atan2(self.tilt, y) / self.tilt / math.pi) <= allowed

        low, high = 0.0, 4 / math.sqrt(saddle.variance)
        while not enough(high):
            low, high = high, 2 * high
            if high * self.period > 1e7:
                raise OutOfReach("the characteristic function does not vanish")
        for _ in range(4):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def delta(self, epsilon: float, *, true: bool = False) -> Interval:
        """Bounds on δ(epsilon), what was cut off included; ``true`` as in `log_bound`."""
        upper = math.exp(min(self.log_bound(epsilon, +1), 0.0)) + self._infinite
        return Interval(min(max(upper, _LEAST), 1.0), math.exp(min(self.log_bound(epsilon, -1, true=true), 0.0)))

    def tells(self, epsilon: float) -> bool:
        """Return True if its bounds at this ε are close."""
        found = self.delta(epsilon)
        return found.upper - (found.lower or 0.0) <= 1e-6 * found.upper

    def log_bound(self, x: float, sign: int, *, true: bool = False) -> float:
        """log of a bound on δ(x), from above for ``sign`` +1, from below for -1; ``true``: also for the noise
        multipliers before they were rounded down (from above it is in any case, since those cost less).
        """
        away = x - self._centre
        total = self._first + float((self._terms * np.exp(-1j * self._y * away)).real.sum())
        turned = 8 * _EPS * float(self._y[-1]) * (self._far + abs(x)) * self._size
        doubt = self._doubt + 8 * _EPS * (abs(self._value) + self.tilt * (abs(x) + 1))
        total += sign * (self._off + turned + (self._moved if true else 0.0))
        doubt += self._less if true else 0.0
        if total <= 0:
            if sign > 0:
                raise OutOfReach("rounding leaves nothing of the sum")
            return -math.inf
        log = self._value - self.tilt * x + math.log(total / self.period) + sign * doubt
        if sign > 0:
            return log
        # D(x) >= the sum less its aliases.
        aliased = 0.0
        for v, bound in self._aliases:
            fall = abs(v - self.tilt) * self.period
            exponent = bound - v * x - fall - log + 8 * _EPS * (abs(bound) + abs(v * x) + fall)
            if exponent > 0 or fall < 1e-3:
                return -math.inf
            aliased += math.exp(exponent) / -math.expm1(-fall)
        return log + math.log1p(-aliased) if aliased < 1 else -math.inf

    def attained(self, target: float, near: float) -> float:
        """An x at which δ(x) is at least e^target for the true noise multipliers: a little below ``near``, or 0."""
        total = self.period * math.exp(min(target - self._value + self.tilt * near, 700.0))
        lost = (self._less + self._moved / total) / self.tilt + 1e-12 * near
        for part in (1.2, 2.0, 4.0, 8.0, 16.0, 64.0):
            x = near - part * lost
            if x > 0 and self.log_bound(x, -1, true=True) >= target:
                return x
        return 0.0

    def solve(self, target: float, sign: int) -> float:
        """An x at which δ(x) is surely at most e^target (``sign`` +1), or surely at least that (-1)."""
        x, slope = self._saddle.at, -self.tilt
        before: tuple[float, float] | None = None
        for _ in range(40):
            gap = self.log_bound(x, sign) - target
            if not math.isfinite(gap):
                raise OutOfReach("no bound here")
            # On the right side and close.
            if -1e-8 <= sign * gap <= -1e-12:
                return x
            if before is not None and abs(x - before[0]) > 1e-13 * abs(x) and (gap - before[1]) * (x - before[0]) < 0:
                slope = (gap - before[1]) / (x - before[0])
            before = (x, gap)
            x -= (gap + sign * 5e-9) / slope
        raise OutOfReach("no convergence")


def _log_chernoff(v: float) -> float:
    """log of C(v): (1 - e^-z)_+ <= C(v) e^(vz) for every real z."""
    return v * math.log(v) - (1 + v) * math.log1p(v) if v > 0 else 0.0
