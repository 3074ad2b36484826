"""Fits of strategies for correlated noise: the error of the prefix sums times the sensitivity, made small.

For strategies by name and parameters (`tacit.ledger.correlation`); `tacit.mechanisms.strategies` has them as settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy  # its parts load when they are used: a run without correlated noise needs neither optimize nor signal

from tacit.ledger.correlation import Fitted, Floats, coefficients, inverse_coefficients

Objective = Literal["mean", "max"]


def prefix_sum_error(fitted: Fitted, steps: int, objective: Objective = "mean") -> float:
    """Return the root mean square (or largest) deviation of the prefix sums' noise, for fresh noise of deviation 1.

    >>> round(prefix_sum_error(("square-root", ()), 1000, "max"), 4)  # times the same norm of C it is 3.265
    1.8069
    """
    strategy, parameters = fitted
    weights = _weights(steps, objective)
    if strategy == "tree":
        counts = np.array([number.bit_count() for number in range(1, steps + 1)])
        return math.sqrt(counts.mean() if objective == "mean" else counts.max())
    if strategy == "buffered":
        summed = scipy.signal.lfilter(*_ratio(parameters), np.ones(steps))
    elif strategy == "banded":
        summed = scipy.signal.lfilter([1.0], parameters, np.ones(steps))
    else:
        summed = np.cumsum(inverse_coefficients(strategy, parameters, steps))
    return math.sqrt(float(np.sum(weights * summed**2)))


def _weights(steps: int, objective: Objective) -> Floats:
    """How often coefficient i of the prefix sums' noise counts: in steps i, i + 1, ... of the mean, or in the last."""
    if objective not in ("mean", "max"):
        raise ValueError(f"objective is {objective!r}; choose 'mean' or 'max'.")
    return (steps - np.arange(steps)) / steps if objective == "mean" else np.ones(steps)


def sampled(rate: float) -> bool:
    """Return True if a strategy is fitted to amplification by sampling at this rate."""
    return rate <= 0.5


@lru_cache(maxsize=64)
def fit_banded(bands: int, steps: int, objective: Objective) -> tuple[float, ...]:
    """Return the coefficients c that make error times column norm least, by L-BFGS with the exact gradient.

    The prefix sums' noise has the series e = 1 / ((1 - x) c(x)); its derivative by c_j is -x^j e / c.
    """
    weights = _weights(steps, objective)

    def value(free: Floats) -> tuple[float, Floats]:
        column = np.concatenate([[1.0], free])
        with np.errstate(over="ignore", invalid="ignore"):  # of a trial that grows without bound
            summed = scipy.signal.lfilter([1.0], column, np.ones(steps))
            again = scipy.signal.lfilter([1.0], column, summed)
        if not np.abs(again).max() < 1e100:
            return 1e6, np.zeros(len(free))
        error, norm = float(np.sum(weights * summed**2)), float(np.sum(column**2))
        weighted = weights * summed
        slope = np.array([-2 * (weighted[lag:] @ again[: steps - lag]) for lag in range(1, bands)])
        return math.log(error) + math.log(norm), slope / error + 2 * free / norm

    start = coefficients("square-root", (), bands)[1:]
    if not len(start):
        return (1.0,)
    found = scipy.optimize.minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-13}
    ).x
    return (1.0, *_single(found))


