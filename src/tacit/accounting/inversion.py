"""δ(ε) of sampled Gaussian sums by Fourier inversion: no lattice, a few dozen frequencies, every error bounded.

With S the sum of the losses, D(x) = E[(1 - e^(x-S))_+] is δ at ε = x. For a tilt t > 0 the function e^(tx) D(x) has
the Fourier transform M(s) / (s (s+1)), s = t + iy, and Poisson's summation formula for a period R reads

    D(x) + Σ_{k≠0} e^(tkR) D(x + kR) = (1/R) Σ_j M(s_j) e^(-s_j x) / (s_j (s_j+1)),     s_j = t + 2πij/R.

Nothing on the left is negative, so the sum on the right is an upper bound on δ as it stands. For a lower bound the
other terms are charged by Chernoff's bound D(x) <= C(v) e^(K(v) - vx), C(v) = v^v / (1+v)^(1+v), at some v < t for the
k < 0 and some v > t for the k > 0. Frequencies that are left out are charged by `Tilted.log_decay`, rounding and
quadrature by what `tacit.accounting.characteristic` says of them.

Tilt, period and number of frequencies are chosen by the saddle point for accuracy; whatever they are, the bounds hold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.accounting.characteristic import SampledGaussians, Tilted
from tacit.accounting.composition import Interval
from tacit.accounting.effort import OutOfReach, spend

_EPS = sys.float_info.epsilon
# What aliasing and what the frequencies left out may each add to δ, relative to it, where that can be had.
_EXCESS = 1e-6
_CUT = 1e-6
# Bounds on ε this close, relatively, are close enough.
_CLOSE = 1e-5
_MOST_WORK = 4e8
_LEAST = sys.float_info.min


def epsilon(losses: SampledGaussians, delta: float) -> Interval:
    """Bounds on the least ε ≥ 0 with δ(ε) <= delta; `OutOfReach` where they are not to be had quickly."""
    target = math.log(delta)

    def excess(saddle: Saddle) -> float:
        return saddle.log_delta_at(saddle.at) - target

    cut, saddle = _without_tail(losses, delta, excess, _first_tilt(losses, -target), 1)
    best, closeness, sound = Interval(losses.largest, 0.0), _EXCESS, 0.0
    if cut.infinite > 0.1 * delta:
        raise OutOfReach("the tail is too heavy to cut off")
    for attempt in range(3):
        try:
            window = Window(cut, saddle, closeness)
            upper = min(best.upper, window.solve(math.log(delta - cut.infinite), +1))
            if upper <= 0:
                return Interval(0.0, 0.0)
            found = window.solve(target, -1)
            best = Interval(upper, min(max(best.lower or 0.0, found), upper))
            sound = max(sound, window.attained(target, found))
        except OutOfReach:
            if not attempt:
                raise
            break
        if best.upper - (best.lower or 0.0) <= _CLOSE * best.upper:
            break
        # Where the tilted law is far from Gaussian δ may be a small part of what the saddle point promises.
        closeness *= math.exp(min(target - saddle.log_delta_at(upper), -2.0))
    return Interval(best.upper, min(sound, best.upper))


def delta(losses: SampledGaussians, epsilon: float) -> Interval:
    """Bounds on δ(epsilon); the upper one never 0 by underflow."""
    if epsilon >= losses.largest:
        return Interval(0.0, 0.0)
    return _window(losses, epsilon).delta(epsilon)


def deltas(losses: SampledGaussians, epsilons: Sequence[float]) -> list[float | None]:
    """An upper bound on δ at each ε, None where it is out of reach; one window serves as many as it is good for."""
    found: dict[float, float | None] = {}
    window = None
    for epsilon in sorted(epsilons):
        if epsilon >= losses.largest:
            found[epsilon] = 0.0
            continue
        try:
            if window is None or not window.tells(epsilon):
                window = _window(losses, epsilon)
            found[epsilon] = window.delta(epsilon).upper
        except OutOfReach:
            found[epsilon] = None
    return [found[epsilon] for epsilon in epsilons]


def _window(losses: SampledGaussians, epsilon: float) -> Window:
    """A window that is good at this ε."""

    def excess(saddle: Saddle) -> float:
        return epsilon - saddle.at

    guess, tilt, closeness = 1e-5, _first_tilt(losses, 12.0), _EXCESS
    for _ in range(8):
        cut, saddle = _without_tail(losses, guess, excess, tilt, 0)
        window = Window(cut, saddle, closeness)
        found = window.delta(epsilon)
        if cut.infinite > 1e-5 * found.upper and guess > 1e-290:
            guess, tilt = max(min(found.upper, guess**2), 1e-295), saddle.tilt  # what was cut off is felt: cut off less
        elif found.upper - (found.lower or 0.0) > _CLOSE * found.upper and closeness > 1e-14:
            closeness *= math.exp(min(math.log(found.upper) - saddle.log_delta_at(epsilon), -3.0))
        else:
            break
    return window


def _without_tail(
    losses: SampledGaussians, delta: float, excess: Callable[[Saddle], float], tilt: float, unit: int
) -> tuple[SampledGaussians, Saddle]:
    """The saddle point, of losses without the part of their tail that it would otherwise be led astray by."""
    cut = losses.without_tail(_CUT * delta, tilt)
    for _ in range(4):
        saddle = _saddle(cut, excess, tilt, unit)
        tilt, suitable = saddle.tilt, losses.without_tail(_CUT * delta, saddle.tilt)
        if suitable.cut is None or cut.cut is None:
            fits = suitable.cut is cut.cut
        else:
            ratio = cut.cut.width / suitable.cut.width
            fits = bool((ratio < 1.5).all() and (ratio > 0.3).any())
        if fits:
            break
        cut = suitable
    else:
        saddle = _saddle(cut, excess, tilt, unit)
    return cut, saddle


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


def _first_tilt(losses: SampledGaussians, digits: float) -> float:
    """As if the sum were Gaussian."""
    square = np.expm1(np.minimum(losses.noises**-2.0, 50.0))
    variance = float(losses.counts @ (losses.rates**2 * square)) + losses.shift**2
    return math.sqrt(2 * digits / variance)


def _saddle(losses: SampledGaussians, excess: Callable[[Saddle], float], tilt: float, unit: int) -> Saddle:
    """Where ``excess``, which falls with the tilt, vanishes, to within a part of the bump that is summed.

    Newton's method in log t, within a bracket. ``unit`` 0 is an excess in x, whose derivative is -K'', and 1 one in
    log δ, whose derivative is -t K''.
    """
    low, high = 0.0, math.inf
    for _ in range(60):
        saddle = Saddle(tilt, losses.tilted(tilt))
        gap, deviation = excess(saddle) / tilt**unit, math.sqrt(saddle.variance)
        if abs(gap) <= min(0.3 * deviation, 1 / tilt) or high < low * 1.001:
            return saddle
        low, high = (tilt, high) if gap > 0 else (low, tilt)
        tilt *= math.exp(min(max(gap / (tilt * saddle.variance), -1.5), 1.5))
        if not low < tilt < high:
            tilt = math.sqrt(low * high) if low > 0 and high < math.inf else (2 * low if low > 0 else high / 2)
        if not 1e-12 < tilt < 1e12:
            break
    raise OutOfReach("no saddle point")


class Window:
    """The right-hand side of the module's formula for one tilt: bounds on log δ at any ε near the saddle point."""

    def __init__(self, losses: SampledGaussians, saddle: Saddle, excess: float = _EXCESS) -> None:
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
        # What is off besides where the true noise is meant, which was rounded down: for lower bounds.
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

    def delta(self, epsilon: float) -> Interval:
        """Bounds on δ(epsilon), what was cut off included."""
        upper = math.exp(min(self.log_bound(epsilon, +1), 0.0)) + self._infinite
        return Interval(min(max(upper, _LEAST), 1.0), math.exp(min(self.log_bound(epsilon, -1, true=True), 0.0)))

    def tells(self, epsilon: float) -> bool:
        """Whether its bounds at this ε are close."""
        found = self.delta(epsilon)
        return found.upper - (found.lower or 0.0) <= 1e-3 * found.upper

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
        for part in (1.2, 3.0, 10.0, 100.0):
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
