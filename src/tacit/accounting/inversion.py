"""δ(ε) of sampled Gaussian sums by Fourier inversion: no lattice, a few dozen frequencies, every error bounded.

With S the sum of the losses, D(x) = E[(1 - e^(x-S))_+] is δ at ε = x. For a tilt t > 0 the function e^(tx) D(x) has
the Fourier transform M(s) / (s (s+1)), s = t + iy, and Poisson's summation formula for a period R reads

    D(x) + Σ_{k≠0} e^(tkR) D(x + kR) = (1/R) Σ_j M(s_j) e^(-s_j x) / (s_j (s_j+1)),     s_j = t + 2πij/R.

Nothing on the left is negative, so the sum on the right is an upper bound on δ as it stands. For a lower bound the
other terms are charged by Chernoff's bound D(x) <= C(v) e^(K(v) - vx), C(v) = v^v / (1+v)^(1+v), at some v < t for the
k < 0 and some v > t for the k > 0. Frequencies that are left out are charged by `Tilted.log_decay`, rounding and
quadrature by what `tacit.accounting.characteristic` says of them. `tacit.accounting.window` has the sum itself.

Tilt, period and number of frequencies are chosen by the saddle point for accuracy; whatever they are, the bounds hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tacit.accounting.characteristic import SampledGaussians
from tacit.accounting.composition import Interval
from tacit.accounting.effort import OutOfReach
from tacit.accounting.window import EXCESS, Saddle, Window

_CUT = 1e-6  # the part of δ that may be cut off from the tail
# Bounds on ε this close, relatively, are close enough.
_CLOSE = 3e-7
# Where a second window, as close as δ asks for, does not bring the bounds together, rounding keeps them apart.
_ATTEMPTS = 2


def epsilon(losses: SampledGaussians, delta: float) -> Interval:
    """Bounds on the least ε ≥ 0 with δ(ε) <= delta; `OutOfReach` where they are not to be had quickly."""
    target = math.log(delta)

    def excess(saddle: Saddle) -> float:
        return saddle.log_delta_at(saddle.at) - target

    cut, saddle = _without_tail(losses, delta, excess, _first_tilt(losses, -target), 1)
    best, closeness, sound = Interval(losses.largest, 0.0), EXCESS, 0.0
    if cut.infinite > 0.1 * delta:
        raise OutOfReach("the tail is too heavy to cut off")
    for attempt in range(_ATTEMPTS):
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
    return _window(losses, epsilon).delta(epsilon, true=True)


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

    guess, tilt, closeness = 1e-5, _first_tilt(losses, 12.0), EXCESS
    window: Window | None = None
    felt = False
    for _ in range(8):
        try:
            cut, saddle = _without_tail(losses, guess, excess, tilt, 0)
            finer = Window(cut, saddle, closeness)
            found = finer.delta(epsilon)
        except OutOfReach:
            if window is None or felt:
                raise
            break  # the bounds of the last one hold, and are not far apart
        window, felt = finer, cut.infinite > 1e-5 * found.upper
        if felt and guess > 1e-290:
            guess, tilt = max(min(found.upper, guess**2), 1e-295), saddle.tilt  # what was cut off is felt: cut off less
        elif found.upper - (found.lower or 0.0) > _CLOSE * found.upper and closeness == EXCESS:
            closeness *= math.exp(min(math.log(found.upper) - saddle.log_delta_at(epsilon), -3.0))
        else:
            break
    assert window is not None
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


def _first_tilt(losses: SampledGaussians, digits: float) -> float:
    """As if the sum were Gaussian."""
    square = np.expm1(np.minimum(losses.noises**-2.0, 50.0))
    variance = float(losses.counts @ (losses.rates**2 * square)) * (4 if losses.replaced else 1) + losses.shift**2
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
