"""Mutants of the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mutants.registry import AUDIT, HISTORY, Patch, mutant
from tacit.mechanisms import discrete, groups, lattice, noise
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.training import sums as gradient_sums


@mutant("no noise is added to gradient sums", AUDIT, f"{HISTORY}::test_11_noise_of_the_sum_is_on_the_sum", note=11)
def noise_skipped(patch: Patch) -> None:
    patch.setattr(lattice, "add_gaussian_", lambda pairs, source: None)


@mutant(
    "the noise is divided by the lot size before it is added to the sum",
    AUDIT,
    f"{HISTORY}::test_11_noise_of_the_sum_is_on_the_sum",
    note=11,
)
def noise_for_the_mean_on_the_sum(patch: Patch) -> None:
    real = gradient_sums.GradientSums.release

    def release(self: Any, receipt: Any, clipping: Any, source: Any, *, lot_size: float) -> None:
        with pytest.MonkeyPatch.context() as inner:
            add = lattice.add_gaussian_
            inner.setattr(lattice, "add_gaussian_", lambda pairs, s: add([(t, x / lot_size) for t, x in pairs], s))
            real(self, receipt, clipping, source, lot_size=lot_size)

    patch.setattr(gradient_sums.GradientSums, "release", release)


@mutant(
    "the noise added is half of what the ledger was told",
    AUDIT,
    "tests/mechanisms/test_release.py::test_noise_of_every_group_has_the_recorded_deviation",
    note=7,
)
def accountant_told_another_sigma(patch: Patch) -> None:
    real = groups.recorded_gaussian

    def half(*arguments: Any) -> Any:
        query = real(*arguments)
        return replace(query, noise_std=query.noise_std / 2)

    patch.setattr(groups, "recorded_gaussian", half)


@mutant(
    "all parameters get the same noise",
    f"{HISTORY}::test_16_noise_is_never_used_twice",
    "tests/mechanisms/test_release.py::test_two_parameters_of_equal_shape_get_different_noise",
    note=16,
)
def one_key_for_all_parameters(patch: Patch) -> None:
    def add(pairs: Any, source: Source) -> None:
        key = source.bytes(4)
        for total, std in pairs:
            SeededSource(int.from_bytes(key, "big")).normal_(fresh := torch.empty_like(total), std)
            total.add_(fresh)

    patch.setattr(lattice, "add_gaussian_", add)


@mutant(
    "a seeded run draws the same noise again after a resume", f"{HISTORY}::test_16_noise_is_never_used_twice", note=16
)
def noise_replayed_after_resume(patch: Patch) -> None:
    patch.setattr(SeededSource, "branch", lambda self, name: None)


@mutant(
    "every step draws the same noise",
    f"{HISTORY}::test_16_noise_is_never_used_twice",
    "tests/training/test_checkpoint.py::test_noise_and_lots_are_never_replayed",
    note=16,
)
def noise_replayed_every_step(patch: Patch) -> None:
    real = lattice.add_gaussian_
    patch.setattr(lattice, "add_gaussian_", lambda pairs, source: real(pairs, SeededSource(1)))


@mutant(
    "the key of the secure source is a constant",
    "tests/test_randomness.py::test_seeds_of_torch_and_numpy_change_nothing_and_streams_differ",
)
def key_is_a_constant(patch: Patch) -> None:
    patch.setattr(SecureSource, "_key", lambda self, *, forked: bytes(32))


@mutant(
    "a forked process goes on with the stream of its parent",
    "tests/test_randomness.py::test_a_forked_child_never_sees_the_parents_stream",
    "tests/test_randomness.py::test_a_process_copied_behind_pythons_back_is_rekeyed",
)
def fork_shares_the_stream(patch: Patch) -> None:
    real = Source._rekey

    def rekey(self: Source, *, forked: bool) -> None:
        if not forked:
            real(self, forked=False)

    patch.setattr(Source, "_rekey", rekey)


@mutant(
    "noisy values are not rounded to a public grid", f"{HISTORY}::test_10_released_values_lie_on_a_public_grid", note=10
)
def no_public_grid(patch: Patch) -> None:
    def add(pairs: Any, source: Source) -> None:
        for total, std in pairs:
            total.add_(source.normal_(torch.empty_like(total), std))

    for module in (lattice, noise):
        patch.setattr(module, "add_gaussian_", add)


@mutant(
    "rounding to the lattice of discrete noise is not charged",
    "tests/mechanisms/test_lattice.py::test_rounded_sums_of_neighbours_are_no_further_apart_than_charged",
    "tests/mechanisms/test_lattice.py::test_the_charge_is_needed",
)
def lattice_rounding_not_charged(patch: Patch) -> None:
    for module in (lattice, groups):
        patch.setattr(module, "charged", lambda sensitivity, step, dimension: sensitivity)


@mutant(
    "discrete noise is a rounded floating-point Gaussian",
    "tests/mechanisms/test_discrete.py::test_counts_match_the_exact_probabilities",
)
def discrete_noise_from_floats(patch: Patch) -> None:
    def draw(std: float, size: int, source: Source) -> Any:
        return source.normal_(torch.empty(size, dtype=torch.float64), std).round().long().numpy()

    for module in (discrete, lattice):
        patch.setattr(module, "draw", draw)
