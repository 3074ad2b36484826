"""One sampled Gaussian sum, in closed form.

With q the rate, P = N(shift, 1), Q = N(0, 1) and c = e^ε, a record removed gives

    ((1-q) Q + q P - c Q)_+ = q (P - e^l Q)_+,      e^l = (c - 1 + q) / q,

so that δ(ε) = q δ_Gauss(l). A record added never costs more: for any test with true-positive rate α and false-positive
rate β, q α - (c-1+q) β exceeds (1 - c (1-q)) α - c q β, which is what the added record's test wins after the reflection
that exchanges P and Q, by (c-1) (1-q) (α-β), and the best tests have α >= β.
"""

from __future__ import annotations

import math
import sys

from tacit.accounting import gaussian
from tacit.accounting.characteristic import SampledGaussians
from tacit.accounting.composition import Interval
from tacit.accounting.rounding import COARSE

_EPS = sys.float_info.epsilon


def epsilon(losses: SampledGaussians, delta: float) -> Interval:
    """Bounds on the least ε >= 0 with δ(ε) <= delta; for an added record those of a removed one, from above only."""
    rate, shift = float(losses.rates[0]), 1 / float(losses.noises[0])
    if delta * (1 - 4 * _EPS) >= rate:
        return Interval(0.0, 0.0)

    upper = _sampled(gaussian.epsilon(shift, delta / rate * (1 - 4 * _EPS)), rate) * (1 + 1e-12)
    if losses.added:
        return Interval(upper, 0.0)
    low = gaussian.epsilon(shift * (1 - COARSE), min(delta / rate * (1 + 4 * _EPS), 1 - _EPS), -1)
    return Interval(upper, _sampled(low, rate) * (1 - 1e-9))


def delta(losses: SampledGaussians, epsilon: float) -> Interval:
    """Bounds on δ(epsilon); the upper one never 0 by underflow."""
    rate, shift = float(losses.rates[0]), 1 / float(losses.noises[0])
    unsampled = _unsampled(epsilon, rate)
    # One in a hundred million millions of the loss, for its rounding.
    high, low = unsampled * (1 - 1e-14), unsampled * (1 + 1e-14)
    upper = math.exp(min(gaussian.log_delta(shift, high), 0.0)) * rate * (1 + 1e-9)
    upper = min(max(upper, sys.float_info.min), 1.0)
    if losses.added:
        return Interval(upper, 0.0)
    return Interval(upper, math.exp(gaussian.log_delta(shift * (1 - COARSE), low, -1)) * rate * (1 - 1e-9))


def _sampled(loss: float, rate: float) -> float:
    """log(1 - q + q e^loss) for loss >= 0."""
    if loss < 30:
        return math.log1p(rate * math.expm1(loss))
    far = math.exp(-loss) * (1 - rate) / rate
    return loss + math.log(rate) + math.log1p(far) if far < 1 else math.log1p(rate * math.exp(loss))


def _unsampled(loss: float, rate: float) -> float:
    """The inverse of `_sampled`."""
    if loss < 30:
        return math.log1p(math.expm1(loss) / rate)
    return loss - math.log(rate) + math.log1p((rate - 1) * math.exp(-loss))