@lru_cache(maxsize=64)
def fit_inverse(
    lags: tuple[int, ...], steps: int, groups: int, amplified: bool, objective: Objective
) -> tuple[float, ...]:
    """Return the coefficients of C^-1 at the lags that make error times sensitivity least, by L-BFGS.

    With c = 1 / d, the derivative of c by the coefficient at lag j is -x^j c², and that of the prefix sums' noise, the
    running sum of d, is one from step j on.
    """
    weights, places = _weights(steps, objective), np.array(lags, dtype=np.int64)
    if not lags:
        return ()

    def value(free: Floats) -> tuple[float, Floats]:
        inverse = np.zeros(steps)
        inverse[0], inverse[places] = 1.0, free
        with np.errstate(over="ignore", invalid="ignore"):  # of a trial that grows without bound, refused below
            column, summed = _reciprocal(inverse), np.cumsum(inverse)
        if not np.abs(column).max() < 1e6:
            return 1e6, np.zeros(len(free))
        if amplified:
            norms = np.sqrt(np.add.reduceat(column * column, np.arange(0, steps, groups)))
            shift = float(norms.sum())
            by_column = column / np.maximum(np.repeat(norms, groups)[:steps], 1e-300)
        else:
            total = _repeated(np.abs(column), groups)
            shift = float(np.linalg.norm(total))
            by_column = _repeated(total[::-1], groups)[::-1] / shift * np.sign(column)
        squared = scipy.signal.fftconvolve(column, column)[:steps]
        error = float(np.sum(weights * summed**2))
        ahead = np.cumsum((weights * summed)[::-1])[::-1]
        slope = [2 * ahead[lag] / error - 2 * (by_column[lag:] @ squared[: steps - lag]) / shift for lag in lags]
        return math.log(error) + 2 * math.log(shift), np.array(slope)

    rounds_of_fit = 400 if steps <= 20_000 else 40  # a longer run's fit would take longer than it gains
    ideal = coefficients("square-root", (), steps)
    if amplified:
        ideal[groups:] = 0.0
    ideal = np.cumsum(_reciprocal(ideal))
    ends = [*((lag + after) // 2 for lag, after in pairwise(lags)), min(lags[-1] * 3 // 2, steps - 1)]
    start = 0.9 * np.diff(ideal[[0, *ends]])
    found = scipy.optimize.minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": rounds_of_fit, "ftol": 1e-12}
    )
    return _single(found.x if found.fun <= value(start)[0] else start)


def _reciprocal(series: Floats) -> Floats:
    """The power series 1 / series by Newton's method, each round twice as long: quick, and good enough for a fit."""
    found = np.ones(1)
    while len(found) < len(series):
        size = min(2 * len(found), len(series))
        product = scipy.signal.fftconvolve(found, series[:size])[:size]
        found = 2 * np.pad(found, (0, size - len(found))) - scipy.signal.fftconvolve(found, product)[:size]
    return np.asarray(found)


@lru_cache(maxsize=64)
def fit_buffered(buffers: int, steps: int, groups: int, objective: Objective) -> tuple[float, ...]:
    """Return the weights and decays of the buffers that make error times sensitivity least, by L-BFGS."""
    weights = _weights(steps, objective)

    def parameters(free: Floats) -> tuple[float, ...]:
        decays = 1 / (1 + np.exp(-np.clip(free[buffers:], -30, 16)))
        return (*np.exp(np.clip(free[:buffers], -30, 5)), *decays)

    def value(free: Floats) -> float:
        given = parameters(free)
        summed = scipy.signal.lfilter(*_ratio(given), np.ones(steps))
        shift = np.linalg.norm(_repeated(coefficients("buffered", given, steps), groups))
        return math.log(float(np.sum(weights * summed**2))) + 2 * math.log(float(shift))

    remoteness = np.geomspace(min(0.5, 2 / steps), 0.7, buffers)  # 1 - decay, from the whole run to a step or two
    start = np.concatenate([np.log(np.full(buffers, 0.5 / buffers)), np.log(1 / remoteness - 1)])
    return _single(parameters(_least(value, start)))


def _ratio(parameters: tuple[float, ...]) -> tuple[Floats, Floats]:
    """1 / c(x) of buffers as a ratio of polynomials, numerator first."""
    half = len(parameters) // 2
    weights, decays = np.asarray(parameters[:half]), np.asarray(parameters[half:])
    product = np.poly(decays)
    others = np.sum([weight * np.poly(np.delete(decays, j)) for j, weight in enumerate(weights)], axis=0)
    return np.asarray(product, dtype=np.float64), np.asarray(product + np.concatenate([[0.0], others]))


def _repeated(column: Floats, groups: int) -> Floats:
    """The sum of the columns of a group's steps."""
    total = np.zeros(len(column))
    for first in range(0, len(column), groups):
        total[first:] += column[: len(column) - first]
    return total


def _single(values: Sequence[float] | Floats) -> tuple[float, ...]:
    """The values as the noise is made with them, so that the ledger has the strategy that is used.

    The decays of buffers are taken to powers as high as the number of steps, and their rounding with them.
    """
    return tuple(float(value) for value in np.asarray(values, dtype=np.float32))


def _least(value: Callable[[Floats], float], start: Floats) -> Floats:
    if not len(start):
        return start
    options = {"maxiter": 400, "maxfun": 20_000, "ftol": 1e-10}
    found = scipy.optimize.minimize(value, start, method="L-BFGS-B", jac="3-point", options=options)
    return np.asarray(found.x if found.fun <= value(start) else start)
