"""Training on a table: learns, pays for everything, and never more than the budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tables.conftest import SCHEMA, people
from tacit.accounting import account
from tacit.gradients.precision import MARGIN
from tacit.ledger import Budget, GaussianSum, Header, Ledger
from tacit.tables.columns import Category
from tacit.tables.encoding import Encoding
from tacit.tables.model import KINDS, TableModel
from tacit.tables.reading import from_columns
from tacit.tables.rule import Settings, most_parameters, settings
from tacit.tables.run import TableFile, run_table
from tacit.tables.schema import Schema
from tacit.tables.training import TableOutcome, train_table

BUDGET = Budget(epsilon=2.0, delta=1e-5)


def trained(schema: dict, ledger: Ledger | None = None, count: int = 4000, **options: object) -> TableOutcome:
    declared, table = Schema.from_json(schema), people(count)
    return train_table(
        lambda: from_columns(table, declared.columns),
        declared,
        budget=BUDGET,
        ledger=ledger or Ledger(Header(secure_randomness=False)),
        seed=1,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_it_learns(model: str) -> None:
    test = from_columns(people(2000, seed=9), SCHEMA["columns"])
    outcome = trained(SCHEMA, model=model, test=test)
    assert outcome.score is not None and not outcome.score.private
    assert outcome.score.value > 0.85  # the majority is about 0.5
    assert outcome.guarantee.epsilon <= 2.0


def test_a_seeded_run_can_be_repeated() -> None:
    test = people(500, seed=9)
    first, second = (
        trained(SCHEMA, model="mlp", test=from_columns(test, SCHEMA["columns"])).model.probabilities(test)
        for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_a_private_test_is_charged_and_close() -> None:
    ledger = Ledger(Header(secure_randomness=False))
    outcome = trained(SCHEMA, ledger)
    assert outcome.score is not None and outcome.score.private and outcome.score.noise_std > 0
    last = ledger.entries[-1][0].queries
    assert [query.group for query in last] == ["metrics/test_accuracy", "metrics/test_by_class"]
    exact = trained(SCHEMA, test=from_columns(people(2000, seed=9), SCHEMA["columns"])).score
    assert exact is not None and abs(outcome.score.value - exact.value) < 0.06
    assert account(ledger, delta=1e-5).epsilon <= 2.0


def test_undeclared_columns_are_paid_from_the_same_budget() -> None:
    schema = json.loads(json.dumps(SCHEMA))
    schema["columns"]["age"] = {"type": "number", "low": "private", "high": "private"}
    schema["columns"]["school"] = {"type": "category", "values": "private"}
    ledger = Ledger(Header(secure_randomness=False))
    outcome = trained(schema, ledger, test=from_columns(people(2000, seed=9), SCHEMA["columns"]))
    groups = [query.group for step, _ in ledger.entries for query in step.queries]
    assert groups[:2] == ["bounds/age", "values/school"]
    assert outcome.score is not None and outcome.score.value > 0.8
    assert account(ledger, delta=1e-5).epsilon <= 2.0


def test_a_number_is_predicted_within_its_bounds() -> None:
    schema = {**SCHEMA, "target": "age", "columns": {**SCHEMA["columns"]}}
    test = from_columns(people(2000, seed=9), SCHEMA["columns"])
    outcome = trained(schema, test=test)
    assert outcome.score is not None and outcome.score.name == "test_mean_absolute_error"
    predicted = outcome.model.predict(people(50))
    assert ((predicted >= 0) & (predicted <= 100)).all()


@pytest.mark.parametrize("model", KINDS)
def test_least_squares_comes_close_to_the_exact_solution(model: str) -> None:
    """The squared error is steep where rows have many columns: steps that are too large would not settle at all."""
    schema = {**SCHEMA, "target": "age"}
    declared = Schema.from_json(schema)
    encoding, parts = Encoding(declared), [people(20_000), people(5000, seed=9)]
    rows, held = (
        np.column_stack([encoding.expand(encoding.compact(part)), np.ones(len(part["age"]))]) for part in parts
    )
    ages, truth = (part["age"].astype(float) for part in parts)
    exact = np.abs(held @ np.linalg.lstsq(rows, ages, rcond=None)[0] - truth).mean()
    average = np.abs(ages.mean() - truth).mean()
    outcome = trained(schema, count=20_000, model=model, test=from_columns(parts[1], declared.columns))
    assert outcome.score is not None and exact < 0.7 * average
    assert outcome.score.value < exact + 0.1 * (average - exact)


def test_too_few_records_say_how_many_are_needed() -> None:
    declared, table, ledger = Schema.from_json(SCHEMA), people(60), Ledger()
    with pytest.raises(ValueError, match=r"60 records to train on are too few for epsilon 0.1.*About \d+ are needed"):
        train_table(
            lambda: from_columns(table, declared.columns),
            declared,
            budget=Budget(epsilon=0.1, delta=1e-5),
            ledger=ledger,
            test_fraction=0.0,
        )
    assert not len(ledger)


def undeclared(**columns: object) -> dict:
    return {**SCHEMA, "columns": {**SCHEMA["columns"], **columns}}


@pytest.mark.parametrize(
    ("schema", "count", "words"),
    [
        (undeclared(age={"type": "private"}, town={"type": "private"}), 60, "too few for epsilon 0.1"),
        (undeclared(employed={"type": "category", "values": "private"}), 900, "too few to find the classes"),
    ],
)
def test_too_few_records_are_found_before_anything_is_charged(schema: dict, count: int, words: str) -> None:
    """How many records there are is public, so nothing has to be released to see that they are too few."""
    declared, table, ledger = Schema.from_json(schema), people(count), Ledger()
    with pytest.raises(ValueError, match=words):
        train_table(
            lambda: from_columns(table, declared.columns),
            declared,
            budget=Budget(epsilon=0.1, delta=1e-5),
            ledger=ledger,
            test_fraction=0.0,
        )
    assert not len(ledger)


def test_values_that_are_found_never_make_the_model_too_large() -> None:
    """After the discovery was charged there is no refusal for want of records: the rarest values are left out."""
    count = 4000
    table = people(count)
    table["street"] = np.array([f"street {number % 40}" for number in range(count)])
    schema = Schema.from_json(undeclared(street={"type": "category", "values": "private"}))
    ledger = Ledger(Header(secure_randomness=False))

    def small(rule: Settings, records: int) -> Settings:
        return replace(rule, lot_size=4, steps=10)

    outcome = train_table(
        lambda: from_columns(table, schema.columns), schema, budget=BUDGET, ledger=ledger, chosen=small, seed=1
    )
    street = outcome.model.encoding.schema.columns["street"]
    most = most_parameters(noise_multiplier=outcome.noise_multiplier, chosen=outcome.settings)
    assert isinstance(street, Category) and street.values is not None and 1 <= len(street.values) < 40
    assert outcome.model.size <= most < 2 * (40 + 8)


def test_the_clip_norm_is_that_of_the_model_that_was_found() -> None:
    """What the ledger says was clipped to follows from the released schema, not from the smallest that could be."""
    town = {"type": "category", "values": "private"}
    ledger = Ledger(Header(secure_randomness=False))
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], "town": town}}
    outcome = trained(schema, ledger, count=1500, test_fraction=0.0)
    rule = settings(records=1500, parameters=outcome.model.size, epsilon=BUDGET.epsilon)
    smallest = settings(records=1500, parameters=outcome.model.size - 2, epsilon=BUDGET.epsilon)
    assert outcome.settings == rule and rule.clip_norm != smallest.clip_norm
    [gradients] = ledger.entries[-1][0].queries
    assert isinstance(gradients, GaussianSum)
    assert gradients.clip_norm == pytest.approx(rule.clip_norm * (1 + MARGIN))
    assert gradients.noise_std == pytest.approx(outcome.noise_multiplier * gradients.clip_norm)


def test_the_rule_uses_public_numbers_only() -> None:
    one, two = (settings(records=n, parameters=100, epsilon=1.0) for n in (1000, 100_000))
    assert one.lot_size == 62 and two.lot_size == 6250
    assert one.learning_rate < two.learning_rate and one.clip_norm < two.clip_norm
    for each in (one, two):
        assert each.clip_norm == pytest.approx(2 * each.learning_rate)
    hidden = settings(records=1000, parameters=100, epsilon=1.0, hidden=True)
    assert hidden.clip_norm == 1.0 and hidden.learning_rate == pytest.approx(2 * one.learning_rate)
    assert settings(records=100_000, parameters=20, epsilon=1.0, squared=19).learning_rate == 1 / 20
    assert settings(records=10**9, parameters=100, epsilon=1.0).lot_size == 65_536


def test_a_run_leaves_what_a_run_leaves(csv_file: Path, tmp_path: Path) -> None:
    schema = Schema.from_json(SCHEMA)
    outcome = run_table(TableFile(csv_file, schema), schema, budget=BUDGET, out=tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["ledger.jsonl", "model.json", "model.safetensors", "run.json"]
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["finished"] and facts["result"]["epsilon"] <= 2.0 and facts["seed"] is None
    assert facts["history"][0]["metrics"]["test_accuracy"]["private"] is True
    again = TableModel.load(tmp_path / "out")
    table = people(100, seed=4)
    assert np.array_equal(again.predict(table), outcome.model.predict(table))
    with pytest.raises(ValueError, match="finished run"):
        run_table(TableFile(csv_file, schema), schema, budget=BUDGET, out=tmp_path / "out")


def test_a_bad_table_leaves_nothing(csv_file: Path, tmp_path: Path) -> None:
    csv_file.write_text(csv_file.read_text() + "1,some,A,perhaps\n")
    schema = Schema.from_json(SCHEMA)
    with pytest.raises(ValueError, match="row 4001: 'perhaps'"):
        run_table(TableFile(csv_file, schema), schema, budget=BUDGET, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_record_of_another_class_does_not_decide_whether_there_is_a_model(csv_file: Path, tmp_path: Path) -> None:
    schema = Schema.from_json(SCHEMA)
    for number, last in enumerate(("30,some,A,yes\n", "30,some,A,no\n")):
        csv_file.write_text("age,school,town,employed\n" + "30,some,A,yes\n" * 500 + last)
        outcome = run_table(TableFile(csv_file, schema), schema, budget=BUDGET, out=tmp_path / str(number))
        assert outcome.guarantee.epsilon <= BUDGET.epsilon


@pytest.mark.parametrize("where", ["table", "test"])
@pytest.mark.parametrize("column", ["age", "town", "employed"])
def test_a_missing_entry_of_a_private_column_is_found_before_anything_is_charged(
    csv_file: Path, tmp_path: Path, column: str, where: str
) -> None:
    kind = (
        {"type": "number", "low": "private", "high": "private"}
        if column == "age"
        else {"type": "category", "values": "private"}
    )
    schema = Schema.from_json({**SCHEMA, "columns": {**SCHEMA["columns"], column: kind}})
    names = ["age", "school", "town", "employed"]
    entries = {"age": "30", "school": "some", "town": "A", "employed": "yes"} | {column: ""}
    row = ",".join(entries[name] for name in names) + "\n"
    broken = tmp_path / "broken.csv"
    broken.write_text(csv_file.read_text() + row)
    table, test = (broken, None) if where == "table" else (csv_file, TableFile(broken, schema).pieces)
    with pytest.raises(ValueError, match="row 4001: the entry is missing"):
        run_table(TableFile(table, schema), schema, budget=BUDGET, out=tmp_path / "out", test=test)
    assert not (tmp_path / "out").exists()


def test_damaged_models_are_refused(csv_file: Path, tmp_path: Path) -> None:
    model = TableModel.new("linear", Schema.from_json(SCHEMA))
    model.save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match="no model that can be read"):
        TableModel.load(tmp_path)
