"""Mutants of the sparse vector technique."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mutants.registry import HISTORY, Patch, mutant
from tacit.mechanisms import sparse_vector
from tacit.randomness import Source


@mutant(
    "chosen values are released without noise",
    f"{HISTORY}::test_21_only_the_chosen_leave_each_once_and_each_with_noise",
    note=21,
)
def sparse_values_without_noise(patch: Patch) -> None:
    patch.setattr(sparse_vector, "add_laplace_", lambda pairs, source: None)


@mutant(
    "the noise of the threshold is drawn once and for all",
    f"{HISTORY}::test_21_the_noise_of_the_threshold_changes_with_a_release_and_not_otherwise",
    note=21,
)
def threshold_noise_never_renewed(patch: Patch) -> None:
    def search(self: Any, values: Any, source: Source) -> Any:
        order = sparse_vector._Order(values.numel(), source).take(values.numel())
        sizes = self._bounded(values, order).abs_().numpy()
        noisy = sizes + sparse_vector._laplace(order.size, 2 * self.threshold_scale, source)
        reach = self.threshold + sparse_vector._laplace(order.size, self.threshold_scale, source)[0]
        return order[np.flatnonzero(noisy >= reach)[: self.releases]]

    patch.setattr(sparse_vector.SparseVectorQuery, "_search", search)


@mutant(
    "positions are drawn with replacement",
    f"{HISTORY}::test_21_only_the_chosen_leave_each_once_and_each_with_noise",
    note=21,
)
def sparse_positions_with_replacement(patch: Patch) -> None:
    real = sparse_vector.SparseVectorQuery._search

    def search(self: Any, values: Any, source: Source) -> Any:
        found = real(self, values, source)
        return found[source.integers(found.size, found.size)] if found.size else found

    patch.setattr(sparse_vector.SparseVectorQuery, "_search", search)


@mutant(
    "values are bounded only after their noise",
    f"{HISTORY}::test_21_values_are_bounded_before_the_noise_and_after_it",
    note=21,
)
def sparse_values_unbounded(patch: Patch) -> None:
    real = sparse_vector.SparseVectorQuery.release

    def release(self: Any, receipt: Any, values: Any, source: Any) -> Any:
        wide = replace(self)
        object.__setattr__(wide, "bound", 1e12)
        object.__setattr__(wide, "event", self.event)
        with pytest.MonkeyPatch.context() as inner:
            scales = self.threshold_scale, self.release_scale
            inner.setattr(sparse_vector.SparseVectorQuery, "threshold_scale", property(lambda _: scales[0]))
            inner.setattr(sparse_vector.SparseVectorQuery, "release_scale", property(lambda _: scales[1]))
            found = real(wide, receipt, values, source)
        return replace(found, values=found.values.clamp(-self.bound, self.bound))

    patch.setattr(sparse_vector.SparseVectorQuery, "release", release)
