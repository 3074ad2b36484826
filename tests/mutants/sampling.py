"""Mutants of who is drawn, and of what a sum is divided by."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from mutants.registry import HISTORY, Patch, mutant
from tacit.accounting import compose as composed
from tacit.ledger import Poisson, Step, events
from tacit.sampling import samplers, users
from tacit.training import lot, lots, population, private, run


@mutant("the sum is divided by the lot's own size", f"{HISTORY}::test_01_the_divisor_is_public", note=1)
def divided_by_the_realised_lot(patch: Patch) -> None:
    turn, release = lot.Lot.turn, lots.Lots._release

    def count(self: Any, size: int, *, last: bool) -> None:
        self.seen = getattr(self, "seen", 0) + size
        turn(self, size, last=last)

    def divide(self: Any, current: Any, updates: Any) -> Any:
        current.queries = replace(current.queries, lot_size=float(max(current.seen, 1)))
        return release(self, current, updates)

    patch.setattr(lot.Lot, "turn", count)
    patch.setattr(lots.Lots, "_release", divide)


@mutant("the sampling rate is 1 / int(n / lot)", f"{HISTORY}::test_02_rates_and_steps_are_not_rounded", note=2)
def rate_rounded(patch: Patch) -> None:
    real = population.PoissonSampler
    patch.setattr(population, "PoissonSampler", lambda records, rate, **more: real(records, 1 / int(1 / rate), **more))


@mutant(
    "epochs are turned into int(epochs) * int(n / lot) steps",
    f"{HISTORY}::test_02_rates_and_steps_are_not_rounded",
    note=2,
)
def steps_rounded_down(patch: Patch) -> None:
    real = private.length
    patch.setattr(
        private,
        "length",
        lambda epochs, steps, records, size: (
            int(epochs) * (records // size) if epochs is not None else real(epochs, steps, records, size)
        ),
    )


@mutant(
    "lots are cut from a shuffled list and recorded as Poisson",
    "tests/sampling/test_samplers.py::test_poisson_includes_each_record_with_the_rate_and_independently",
    note=3,
)
def shuffled_recorded_as_poisson(patch: Patch) -> None:
    def choose(self: Any, rate: float) -> Any:
        size = max(1, round(rate * self._records))
        left = getattr(self, "_left", np.empty(0, dtype=np.int64))
        if left.size < size:
            left = self._source.permutation(self._records)
        self._left = left[size:]
        return np.sort(left[:size])

    patch.setattr(samplers.PoissonSampler, "_choose", choose)


@mutant(
    "shuffled lots are accounted for as if each record were sampled anew",
    f"{HISTORY}::test_03_the_guarantee_is_about_the_sampling_that_was_done",
    "tests/accounting/test_guarantee.py::test_shuffling_costs_what_one_release_an_epoch_costs",
    note=3,
)
def shuffled_accounted_as_poisson(patch: Patch) -> None:
    def compose(entries: Any, adjacency: Any, **given: Any) -> Any:
        def poisson(step: Step) -> Step:
            if not isinstance(step.sampling, events.Shuffled):
                return step
            return Step(Poisson(rate=1 / step.sampling.lots, unit=step.sampling.unit), step.queries)

        return composed([(poisson(step), count) for step, count in entries], adjacency, **given)

    patch.setattr(import_module("tacit.accounting.guarantee"), "compose", compose)


@mutant(
    "records are drawn more often than the ledger says",
    "tests/sampling/test_samplers.py::test_poisson_includes_each_record_with_the_rate_and_independently",
    note=2,
)
def sampled_too_often(patch: Patch) -> None:
    real = samplers.PoissonSampler._choose
    patch.setattr(samplers.PoissonSampler, "_choose", lambda self, rate: real(self, min(1.0, 1.3 * rate)))


@mutant("an empty lot is skipped", f"{HISTORY}::test_09_an_empty_lot_releases_noise_and_takes_a_step", note=9)
def empty_lot_skipped(patch: Patch) -> None:
    real = run.PrivateRun.following_lot

    def skipping(self: Any) -> Any:
        for batch in real(self):
            first = batch[0] if isinstance(batch, list | tuple) else batch
            if not len(first):
                self._lot.taken = self._lot.done = True
                self.step += 1
                continue
            yield batch

    patch.setattr(run.PrivateRun, "following_lot", skipping)


@mutant(
    "a user brings more examples to a lot than the ledger says",
    "tests/sampling/test_users.py::test_each_user_brings_its_own_examples_and_no_more_than_allowed",
)
def user_brings_all(patch: Patch) -> None:
    patch.setattr(
        users.UserSampler,
        "_examples",
        lambda self, user: self._order[self._starts[user] : self._starts[user + 1]],
    )
