"""Mutants of what bounds a record's contribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mutants.registry import AUDIT, HISTORY, Patch, mutant
from tacit.gradients import capture as recorder
from tacit.gradients import clip as measured
from tacit.gradients import tap
from tacit.gradients.factors import gram, outer, uses
from tacit.gradients.factors import sparse as sparse_gradients
from tacit.gradients.layers import conv as convolutions
from tacit.gradients.layers import linear as operations
from tacit.gradients.layers import norm as normalisations
from tacit.gradients.layers import pointwise as lifting
from tacit.gradients.layers import recurrent
from tacit.mechanisms import groups, microbatch
from tacit.training import sums as gradient_sums


@mutant("nothing is clipped", AUDIT, f"{HISTORY}::test_06_the_fast_way_equals_one_example_at_a_time", note=6)
def clip_norm_ignored(patch: Patch) -> None:
    patch.setattr(groups.Clipping, "weights", lambda self, norms: torch.ones_like(norms, dtype=torch.float32))


@mutant(
    "one layer is not clipped",
    "tests/training/test_bounds.py::test_a_record_moves_the_sum_by_no_more_than_recorded",
    "tests/mechanisms/test_clipping.py::TestEveryStrategy::test_clipped_norm_is_at_most_the_bound_in_exact_arithmetic",
    note=6,
)
def one_layer_not_clipped(patch: Patch) -> None:
    real = groups.Clipping.weights

    def weights(self: Any, norms: Any) -> Any:
        found = real(self, norms)
        if found.shape[1] > 1:
            found[:, -1] = 1.0
        return found

    patch.setattr(groups.Clipping, "weights", weights)


@mutant(
    "norms of biases over positions: the sum of squares instead of the square of the sum",
    f"{HISTORY}::test_06_the_fast_way_equals_one_example_at_a_time",
    "tests/gradients/test_operations.py::test_normalisations",
    note=6,
)
def squares_added_over_positions(patch: Patch) -> None:
    real = gram.squares

    def squares(a: torch.Tensor, g: torch.Tensor, pieces: bool) -> Any:
        _, sizes = real(a, g, pieces)
        return (a.square().sum(3) * g.square().sum(3)).sum((1, 2)), sizes

    patch.setattr(gram, "squares", squares)
    patch.setattr(outer.Outer, "settle", lambda self: self)
    patch.setattr(outer.Outer, "gram_is_cheaper", lambda self: True)


@mutant(
    "cross terms of tied weights are left out of the norm",
    "tests/gradients/test_models.py::test_tied_language_model_with_padding",
    "tests/gradients/test_models.py::test_a_module_used_twice",
    note=6,
)
def cross_terms_dropped(patch: Patch) -> None:
    patch.setattr(uses, "_merge", lambda parts: parts)
    patch.setattr(uses, "_disjoint", lambda parts, shape: True)


@mutant(
    "layer normalisation takes one position for all",
    f"{HISTORY}::test_13_norm_layers_unknown_layers_and_adapters",
    "tests/gradients/test_operations.py::test_normalisations",
    note=13,
)
def norm_layers_wrong_with_extra_axes(patch: Patch) -> None:
    real = normalisations.by_example
    patch.setattr(
        normalisations,
        "_per_example",
        lambda x, layout, batch, shape: real(x, layout, batch).reshape(batch, -1, *shape)[:, 0],
    )


@mutant(
    "the sums of a lot begin with those of the lot before",
    "tests/training/test_algorithm.py::test_algorithm_1_in_ten_lines_of_numpy",
    note=15,
)
def stale_sums(patch: Patch) -> None:
    real = gradient_sums.GradientSums.release

    def release(self: Any, *arguments: Any, **more: Any) -> None:
        stale = {name: total.clone() for name, total in self._sums.items()}
        real(self, *arguments, **more)
        self._sums = stale

    patch.setattr(gradient_sums.GradientSums, "release", release)
    patch.setattr(gradient_sums.GradientSums, "clear", lambda self: None)


@mutant(
    "every batch of a lot takes the place of the one before",
    f"{HISTORY}::test_15_the_last_small_batch_counts_itself",
    note=15,
)
def only_the_last_batch(patch: Patch) -> None:
    def add(self: Any, engine: Any, clipping: Any) -> None:
        self._sums = engine.clipped_sum(clipping)
        self._batches = 1

    patch.setattr(gradient_sums.GradientSums, "add", add)


@mutant(
    "an example that is not finite poisons the sum",
    f"{HISTORY}::test_19_a_record_that_is_not_finite_counts_as_zero",
    note=19,
)
def nan_poisons_the_sum(patch: Patch) -> None:
    real = torch.isfinite
    fake = type("torch", (), {"__getattr__": lambda self, name: getattr(torch, name)})()
    fake.isfinite = lambda x: torch.ones_like(real(x))
    patch.setattr(measured, "torch", fake)
    patch.setattr(measured, "checked_weights", lambda weights, norms: weights.to(norms.dtype))


@mutant(
    "norms are rounded to half precision",
    f"{HISTORY}::test_20_norms_and_sums_are_not_in_half_precision",
    "tests/mechanisms/test_clipping.py::TestEveryStrategy::test_clipped_norm_is_at_most_the_bound_in_exact_arithmetic",
    note=20,
)
def norms_in_half_precision(patch: Patch) -> None:
    real = groups.Clipping.weights
    patch.setattr(groups.Clipping, "weights", lambda self, norms: real(self, norms.bfloat16().to(norms.dtype)))


@mutant(
    "sums of huge terms that cancel are added where others are",
    "tests/gradients/test_influence.py::test_one_record_changes_the_sum_by_at_most_its_bound",
)
def cancellation_ignored(patch: Patch) -> None:
    patch.setattr(outer, "cancelled", lambda squares, sizes, largest: torch.zeros_like(squares, dtype=torch.bool))
    # nor is the norm enlarged for it
    patch.setattr(measured, "bounded_squares", lambda several: [uses.measured()[0] for uses in several])


@mutant(
    "joint clipping does not scale the noise of its vectors",
    "tests/mechanisms/test_release.py::test_noise_of_every_group_has_the_recorded_deviation",
)
def joint_noise_not_scaled(patch: Patch) -> None:
    real = groups.Clipping.release_

    def release(self: Any, receipt: Any, totals: Any, source: Any) -> None:
        flat = [replace(g, vectors=tuple(replace(v, scale=1.0) for v in g.vectors)) for g in self.groups]
        real(groups.Clipping(flat), receipt, totals, source)

    patch.setattr(groups.Clipping, "release_", release)


@mutant(
    "microbatch averages are charged as if one example moved them by C",
    f"{HISTORY}::test_12_microbatches_are_charged_twice",
    note=12,
)
def microbatches_charged_once(patch: Patch) -> None:
    patch.setattr(
        microbatch.Microbatches,
        "bind",
        lambda self, shapes, *, lot_size=None: self.clipping.bind(shapes, lot_size=lot_size),
    )


@mutant(
    "a user with several examples is charged for one",
    "tests/training/test_users.py::test_a_user_moves_the_sum_by_most_times_the_clip_norm_at_most",
    "tests/mechanisms/test_clipping.py::test_a_record_with_several_examples_is_charged_for_each",
)
def users_charged_for_one_example(patch: Patch) -> None:
    patch.setattr(groups.Clipping, "repeated", lambda self, contributions: self)


@mutant(
    "the margin for rounding is left out of the sensitivity",
    "tests/training/test_precision.py::test_the_margin_is_in_the_ledger_and_the_noise_follows",
    "tests/training/test_precision.py::test_users_and_microbatches_pay_the_margin_once",
)
def margin_dropped(patch: Patch) -> None:
    patch.setattr(groups.Clipping, "widened", lambda self, margin: self)


@mutant(
    "a mean loss leaves the number of records in everybody's gradient",
    "tests/gradients/test_neighbours.py::test_no_gradient_contains_the_number_of_examples",
    "tests/gradients/test_neighbours.py::test_a_mean_loss_of_cancelling_targets_moves_by_one_record",
)
def number_of_records_in_gradients(patch: Patch) -> None:
    real = recorder.Capture._seeded

    def seeded(self: Any, kind: str, inside: bool, grad: torch.Tensor) -> torch.Tensor:
        found = real(self, kind, inside, grad)
        rows = 11 * self.batch  # as if each record had some: 1/B alone is often undone exactly
        return (grad if found is None else found) / rows * rows

    patch.setattr(recorder.Capture, "_seeded", seeded)


@mutant(
    "one record's lookups enlarge everybody's norm",
    "tests/gradients/test_neighbours.py::test_a_record_with_many_lookups_changes_no_other_norm_in_a_tied_table",
)
def lookups_of_the_whole_batch(patch: Patch) -> None:
    real = sparse_gradients.Rows.lookups
    patch.setattr(sparse_gradients.Rows, "lookups", lambda self: real(self).max().expand(self.batch))


@mutant(
    "a record's sum over positions goes through memory as it lies, in columns shared with other records",
    "tests/gradients/test_places.py::test_one_record_more_leaves_what_the_others_add_as_it_was",
    "tests/gradients/test_places.py::test_a_records_own_sum_does_not_depend_on_its_place",
)
def sums_by_memory(patch: Patch) -> None:
    def sums(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
        return x.sum(dim, keepdim=keepdim, dtype=torch.promote_types(x.dtype, torch.float32))

    for module in (convolutions, lifting, normalisations, operations, recurrent):
        patch.setattr(module, "own_sums", sums)


@mutant(
    "what is left when a division by the number of records is undone depends on that number",
    "tests/gradients/test_places.py::test_the_rows_of_a_microbatch_are_divided_by_alike_for_every_number_of_records",
    "tests/gradients/test_neighbours.py::test_a_division_is_undone_for_every_number_of_examples",
)
def division_not_undone(patch: Patch) -> None:
    patch.setattr(tap, "simple_fraction", lambda value, eps: value)
