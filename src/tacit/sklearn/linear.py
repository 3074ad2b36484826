"""`PrivateClassifier` and `PrivateRegressor`: models of a table of numbers, trained by noisy gradient descent."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from tacit.mechanisms import CountsQuery
from tacit.sklearn.account import Account, Purse
from tacit.sklearn.base import Private
from tacit.sklearn.inputs import Numbers, bound, class_weights, declared, fitted_pairs, tensor
from tacit.tables.encoding import UNKNOWN

_DISCOVERY = 0.25  # of epsilon, if it were all
_SLACK = 0.1  # of delta
_MOST_UNDISCOVERED = 0.5


class PrivateClassifier(ClassifierMixin, Private):  # type: ignore[misc]
    """Logistic regression (``model="linear"``), a small network (``"mlp"``) or boosting, differentially private.

    ``model="boosted"`` is a sum of shapes of features and of pairs of them (`tacit.tables.boosting`): ``bins_`` has the
    edges of each feature's bins, ``network_`` the shapes, ``feature_importances_`` what each feature is good for. A
    linear model has ``coef_`` and ``intercept_``. All of these are made from what was released.

    * ``epsilon``, ``delta``: the budget of a fit. With an ``account`` and ``epsilon=None``, all that is left of it.
    * ``classes``: the classes, declared. Left out, those that pass a noisy threshold are found and charged. Records of
      other classes are not trained on, and no prediction is right for them: ``undiscovered_`` is their share, a noisy
      estimate that is paid for. A fit where it is above a half fails. If a single class is found, it is always
      predicted, with a warning, and no step is charged.
    * ``bounds``: (low, high) of the features, declared; values beyond them count as the bound. Left out, features are
      taken as they are: put a `PrivateScaler` before.
    * ``sample_weight`` (of `fit`) and ``class_weight`` (a dictionary): a record's loss is multiplied by its weight, at
      most the declared ``weight_bound``, before its gradient is clipped; a weight changes what a record adds, never how
      much it can add. A larger bound has more noise: the clip norm grows with its square root. In boosting a record
      counts for its weight's share of the bound.
    * ``debug_seed``: for debugging only. The fit can then be repeated, and is not private.

    Whether classes are text, whole numbers or others is taken to be public.

    Formal guarantee: the record is a row with its class. Its gradient is clipped to the rule's norm, lots are Poisson
    samples, every noisy sum is in the ledger before it is used; ``guarantee_`` is computed from the ledger. The number
    of rows is taken to be public.
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        model: str = "linear",
        classes: Any = None,
        bounds: Any = None,
        account: Account | None = None,
        class_weight: dict[Any, float] | None = None,
        weight_bound: float = 1.0,
        debug_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.model, self.classes = epsilon, delta, model, classes
        self.bounds, self.account, self.debug_seed = bounds, account, debug_seed
        self.class_weight, self.weight_bound = class_weight, weight_bound

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train; what it cost is in ``guarantee_``."""
        rows, labels = fitted_pairs(self, X, y)
        check_classification_targets(labels)
        if self.class_weight is not None:
            by_class = class_weights(labels, self.class_weight, self.weight_bound)
            sample_weight = by_class if sample_weight is None else by_class * np.asarray(sample_weight)
        weights = self._weighted(rows, sample_weight)
        purse = self._purse(len(rows))
        if self.classes is not None:
            self.classes_ = self._declared(labels)
            _check_several(self.classes_)
            noise = self._planned(rows, len(self.classes_), purse)
        else:
            query = CountsQuery(group="classes", noise_std=purse.once(_DISCOVERY), slack=_SLACK * purse.delta)
            noise = self._planned(rows, 2, purse, first=[query])
            _check_findable(len(rows), query, purse)
            self.classes_, self.undiscovered_ = _discovered(labels, query, purse, self._fits(rows, noise, purse))
            _check_discovered(self.classes_, self.undiscovered_)
        places = np.searchsorted(self.classes_, labels)
        known = self.classes_[np.minimum(places, len(self.classes_) - 1)] == labels
        targets = torch.from_numpy(np.where(known, places, UNKNOWN).astype(np.int64))
        unknown = self.classes is None
        self._descend(rows, targets, len(self.classes_), noise, purse, unknown=unknown, weights=weights)
        return self

    def _declared(self, labels: NDArray[Any]) -> NDArray[Any]:
        classes = np.unique(np.asarray(self.classes))
        strange = ~np.isin(labels, classes)
        if strange.any():
            raise ValueError(f"{labels[strange][0]!r} is not among the declared classes {classes.tolist()}.")
        return classes

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        places: NDArray[np.int64] = self._scores(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[places])

    def predict_proba(self, X: Any) -> Numbers:
        """The chance of every class, in the order of ``classes_``."""
        chances: Numbers = torch.softmax(self._scores(X).double(), dim=1).numpy()
        return chances

    @property
    def coef_(self) -> Numbers:
        """The weights of a linear model; of two classes, those of the second less those of the first."""
        weights, _ = self._linear()
        return weights[1:] - weights[:1] if len(weights) == 2 else weights

    @property
    def intercept_(self) -> Numbers:
        """The constants that belong to ``coef_``."""
        _, constants = self._linear()
        return constants[1:] - constants[:1] if len(constants) == 2 else constants

    def decision_function(self, X: Any) -> Numbers:
        """Scores; for two classes, how much the second is ahead, and 0 if there is one class."""
        scores: Numbers = self._scores(X).double().numpy()
        return scores if scores.shape[1] > 2 else scores[:, -1] - scores[:, 0]


class PrivateRegressor(RegressorMixin, Private):  # type: ignore[misc]
    """Least squares (``model="linear"``), a small network (``"mlp"``) or ``"boosted"``, differentially private.

    ``target_bounds`` (low, high) must be declared: targets beyond them count as the bound, and predictions lie between
    them. The rest, and the guarantee, are those of `PrivateClassifier`.
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        model: str = "linear",
        target_bounds: tuple[float, float] | None = None,
        bounds: Any = None,
        account: Account | None = None,
        weight_bound: float = 1.0,
        debug_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.model, self.target_bounds = epsilon, delta, model, target_bounds
        self.bounds, self.account, self.debug_seed = bounds, account, debug_seed
        self.weight_bound = weight_bound

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train; what it cost is in ``guarantee_``."""
        if self.target_bounds is None:
            raise ValueError(
                "target_bounds is None; give the (low, high) that targets lie between. They may not be read off the "
                "records, and no default fits every unit."
            )
        rows, wanted = fitted_pairs(self, X, y, numbers=True)
        targets = tensor(bound(wanted.astype(np.float64)[:, None], self.target_bounds)[:, 0])
        weights = self._weighted(rows, sample_weight)
        purse = self._purse(len(rows))
        self._descend(rows, targets, 1, self._planned(rows, 1, purse), purse, weights=weights)
        return self

    def predict(self, X: Any) -> Numbers:
        """The number expected for each row, within the target's bounds."""
        shares: Numbers = self._scores(X)[:, 0].double().clamp(-1, 1).numpy()
        low, high = declared(self.target_bounds, 1)
        return low + (shares + 1) / 2 * (high - low)

    @property
    def coef_(self) -> Numbers:
        """The weights of a linear model, in the target's unit."""
        low, high = declared(self.target_bounds, 1)
        weights, _ = self._linear()
        in_unit: Numbers = weights[0] * float(high[0] - low[0]) / 2
        return in_unit

    @property
    def intercept_(self) -> float:
        """The constant that belongs to ``coef_``."""
        low, high = declared(self.target_bounds, 1)
        _, constants = self._linear()
        return float(low[0] + (constants[0] + 1) / 2 * (high[0] - low[0]))


