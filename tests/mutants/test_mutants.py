"""Every mutant is caught by an ordinary test, and those tests pass on the library as it is."""

from __future__ import annotations

import pytest

from mutants.catalogue import MUTANTS
from mutants.running import CONTROL, run

QUICK = (
    "noise_replayed_after_resume",
    "divided_by_the_realised_lot",
    "one_layer_not_clipped",
    "empty_lot_skipped",
    "budget_checked_after_the_step",
)


def test_there_are_many_and_each_has_a_catcher() -> None:
    assert len(MUTANTS) >= 25
    assert all(mutant.caught_by for mutant in MUTANTS.values())
    assert {mutant.note for mutant in MUTANTS.values()} >= set(range(1, 24))


def test_a_few_are_caught() -> None:
    found = run(QUICK, most=1)
    assert {name: result.trouble or "missed" for name, result in found.items() if not result.caught} == {}
    assert set(found) == set(QUICK)


@pytest.mark.slow
def test_all_are_caught() -> None:
    found = run(MUTANTS, most=1)
    assert {name: result.trouble or "missed" for name, result in found.items() if not result.caught} == {}
    assert set(found) == set(MUTANTS)


@pytest.mark.slow
def test_the_catchers_pass_without_a_mutant() -> None:
    control = run([CONTROL])[CONTROL]
    assert control.failed == () and not control.trouble
    assert control.passed >= 100
