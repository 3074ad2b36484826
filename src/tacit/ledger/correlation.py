"""Strategies of the matrix mechanism: how the noise of a step depends on that of earlier steps.

A strategy is a lower-triangular matrix C. With z the fresh noise of every step, independent and of one standard
deviation, the noise added to the sums is C^-1 z, so that what is released, multiplied by C, is C·sums + z: one Gaussian
mechanism over all steps (Denisov et al. 2022). Five strategies are Toeplitz, C[t, i] = c[t-i], with c_0 = 1:

* ``"banded"``: the parameters are c_0 = 1, c_1, ..., all others are zero;
* ``"banded-inverse"``: the parameters are d_0 = 1, d_1, ... of C^-1, all others are zero;
* ``"sparse-inverse"``: C^-1 has d_0 = 1 and few other coefficients; the parameters are d_(l_1), ..., d_(l_m), how much
  of the fresh noise of l_1, ..., l_m steps ago is added, and l_1, ..., l_m;
* ``"buffered"``: c_i = sum_j w_j r_j^(i-1) for i > 0, with parameters w_1, ..., w_m, r_1, ..., r_m (Dvijotham et al.
  2024);
* ``"square-root"``: C times C is the matrix of prefix sums (Fichtenberger, Henzinger & Upadhyay 2023); no parameters.

``"tree"`` has a row for each node of a binary tree over the steps (Dwork et al. 2010): the prefix sum at t is made of
the nodes of t's binary digits, each the sum of its steps with noise of its own; no parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STRATEGIES = ("banded", "banded-inverse", "sparse-inverse", "buffered", "square-root", "tree")


Fitted = tuple[str, tuple[float, ...]]
"""A strategy's name and its parameters."""


@runtime_checkable
class Correlation(Protocol):
    """A strategy whose parameters are still to be fitted to a run (`tacit.mechanisms.strategies`)."""

    def choices(self, records: int, lot_size: int) -> tuple[int, ...]:
        """Return the numbers of groups to choose among; the last one is taken where the noise is given."""
        ...

    def with_groups(self, groups: int) -> Correlation:
        """Return the same strategy with so many groups."""
        ...

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        """Return the strategy for so many steps, if a record may take part in every ``groups``-th, at this rate."""
        ...

    def error(self, fitted: Fitted, steps: int) -> float:
        """Return how far the prefix sums of the noise deviate, for fresh noise of deviation 1."""
        ...


