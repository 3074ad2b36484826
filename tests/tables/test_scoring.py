"""Scores beside a baseline, overall and by class, exact or noisy and paid for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tables.conftest import SCHEMA, people
from tacit.ledger import Budget, Header, Ledger
from tacit.tables.columns import Number
from tacit.tables.model import TableModel
from tacit.tables.reading import from_columns
from tacit.tables.schema import Schema
from tacit.tables.scoring import Examination, Score, _by_group, check_groups
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


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("schema", [Schema.from_json(SCHEMA), NUMBER], ids=["classes", "number"])
def test_the_score_is_given_for_every_group_of_a_declared_column(schema: Schema, public: bool) -> None:
    table, ledger, new = people(6000), Ledger(Header(secure_randomness=False)), people(3000, seed=3)
    outcome = train_table(
        lambda: from_columns(table, schema.columns),
        schema,
        budget=Budget(epsilon=4.0, delta=1e-5),
        ledger=ledger,
        test=from_columns(new, schema.columns) if public else None,
        by="town",
        seed=1,
    )
    score = outcome.score
    assert score is not None and outcome.guarantee.epsilon <= 4.0 and list(score.by_group) == ["A", "B", "(other)"]
    predicted = outcome.model.predict(new)
    for name, one in score.by_group.items():
        here = new["town"] == ("C" if name == "(other)" else name)
        right = predicted[here] == new["employed"][here] if schema.classes else None
        wanted = right.mean() if right is not None else np.abs(predicted[here] - new["age"][here].astype(float)).mean()
        assert one["share"] == pytest.approx(here.mean(), abs=1e-9 if public else 0.1)
        assert one["value"] == pytest.approx(wanted, rel=1e-4 if public else 0.25)
    asked = [query.group for step, _ in ledger.entries for query in step.queries]
    assert ("metrics/test_by_group" in asked) is not public


def test_a_record_adds_at_most_root_two_to_the_groups() -> None:
    """A count of one in one group, and a score of at most one in the same group."""
    schema = Schema.from_json(SCHEMA)
    model = TableModel.new("linear", schema)
    for row in range(20):
        one = {name: values[row : row + 1] for name, values in people(20).items()}
        compact = torch.from_numpy(model.encoding.compact(one))
        sums = _by_group(model, "town", compact, torch.from_numpy(model.encoding.targets(one)).long())
        assert np.linalg.norm(sums) <= np.sqrt(2) + 1e-12
    query = Examination.planned(schema, 1.0, 100, "town").others[-1]
    assert query.clip_norm == pytest.approx(np.sqrt(2))


@pytest.mark.parametrize(
    ("by", "text"), [("age", "not a category"), ("employed", "is predicted"), ("height", "declare")]
)
def test_groups_that_are_not_declared_are_refused(by: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_groups(Schema.from_json(SCHEMA), by)
