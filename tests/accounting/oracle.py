"""The true cost of the sampled Gaussian mechanism, computed in a way that shares nothing with the library.

With L the privacy loss of one step under P and M(s) = E_P[e^(sL)], the loss of T steps has the generating function
M(s)^T, and

    δ(ε) = 1/(2πi) ∫ M(s)^T e^(-sε) / (s (s+1)) ds

along any curve from -i∞ to +i∞ that passes to the right of 0: the inverse Laplace transform of (1 - e^(ε-S))_+. The
curve used is a hyperbola through the saddle point that bends to the right, where e^(-sε) falls, so that the integral
converges even if nearly all of P sits at one loss. M is entire, so hyperbolas of different bend must agree: that and
halved steps are the self-check of every value. No lattice, no FFT, no truncated tails.
"""

import math

import numpy as np
from scipy.special import log_ndtr

DIRECTIONS = ("remove", "add")


class Doubtful(ArithmeticError):
    """The self-check failed: there is no trustworthy answer here."""


def log_mgf(rate, noise, s, direction, density=1.0):
    """log M at complex points ``s`` (all with about the same size): the trapezoidal rule on a Gaussian integrand.

    x is N(0, 1) under Q and log P/Q there is L(x) = log(1 - q + q e^(x/σ - 1/(2σ²))); removing a record has
    M(s) = E_Q[e^((s+1) L)], adding one M(s) = E_Q[e^(-sL)].
    """
    u = s + 1 if direction == "remove" else -s
    real, imaginary = u.real.max(), np.abs(u.imag).max()
    if rate == 1:
        return u * (u - 1) / (2 * noise * noise)
    end = 12.0 + max(real, 0.0) / noise
    x = np.linspace(-12.0, end, 400 + min(math.ceil(4 * end), 10**6))
    size = -x * x / 2 + np.maximum(u.real.min() * _loss(rate, noise, x), real * _loss(rate, noise, x))
    near = x[size > size.max() - 50]
    if not len(near):
        raise Doubtful("out of range")
    low, high = near[0] - 0.5, near[-1] + 0.5
    # Steps for the strip in which the integrand is analytic (πσ wide) and for its oscillation.
    slope = float(_slope(rate, noise, np.linspace(low, high, 257)).max())
    step = min(0.12, 0.12 * noise, 0.7 / (1e-9 + imaginary * slope)) / density
    count = math.ceil((high - low) / step)
    if count > 20_000:
        raise Doubtful(f"the integrand turns too fast: {count} points")
    x = np.linspace(low, high, count + 1)
    spacing = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    loss, normal = _loss(rate, noise, x), -x * x / 2
    out = np.empty(len(u), dtype=complex)
    for i, power in enumerate(u):
        exponent = power * loss
        if float(exponent.real.max()) < 600:
            # Keeps the digits of a mean near 1: the normal density itself integrates to 1.
            out[i] = np.log1p(np.sum(np.exp(normal) * np.expm1(exponent)) * spacing)
        else:
            exponent += normal
            top = float(exponent.real.max())
            out[i] = top + np.log(np.sum(np.exp(exponent - top)) * spacing)
    return out


def _loss(rate, noise, x):
    inner = x / noise - 0.5 / noise / noise
    large = inner > 30
    small = np.log1p(rate * np.expm1(np.where(large, 0.0, inner)))
    # log(1 - q + q e^l) = l + log q + log1p((1-q)/q e^-l)
    rest = inner + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.where(large, inner, 0.0)))
    return np.where(large, rest, small)


def _slope(rate, noise, x):
    inner = x / noise - 0.5 / noise / noise + math.log(rate)
    return np.exp(inner - np.logaddexp(math.log1p(-rate), inner)) / noise


def log_delta(rate, noise, count, epsilon, direction="remove"):
    """log δ(ε) of ``count`` steps in one direction, to about nine digits; `Doubtful` where that cannot be had."""
    saddle, width = _saddle(rate, noise, count, epsilon, direction)
    found = []
    for bend, density in ((0.5, 1.0), (0.3, 1.9), (0.15, 1.2), (0.07, 1.6), (0.03, 1.1), (0.0, 2.1), (0.01, 2.0)):
        try:
            value = _integral(rate, noise, count, epsilon, direction, saddle * (1 + 0.1 * bend), width, bend, density)
        except Doubtful:
            continue
        if any(abs(value - other) < 1e-7 for other in found):
            return value
        found.append(value)
    raise Doubtful(f"{(rate, noise, count, epsilon, direction)}: {found}")


