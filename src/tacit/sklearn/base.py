"""The part that both estimators have in common: a model of the rule's settings, trained on what the purse has left."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.sklearn.account import Account, Purse, Queries
from tacit.sklearn.boosted import MARGIN, Bins, chosen_for, codes, fit_shapes, importances
from tacit.sklearn.inputs import Numbers, bound, bounded_weights, declared, new_rows, seed_of, tensor
from tacit.tables.boosting import BoostSettings, Shapes
from tacit.tables.descent import descend
from tacit.tables.methods import check_bins
from tacit.tables.model import network
from tacit.tables.rule import Settings, check_enough, most_parameters, settings


class Copies:
    """Counts the fits of an estimator's copies, which scikit-learn's searches and cross-validations make."""

    fits = 0


class Private(BaseEstimator):  # type: ignore[misc]
    """Base of both estimators: a network of the rule's settings, trained on what the purse has left."""

    epsilon: float | None
    delta: float
    model: str
    bounds: Any
    account: Account | None
    debug_seed: int | None
    weight_bound: float
    network_: nn.Module
    settings_: Settings | BoostSettings
    bins_: list[Numbers]
    classes_: NDArray[Any]
    n_features_in_: int
    _copies: Copies | None = None

    def __sklearn_clone__(self) -> Any:
        copy = super().__sklearn_clone__()
        self._copies = copy._copies = self._copies or Copies()
        return copy

    def _weighted(self, rows: Numbers, sample_weight: Any) -> Numbers | None:
        """Return the records' weights; for boosting as shares of the declared bound."""
        weights = bounded_weights(rows, sample_weight, self.weight_bound)
        return weights / self.weight_bound if weights is not None and self.model == "boosted" else weights

    def _purse(self, rows: int) -> Purse:
        if self._copies is not None and self.account is None and self.debug_seed is None:
            self._copies.fits += 1
            if self._copies.fits == 2:
                warnings.warn(
                    "copies of this estimator are fitted again and again, as in a search, and it has no account: each "
                    "fit has its own budget, and what they cost together on the same records is not added up. Give "
                    "account=tacit.sklearn.Account(records=…, epsilon=…, delta=…).",
                    stacklevel=3,
                )
        return Purse(rows, self.epsilon, self.delta, self.account, seed_of(self.debug_seed))

    def _planned(self, rows: Numbers, outputs: int, purse: Purse, *, first: Queries = ()) -> float:
        """The noise multiplier of the descent; refused, before anything is charged, if nothing could be learned."""
        width = rows.shape[1]
        word = f"records (n_samples={len(rows)}, n_features={width})"
        if self.model == "boosted":
            queries = [*first, *Bins(width, self.bounds, purse).queries]
            noise = MARGIN * purse.rest(1, 1, 1, first=queries)
            check_bins(noise, records=len(rows), columns=width, epsilon=purse.epsilon, word=word)
            return noise
        chosen = self._settings(rows, outputs, purse)
        noise = purse.rest(len(rows), chosen.lot_size, chosen.steps, first=first)
        check_enough(
            records=len(rows),
            parameters=self._size(rows, outputs),
            epsilon=purse.epsilon,
            noise_multiplier=noise,
            chosen=chosen,
            word=word,
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

    def _fits(self, rows: Numbers, noise: float, purse: Purse) -> Callable[[int], bool]:
        """Return what says whether a model of so many classes has few enough parameters."""
        if self.model == "boosted":
            return lambda count: True
        most = most_parameters(noise_multiplier=noise, chosen=self._settings(rows, 2, purse))
        return lambda count: self._size(rows, count) <= most

    def _size(self, rows: Numbers, outputs: int) -> int:
        return sum(parameter.numel() for parameter in self._network(rows, outputs).parameters())

    def _network(self, rows: Numbers, outputs: int, seed: int | None = None) -> nn.Module:
        width = rows.shape[1]
        return network(self.model, width, outputs, norm=math.sqrt(width), seed=seed)

    def _descend(
        self,
        rows: Numbers,
        targets: Tensor,
        outputs: int,
        noise: float,
        purse: Purse,
        *,
        unknown: bool = False,
        weights: Numbers | None = None,
    ) -> None:
        self.n_iter_ = 0
        single = outputs == 1 and not targets.is_floating_point()
        if self.model == "boosted" and single:
            self.network_, self.settings_ = network("linear", rows.shape[1], 1, norm=1.0), chosen_for(rows, 1, purse)
            self.guarantee_ = purse.guarantee()
            return
        if self.model == "boosted":
            self._boost(rows, targets, outputs, noise, purse, weights)
            return
        rows = bound(rows, self.bounds)
        fresh, chosen = self._network(rows, outputs, purse.seed), self._settings(rows, outputs, purse)
        if weights is not None and self.weight_bound > 1:
            # Half way between clipping heavy records to what light ones may add, and the noise of letting them whole.
            chosen = replace(chosen, clip_norm=chosen.clip_norm * math.sqrt(self.weight_bound))
        if outputs > 1 or targets.is_floating_point():  # a single class needs no training
            self.n_iter_ = descend(
                fresh,
                TensorDataset(tensor(rows), targets, *([] if weights is None else [tensor(weights)])),
                chosen=chosen,
                noise_multiplier=noise,
                budget=purse.budget,
                ledger=purse.ledger,
                unknown=unknown,
                seed=purse.seed,
            )
        self.network_, self.settings_, self.guarantee_ = fresh, chosen, purse.guarantee()

    def _boost(
        self, rows: Numbers, targets: Tensor, outputs: int, noise: float, purse: Purse, weights: Numbers | None
    ) -> None:
        classes = 0 if targets.is_floating_point() else outputs
        bins, before = Bins(rows.shape[1], self.bounds, purse), len(purse.ledger)
        self.settings_ = chosen_for(rows, classes, purse)
        self.network_, self.bins_ = fit_shapes(
            rows, targets, classes, noise=noise, bins=bins, purse=purse, weights=weights
        )
        self.n_iter_, self.guarantee_ = len(purse.ledger) - before, purse.guarantee()

    @property
    def feature_importances_(self) -> Numbers:
        """Each feature's share of the spread of a boosted model's score; made from what was released."""
        check_is_fitted(self)
        if not isinstance(self.network_, Shapes):
            raise AttributeError(f"feature_importances_ is of model='boosted', and the model is {self.model!r}.")
        return importances(self.network_, self.n_features_in_)

    def _linear(self) -> tuple[Numbers, Numbers]:
        """Return weights and constants of a linear model, for features in their own units."""
        check_is_fitted(self)
        if not isinstance(self.network_, nn.Linear):
            raise AttributeError(f"coef_ is of model='linear', and the model is {self.model!r}.")
        weights: Numbers = self.network_.weight.detach().double().numpy()
        constants: Numbers = self.network_.bias.detach().double().numpy()
        if self.bounds is not None:  # the model sees features between -1 and 1
            low, high = declared(self.bounds, self.n_features_in_)
            constants = constants - weights @ ((high + low) / (high - low))
            weights = weights * (2 / (high - low))
        return weights, constants

    def _scores(self, X: Any) -> Tensor:
        rows = new_rows(self, X)
        with torch.no_grad():
            if isinstance(self.network_, Shapes):
                scores: Tensor = self.network_(torch.from_numpy(codes(rows, self.bins_)))
                two = self.network_.outputs == 1 and hasattr(self, "classes_")
                return torch.cat([torch.zeros_like(scores), scores], dim=1)[:, : len(self.classes_)] if two else scores
            scores = self.network_(tensor(bound(rows, self.bounds)))
        return scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags
