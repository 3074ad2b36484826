"""Strategies for correlated noise, fitted to the number of steps and to how often a record comes back.

`make_private(noise=BandedToeplitz(bands=8), sampling="cyclic", ...)` fits the strategy to the run. What is made small
is the error of the prefix sums of the gradients, which is where SGD's parameters come from: its mean square over the
steps (or, with ``objective="max"``, its largest), times the square of the sensitivity. A fit changes how useful the
noise is and never what is promised: the ledger has the coefficients, and the accountants read them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

from tacit.ledger.correlation import Fitted, Floats, coefficients, inverse_coefficients

Objective = Literal["mean", "max"]


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz:
    """C is a Toeplitz matrix of ``bands`` bands, with amplification by sampling (Choquette-Choo et al. 2023).

    The records are divided into as many groups as there are bands (or into ``groups``, if more are given). One band is
    DP-SGD. More bands cancel more of the noise and leave less of the amplification. Memory: bands - 1 copies of the
    model, because each step's noise depends on all earlier fresh noise; `SparseInverse` needs none.
    """

    bands: int
    groups: int | None = None
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        _check("bands", self.bands, self.groups)
        if self.groups is not None and self.groups < self.bands:
            raise ValueError(f"groups is {self.groups}; it must be at least the number of bands, {self.bands}.")

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or self.bands, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "banded", _banded(min(self.bands, steps), steps, self.objective)


@dataclass(frozen=True, kw_only=True)
class BandedInverse:
    """C^-1 is a Toeplitz matrix of ``bands`` bands: the noise is made of the fresh noise of the last ``bands`` steps.

    The fresh noise of past steps is made again from the key of the block (Kalinin et al. 2025 call the factorisation
    banded inverse). Memory: a key of 32 bytes, whatever the size of the model; time: ``bands`` times the noise. By
    default each record takes part once an epoch; with fewer ``groups`` it takes part at random, and what the noise has
    in common beyond the group's next turn is charged (`tacit.accounting.correlated`).
    """

    bands: int
    groups: int | None = None
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        _check("bands", self.bands, self.groups)

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or records // lot_size, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        lags = tuple(range(1, min(self.bands, steps)))
        return "banded-inverse", (1.0, *_inverse(lags, steps, groups, rate <= 0.5, self.objective))


@dataclass(frozen=True, kw_only=True)
class SparseInverse:
    """C^-1 is a Toeplitz matrix with few coefficients: for the fresh noise of 1, growth, growth², ... steps ago.

    What `noise="correlated"` means. Near lags take back most of the last steps' noise, far ones the slow rest, which a
    band of as many neighbouring lags cannot reach: with ``growth`` 4, seven coefficients are within 2.5 % of the best
    Toeplitz matrix for 1,000 steps, and with 2, eleven within 0.6 %. The fresh noise of past steps is made again from
    the key of the block. Memory: a key of 32 bytes, whatever the size of the model and the number of steps; time:
    log(steps) / log(growth) times the noise. Sampling and ``groups`` as with `BandedInverse`.
    """

    growth: int = 4
    groups: int | None = None
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        _check("growth", self.growth, self.groups)
        if self.growth < 2:
            raise ValueError(f"growth is {self.growth}; it must be at least 2: use BandedInverse for lags in a row.")

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or records // lot_size, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        lags = [1] if steps > 1 else []
        while lags and lags[-1] < steps / 2 and lags[-1] * self.growth < steps:
            lags.append(lags[-1] * self.growth)
        return "sparse-inverse", (*_inverse(tuple(lags), steps, groups, rate <= 0.5, self.objective), *map(float, lags))


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitz:
    """C is a buffered linear Toeplitz matrix: its coefficients are a sum of ``buffers`` decaying exponentials.

    Close to the best Toeplitz matrix with three to five buffers, at a cost that does not depend on the number of
    steps (Dvijotham et al. 2024, McMahan, Xu & Zhang 2024). Memory: one copy of the model for each buffer.
    """

    buffers: int = 4
    groups: int | None = None
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        _check("buffers", self.buffers, self.groups)

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or records // lot_size, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "buffered", _buffered(self.buffers, steps, groups, self.objective)


@dataclass(frozen=True, kw_only=True)
class SquareRoot:
    """C is the square root of the matrix of prefix sums: the least largest error of a Toeplitz matrix for one turn.

    Memory: a key of 32 bytes; time: the noise of all steps so far, at every step. For comparison and for short runs;
    `BufferedToeplitz` comes within a percent of it.
    """

    groups: int | None = None

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or records // lot_size, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "square-root", ()


@dataclass(frozen=True, kw_only=True)
class TreeAggregation:
    """The noise of binary tree aggregation (Kairouz et al. 2021), the baseline of the others.

    Memory: a key of 32 bytes; time: twice the noise on average.
    """

    groups: int | None = None

    def groups_of(self, records: int, lot_size: int) -> int:
        return _enough(self.groups or records // lot_size, records, lot_size)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "tree", ()


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
        summed = lfilter(*_ratio(parameters), np.ones(steps))
    elif strategy == "banded":
        summed = lfilter([1.0], parameters, np.ones(steps))
    else:
        summed = np.cumsum(inverse_coefficients(strategy, parameters, steps))
    return math.sqrt(float(np.sum(weights * summed**2)))


def _weights(steps: int, objective: Objective) -> Floats:
    """How often coefficient i of the prefix sums' noise counts: in steps i, i + 1, ... of the mean, or in the last."""
    if objective not in ("mean", "max"):
        raise ValueError(f"objective is {objective!r}; choose 'mean' or 'max'.")
    return (steps - np.arange(steps)) / steps if objective == "mean" else np.ones(steps)


