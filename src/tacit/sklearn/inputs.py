"""Inputs of the estimators: rows of finite numbers, bounds that were declared."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

Numbers = NDArray[np.float64]


def fitted_rows(estimator: Any, X: Any) -> Numbers:
    """Rows to fit on; the estimator remembers how many features they have."""
    rows: Numbers = validate_data(estimator, X, dtype=np.float64)
    return rows


def fitted_pairs(estimator: Any, X: Any, y: Any, *, numbers: bool = False) -> tuple[Numbers, NDArray[Any]]:
    """Rows and targets to fit on."""
    rows, targets = validate_data(estimator, X, y, dtype=np.float64, y_numeric=numbers)
    return rows, targets


def new_rows(estimator: Any, X: Any) -> Numbers:
    """Rows to predict or transform with a fitted estimator."""
    check_is_fitted(estimator)
    rows: Numbers = validate_data(estimator, X, dtype=np.float64, reset=False)
    return rows


def bound(rows: Numbers, bounds: Any) -> Numbers:
    """Rows clipped to the declared bounds and scaled to [-1, 1]; as they are without bounds."""
    if bounds is None:
        return rows
    low, high = declared(bounds, rows.shape[1])
    scaled: Numbers = (np.clip(rows, low, high) - low) / (high - low) * 2 - 1
    return scaled


def declared(bounds: Any, width: int) -> tuple[Numbers, Numbers]:
    """Declared bounds, a pair of numbers or of arrays, as two arrays of ``width`` numbers."""
    try:
        low, high = (np.broadcast_to(np.asarray(side, dtype=np.float64), (width,)) for side in bounds)
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds is {bounds!r}; it must be a pair (low, high), of numbers or of {width} each."
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"bounds is {bounds!r}; every low must be finite and below its high.")
    return low, high


def tensor(rows: Numbers) -> torch.Tensor:
    with np.errstate(over="ignore"):  # a message about one record would be one too many
        return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))


def seed_of(debug_seed: Any) -> int | None:
    """A seed, which makes a fit repeatable and therefore not private."""
    if debug_seed is None or isinstance(debug_seed, int | np.integer):
        return None if debug_seed is None else int(debug_seed)
    raise ValueError(f"debug_seed is {debug_seed!r}; it must be None (private) or a whole number (debugging).")


def bounded_weights(rows: Numbers, sample_weight: Any, weight_bound: float) -> Numbers | None:
    """Return the weights of rows, those above the declared bound counting as the bound; None if there are none."""
    if not isinstance(weight_bound, int | float) or not 0 < weight_bound < np.inf:
        raise ValueError(f"weight_bound is {weight_bound!r}; it must be a finite number above 0.")
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    bounded: Numbers = np.minimum(weights, weight_bound)
    return bounded


def class_weights(labels: NDArray[Any], weights: Any, weight_bound: float) -> Numbers:
    """Return the weight of each record's class, by a declared dictionary; 1 for a class that it does not have."""
    if not isinstance(weights, dict):
        raise ValueError(
            f"class_weight is {weights!r}; give a dictionary from classes to weights. How common classes are is "
            "private, so there is no 'balanced'."
        )
    for name, weight in weights.items():
        if not isinstance(weight, int | float) or not 0 <= weight < np.inf:
            raise ValueError(f"class_weight has {weight!r} for {name!r}; it must be a number, at least 0.")
        if weight > weight_bound:
            warnings.warn(
                f"class_weight has {weight!r} for {name!r}, which counts as weight_bound, {weight_bound:g}.",
                stacklevel=3,
            )
    found = np.ones(len(labels))
    for name, weight in weights.items():
        found[labels == name] = weight
    return found
