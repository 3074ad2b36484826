"""The library broken on purpose, one way at a time: bugs that happened elsewhere, as patches in memory.

Each mutant names the ordinary tests that must fail on it; ``note`` is the number of the bug in `tests/history`, where
it has one. A test made only to catch a mutant belongs with the other tests of its room, not here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from tacit.accounting import composition, gaussian, pld, rdp
from tacit.features import pca
from tacit.gradients import contributions, normalisations, sources, tape
from tacit.ledger import Ledger, Poisson, Receipt, Step, events, journal
from tacit.mechanisms import adaptive, groups, microbatch, noise, quantile, sparse_vector, sums
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.sampling import samplers, users
from tacit.training import batch_norm, checkpoint, lot, population, private, questions, run, strength
from tacit.training import sums as gradient_sums

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One broken variant of the library."""

    name: str
    bug: str
    note: int | None
    caught_by: tuple[str, ...]
    apply: Callable[[Patch], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(
    bug: str, *caught_by: str, note: int | None = None
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        MUTANTS[name] = Mutant(name=name, bug=bug, note=note, caught_by=caught_by, apply=apply)
        return apply

    return register


HISTORY = "tests/history/test_history.py"
AUDIT = "tests/audit/test_audit.py::test_many_runs_come_near_the_claim"


# -- noise -------------------------------------------------------------------------------------------------------------


@mutant("no noise is added to gradient sums", AUDIT, f"{HISTORY}::test_11_noise_of_the_sum_is_on_the_sum", note=11)
def noise_skipped(patch: Patch) -> None:
    patch.setattr(groups, "add_gaussian_", lambda pairs, source: None)


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
            add = groups.add_gaussian_
            inner.setattr(groups, "add_gaussian_", lambda pairs, s: add([(t, x / lot_size) for t, x in pairs], s))
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

    patch.setattr(groups, "add_gaussian_", add)


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
    real = groups.add_gaussian_
    patch.setattr(groups, "add_gaussian_", lambda pairs, source: real(pairs, SeededSource(1)))


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

    for module in (groups, quantile, sums, noise):
        patch.setattr(module, "add_gaussian_", add)


# -- the divisor, the lot, the sample ----------------------------------------------------------------------------------


@mutant("the sum is divided by the lot's own size", f"{HISTORY}::test_01_the_divisor_is_public", note=1)
def divided_by_the_realised_lot(patch: Patch) -> None:
    turn, release = lot.Lot.turn, run.PrivateRun._release

    def count(self: Any, size: int, *, last: bool) -> None:
        self.seen = getattr(self, "seen", 0) + size
        turn(self, size, last=last)

    def divide(self: Any, current: Any) -> None:
        current.questions = replace(current.questions, lot_size=float(max(current.seen, 1)))
        release(self, current)

    patch.setattr(lot.Lot, "turn", count)
    patch.setattr(run.PrivateRun, "_release", divide)


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
    real = composition.compose

    def compose(entries: Any, adjacency: Any) -> Any:
        def poisson(step: Step) -> Step:
            if not isinstance(step.sampling, events.Shuffled):
                return step
            return Step(Poisson(rate=1 / step.sampling.lots, unit=step.sampling.unit), step.queries)

        return real([(poisson(step), count) for step, count in entries], adjacency)

    patch.setattr(import_module("tacit.accounting.guarantee"), "compose", compose)


@mutant("records are drawn more often than the ledger says", "tests/sampling/test_samplers.py", note=2)
def sampled_too_often(patch: Patch) -> None:
    real = samplers.PoissonSampler._choose
    patch.setattr(samplers.PoissonSampler, "_choose", lambda self, rate: real(self, min(1.0, 1.3 * rate)))


@mutant(
    "a lot with nobody in it is skipped", f"{HISTORY}::test_09_an_empty_lot_releases_noise_and_takes_a_step", note=9
)
def empty_lot_skipped(patch: Patch) -> None:
    real = run.PrivateRun.lot

    def skipping(self: Any) -> Any:
        for batch in real(self):
            first = batch[0] if isinstance(batch, list | tuple) else batch
            if not len(first):
                self._lot.taken = self._lot.done = True
                self.step += 1
                continue
            yield batch

    patch.setattr(run.PrivateRun, "lot", skipping)


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


# -- clipping ----------------------------------------------------------------------------------------------------------


@mutant("nothing is clipped", AUDIT, f"{HISTORY}::test_06_the_fast_way_equals_one_example_at_a_time", note=6)
def clip_norm_ignored(patch: Patch) -> None:
    patch.setattr(groups.Clipping, "weights", lambda self, norms: torch.ones_like(norms, dtype=torch.float32))


@mutant(
    "one layer is not clipped",
    "tests/training/test_bounds.py::test_a_record_moves_the_sum_by_no_more_than_recorded",
    "tests/mechanisms/test_clipping.py",
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
    real = contributions.Outer.gram_squares

    def squares(self: Any, lo: int, hi: int) -> Any:
        _, sizes = real(self, lo, hi)
        a, g = self.factors(lo, hi)
        return (a.square().sum(3) * g.square().sum(3)).sum((1, 2)), sizes

    patch.setattr(contributions.Outer, "gram_squares", squares)
    patch.setattr(contributions.Outer, "gram_is_cheaper", lambda self: True)


@mutant(
    "cross terms of tied weights are left out of the norm",
    "tests/gradients/test_models.py::test_tied_language_model_with_padding",
    "tests/gradients/test_models.py::test_a_module_used_twice",
    note=6,
)
def cross_terms_dropped(patch: Patch) -> None:
    patch.setattr(sources, "_merge", lambda parts: parts)
    patch.setattr(sources, "_disjoint", lambda parts, shape: True)


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
    first = gradient_sums.GradientSums.__init__

    def begin(self: Any, parameters: Any) -> None:
        first(self, parameters)
        self._empty = False

    patch.setattr(gradient_sums.GradientSums, "__init__", begin)
    patch.setattr(gradient_sums.GradientSums, "clear", lambda self: None)


@mutant(
    "every batch of a lot takes the place of the one before",
    f"{HISTORY}::test_15_the_last_small_batch_counts_itself",
    note=15,
)
def only_the_last_batch(patch: Patch) -> None:
    def add(self: Any, engine: Any, clipping: Any) -> None:
        engine.clipped_sum(clipping, out=self._sums, overwrite=True)
        self._empty = False

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
    patch.setattr(tape, "torch", fake)
    patch.setattr(tape, "checked_weights", lambda weights, norms: weights.to(norms.dtype))


@mutant(
    "norms are rounded to half precision",
    f"{HISTORY}::test_20_norms_and_sums_are_not_in_half_precision",
    "tests/mechanisms/test_clipping.py",
    note=20,
)
def norms_in_half_precision(patch: Patch) -> None:
    real = groups.Clipping.weights
    patch.setattr(groups.Clipping, "weights", lambda self, norms: real(self, norms.bfloat16().to(norms.dtype)))


@mutant("sums of huge terms that cancel are added where others are", "tests/gradients/test_influence.py")
def cancellation_ignored(patch: Patch) -> None:
    for module in (contributions, sources):
        patch.setattr(
            module, "cancelled", lambda squares, sizes, positions: torch.zeros_like(squares, dtype=torch.bool)
        )
    patch.setattr(sources.Uses, "squares", lambda self: self._measured()[0])  # nor is the norm enlarged for it


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
    "tests/training/test_users.py",
    "tests/mechanisms/test_clipping.py::test_a_record_with_several_examples_is_charged_for_each",
)
def users_charged_for_one_example(patch: Patch) -> None:
    patch.setattr(groups.Clipping, "repeated", lambda self, contributions: self)


# -- what is charged ---------------------------------------------------------------------------------------------------


@mutant("the count of adaptive clipping is not charged", f"{HISTORY}::test_07_adaptive_clipping_is_charged", note=7)
def quantile_not_charged(patch: Patch) -> None:
    def update(self: Any, receipt: Any, source: Any) -> float:
        total = torch.tensor([self._tally], dtype=torch.float64)
        quantile.add_gaussian_([(total, self._query.noise_std)], source)
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
    "tests/training/test_metrics.py",
    "tests/training/test_batch_norm.py::test_statistics_are_charged_with_the_noise_that_is_added",
)
def metrics_not_charged(patch: Patch) -> None:
    real = questions.Questionnaire.at

    def at(self: Any, number: int, recipe: Any) -> Any:
        found = real(self, number, recipe)
        kept = tuple(query for query in found.step.queries if query.group not in found.tallies)
        return replace(found, step=Step(found.step.sampling, kept))

    def release(self: Any, receipt: Any, source: Any, *, lot_size: float) -> Any:
        total = self._total._sum.clone()
        self._total._sum.zero_()
        sums.add_gaussian_([(total, self._query.noise_std)], source)
        return total / lot_size

    patch.setattr(questions.Questionnaire, "at", at)
    patch.setattr(questions.Tally, "mean", release)


@mutant(
    "values of metrics are not clipped",
    "tests/training/test_metrics.py",
    "tests/mechanisms/test_sums.py::test_clipped_rows_are_bounded_in_exact_arithmetic",
)
def metrics_not_clipped(patch: Patch) -> None:
    patch.setattr(sums, "_clip", lambda values, bound, *, order: values.detach().double())


@mutant("batch statistics are those of the batch, without noise", "tests/training/test_batch_norm.py")
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
    "tests/ledger/test_book.py",
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
    "tests/ledger/test_book.py",
)
def receipt_spent_twice(patch: Patch) -> None:
    patch.setattr(
        Receipt, "spend", lambda self, group: next(query for query in self._step.queries if query.group == group)
    )


@mutant(
    "the budget is asked after the step was recorded",
    f"{HISTORY}::test_18_the_budget_is_checked_first_and_the_record_stays",
    "tests/accounting/test_filter.py",
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


@mutant("the journal does not wait for the disk", "tests/ledger/test_crash.py")
def journal_not_synced(patch: Patch) -> None:
    real = journal.Journal.write

    def write(self: Any, step: Step) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(journal, "_sync", lambda fd: None)
            real(self, step)

    patch.setattr(journal.Journal, "write", write)


@mutant("the journal is written after the release", "tests/crash")
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


# -- accounting --------------------------------------------------------------------------------------------------------


@mutant(
    "calibration overshoots the target by a little",
    f"{HISTORY}::test_08_calibration_never_overshoots_and_reading_changes_nothing",
    "tests/training/test_budget.py::test_solved_noise_spends_the_budget_and_not_more",
    note=8,
)
def calibration_overshoots(patch: Patch) -> None:
    real = strength.plan
    patch.setattr(
        strength, "plan", lambda **settings: replace(p := real(**settings), noise_multiplier=0.97 * p.noise_multiplier)
    )


@mutant(
    "the central limit theorem is reported as an upper bound",
    f"{HISTORY}::test_17_no_accountant_promises_nothing_for_something",
    "tests/accounting/test_pld.py::test_the_required_numbers",
    note=17,
)
def clt_as_a_bound(patch: Patch) -> None:
    def epsilon(self: Any, composed: Any, delta: float) -> composition.Interval:
        square = sum(
            count * term.rate**2 * math.expm1(1 / term.base.noise_multiplier**2) for term, count in composed.parts
        )
        return composition.Interval(gaussian.epsilon(math.sqrt(square), delta))

    patch.setattr(pld.Pld, "epsilon", epsilon)


@mutant("Rényi orders so near 1 that ε comes out as 0", "tests/accounting/test_rdp.py", note=17)
def order_near_one(patch: Patch) -> None:
    real = rdp.Rdp._least

    def least(self: Any, composed: Any, convert: Any) -> float:
        return 0.0 if self.orders is None else float(real(self, composed, convert))

    patch.setattr(rdp.Rdp, "_least", least)


@mutant(
    "the groups of a step are charged as the largest of them alone",
    "tests/mechanisms/test_allocation.py",
    "tests/ledger/test_events.py",
)
def groups_charged_as_one(patch: Patch) -> None:
    patch.setattr(
        Step,
        "noise_multiplier",
        property(lambda self: 1 / max(query.clip_norm / query.noise_std for query in self.queries)),
    )


@mutant("replacing a record is charged as adding one", "tests/accounting")
def replacement_charged_as_addition(patch: Patch) -> None:
    patch.setattr(composition.Composition, "shift_factor", property(lambda self: 1))


@mutant(
    "steps are composed at half their sampling rate",
    "tests/cli/test_commands.py::test_account_a_plan",
    note=2,
)
def rate_halved_in_the_accounting(patch: Patch) -> None:
    real = composition._policy

    def policy(sampling: Any, adjacency: Any) -> Any:
        kind, rate = real(sampling, adjacency)
        return kind, rate / 2 if isinstance(sampling, Poisson) else rate

    patch.setattr(composition, "_policy", policy)


@mutant("δ spent on discovered values is forgotten", "tests/mechanisms/test_counts.py")
def slack_forgotten(patch: Patch) -> None:
    patch.setattr(composition, "_slack", lambda step, adjacency: 0.0)


# -- the sparse vector technique ---------------------------------------------------------------------------------------


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
    def search(self: Any, sizes: Any, source: Source) -> Any:
        order = sparse_vector._Order(sizes.size, source).take(sizes.size)
        reach = self.threshold + sparse_vector._laplace(self.releases, self.threshold_scale, source)[0]
        noisy = sizes[order] + sparse_vector._laplace(order.size, 2 * self.threshold_scale, source)
        return order[np.flatnonzero(noisy >= reach)[: self.releases]]

    patch.setattr(sparse_vector.SparseVectorQuery, "_search", search)


@mutant(
    "positions are drawn with replacement",
    f"{HISTORY}::test_21_only_the_chosen_leave_each_once_and_each_with_noise",
    note=21,
)
def sparse_positions_with_replacement(patch: Patch) -> None:
    real = sparse_vector.SparseVectorQuery._search

    def search(self: Any, sizes: Any, source: Source) -> Any:
        found = real(self, sizes, source)
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


# -- the loop and files ------------------------------------------------------------------------------------------------


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
    patch.setattr(private, "_check_one_process", lambda model: None)


@mutant("checkpoints are unpickled", f"{HISTORY}::test_23_a_checkpoint_is_never_unpickled", note=23)
def checkpoint_unpickled(patch: Patch) -> None:
    real = checkpoint._tensors

    def load(path: Any) -> Any:
        try:
            return real(path)
        except ValueError:
            return torch.load(path, weights_only=False)

    patch.setattr(checkpoint, "_tensors", load)


@mutant("rows of the PCA are not scaled to norm 1", "tests/features/test_pca.py")
def pca_rows_unbounded(patch: Patch) -> None:
    patch.setattr(pca, "_units", lambda rows: rows.detach().double())


@mutant(
    "a correlated noise is accounted for as if it were independent",
    f"{HISTORY}::test_22_correlated_noise_is_unknown_and_refused_by_name",
    note=22,
)
def correlated_noise_as_independent(patch: Patch) -> None:
    real = composition.compose

    def compose(entries: Any, adjacency: Any) -> Any:
        def plain(step: Step) -> Step:
            return Step(
                step.sampling, tuple(replace(q, noise="gaussian") if hasattr(q, "noise") else q for q in step.queries)
            )

        return real([(plain(step), count) for step, count in entries], adjacency)

    patch.setattr(import_module("tacit.accounting.guarantee"), "compose", compose)
