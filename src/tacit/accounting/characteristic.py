"""The loss of sampled Gaussian sums through its characteristic function, with every error bounded.

One step's loss is L(x) = log(1 - q + q e^(x/σ - 1/(2σ²))) when a record is removed, and -L(x) when it is added, with x
standard normal when the record is not there. So the moment generating function under the first distribution of the
pair is M(s) = E[e^(u L(x))], u = s + 1 or u = -s, at any complex s = t + iy. A tilt t turns the loss into one with the
density e^(t·loss) / M(t) and the characteristic function M(t + iy) / M(t). A record *replaced* by its opposite has the
loss L(x) - L(-x) and M(s) = E[e^((s+1) L(x) - s L(-x))] (`tacit.accounting.losses.Replaced`).

What is computed and what it can be off by, relative to M(t):

* *The trapezoidal rule.* The integrand φ(x) e^(u L(x)) is analytic for |Im x| < πσ. On the line Im x = d, θ = d/σ,
  |φ| grows by e^(d²/2); |1 - q + q r e^(iθ)| lies between cos(θ/2) (1 - q + q r) and 1 - q + q r, and its argument
  between 0 and θ. So the integral of the modulus along the line is at most
  e^(d²/2 + |y| d/σ) cos(θ/2)^(-n) M(t), n = max(0, -Re u), and the rule with step h is off by at most twice that over
  e^(2πd/h) - 1 (Trefethen & Weideman 2014, Theorem 5.1). `_spacing` makes it e^-`_DIGITS`. For a replaced record the
  two arguments have opposite signs, so that |y| d/σ counts twice, and n = t, from the factor e^(-s L(-x)).
* *The tails.* Beyond the last nodes the logarithm of the integrand at t falls at least like that of a Gaussian beyond
  its mode: for Re u <= 0 it is concave with second derivative at most -1, for Re u > 0 its slope is at least -x below
  0 and at most Re u/σ - x above Re u/σ. So either tail holds at most sqrt(π/2) times the integrand at the last node.
  For a replaced record the slope lies between -x and (2t + 1)/σ - x, and the same holds with 2t + 1 for Re u.
* *The cut.* With rare sampling a tilt that suits the bulk would blow up the far tail of a removed record's loss, which
  hardly ever occurs. So the law may be multiplied by Φ((c - x)/ω) before anything else, and what that takes away is
  counted as infinite loss. This factor is entire, in size at most e^(d²/(2ω²)) times its value at Re x, and its
  logarithm falls at least like -(x - c)²/(2ω²) beyond c; growth and tails above change accordingly.
* *Rounding* of the exponents and of the sums, node by node.
* *Frequencies beyond the last one.* |characteristic function|² is that of the difference of two independent losses.
  Below its density `_layers` finds nested intervals around 0. A uniform law on an interval of length w has
  sin(yw/2)/(yw/2) for its characteristic function, so the square is at most 1 - Σ m_i (1 - sinc(y w_i/2)), m_i the mass
  of layer i: a bound for every y from some y on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from tacit.accounting.effort import OutOfReach, spend
from tacit.accounting.losses import Array
from tacit.accounting.mixture import log_mixture
from tacit.accounting.rounding import COARSE
from tacit.accounting.tilted import Cut, SampledTerms, Tilted

_DIGITS = 40.0
_WIDTH = 9.5
_EPS = float(np.finfo(np.float64).eps)
_MOST_NODES = 1_000_000


@dataclass(frozen=True)
class SampledGaussians(SampledTerms):
    """Sampled Gaussian sums with the bounds of their tails and their tilted laws."""

    def without_tail(self, mass: float, tilt: float) -> SampledGaussians:
        """The same less about ``mass``, if at this tilt a removed record's loss would lie far out in its tail.

        The cut is as sharp as it must be for that, and no sharper: nodes lie closer for a sharper cut.
        """
        if self.added:
            return self
        tail, reach = mass / float(self.counts.sum()), self._power(tilt) / self.noises
        place = np.zeros_like(reach)
        for _ in range(3):
            width = np.clip(1.5 / np.maximum(reach - place, 1e-9), 0.02, 1.0)
            spread = np.sqrt(1 + width**2)
            sampled = 1 / self.noises - spread * ndtri(np.minimum(tail / (2 * self.rates), 0.5))
            place = np.maximum(-spread * ndtri(tail / 2), sampled)
        return replace(self, cut=Cut(place, width)) if (reach > place).any() else replace(self, cut=None)

    def _power(self, tilt: float) -> float:
        """The slope of the exponent far out, times the noise multiplier."""
        return 2 * tilt + 1 if self.replaced else -tilt if self.added else tilt + 1

    @property
    def infinite(self) -> float:
        """Return the mass cut: E[1 - Φ((c - x)/ω)] = Φ((m - c)/sqrt(1 + ω²)) for x of mean m, at most once a step."""
        if self.cut is None:
            return 0.0
        spread = np.sqrt(1 + self.cut.width**2)
        sampled = self.rates * ndtr((1 / self.noises - self.cut.place) / spread)
        return float(self.counts @ (sampled + ndtr(-self.cut.place / spread))) * (1 + 1e-9)

    @property
    def single(self) -> bool:
        """True if there is one sampled sum and nothing else."""
        return self.counts.size == 1 and float(self.counts[0]) == 1 and not self.shift and not self.replaced

    @property
    def largest(self) -> float:
        """No loss is larger."""
        if not self.added or self.shift:
            return math.inf
        return float(-self.counts @ np.log1p(-self.rates)) * (1 + 1e-12)

    def tilted(self, tilt: float, reach: float = 0.0) -> Tilted:
        """The tilted laws, with nodes close enough for frequencies up to ``reach``."""
        rate, noise = self.rates[:, None], self.noises[:, None]
        power = self._power(tilt)
        step = self._spacing(max(tilt if self.replaced else -power, 0.0), reach)
        low, high = self._modes(power)
        nodes = math.ceil(float(((high - low + 2 * _WIDTH) / step).max())) + 2
        if not nodes * len(rate) <= _MOST_NODES:
            raise OutOfReach(f"{nodes} nodes")
        spend(8 * nodes * len(rate))
        x = (low - _WIDTH) + step * np.arange(nodes)
        ratio = x / noise - 0.5 / noise / noise
        loss = log_mixture(rate, ratio)
        square = x * x
        if self.replaced:
            back = -x / noise - 0.5 / noise / noise
            other = log_mixture(rate, back)
            exponent = (tilt + 1) * loss - tilt * other - square / 2
        else:
            exponent = power * loss - square / 2
        if self.cut is not None:
            kept, hurt = self.cut.log(x)
            exponent += kept
            square += hurt
        top = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - top)
        total = weight.sum(axis=1, keepdims=True)
        tails = (weight[:, 0] + weight[:, -1]) * (1.2534 / (total[:, 0] * step[:, 0]))
        weight /= total
        log_mass = top[:, 0] + np.log(total[:, 0] * (step[:, 0] / math.sqrt(2 * math.pi)))
        # The effect of rounding on a loss, and through it on a weight.
        part = np.exp(np.minimum(np.log(rate) + ratio - loss, 0.0))
        size = np.abs(loss)
        if self.replaced:
            part += np.exp(np.minimum(np.log(rate) + back - other, 0.0))
            size += np.abs(other)
            loss = loss - other
        slope = part * (np.abs(x) + 1 / noise) / noise  # how fast the loss changes with the logarithm of the noise
        blur = 4 * _EPS * (size + slope + 4.0 * (rate > 0.5))
        hurt = 4 * _EPS * (square + np.abs(top) + 32) + abs(power) * blur
        loss = -loss if self.added else loss
        mean = (weight * loss).sum(axis=1, keepdims=True)
        missed = tails + 2 * math.exp(-_DIGITS)
        moved = (weight * slope).sum(axis=1) * COARSE * 1.01
        return Tilted(self, tilt, x, weight, loss - mean, mean[:, 0], log_mass, missed, hurt, blur, moved)

    def _spacing(self, fall: float, reach: float) -> Array:
        """The step of the trapezoidal rule; ``fall`` is n of the module's text."""
        noise = self.noises[:, None]
        bend = np.ones_like(noise) if self.cut is None else 1 + self.cut.width[:, None] ** -2
        strip = np.sqrt(_DIGITS / (bend / 2 + fall / (8 * noise * noise)))
        strip = np.minimum(strip, (0.9 if fall > 0 else 0.98) * math.pi * noise)
        reach *= 2 if self.replaced else 1
        growth = bend * strip * strip / 2 + reach * strip / noise - fall * np.log(np.cos(strip / (2 * noise)))
        return np.asarray(2 * math.pi * strip / (_DIGITS + growth + 1))

    def _modes(self, power: float) -> tuple[Array, Array]:
        """Between these lies every mode of the integrand at the tilt."""
        rate, noise = self.rates[:, None], self.noises[:, None]
        if power > 0:
            high = power / noise
            if self.cut is not None:
                inverse = self.cut.width[:, None] ** -2
                high = np.minimum(high, (high + self.cut.place[:, None] * inverse) / (1 + inverse))
            return np.zeros_like(noise), high
        low, high = power / noise, np.zeros_like(noise)
        bias = np.log(rate) - np.log1p(-rate) - 0.5 / noise / noise
        for _ in range(12):
            middle = (low + high) / 2
            slope = 0.5 * (1 + np.tanh((middle / noise + bias) / 2)) / noise
            left = power * slope > middle
            low, high = np.where(left, middle, low), np.where(left, high, middle)
            if float((high - low).max()) < 0.5:
                break
        return low, high
