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
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.mechanisms import CountsQuery
from tacit.sklearn.account import Account, Purse, Queries
from tacit.sklearn.inputs import Numbers, bound, declared, fitted_pairs, new_rows, seed_of, tensor
from tacit.tables.descent import descend
from tacit.tables.encoding import UNKNOWN
from tacit.tables.model import network
from tacit.tables.rule import Settings, check_enough, most_parameters, settings

_DISCOVERY = 0.25  # of epsilon, if it were all
_SLACK = 0.1  # of delta
_MOST_UNDISCOVERED = 0.5


class _Private(BaseEstimator):  # type: ignore[misc]
    """What both have in common: a network of the rule's settings, trained on what the purse has left."""

    epsilon: float | None
    delta: float
    model: str
    bounds: Any
    account: Account | None
    debug_seed: int | None
    network_: nn.Module

    def _purse(self, rows: int) -> Purse:
        return Purse(rows, self.epsilon, self.delta, self.account, seed_of(self.debug_seed))

    def _planned(self, rows: Numbers, outputs: int, purse: Purse, *, first: Queries = ()) -> float:
        """The noise multiplier of the descent; refused, before anything is charged, if nothing could be learned."""
        chosen = self._settings(rows, outputs, purse)
        noise = purse.rest(len(rows), chosen.lot_size, chosen.steps, first=first)
        check_enough(
            records=len(rows),
            parameters=self._size(rows, outputs),
            epsilon=purse.epsilon,
            noise_multiplier=noise,
            chosen=chosen,
        )
        return noise

    def _settings(self, rows: Numbers, outputs: int, purse: Purse) -> Settings:
        return settings(
            records=len(rows),
            parameters=self._size(rows, outputs),
            epsilon=purse.epsilon,
            squared=rows.shape[1] if outputs == 1 else None,
            hidden=self.model != "linear",
        )

    def _size(self, rows: Numbers, outputs: int) -> int:
        return sum(parameter.numel() for parameter in self._network(rows, outputs).parameters())

    def _network(self, rows: Numbers, outputs: int, seed: int | None = None) -> nn.Module:
        width = rows.shape[1]
        return network(self.model, width, outputs, norm=math.sqrt(width), seed=seed)

    def _descend(
        self, rows: Numbers, targets: Tensor, outputs: int, noise: float, purse: Purse, *, unknown: bool = False
    ) -> None:
        fresh, chosen = self._network(rows, outputs, purse.seed), self._settings(rows, outputs, purse)
        self.n_iter_ = 0
        if outputs > 1 or targets.is_floating_point():  # a single class needs no training
            self.n_iter_ = descend(
                fresh,
                TensorDataset(tensor(rows), targets),
                chosen=chosen,
                noise_multiplier=noise,
                budget=purse.budget,
                ledger=purse.ledger,
                unknown=unknown,
                seed=purse.seed,
            )
        self.network_, self.settings_, self.guarantee_ = fresh, chosen, purse.guarantee()

    def _scores(self, X: Any) -> Tensor:
        rows = new_rows(self, X)
        with torch.no_grad():
            scores: Tensor = self.network_(tensor(bound(rows, self.bounds)))
        return scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """Logistic regression (``model="linear"``) or a small network (``"mlp"``), differentially private.

    * ``epsilon``, ``delta``: the budget of a fit. With an ``account`` and ``epsilon=None``, all that is left of it.
    * ``classes``: the classes, declared. Left out, those that pass a noisy threshold are found and charged. Records of
      other classes are not trained on, and no prediction is right for them: ``undiscovered_`` is their share, a noisy
      estimate that is paid for. A fit where it is above a half fails. If a single class is found, it is always
      predicted, with a warning, and no step is charged.
    * ``bounds``: (low, high) of the features, declared; values beyond them count as the bound. Left out, features are
      taken as they are: put a `PrivateScaler` before.
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
        debug_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.model, self.classes = epsilon, delta, model, classes
        self.bounds, self.account, self.debug_seed = bounds, account, debug_seed

    def fit(self, X: Any, y: Any) -> Self:
        """Train; what it cost is in ``guarantee_``."""
        rows, labels = fitted_pairs(self, X, y)
        check_classification_targets(labels)
        purse = self._purse(len(rows))
        if self.classes is not None:
            self.classes_ = self._declared(labels)
            _check_several(self.classes_)
            noise = self._planned(rows, len(self.classes_), purse)
        else:
            query = CountsQuery(group="classes", noise_std=purse.once(_DISCOVERY), slack=_SLACK * purse.delta)
            noise = self._planned(rows, 2, purse, first=[query])
            _check_findable(len(rows), query, purse)
            most = most_parameters(noise_multiplier=noise, chosen=self._settings(rows, 2, purse))
            self.classes_, self.undiscovered_ = _discovered(
                labels, query, purse, lambda count: self._size(rows, count) <= most
            )
            _check_discovered(self.classes_, self.undiscovered_)
        places = np.searchsorted(self.classes_, labels)
        known = self.classes_[np.minimum(places, len(self.classes_) - 1)] == labels
        targets = torch.from_numpy(np.where(known, places, UNKNOWN).astype(np.int64))
        self._descend(bound(rows, self.bounds), targets, len(self.classes_), noise, purse, unknown=self.classes is None)
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

    def decision_function(self, X: Any) -> Numbers:
        """Scores; for two classes, how much the second is ahead, and 0 if there is one class."""
        scores: Numbers = self._scores(X).double().numpy()
        return scores if scores.shape[1] > 2 else scores[:, -1] - scores[:, 0]


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """Least squares (``model="linear"``) or a small network (``"mlp"``), differentially private.

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
        debug_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.model, self.target_bounds = epsilon, delta, model, target_bounds
        self.bounds, self.account, self.debug_seed = bounds, account, debug_seed

    def fit(self, X: Any, y: Any) -> Self:
        """Train; what it cost is in ``guarantee_``."""
        if self.target_bounds is None:
            raise ValueError(
                "target_bounds is None; give the (low, high) that targets lie between. They may not be read off the "
                "records, and no default fits every unit."
            )
        rows, wanted = fitted_pairs(self, X, y, numbers=True)
        targets = tensor(bound(wanted.astype(np.float64)[:, None], self.target_bounds)[:, 0])
        purse = self._purse(len(rows))
        self._descend(bound(rows, self.bounds), targets, 1, self._planned(rows, 1, purse), purse)
        return self

    def predict(self, X: Any) -> Numbers:
        """The number expected for each row, within the target's bounds."""
        shares: Numbers = self._scores(X)[:, 0].double().clamp(-1, 1).numpy()
        low, high = declared(self.target_bounds, 1)
        return low + (shares + 1) / 2 * (high - low)


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
