"""Mutants of the training loop, of files and of features."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from mutants.registry import HISTORY, Patch, mutant
from tacit.accounting import compose as composed
from tacit.features import pca
from tacit.ledger import Step
from tacit.training import checkpoint, private, run, team


@mutant(
    "a closure is evaluated after the noise was added", f"{HISTORY}::test_04_a_closure_does_not_erase_the_noise", note=4
)
def closure_after_the_noise(patch: Patch) -> None:
    take = run.PrivateRun._take

    def late(self: Any, closure: Any) -> Any:
        if closure is None or self._lot is None:
            return take(self, closure)
        apply = self._updates.apply

        def raw() -> None:
            with contextlib.suppress(RuntimeError, ValueError):
                closure()
            apply()

        self._updates.apply = raw
        try:
            return take(self, closure)
        finally:
            self._updates.apply = apply

    patch.setattr(run.PrivateRun, "_take", late)


@mutant(
    "several processes may train one model, each with its own noise",
    f"{HISTORY}::test_05_data_parallel_training_is_refused",
    note=5,
)
def data_parallel_allowed(patch: Patch) -> None:
    patch.setattr(private, "assemble", lambda parallel, model: team.Alone())


@mutant("checkpoints are unpickled", f"{HISTORY}::test_23_a_checkpoint_is_never_unpickled", note=23)
def checkpoint_unpickled(patch: Patch) -> None:
    real = checkpoint.read_tensors

    def load(path: Any) -> Any:
        try:
            return real(path)
        except ValueError:
            return torch.load(path, weights_only=False)

    patch.setattr(checkpoint, "read_tensors", load)


@mutant(
    "rows of the PCA are not scaled to norm 1",
    "tests/features/test_pca.py::test_a_records_contribution_has_norm_at_most_one_in_exact_arithmetic",
)
def pca_rows_unbounded(patch: Patch) -> None:
    patch.setattr(pca, "_units", lambda rows: rows.detach().double())


@mutant(
    "a correlated noise is accounted for as if it were independent",
    f"{HISTORY}::test_22_correlated_noise_is_unknown_and_refused_by_name",
    note=22,
)
def correlated_noise_as_independent(patch: Patch) -> None:
    def compose(entries: Any, adjacency: Any, **given: Any) -> Any:
        def plain(step: Step) -> Step:
            return Step(
                step.sampling, tuple(replace(q, noise="gaussian") if hasattr(q, "noise") else q for q in step.queries)
            )

        return composed([(plain(step), count) for step, count in entries], adjacency, **given)

    patch.setattr(import_module("tacit.accounting.guarantee"), "compose", compose)