def _check_several(classes: NDArray[Any]) -> None:
    if len(classes) < 2:
        raise ValueError(f"classes are {classes.tolist()}; there must be at least two to tell apart.")


def _check_discovered(classes: NDArray[Any], undiscovered: float) -> None:
    if undiscovered > _MOST_UNDISCOVERED:
        raise ValueError(
            f"the classes are mostly undiscovered: about {undiscovered:.0%} of the records have one that too few share "
            "to be released. Give classes=[...], or use PrivateRegressor if the target is a number; what was found "
            "out so far is charged, the training is not."
        )
    if len(classes) == 1:
        warnings.warn(
            f"only the class {classes.tolist()[0]!r} stood out of the noise; it is always predicted. Give "
            "classes=[...] to have rarer ones predicted.",
            stacklevel=3,
        )


def _check_findable(records: int, query: CountsQuery, purse: Purse) -> None:
    needed = 2 * query.event().threshold
    if records < needed:
        raise ValueError(
            f"{records} records (n_samples={records}) are too few to find classes at epsilon {purse.epsilon:g}; "
            f"declare them, or give at least {math.ceil(needed)}."
        )


def _discovered(
    labels: NDArray[Any], query: CountsQuery, purse: Purse, fits: Callable[[int], bool]
) -> tuple[NDArray[Any], float]:
    """Return the classes that enough records have, and the share of records of others.

    Both follow from counts released with noise; of the classes, the commonest are kept, as many as a model can tell
    apart.
    """
    receipt = purse.look([query])
    counts = query.release(receipt, Counter(map(str, labels.tolist())), purse.source)
    found = sorted(counts, key=lambda text: -counts[text])
    while len(found) > 2 and not fits(len(found)):
        found.pop()
    missed = min(max(1 - sum(counts[text] for text in found) / len(labels), 0.0), 1.0)
    kind = labels.dtype.kind
    if kind in "USO":
        # the length of the longest label is that of the longest one released
        return np.array(sorted(found), dtype=object if kind == "O" else None), missed
    values = [text == "True" if kind == "b" else float(text) if kind == "f" else int(text) for text in found]
    return np.array(sorted(values), dtype=labels.dtype), missed
