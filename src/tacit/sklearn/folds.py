"""Cross-validation whose folds do not depend on other people's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _num_samples

from tacit.randomness import SecureSource

_FEWEST = 20  # records a fold: the chance of an empty one is then below one in a hundred million

Indices = NDArray[np.int64]


class Folds:
    """A splitter for scikit-learn (``cv=account.folds(5)``).

    Formal guarantee: each record's fold is drawn uniformly, by secret coins of its own. Given the coins of the others,
    one row more joins the training sets of all folds but one and changes no other row's place, so that each fit sees
    neighbouring sets, and what the fits are charged adds up (basic composition over a mixture: joint convexity). The
    number of rows, and so of a fold's, is taken to be public, as everywhere.
    """

    def __init__(self, splits: int, records: int, seen: set[int]) -> None:
        if isinstance(splits, bool) or not isinstance(splits, int) or splits < 2:
            raise ValueError(f"splits is {splits!r}; it must be a whole number, at least 2.")
        if records < _FEWEST * splits:
            raise ValueError(f"splits is {splits} for {records} records; a fold needs {_FEWEST} on average.")
        self._splits, self._records, self._seen = splits, records, seen

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self._splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Indices, Indices]]:
        """Rows to fit on and rows to score, for each fold; new coins each time."""
        if (rows := _num_samples(X)) != self._records:
            raise ValueError(f"there are {rows} rows; the account of these folds is for {self._records}.")
        coins = SecureSource().integers(self._splits, rows)
        for fold in range(self._splits):
            train = np.flatnonzero(coins != fold)
            self._seen.add(len(train))
            yield train, np.flatnonzero(coins == fold)

    def __deepcopy__(self, memo: dict[int, Any]) -> Folds:
        return self  # a copy made by scikit-learn tells the same account what it gave out
