"""`PrivateScaler` and `PrivatePCA`: statistics of the records, released with noise."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin

from tacit.features.pca import private_pca
from tacit.mechanisms import SumQuery
from tacit.sklearn.account import Account, Purse
from tacit.sklearn.inputs import Numbers, bound, declared, fitted_rows, new_rows, seed_of, tensor
from tacit.tables.histograms import bounds as found_bounds
from tacit.tables.histograms import counts

_BOUNDS = 0.5  # of epsilon, if it were all


class PrivateScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features with mean about 0 and standard deviation about 1, by private moments.

    * ``bounds``: (low, high) of the features, declared; values beyond them count as the bound. Left out, they are
      released too, from histograms over powers of two, and charged.
    * ``epsilon``, ``delta``, ``account``, ``debug_seed``: as for `PrivateClassifier`.

    Formal guarantee: the record is a row of d features. Clipped and scaled to [-1, 1] they have L2 norm at most
    sqrt(d), and so have their squares: two Gaussian sums over everyone. Bounds are one histogram a feature, of
    sensitivity 1 each. All are in the ledger before their release; the number of rows is taken to be public.
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        account: Account | None = None,
        debug_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds = epsilon, delta, bounds
        self.account, self.debug_seed = account, debug_seed

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the moments; what it cost is in ``guarantee_``."""
        rows = fitted_rows(self, X)
        purse = Purse(len(rows), self.epsilon, self.delta, self.account, seed_of(self.debug_seed))
        width = rows.shape[1]
        if self.bounds is None:
            wanted = _histograms(width, purse)
            std = purse.rest(1, 1, 1, first=wanted) * math.sqrt(2 * width)
            self.low_, self.high_ = _released_bounds(rows, wanted, purse)
        else:
            self.low_, self.high_ = declared(self.bounds, width)
            std = purse.rest(1, 1, 1) * math.sqrt(2 * width)
        scaled = bound(rows, (self.low_, self.high_))
        queries = [SumQuery(group=f"moment/{order}", clip_norm=math.sqrt(width), noise_std=std) for order in (1, 2)]
        receipt = purse.look(queries)
        means = []
        for order, query in enumerate(queries, start=1):
            total = query.total((width,))
            total.add(tensor(scaled**order))
            means.append(total.mean(receipt, purse.source, lot_size=len(rows)).numpy())
        half = (self.high_ - self.low_) / 2
        noise = std / len(rows)
        self.mean_ = self.low_ + (np.clip(means[0], -1, 1) + 1) * half
        variance = np.maximum(means[1] - means[0] ** 2, max(noise, 1e-6))  # below the noise a variance means nothing
        self.scale_ = np.sqrt(variance) * half
        self.guarantee_ = purse.guarantee()
        return self

    def transform(self, X: Any) -> Numbers:
        """Rows clipped to the bounds, centred and scaled."""
        rows = new_rows(self, X)
        scaled: Numbers = (np.clip(rows, self.low_, self.high_) - self.mean_) / self.scale_
        return scaled

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Rows projected to their principal directions, which are learned privately (Abadi et al. 2016, section 4).

    Formal guarantee: that of `tacit.features.pca.private_pca`: directions of the unit-normalised rows, whose second
    moments are released with Gaussian noise over everyone, in the ledger beforehand. The rows are not centred.
    """

    def __init__(
        self,
        n_components: int = 2,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        account: Account | None = None,
        debug_seed: int | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.account, self.debug_seed = account, debug_seed

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the directions; what it cost is in ``guarantee_``."""
        rows = fitted_rows(self, X)
        if not 1 <= self.n_components <= rows.shape[1]:
            raise ValueError(
                f"n_components is {self.n_components!r}; it must be from 1 to the number of features, {rows.shape[1]}."
            )
        purse = Purse(len(rows), self.epsilon, self.delta, self.account, seed_of(self.debug_seed))
        directions = private_pca(
            tensor(rows),
            self.n_components,
            noise_multiplier=purse.rest(1, 1, 1),
            ledger=purse.ledger,
            source=purse.source,
        )
        self.components_: Numbers = directions.double().numpy()
        self.guarantee_ = purse.guarantee()
        return self

    def transform(self, X: Any) -> Numbers:
        """The rows' coordinates along the directions."""
        return new_rows(self, X) @ self.components_.T

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def _histograms(width: int, purse: Purse) -> list[SumQuery]:
    std = purse.once(_BOUNDS) * math.sqrt(width)
    return [SumQuery(group=f"bounds/{place}", clip_norm=1.0, noise_std=std) for place in range(width)]


def _released_bounds(rows: Numbers, queries: list[SumQuery], purse: Purse) -> tuple[Numbers, Numbers]:
    """Bounds of every feature, from one noisy histogram each."""
    receipt = purse.look(queries)
    pairs = []
    for place, query in enumerate(queries):
        bins = torch.from_numpy(counts(rows[:, place]))
        total = query.total(bins.shape)
        total.add_bounded(bins)  # a record is in one bin, so it adds a vector of norm 1
        pairs.append(found_bounds(total.release(receipt, purse.source).numpy(), query.noise_std))
    low, high = np.array(pairs, dtype=np.float64).T
    return low, high