def _saddle(rate, noise, count, epsilon, direction):
    """The s > 0 that minimises log M^T - sε - log s(s+1), and the scale of the integrand there."""

    def height(theta):
        value = count * log_mgf(rate, noise, np.array([theta + 0j]), direction)[0].real
        return value - theta * epsilon - math.log(theta) - math.log1p(theta)

    # Golden section in log θ, after walking downhill from θ = 1; the function is convex in θ.
    middle = 0.0
    here = height(1.0)
    way = -1.0 if height(math.exp(-1.0)) < here else 1.0
    while (there := height(math.exp(middle + way))) < here:
        middle, here = middle + way, there
    low, high = middle - 1.0, middle + 1.0
    golden = (math.sqrt(5) - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = height(math.exp(a)), height(math.exp(b))
    while high - low > 1e-3:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = height(math.exp(a))
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = height(math.exp(b))
    theta = math.exp((low + high) / 2)
    h = 0.02 * theta
    bend = (height(theta + h) - 2 * height(theta) + height(theta - h)) / h / h
    return theta, 1 / math.sqrt(max(bend, 1e-300))


def _integral(rate, noise, count, epsilon, direction, saddle, width, bend, density):
    """log of the integral along s = saddle + width (bend (cosh v - 1) + i sinh v), v from 0 to where it vanishes."""
    step = 0.06 / density
    block, total, peak, at = 8, 0.0, 0.0, 0
    scale = None
    while True:
        v = (at + np.arange(block)) * step
        s = saddle + width * (bend * (np.cosh(v) - 1) + 1j * np.sinh(v))
        move = width * (bend * np.sinh(v) + 1j * np.cosh(v))
        power = count * log_mgf(rate, noise, s, direction, density) - s * epsilon
        scale = power[0].real if scale is None else scale
        values = np.exp(np.minimum(power.real - scale, 500) + 1j * power.imag) * move / (s * (s + 1))
        if at == 0:
            values[0] /= 2
        # Far out M is lost in the rounding of its own integral; by then the integrand has vanished.
        peak = max(peak, float(np.abs(values[:2]).max()))
        done = np.flatnonzero(np.abs(values) < 1e-14 * peak)
        if len(done):
            total += float(np.sum(values[: done[0]]).imag)
            break
        if np.abs(values).max() > 1e6 * peak:
            raise Doubtful("the integrand grows")
        total += float(np.sum(values).imag)
        at += block
        if at * step > 40:
            raise Doubtful("the integrand does not vanish")
    if total <= 1e-9 * peak * step:
        raise Doubtful("cancellation")
    return scale + math.log(total * step / math.pi)


def log_delta_once(rate, noise, epsilon, direction="remove"):
    """log δ(ε) of a single step in closed form, for any real ε."""
    if direction == "remove":
        inner = 1 + math.expm1(epsilon) / rate
        if inner <= 0:
            return math.log(-math.expm1(epsilon)) if epsilon < 0 else -math.inf
        return math.log(rate) + _gaussian(1 / noise, math.log(inner))
    # H_a(Q ‖ (1-q) Q + q P) = (1 - a (1-q)) H_b(Q ‖ P), b = a q / (1 - a (1-q)).
    left = -math.expm1(epsilon + math.log1p(-rate)) if rate < 1 else 1.0
    if left <= 0:
        return -math.inf
    return math.log(left) + _gaussian(1 / noise, epsilon + math.log(rate) - math.log(left))


def _gaussian(shift, epsilon):
    inside = float(log_ndtr(shift / 2 - epsilon / shift))
    ratio = epsilon + float(log_ndtr(-shift / 2 - epsilon / shift)) - inside
    return inside + math.log(-math.expm1(ratio)) if ratio < 0 else -math.inf


def epsilon(rate, noise, count, delta, start=None, directions=DIRECTIONS):
    """The ε ≥ 0 at which δ(ε) = ``delta``, over both directions: a secant search in log δ from ``start``.

    Removing costs more than adding wherever both can be had, so it must be had; adding may be out of reach (its loss
    is bounded, and δ falls off a cliff there).
    """
    answers = []
    for direction in directions:
        try:
            answers.append(_epsilon(rate, noise, count, delta, start, direction))
        except Doubtful:
            if direction == "remove":
                raise
    return max(answers)


def _epsilon(rate, noise, count, delta, start, direction):
    target = math.log(delta)

    def gap(e):
        if count == 1:
            return log_delta_once(rate, noise, e, direction) - target
        return log_delta(rate, noise, count, e, direction) - target

    if direction == "add" and rate < 1:
        # The loss cannot exceed -T log(1-q); at that point δ is 0.
        end = -count * math.log1p(-rate)
        if start is not None and start >= end:
            start = end * 0.999
    low, high = 0.0, math.inf
    e = start if start else 1.0
    before = None
    for _ in range(200):
        value = gap(e)
        if abs(value) < 1e-9:
            return e
        low, high = (e, high) if value > 0 else (low, e)
        if high <= 1e-7:
            return 0.0 if gap(0.0 if count == 1 else 1e-9) <= 0 else high
        if math.isfinite(high) and high - low <= 1e-12 * high:
            return high
        if before is not None and math.isfinite(before[1]) and math.isfinite(value) and before[1] != value:
            guess = e - value * (e - before[0]) / (value - before[1])
        elif math.isfinite(value):
            guess = e * (1 + math.copysign(1e-3, value))
        else:
            guess = (low + e) / 2
        before = (e, value)
        if not low < guess < high:
            guess = (low + high) / 2 if math.isfinite(high) else 2 * max(low, 0.1)
        e = guess
    raise Doubtful("no convergence")