@lru_cache(maxsize=64)
def _banded(bands: int, steps: int, objective: Objective) -> tuple[float, ...]:
    """The coefficients c that make error times column norm least, by L-BFGS with the exact gradient.

    The prefix sums' noise has the series e = 1 / ((1 - x) c(x)); its derivative by c_j is -x^j e / c.
    """
    weights = _weights(steps, objective)

    def value(free: Floats) -> tuple[float, Floats]:
        column = np.concatenate([[1.0], free])
        summed = lfilter([1.0], column, np.ones(steps))
        again = lfilter([1.0], column, summed)
        error, norm = float(np.sum(weights * summed**2)), float(np.sum(column**2))
        weighted = weights * summed
        slope = np.array([-2 * (weighted[lag:] @ again[: steps - lag]) for lag in range(1, bands)])
        return math.log(error) + math.log(norm), slope / error + 2 * free / norm

    start = coefficients("square-root", (), bands)[1:]
    if not len(start):
        return (1.0,)
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-13}).x
    return (1.0, *_single(found))


@lru_cache(maxsize=64)
def _inverse(lags: tuple[int, ...], steps: int, groups: int, sampled: bool, objective: Objective) -> tuple[float, ...]:
    """The coefficients of C^-1 at the lags that make error times sensitivity least, by L-BFGS with the exact gradient.

    With c = 1 / d, the derivative of c by the coefficient at lag j is -x^j c², and that of the prefix sums' noise, the
    running sum of d, is one from step j on.
    """
    weights, rounds, places = _weights(steps, objective), -(-steps // groups), np.array(lags, dtype=np.int64)
    if not lags:
        return ()

    def value(free: Floats) -> tuple[float, Floats]:
        inverse = np.zeros(steps)
        inverse[0], inverse[places] = 1.0, free
        with np.errstate(over="ignore", invalid="ignore"):  # of a trial that grows without bound, refused below
            column, summed = _reciprocal(inverse), np.cumsum(inverse)
        if not np.abs(column).max() < 1e6:
            return 1e6, np.zeros(len(free))
        if sampled:
            head, tail = float(np.linalg.norm(column[:groups])), float(np.linalg.norm(column[groups:]))
            shift = head + math.sqrt(rounds) * tail
            by_column = column / head
            by_column[groups:] = math.sqrt(rounds) * column[groups:] / max(tail, 1e-300)
        else:
            total = _repeated(np.abs(column), groups)
            shift = float(np.linalg.norm(total))
            by_column = _repeated(total[::-1], groups)[::-1] / shift * np.sign(column)
        squared = fftconvolve(column, column)[:steps]
        error = float(np.sum(weights * summed**2))
        ahead = np.cumsum((weights * summed)[::-1])[::-1]
        slope = [2 * ahead[lag] / error - 2 * (by_column[lag:] @ squared[: steps - lag]) / shift for lag in lags]
        return math.log(error) + 2 * math.log(shift), np.array(slope)

    rounds_of_fit = 400 if steps <= 20_000 else 40  # a longer run's fit would take longer than it gains
    ideal = np.cumsum(inverse_coefficients("square-root", (), steps))
    ends = [*((lag + after) // 2 for lag, after in pairwise(lags)), min(lags[-1] * 3 // 2, steps - 1)]
    start = 0.9 * np.diff(ideal[[0, *ends]])
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": rounds_of_fit, "ftol": 1e-12})
    return _single(found.x if found.fun <= value(start)[0] else start)


def _reciprocal(series: Floats) -> Floats:
    """The power series 1 / series by Newton's method, each round twice as long: quick, and good enough for a fit."""
    found = np.ones(1)
    while len(found) < len(series):
        size = min(2 * len(found), len(series))
        product = fftconvolve(found, series[:size])[:size]
        found = 2 * np.pad(found, (0, size - len(found))) - fftconvolve(found, product)[:size]
    return np.asarray(found)


@lru_cache(maxsize=64)
def _buffered(buffers: int, steps: int, groups: int, objective: Objective) -> tuple[float, ...]:
    weights = _weights(steps, objective)

    def parameters(free: Floats) -> tuple[float, ...]:
        decays = 1 / (1 + np.exp(-np.clip(free[buffers:], -30, 16)))
        return (*np.exp(np.clip(free[:buffers], -30, 5)), *decays)

    def value(free: Floats) -> float:
        given = parameters(free)
        summed = lfilter(*_ratio(given), np.ones(steps))
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
    found = minimize(value, start, method="L-BFGS-B", jac="3-point", options=options)
    return np.asarray(found.x if found.fun <= value(start) else start)


def _check(name: str, value: int, groups: int | None) -> None:
    for what, number in {name: value, "groups": groups}.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{what} is {number!r}; it must be a whole number, at least 1.")
    if value > 1024:
        raise ValueError(f"{name} is {value}; use at most 1024.")


def _enough(groups: int, records: int, lot_size: int) -> int:
    if groups * lot_size > records:
        raise ValueError(
            f"{groups} groups of {records} records have fewer than {lot_size} records each, the size of a lot; use at "
            f"most {records // lot_size} groups (and bands), or smaller lots."
        )
    return groups
