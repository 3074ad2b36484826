"""Mutants of what the ledger is said to cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mutants.registry import HISTORY, Patch, mutant
from tacit.accounting import composition, entries, gaussian, pld, rdp
from tacit.ledger import Poisson, Step
from tacit.training import noise_calibration


@mutant(
    "calibration overshoots the target by a little",
    f"{HISTORY}::test_08_calibration_never_overshoots_and_reading_changes_nothing",
    "tests/training/test_budget.py::test_solved_noise_spends_the_budget_and_not_more",
    note=8,
)
def calibration_overshoots(patch: Patch) -> None:
    real = noise_calibration.plan
    patch.setattr(
        noise_calibration,
        "plan",
        lambda **settings: replace(p := real(**settings), noise_multiplier=0.97 * p.noise_multiplier),
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


@mutant("Rényi orders so near 1 that ε comes out as 0", "tests/accounting/test_rdp.py::test_known_numbers", note=17)
def order_near_one(patch: Patch) -> None:
    real = rdp.Rdp._least

    def least(self: Any, composed: Any, convert: Any) -> float:
        return 0.0 if self.orders is None else float(real(self, composed, convert))

    patch.setattr(rdp.Rdp, "_least", least)


@mutant(
    "the groups of a step are charged as the largest of them alone",
    "tests/mechanisms/test_allocation.py::test_composed_noise_multiplier_is_the_target",
)
def groups_charged_as_one(patch: Patch) -> None:
    def worst(queries: Any) -> float:
        return 1 / max(query.clip_norm / query.noise_std for query in queries)

    patch.setattr(Step, "noise_multiplier", property(lambda self: worst(self.queries)))
    patch.setattr(entries, "_gaussian", lambda queries: composition.Gaussian(worst(queries)))


@mutant(
    "replacing a record is charged as adding one", "tests/accounting/test_moments.py::test_everyone_has_the_closed_form"
)
def replacement_charged_as_addition(patch: Patch) -> None:
    patch.setattr(composition.Composition, "shift_factor", property(lambda self: 1))


@mutant(
    "steps are composed at half their sampling rate",
    "tests/cli/test_commands.py::test_account_a_plan",
    note=2,
)
def rate_halved_in_the_accounting(patch: Patch) -> None:
    real = entries._policy

    def policy(sampling: Any, adjacency: Any) -> Any:
        kind, rate = real(sampling, adjacency)
        return kind, rate / 2 if isinstance(sampling, Poisson) else rate

    patch.setattr(entries, "_policy", policy)


@mutant(
    "δ spent on discovered values is forgotten",
    "tests/mechanisms/test_counts.py::test_delta_covers_both_kinds_of_neighbours",
)
def slack_forgotten(patch: Patch) -> None:
    patch.setattr(entries, "_slack", lambda step, adjacency, group: 0.0)
