"""Residuals of a boosted model: what is left to explain of a record, and how much it can be at most."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.tables.encoding import UNKNOWN

Array = NDArray[np.float64]

_STRIDE, _LEAST_EVIDENCE = 4.0, 4.0
"""The step and the least evidence of the losses for classes, in log-odds."""
_LASTING = 0.25
"""Much of a residual is explained by other columns in the next look; what decides between two classes is mostly not."""


class Loss(Protocol):
    """A loss whose negative gradient with respect to the scores is the residual."""

    outputs: int
    reach: float
    """The most a residual's norm can usefully be; longer ones are clipped to it at least."""
    classes: int
    """The number of classes that records are counted by; 1 for a number."""
    stride: float
    """The most that one look may change a cell of a shape: beyond, the curvature is not what it was."""
    lasting: float
    """How much of the records' own chance is in every look alike, as a share of its variance."""
    least_evidence: float
    """How much likelier it must be that a pair acts together; classes' scores are not settled when it is asked."""

    def first(self, targets: NDArray[np.generic], weights: Array | None = None) -> Array:
        """Return the sum over records, by their weights, of what the intercept is made from."""
        ...

    def start(self, sums: Array, records: float, std: float) -> Array:
        """Return the intercept from noisy sums."""
        ...

    def residuals(self, scores: NDArray[np.float32], targets: NDArray[np.generic]) -> Array:
        """Return a row of residuals a record."""
        ...

    def curvature(self, mean: float, square: float) -> float:
        """Return the mean second derivative, from the mean and the mean square of the residuals' norms."""
        ...

    def bend(self, counts: Array, records: Array, std: float) -> Array:
        """Return each cell's second derivative as a multiple of the mean, from noisy counts by cell and class."""
        ...

    def variance(self, mean: float, square: float) -> float:
        """Return the variance of a residual that the model can do nothing about, from the same."""
        ...


class Squared:
    """Half the squared error of a number in [-1, 1]."""

    outputs, reach, classes = 1, 2.0, 1
    stride, lasting, least_evidence = math.inf, _LASTING, 0.5

    def first(self, targets: NDArray[np.generic], weights: Array | None = None) -> Array:
        bounded = np.clip(targets.astype(np.float64), -1.0, 1.0)
        known = np.nan_to_num(bounded)  # a record that is not a number adds nothing
        return np.array([known.sum() if weights is None else (known * weights).sum()])

    def start(self, sums: Array, records: float, std: float) -> Array:
        return np.clip(sums / records, -1.0, 1.0)

    def residuals(self, scores: NDArray[np.float32], targets: NDArray[np.generic]) -> Array:
        left: Array = (targets.astype(np.float64) - scores[:, 0])[:, None]
        return left

    def curvature(self, mean: float, square: float) -> float:
        return 1.0

    def bend(self, counts: Array, records: Array, std: float) -> Array:
        return np.ones(len(records))

    def variance(self, mean: float, square: float) -> float:
        return square


class Logistic:
    """The logistic loss of two classes: one score, the log-odds of the second."""

    outputs, reach, classes = 1, 1.0, 2
    stride, lasting, least_evidence = _STRIDE, 0.5, _LEAST_EVIDENCE

    def first(self, targets: NDArray[np.generic], weights: Array | None = None) -> Array:
        return _class_counts(targets, 2, weights)

    def start(self, sums: Array, records: float, std: float) -> Array:
        logs = _log_shares(sums, std)
        return logs[1:] - logs[:1]

    def residuals(self, scores: NDArray[np.float32], targets: NDArray[np.generic]) -> Array:
        chance = 1 / (1 + np.exp(-np.clip(scores[:, 0].astype(np.float64), -60.0, 60.0)))
        return np.where(targets == UNKNOWN, 0.0, targets.astype(np.float64) - chance)[:, None]

    def curvature(self, mean: float, square: float) -> float:
        # If the chances are right, |y - p| has mean 2 p (1 - p), twice the second derivative.
        return min(max(mean / 2, 0.02), 0.25)

    def bend(self, counts: Array, records: Array, std: float) -> Array:
        return _bend(counts, records, std)

    def variance(self, mean: float, square: float) -> float:
        return self.curvature(mean, square)


class Softmax:
    """The cross entropy of three classes or more: one score a class."""

    reach = math.sqrt(2)
    stride, lasting, least_evidence = _STRIDE, _LASTING, _LEAST_EVIDENCE

    def __init__(self, classes: int) -> None:
        self.outputs = self.classes = classes

    def first(self, targets: NDArray[np.generic], weights: Array | None = None) -> Array:
        return _class_counts(targets, self.classes, weights)

    def start(self, sums: Array, records: float, std: float) -> Array:
        return _log_shares(sums, std)

    def residuals(self, scores: NDArray[np.float32], targets: NDArray[np.generic]) -> Array:
        wide = scores.astype(np.float64)
        chances = np.exp(wide - wide.max(axis=1, keepdims=True))
        left: Array = -chances / chances.sum(axis=1, keepdims=True)
        known = np.flatnonzero(targets != UNKNOWN)
        left[known, targets[known].astype(np.int64)] += 1
        left[targets == UNKNOWN] = 0.0
        return left

    def curvature(self, mean: float, square: float) -> float:
        # If the chances are right, |y - p|² has the mean of the sum of p_k (1 - p_k) over the classes.
        return min(max(square / self.outputs, 0.01), 0.25)

    def bend(self, counts: Array, records: Array, std: float) -> Array:
        return _bend(counts, records, std)

    def variance(self, mean: float, square: float) -> float:
        return self.curvature(mean, square)


def loss_for(classes: int) -> Loss:
    """Return the loss of a target with so many classes; 0 for a number."""
    return Squared() if not classes else Logistic() if classes == 2 else Softmax(classes)


def _class_counts(targets: NDArray[np.generic], classes: int, weights: Array | None) -> Array:
    known = targets != UNKNOWN
    own = None if weights is None else weights[known]
    return np.bincount(targets[known].astype(np.int64), weights=own, minlength=classes).astype(np.float64)


def _log_shares(sums: Array, std: float) -> Array:
    """Return the logarithms of shares; a count below its own noise says no more than that it is small."""
    floor = np.maximum(sums, max(std, 1.0))
    logs: Array = np.log(floor / floor.sum())
    return logs


def _bend(counts: Array, records: Array, std: float) -> Array:
    """Return the variance of the class in each cell, relative to its mean; where noise is loud, close to 1."""
    shares = np.maximum(counts.sum(axis=0), std)
    shares /= shares.sum()
    weight = 4 * std  # so many records of the usual mixture are added to each cell
    chances = (np.maximum(counts, 0.0) + weight * shares) / (np.maximum(counts, 0.0).sum(axis=1) + weight)[:, None]
    spread = (chances * (1 - chances)).sum(axis=1)
    relative: Array = spread * records.sum() / (spread * records).sum()
    return np.clip(relative, 0.1, 2.0)