def check_strategy(strategy: str, parameters: Sequence[float]) -> None:
    """Refuse a strategy that is not one of `STRATEGIES` with parameters as described above."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; choose one of {', '.join(STRATEGIES)}.")
    plain = all(isinstance(each, int | float) and not isinstance(each, bool) for each in parameters)
    if not plain or not all(abs(each) <= 1e6 for each in parameters):
        raise ValueError(f"parameters are {list(parameters)[:8]}; they must be numbers from -1e6 to 1e6.")
    if strategy in ("square-root", "tree"):
        if parameters:
            raise ValueError(f"the {strategy} strategy has no parameters; leave out {list(parameters)[:8]}.")
    elif strategy == "sparse-inverse":
        half, odd = divmod(len(parameters), 2)
        places = parameters[half:]
        if odd or any(place != int(place) for place in places) or [0, *places] != sorted({0, *places}):
            raise ValueError(
                f"parameters are {list(parameters)[:8]}; give coefficients and as many lags, whole numbers that grow "
                "from 1 on."
            )
    elif strategy == "buffered":
        half, odd = divmod(len(parameters), 2)
        weights, decays = parameters[:half], parameters[half:]
        if odd or not half or min(weights) < 0 or min(decays) < 0 or max(decays) >= 1:
            raise ValueError(
                f"parameters are {list(parameters)[:8]}; give weights of at least 0 and as many decays in [0, 1)."
            )
    elif not parameters or parameters[0] != 1:
        raise ValueError(f"parameters are {list(parameters)[:8]}; the first one, the diagonal, must be 1.")


def coefficients(strategy: str, parameters: Sequence[float], steps: int) -> Floats:
    """Return c_0, ..., c_(steps-1) of a Toeplitz strategy: the first column of C.

    >>> coefficients("square-root", (), 4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    if strategy == "banded":
        return _padded(parameters, steps)
    if strategy == "banded-inverse":
        return _reciprocal(_padded(parameters, steps), len(parameters))
    if strategy == "sparse-inverse":
        return _sparse_reciprocal(lags(strategy, parameters, steps)[1:], steps)
    if strategy == "buffered":
        half = len(parameters) // 2
        powers = np.asarray(parameters[half:])[None, :] ** np.arange(steps - 1)[:, None]
        return np.concatenate([[1.0], powers @ np.asarray(parameters[:half])])[:steps]
    if strategy == "square-root":
        ratios = 1 - 0.5 / np.arange(1, steps)
        return np.concatenate([[1.0], np.cumprod(ratios)])
    raise ValueError(f"strategy is {strategy!r}; it is not a Toeplitz matrix.")


def inverse_coefficients(strategy: str, parameters: Sequence[float], steps: int) -> Floats:
    """Return the first column of C^-1 of a Toeplitz strategy: how much of the fresh noise of i steps ago is added.

    >>> inverse_coefficients("square-root", (), 4).tolist()
    [1.0, -0.5, -0.125, -0.0625]
    """
    if strategy == "banded-inverse":
        return _padded(parameters, steps)
    if strategy == "sparse-inverse":
        found = np.zeros(steps)
        for lag, weight in lags(strategy, parameters, steps):
            found[lag] = weight
        return found
    if strategy == "square-root":
        number = np.arange(1, steps)
        return np.concatenate([[1.0], np.cumprod((number - 1.5) / number)])
    return _reciprocal(coefficients(strategy, parameters, steps), len(parameters) if strategy == "banded" else steps)


def lags(strategy: str, parameters: Sequence[float], steps: int) -> list[tuple[int, float]]:
    """Return (lag, coefficient) of C^-1 where it is not zero, for lags below ``steps``.

    >>> lags("sparse-inverse", (-0.5, -0.25, 1, 4), 4)
    [(0, 1.0), (1, -0.5)]
    """
    if strategy == "sparse-inverse":
        half = len(parameters) // 2
        pairs = zip(parameters[half:], parameters[:half], strict=True)
        return [(0, 1.0), *((int(lag), float(weight)) for lag, weight in pairs if lag < steps)]
    width = min(len(parameters), steps) if strategy == "banded-inverse" else steps
    return list(enumerate(inverse_coefficients(strategy, parameters, width).tolist()))


def nodes_after(steps: int) -> list[tuple[int, int]]:
    """Return the nodes of the tree whose sum is the prefix sum after ``steps`` steps, as (first step, level).

    >>> nodes_after(6)
    [(0, 2), (4, 1)]
    """
    nodes, first = [], 0
    for level in reversed(range(steps.bit_length())):
        if steps >> level & 1:
            nodes.append((first, level))
            first += 1 << level
    return nodes


def _padded(values: Sequence[float], steps: int) -> Floats:
    return np.concatenate([np.asarray(values[:steps], dtype=np.float64), np.zeros(max(steps - len(values), 0))])


def _reciprocal(series: Floats, bands: int) -> Floats:
    """The power series 1 / (s_0 + s_1 x + ...), s_0 = 1, of which the first ``bands`` terms are not zero."""
    found = np.zeros(len(series))
    found[0] = 1.0
    tail = series[1:bands][::-1]
    for t in range(1, len(series)):
        width = min(t, len(tail))
        found[t] = -float(tail[len(tail) - width :] @ found[t - width : t])
    return found


def _sparse_reciprocal(pairs: Sequence[tuple[int, float]], steps: int) -> Floats:
    """The power series 1 / (1 + sum of w x^lag): c_t = - sum of w c_(t - lag), in plain numbers, which is quick."""
    found = [1.0]
    for t in range(1, steps):
        found.append(-sum([weight * found[t - lag] for lag, weight in pairs if lag <= t]))
    return np.array(found)
