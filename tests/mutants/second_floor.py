"""Mutants of random allocation, cut lots, correlated noise, cyclic turns, owners, and tuning by profiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mutants.registry import Patch, mutant
from tacit import block_keys
from tacit.accounting import correlated as correlated_cost
from tacit.accounting import entries, selected
from tacit.accounting.composition import Policy, Term
from tacit.keyed_noise import KeyedSource
from tacit.ledger import OwnedPoisson
from tacit.mechanisms import correlated, noise
from tacit.randomness import SecureSource
from tacit.sampling import cyclic, epochs, owners, truncated
from tacit.training import block_file

_NOISE = "tests/mechanisms/test_correlated_noise.py"
_RUNS = "tests/training/test_correlated_runs.py"


@mutant(
    "an epoch of random allocation is charged as that many Poisson samples of a tenth of the rate",
    "tests/accounting/test_allocation.py::test_delta_of_one_epoch_is_bracketed_within_one_percent_of_epsilon",
    "tests/accounting/test_allocation.py::test_ten_epochs_agree_with_a_simulation",
)
def allocation_charged_too_little(patch: Patch) -> None:
    def block(base: Any, lots: int, taken: int) -> Term:
        return Term(base, Policy.POISSON, 0.1 / lots) if lots > 1 else Term(base)

    patch.setattr(entries, "_block", block)


@mutant(
    "a record of random allocation may be in a lot of an epoch twice, and in none",
    "tests/sampling/test_allocation.py::test_each_record_is_in_exactly_so_many_lots_of_every_epoch",
)
def allocation_by_coins_of_every_lot(patch: Patch) -> None:
    def dealt(self: Any) -> list[Any]:
        rate = self._participations / self._event.lots
        return [np.flatnonzero(self._source.uniform(self.records) < rate) for _ in range(self._event.lots)]

    patch.setattr(epochs.EpochSampler, "_assign", dealt)


@mutant(
    "the chance that a lot was cut is not added to δ",
    "tests/accounting/test_truncation.py::test_cut_lots_cost_poisson_and_the_slack",
    "tests/accounting/test_truncation.py::test_a_displaced_record_is_covered",
)
def cut_for_nothing(patch: Patch) -> None:
    patch.setattr(entries, "overflow", lambda sampling, group=1: 0.0)


@mutant(
    "a lot that is too large is not cut",
    "tests/accounting/test_truncation.py::test_the_sampler_keeps_at_most_so_many_and_leaves_smaller_lots_alone",
)
def lots_not_cut(patch: Patch) -> None:
    def draw(self: Any, receipt: Any) -> Any:
        self._draws += 1
        return self._choose(receipt.draw().rate)

    patch.setattr(truncated.TruncatedPoissonSampler, "draw", draw)


@mutant(
    "the noise of past steps is added instead of taken back",
    f"{_NOISE}::test_the_noise_of_all_steps_has_the_covariance_that_is_charged",
    f"{_RUNS}::test_the_gradients_of_a_run_carry_noise_of_the_charged_covariance",
)
def noise_of_the_past_with_the_wrong_sign(patch: Patch) -> None:
    real = correlated.lags
    patch.setattr(correlated, "lags", lambda *given: [(lag, abs(weight)) for lag, weight in real(*given)])


@mutant(
    "past noise is drawn afresh, so that nothing is taken back",
    f"{_NOISE}::test_the_noise_of_all_steps_has_the_covariance_that_is_charged",
)
def noise_of_the_past_forgotten(patch: Patch) -> None:
    source = SecureSource()
    patch.setattr(block_keys.BlockKeys, "stream", lambda self, number, step: KeyedSource(source.bytes(32), number))


@mutant(
    "where sums are not contiguous, tensors get each other's noise of the past",
    f"{_NOISE}::test_tensors_in_any_layout_get_the_same_noise_as_contiguous_ones",
)
def noise_laid_out_by_tray(patch: Patch) -> None:
    real = noise.add_taken_

    def add_(sums: Any, take: Any) -> None:
        real(list(reversed(sums)), take)

    patch.setattr(noise, "add_taken_", add_)


@mutant(
    "a record is charged for its own steps, not for those that its noise reaches",
    "tests/accounting/test_correlated.py::test_sensitivity_is_the_largest_over_all_participation_patterns",
)
def columns_of_one_step(patch: Patch) -> None:
    patch.setattr(correlated_cost, "coefficients", lambda strategy, parameters, steps: np.eye(1, steps)[0])


@mutant(
    "what the noise has in common beyond a group's next turn costs nothing",
    "tests/accounting/test_correlated.py::test_noise_that_reaches_beyond_the_next_turn_is_charged_enough",
    "tests/accounting/test_correlated.py::test_a_column_is_divided_at_each_of_the_groups_turns",
)
def heads_without_tails(patch: Patch) -> None:
    real = correlated_cost.sampled_shift
    patch.setattr(
        correlated_cost,
        "sampled_shift",
        lambda name, given, groups, steps: real(name, given, groups, min(groups, steps)),
    )


@mutant(
    "a record's group is drawn anew in every round",
    "tests/sampling/test_cyclic.py::test_with_rate_one_every_record_comes_back_after_exactly_as_many_steps_as_groups",
)
def groups_drawn_every_round(patch: Patch) -> None:
    real = cyclic.CyclicSampler.draw

    def draw(self: Any, receipt: Any) -> Any:
        if self.position % self._event.groups == 0:
            self.keys, self._members = block_keys.BlockKeys(SecureSource()), []
        return real(self, receipt)

    patch.setattr(cyclic.CyclicSampler, "draw", draw)


@mutant(
    "in its turn a record takes part always, whatever the recorded rate",
    "tests/sampling/test_cyclic.py::test_a_record_takes_part_in_its_own_turns_only_and_at_the_recorded_rate",
)
def turns_without_coins(patch: Patch) -> None:
    def draw(self: Any, receipt: Any) -> Any:
        receipt.draw()
        self._members = self._members or self._assigned()
        self.position += 1
        return self._members[(self.position - 1) % self._event.groups]

    patch.setattr(cyclic.CyclicSampler, "draw", draw)


@mutant(
    "a resumed run goes on with the key of the process before it",
    f"{_NOISE}::test_a_step_that_is_taken_again_from_an_older_copy_has_other_fresh_noise",
    f"{_RUNS}::test_a_run_that_goes_back_to_a_checkpoint_keeps_its_place_in_the_block",
)
def noise_of_a_block_repeated(patch: Patch) -> None:
    patch.setattr(block_keys.BlockKeys, "go_on", lambda self, step: None)


@mutant(
    "a resumed run goes on where the checkpoint was, not where the ledger is",
    f"{_RUNS}::test_a_resumed_run_goes_on_with_its_block_its_groups_and_its_noise",
)
def resumed_at_the_checkpoint(patch: Patch) -> None:
    real = block_file.resume_block

    def resume(sampler: Any, ledger: Any, state: Any, step: Any, live: Any) -> None:
        real(sampler, ledger, state, step, live)
        sampler.position = state["draws"]

    from tacit.training import checkpoint

    patch.setattr(checkpoint, "resume_block", resume)


@mutant(
    "an owner of k records is charged as one record",
    "tests/accounting/test_owners.py::test_one_step_costs_an_owner_what_forty_digits_say",
    "tests/accounting/test_owners.py::test_an_owner_of_k_records_costs_what_a_group_of_k_costs",
)
def owners_charged_as_records(patch: Patch) -> None:
    real = entries._terms

    def terms(step: Any, adjacency: Any) -> list[Term]:
        return [replace(term, members=1) for term in real(step, adjacency)]

    patch.setattr(entries, "_terms", terms)


@mutant(
    "the bound on an owner's records is applied to the first owner only",
    "tests/sampling/test_owners.py::test_no_owner_has_more_than_so_many_and_no_record_could_be_added",
)
def only_first_owners_counted(patch: Patch) -> None:
    real = owners._listed
    patch.setattr(owners, "_listed", lambda people, most: [frozenset(sorted(each)[:1]) for each in real(people, most)])


@mutant(
    "with private ownership records are left out by counting them",
    "tests/training/test_owners.py::test_wrong_owners_are_refused_in_one_sentence",
)
def unstable_choice_for_private_owners(patch: Patch) -> None:
    patch.setattr(owners, "within_bound", owners.bounded_by_owner)


@mutant(
    "a sampler of owners draws for an event with another bound",
    "tests/sampling/test_owners.py::test_a_sampler_draws_for_its_own_event_only",
)
def owners_of_any_event(patch: Patch) -> None:
    def draw(self: Any, receipt: Any) -> Any:
        event = receipt.draw()
        rate = event.rate if isinstance(event, OwnedPoisson) else 1.0
        return self._chosen[self._choose(rate)]

    patch.setattr(owners.OwnerSampler, "draw", draw)


@mutant(
    "the profile of a selection forgets how many runs there are on average",
    "tests/accounting/test_selected.py::test_a_selection_among_gaussian_releases_costs_no_less_than_its_density_says",
)
def selection_charged_as_one_run(patch: Patch) -> None:
    patch.setattr(selected, "mean_trials", lambda selection: 1.0)


@mutant(
    "the profile of a selection leaves out the stretch of ε",
    "tests/accounting/test_selected.py::test_a_selection_among_gaussian_releases_costs_no_less_than_its_density_says",
)
def selection_without_stretch(patch: Patch) -> None:
    patch.setattr(selected, "_stretch", lambda best, method: 0.0)
