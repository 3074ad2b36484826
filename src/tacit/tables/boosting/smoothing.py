"""Shapes from noisy sums: how much of a measured effect is kept follows from the noise, and from nothing else.

Everything here is post-processing of released numbers. A shape is a vector over cells, measured with known precision.
Its prior says that neighbouring cells are alike: a random walk along ordered bins, or one whose slope changes little;
independent values for categories, and both axes together for a pair of columns. Which of the two walks, and how alike
cells are, is chosen to make the noisy measurement most likely (empirical Bayes). Where noise explains everything, the
shape becomes flat by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SCALES = np.exp(np.linspace(-20.0, 6.0, 53))


@dataclass(frozen=True, eq=False)
class Prior:
    """A prior of a shape: the precision of its cells, a matrix up to its scale, and what is added to its diagonal."""

    precision: Array
    ridge: float = 1e-3
    """As a share of the stiffest direction's precision."""


def neighbours(size: int, *, ordered: bool, missing: bool) -> Array:
    """Return the prior precision of a column's cells, up to its scale: the Laplacian of who is whose neighbour.

    ``missing``: the first cell is for missing entries. It has no neighbour, and is drawn to zero instead.
    """
    first = 1 if missing else 0
    found = np.zeros((size, size))
    inner = size - first
    if ordered:
        places = np.arange(first, size - 1)
        found[places, places] += 1
        found[places + 1, places + 1] += 1
        found[places, places + 1] -= 1
        found[places + 1, places] -= 1
        if inner > 2:  # a straight line from the first cell to the last costs nothing, like a constant
            ends = np.zeros(size)
            ends[first], ends[-1] = -1.0, 1.0
            found -= np.outer(ends, ends) / (inner - 1)
    else:
        found[first:, first:] = np.eye(inner) - 1 / max(inner, 1)
    if missing:
        found[0, 0] = 1
    return found


def bends(size: int, *, missing: bool) -> Prior:
    """Return the prior of an ordered column's cells by which a change of slope costs something, and a slope nothing.

    Slow waves cost as little as the fourth power of their frequency, hence the small ridge.
    """
    first = 1 if missing else 0
    found = np.zeros((size, size))
    second = np.diff(np.eye(size - first), n=2, axis=0)
    found[first:, first:] = second.T @ second
    if missing:
        found[0, 0] = 1
    return Prior(found, ridge=1e-6)


def of_pair(first: Array, second: Array) -> Array:
    """Return the prior precision of the cells of two columns: neighbours along either axis."""
    return np.kron(first, np.eye(len(second))) + np.kron(np.eye(len(first)), second)


def smoothed(measured: Array, precision: Array, priors: Sequence[Prior]) -> Array:
    """Return the posterior mean of a shape under the one of ``priors`` that makes the measurement most likely.

    ``measured`` has a row a cell and a column an output, ``precision`` is one over the noise's variance in each cell.
    With no prior, cells are independent of one another.
    """
    roots = np.sqrt(precision)
    if not priors:
        _, kept = _posterior(1 / precision, Prior.ridge, roots[:, None] * measured)
        return kept / roots[:, None]
    best, shape = -np.inf, measured
    for prior in priors:
        stiffness, basis = np.linalg.eigh(prior.precision / roots[:, None] / roots[None, :])
        fit, kept = _posterior(np.maximum(stiffness, 0.0), prior.ridge, basis.T @ (roots[:, None] * measured))
        if fit > best:
            best, shape = fit, (basis @ kept) / roots[:, None]
    return shape


def _posterior(stiffness: Array, ridge: float, turned: Array) -> tuple[float, Array]:
    """Return the log-likelihood at the best scale, and what is kept of measurements whose noise has variance 1."""
    signal = _SCALES[:, None] / (stiffness + ridge * stiffness.max() + 1e-300)  # a row for every scale
    energy = (turned**2).sum(axis=1)
    fits = -0.5 * (turned.shape[1] * np.log1p(signal) + energy / (1 + signal)).sum(axis=1)
    place = int(np.argmax(fits))
    return float(fits[place]), (signal[place] / (1 + signal[place]))[:, None] * turned


def evidence(sums: Array, noise: Array, slope: Array, sizes: tuple[int, ...]) -> float:
    """Return how much likelier a pair's sums are if its columns act together than if there is only noise.

    ``noise`` is the variance of a cell's sum without an effect, ``slope`` how much an effect of 1 would add to it. What
    the rows and columns of the pair explain by themselves is taken away first. The size of the effects is chosen to fit
    best; the answer is a difference of log-likelihoods, at least 0.
    """
    shape = (*sizes, sums.shape[1])
    weight = slope.reshape(*sizes, 1)
    effect = (sums / slope[:, None]).reshape(shape)
    for _ in range(3):
        for axis in range(len(sizes)):
            effect = effect - (weight * effect).sum(axis=axis, keepdims=True) / weight.sum(axis=axis, keepdims=True)
    energy = ((weight * effect) ** 2).sum(axis=-1).reshape(-1)
    outputs = sums.shape[1] * np.prod([1 - 1 / size for size in sizes])  # what is left of each cell's freedom
    with_effect = noise + slope**2 * np.exp(np.linspace(-8.0, 2.0, 21))[:, None]
    gains = -0.5 * (outputs * np.log(with_effect / noise) + energy * (1 / with_effect - 1 / noise)).sum(axis=1)
    return max(float(gains.max()), 0.0)


def settled_counts(noisy: Array, expected: Array, std: float, records: float) -> Array:
    """Return counts of cells that add up to ``records``: noisy ones, drawn to what is expected as far as noise asks.

    None is below a tenth of what was expected, nor below 1, so that nothing is divided by noise.
    """
    spread = max(float(((noisy - expected) ** 2).mean()) - std**2, 0.0)
    found = expected + spread / (spread + std**2) * (noisy - expected)
    found = np.maximum(found, np.maximum(0.1 * expected, 1.0))
    settled: Array = found * (records / found.sum())
    return settled
