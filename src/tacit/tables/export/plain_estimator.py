"""A trained model as a scikit-learn estimator that needs NumPy and scikit-learn, and nothing else.

`tacit export` copies this file, and those that it imports from, into a package beside the model's numbers. So a change
here changes what is exported, and nothing is written twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from tacit.tables.encoding import Encoding
from tacit.tables.frames import as_columns
from tacit.tables.schema import Schema

Numbers = NDArray[np.float32]


class _Plain(BaseEstimator):  # type: ignore[misc]
    """Base of both estimators: the schema, the weights, and a score for every row."""

    def __init__(self, path: str) -> None:
        self.path = path
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
        self.schema_ = facts["schema"]
        self._encoding, self._terms = Encoding(Schema.from_json(self.schema_)), facts.get("terms", [])
        self._shifts = np.array([column.missing == "own" for column in self._schema.features.values()], dtype=np.int64)
        self._weights = {name: np.array(values, dtype=np.float32) for name, values in facts["weights"].items()}
        self._kind: str = facts["model"]
        self.feature_names_in_ = np.array(list(dict.fromkeys(self._sources.values())), dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    @property
    def _schema(self) -> Schema:
        return self._encoding.schema

    @property
    def _sources(self) -> dict[str, str]:
        return self._schema.sources(self._schema.features)

    def fit(self, X: Any, y: Any = None) -> NoReturn:
        """Refuse: what the model knows was paid for once, with noise; train again with ``tacit train``."""
        raise NotImplementedError("this model was trained with privacy and cannot be fitted here; use `tacit train`.")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _scores(self, X: Any) -> Numbers:
        columns = as_columns(X, self.feature_names_in_.tolist(), self._schema.date_formats)
        compact = self._encoding.compact({name: columns[source] for name, source in self._sources.items()})
        if self._kind == "boosted":
            return self._sum_of_shapes(compact.astype(np.int64) + self._shifts)
        rows, weights = self._encoding.expand(compact), self._weights
        if self._kind == "mlp":
            rows = np.tanh(rows @ weights["0.weight"].T + weights["0.bias"])
            weights = {"weight": weights["2.weight"], "bias": weights["2.bias"]}
        scores: Numbers = rows @ weights["weight"].T + weights["bias"]
        return scores

    def _sum_of_shapes(self, codes: NDArray[np.int64]) -> Numbers:
        scores = np.tile(self._weights["intercept"], (len(codes), 1))
        for place, term in enumerate(self._terms):
            flat = np.zeros(len(codes), dtype=np.int64)
            for column, group in zip(term["columns"], term["groups"], strict=True):
                flat = flat * (max(group) + 1) + np.array(group)[codes[:, column]]
            scores += self._weights[f"shape_{place}"][flat]
        return np.hstack([np.zeros_like(scores), scores]) if len(self._schema.classes) == 2 else scores


class PlainClassifier(ClassifierMixin, _Plain):  # type: ignore[misc]
    """A classifier read from the file at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.classes_ = np.array(self._schema.classes)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each row of a frame or a mapping from names to arrays."""
        return np.asarray(self.classes_[self._scores(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> Numbers:
        """Return the chance of every class, in the order of ``classes_``."""
        scores = self._scores(X)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Numbers = chances / chances.sum(axis=1, keepdims=True)
        return shares


class PlainRegressor(RegressorMixin, _Plain):  # type: ignore[misc]
    """A regressor read from the file at ``path``."""

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number expected for each row, within the target's bounds."""
        return self._encoding.unscale(np.clip(self._scores(X)[:, 0], -1, 1))


def load(path: str | Path | None = None) -> PlainClassifier | PlainRegressor:
    """Return the model in a file; without one, in ``model.json`` beside this module."""
    place = str(path or Path(__file__).with_name("model.json"))
    schema = Schema.from_json(json.loads(Path(place).read_text(encoding="utf-8"))["schema"])
    return PlainClassifier(place) if schema.classes else PlainRegressor(place)
