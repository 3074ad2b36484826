"""Scores beside a baseline, overall and by class, exact or noisy and paid for."""

from __future__ import annotations

import numpy as np
import pytest

from tables.conftest import SCHEMA, people
from tacit.ledger import Budget, Header, Ledger
from tacit.tables.reading import from_columns
from tacit.tables.schema import Number, Schema
from tacit.tables.scoring import Examination, Score
from tacit.tables.training import train_table

NUMBER = Schema.from_json({**SCHEMA, "target": "age"})


def scored(schema: Schema, *, public: bool) -> tuple[Score, Ledger]:
    table, ledger = people(6000), Ledger(Header(secure_randomness=False))
    new = people(2000, seed=3)
    outcome = train_table(
        lambda: from_columns(table, schema.columns),
        schema,
        budget=Budget(epsilon=4.0, delta=1e-5),
        ledger=ledger,
        test=from_columns(new, schema.columns) if public else None,
        seed=1,
    )
    assert outcome.score is not None and outcome.guarantee.epsilon <= 4.0
    return outcome.score, ledger


@pytest.mark.parametrize("public", [True, False])
def test_accuracy_comes_with_the_commonest_class_and_by_class(public: bool) -> None:
    score, ledger = scored(Schema.from_json(SCHEMA), public=public)
    new = people(2000, seed=3)["employed"]
    commonest = max(np.mean(new == "no"), np.mean(new == "yes"))
    assert score.baseline is not None and abs(score.baseline - commonest) < (1e-9 if public else 0.1)
    assert score.value > score.baseline
    assert sum(one["share"] or 0 for one in score.by_class.values()) == pytest.approx(1, abs=1e-9 if public else 0.1)
    total = sum((one["share"] or 0) * (one["accuracy"] or 0) for one in score.by_class.values())
    assert total == pytest.approx(score.value, abs=1e-6 if public else 0.15)
    groups = {query.group for step, _ in ledger.entries for query in step.queries}
    assert ("metrics/test_by_class" in groups) is not public


@pytest.mark.parametrize("public", [True, False])
def test_the_error_of_a_number_comes_with_that_of_the_mean(public: bool) -> None:
    score, ledger = scored(NUMBER, public=public)
    ages = people(2000, seed=3)["age"].astype(float)
    apart = float(np.abs(ages - ages.mean()).mean())
    assert score.baseline == pytest.approx(apart, rel=1e-5 if public else 0.25)
    assert score.value < score.baseline
    groups = {query.group for step, _ in ledger.entries for query in step.queries}
    assert ({"metrics/test_mean", "metrics/test_baseline"} <= groups) is not public


def test_the_baseline_costs_a_quarter_of_the_score_in_squared_noise() -> None:
    for schema in (Schema.from_json(SCHEMA), NUMBER):
        look = Examination.planned(schema, 10.0, 100)
        assert look.step("example").noise_multiplier == pytest.approx(10 / 1.25**0.5)
    assert isinstance(NUMBER.columns["age"], Number)
