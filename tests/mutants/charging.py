"""Mutants of what the ledger is told, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mutants.registry import HISTORY, Patch, mutant
from tacit.ledger import Ledger, Receipt, Step, journal
from tacit.mechanisms import adaptive, groups, lattice, quantile, sums
from tacit.training import batch_norm, run, step_queries
from tacit.training import sums as gradient_sums


@mutant("the count of adaptive clipping is not charged", f"{HISTORY}::test_07_adaptive_clipping_is_charged", note=7)
def quantile_not_charged(patch: Patch) -> None:
    def update(self: Any, receipt: Any, source: Any) -> float:
        total = torch.tensor([self._tally], dtype=torch.float64)
        lattice.add_gaussian_([(total, self._query.noise_std)], source)
        self._tally = 0.0
        self.value *= math.exp(-self._rate * (0.5 + total.item() / self._lot_size - self._quantile))
        return float(self.value)

    patch.setattr(quantile.QuantileTracker, "update", update)
    patch.setattr(adaptive.AdaptiveClipping, "queries", groups.Clipping.queries)


@mutant(
    "the fraction of adaptive clipping is divided by the lot's own size",
    f"{HISTORY}::test_07_the_fraction_has_a_public_divisor",
    note=7,
)
def quantile_divided_by_the_realised_lot(patch: Patch) -> None:
    observe, update = quantile.QuantileTracker.observe, quantile.QuantileTracker.update

    def seen(self: Any, values: Any) -> None:
        self.seen = getattr(self, "seen", 0) + values.numel()
        observe(self, values)

    def move(self: Any, receipt: Any, source: Any) -> float:
        self._lot_size, self.seen = max(self.seen, 1), 0
        return float(update(self, receipt, source))

    patch.setattr(quantile.QuantileTracker, "observe", seen)
    patch.setattr(quantile.QuantileTracker, "update", move)


@mutant(
    "metrics and statistics of a lot are released and not recorded",
    "tests/training/test_metrics.py::test_a_metric_is_charged",
    "tests/training/test_batch_norm.py::test_statistics_are_charged_with_the_noise_that_is_added",
)
def metrics_not_charged(patch: Patch) -> None:
    real = step_queries.StepQueryMaker.at

    def at(self: Any, number: int, recipe: Any) -> Any:
        found = real(self, number, recipe)
        kept = tuple(query for query in found.step.queries if query.group not in found.tallies)
        return replace(found, step=Step(found.step.sampling, kept))

    def release(self: Any, receipt: Any, source: Any, *, lot_size: float) -> Any:
        total = self._total._sum.clone()
        self._total._sum.zero_()
        lattice.add_gaussian_([(total, self._query.noise_std)], source)
        return total / lot_size

    patch.setattr(step_queries.StepQueryMaker, "at", at)
    patch.setattr(step_queries.Tally, "mean", release)


@mutant(
    "values of metrics are not clipped",
    "tests/training/test_metrics.py::test_values_are_clipped_at_the_bound_and_the_divisor_is_public",
    "tests/mechanisms/test_sums.py::test_clipped_rows_are_bounded_in_exact_arithmetic",
)
def metrics_not_clipped(patch: Patch) -> None:
    patch.setattr(sums, "_clip", lambda values, bound, *, order: values.detach().double())


@mutant(
    "batch statistics are those of the batch, without noise",
    "tests/training/test_batch_norm.py::test_statistics_are_charged_with_the_noise_that_is_added",
)
def batch_norm_without_noise(patch: Patch) -> None:
    def exact(self: Any, receipt: Any, source: Any, *, lot_size: float) -> Any:
        receipt.spend(self._query.group)
        total = self._total._sum.clone()
        self._total._sum.zero_()
        return total / lot_size

    patch.setattr(batch_norm.Tally, "mean", exact)


@mutant(
    "every second step is not recorded",
    f"{HISTORY}::test_14_one_lot_is_one_step_however_it_is_cut",
    "tests/ledger/test_book.py::test_equal_steps_in_a_row_are_one_entry",
    note=14,
)
def every_second_step_unrecorded(patch: Patch) -> None:
    real = Ledger.record

    def record(self: Any, step: Step, **how: Any) -> Receipt:
        self.odd = not getattr(self, "odd", False)
        return real(self, step, **how) if self.odd else Receipt._issue(step)

    patch.setattr(Ledger, "record", record)


@mutant(
    "a receipt can be spent again and again",
    "tests/mechanisms/test_release.py::test_nothing_is_released_twice_nor_without_a_record",
    "tests/ledger/test_book.py::test_a_receipt_is_good_for_one_draw_and_one_release_of_each_group",
)
def receipt_spent_twice(patch: Patch) -> None:
    patch.setattr(
        Receipt, "spend", lambda self, group: next(query for query in self._step.queries if query.group == group)
    )


@mutant(
    "the budget is asked after the step was recorded",
    f"{HISTORY}::test_18_the_budget_is_checked_first_and_the_record_stays",
    "tests/accounting/test_filter.py::test_admits_exactly_as_many_steps_as_the_plan_solves_for",
    note=18,
)
def budget_checked_after_the_step(patch: Patch) -> None:
    real = Ledger.record

    def record(self: Any, step: Step, **how: Any) -> Receipt:
        gates, self._gates = self._gates, []
        try:
            receipt = real(self, step, **how)
        finally:
            self._gates = gates
        for gate in gates:
            gate(self, step)
        return receipt

    patch.setattr(Ledger, "record", record)


@mutant(
    "the ledger is emptied when a run ends",
    f"{HISTORY}::test_18_the_budget_is_checked_first_and_the_record_stays",
    note=18,
)
def spending_wiped_at_the_end(patch: Patch) -> None:
    real = run.PrivateRun.close

    def close(self: Any) -> None:
        real(self)
        self.ledger._contents.runs.clear()
        if self.ledger._journal is not None:
            self.ledger._journal.path.unlink(missing_ok=True)

    patch.setattr(run.PrivateRun, "close", close)


@mutant(
    "the journal does not wait for the disk",
    "tests/ledger/test_crash.py::test_every_torn_state_reads_as_the_steps_released_or_one_more",
)
def journal_not_synced(patch: Patch) -> None:
    real = journal.Journal.write

    def write(self: Any, step: Step) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(journal, "_sync", lambda fd: None)
            real(self, step)

    patch.setattr(journal.Journal, "write", write)


@mutant(
    "the journal is written after the release",
    "tests/crash/test_disk.py::test_a_journal_that_is_lost_stops_the_run",
    "tests/crash/test_kill.py::test_killed_twenty_times",
)
def released_before_the_ledger_is_written(patch: Patch) -> None:
    record, release = Ledger.record, gradient_sums.GradientSums.release
    late: list[Any] = []

    def lazily(self: Any, step: Step, **how: Any) -> Receipt:
        late.append((self, step, how))
        return Receipt._issue(step)

    def first(self: Any, *arguments: Any, **more: Any) -> None:
        release(self, *arguments, **more)
        for book, step, how in late:
            record(book, step, **how)
        late.clear()

    patch.setattr(Ledger, "record", lazily)
    patch.setattr(gradient_sums.GradientSums, "release", first)
