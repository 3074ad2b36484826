"""Shapes from noisy sums: how much of a measured effect is kept follows from the noise, and from nothing else.

Everything here is post-processing of released numbers. A shape is a vector over cells, measured with known precision.
Its prior says that neighbouring cells are alike: a random walk along ordered bins, independent values for categories,
and both axes together for a pair of columns. How alike they are is the one unknown, and is chosen to make the noisy
measurement most likely (empirical Bayes). Where noise explains everything, the shape becomes flat by itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SCALES = np.exp(np.linspace(-14.0, 6.0, 41))
_RIDGE = 1e-3


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


def of_pair(first: Array, second: Array) -> Array:
    """Return the prior precision of the cells of two columns: neighbours along either axis."""
    return np.kron(first, np.eye(len(second))) + np.kron(np.eye(len(first)), second)


def smoothed(measured: Array, precision: Array, prior: Array | None) -> Array:
    """Return the posterior mean of a shape.

    ``measured`` has a row a cell and a column an output, ``precision`` is one over the noise's variance in each cell,
    ``prior`` a Laplacian, or None for cells that are independent of one another.
    """
    roots = np.sqrt(precision)
    if prior is None:
        stiffness, basis, turned = 1 / precision, None, roots[:, None] * measured
    else:
        stiffness, basis = np.linalg.eigh(prior / roots[:, None] / roots[None, :])
        turned = basis.T @ (roots[:, None] * measured)
    stiffness = np.maximum(stiffness, 0.0)
    # Measured along these directions the noise has variance 1 and the signal ``signal``, a row for every scale.
    signal = _SCALES[:, None] / (stiffness + _RIDGE * stiffness.max() + 1e-300)
    energy = (turned**2).sum(axis=1)
    fits = -0.5 * (measured.shape[1] * np.log1p(signal) + energy / (1 + signal)).sum(axis=1)
    best = signal[int(np.argmax(fits))]
    kept = (best / (1 + best))[:, None] * turned
    shape: Array = (kept if basis is None else basis @ kept) / roots[:, None]
    return shape


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
