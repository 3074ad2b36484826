"""Private boosting: what it learns, what it charges, and what one record can change."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tables.conftest import SCHEMA, people
from tables.generated import TABLES
from tacit.accounting import account, guarantee
from tacit.ledger import Budget, Header, Ledger
from tacit.randomness import SeededSource
from tacit.tables.binning import binned, lacking_bins
from tacit.tables.boosting import Cells, Shapes, axes, boost, boost_settings, exported, planned
from tacit.tables.boosting.cells import Axis, merged
from tacit.tables.boosting.loss import loss_for
from tacit.tables.boosting.plan import schedule
from tacit.tables.boosting.rounds import Boosting
from tacit.tables.boosting.smoothing import Prior, evidence, neighbours, settled_counts, smoothed
from tacit.tables.columns import Category, Number, Undeclared
from tacit.tables.encoding import UNKNOWN, Encoding
from tacit.tables.model import TableModel
from tacit.tables.reading import from_columns
from tacit.tables.records import Records, encode
from tacit.tables.rule import choose_model
from tacit.tables.schema import Schema
from tacit.tables.training import TableOutcome, train_table


def trained(
    table: dict[str, np.ndarray], schema: Schema, *, epsilon: float = 3.0, model: str = "boosted"
) -> TableOutcome:
    return train_table(
        lambda: from_columns(table, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=1e-5),
        ledger=Ledger(Header(secure_randomness=False)),
        model=model,
        test_fraction=0.0,
        seed=1,
    )


def fit_of(outcome: TableOutcome, table: dict[str, np.ndarray]) -> float:
    truth = np.asarray(table["y"], dtype=float)
    left = truth - outcome.model.predict(table)
    return 1 - float((left**2).sum() / ((truth - truth.mean()) ** 2).sum())


def rides(count: int, seed: int) -> dict[str, np.ndarray]:
    """Peaks in the morning on working days, at noon on others: no sum of shapes of single columns can say that."""
    draw = np.random.default_rng(seed)
    hour, work = draw.integers(0, 24, count), draw.integers(0, 2, count)
    peak = np.where(work == 1, np.exp(-((hour - 8) ** 2) / 6), np.exp(-((hour - 15) ** 2) / 10))
    return {"hour": hour, "work": work, "other": draw.normal(size=count), "y": (400 * peak).clip(0, 500)}


UNKNOWN_RIDES = Schema(
    columns={"hour": Undeclared(), "work": Undeclared(), "other": Undeclared(), "y": Number(low=0, high=500)},
    target="y",
)


def test_boosting_finds_the_pair_that_a_linear_model_cannot() -> None:
    table, new = rides(6000, 0), rides(2000, 1)
    boosted, linear = (trained(table, UNKNOWN_RIDES, model=model) for model in ("boosted", "linear"))
    assert fit_of(boosted, new) > 0.85 > 0.6 > fit_of(linear, new)
    shapes = boosted.model.network
    assert isinstance(shapes, Shapes)
    assert "hour × work" in [term.name(shapes.axes) for term in shapes.terms]


@pytest.mark.parametrize("name", ["computers", "diamonds", "wages"])
def test_more_budget_is_no_worse(name: str) -> None:
    draw = np.random.default_rng(3)
    made, bounds = TABLES[name]
    assert bounds is not None
    table, new = made(draw, 4000), made(draw, 2000)
    columns = {column: Undeclared() for column in table if column != "y"}
    schema = Schema(columns={**columns, "y": Number(low=bounds[0], high=bounds[1])}, target="y")
    fits = [fit_of(trained(table, schema, epsilon=epsilon), new) for epsilon in (1.0, 8.0)]
    assert fits[1] > fits[0] - 0.01


def test_everything_is_in_the_ledger_and_within_the_budget() -> None:
    ledger = Ledger(Header(secure_randomness=False))
    table, budget = rides(3000, 2), Budget(epsilon=1.0, delta=1e-5)
    outcome = train_table(
        lambda: from_columns(table, UNKNOWN_RIDES.columns),
        UNKNOWN_RIDES,
        budget=budget,
        ledger=ledger,
        model="boosted",
        seed=1,
    )
    spent = account(ledger, delta=1e-5).epsilon
    assert 0.9 < spent <= 1.0 and outcome.guarantee.epsilon == spent
    groups = {query.group for step, _ in ledger.entries for query in step.queries}
    assert {"shape/hour", "counts/work", "norms", "pairs", "target", "metrics/test_mean_absolute_error"} <= groups


def test_the_looks_cost_what_was_planned() -> None:
    """Each step's noise multiplier is the schedule's, whatever was found: the budget was shared out before."""
    cells, ledger = Cells.of(_encoded(rides(2000, 0)), axes(_schema())), Ledger(Header(secure_randomness=False))
    chosen = boost_settings(records=2000, columns=3, epsilon=3.0, classes=0)
    boost(cells, 0, noise_multiplier=5.0, chosen=chosen, ledger=ledger, source=SeededSource(4))
    loud = schedule(5.0, 3).values()
    for step, _ in ledger.entries:
        assert any(0 <= step.noise_multiplier / one - 1 < 1e-6 for one in loud)
    once = guarantee([*ledger.entries], ledger.header, delta=1e-5).epsilon
    assert once <= guarantee(planned(5.0, 3, "example"), ledger.header, delta=1e-5).epsilon


@pytest.mark.parametrize("classes", [0, 2, 5])
def test_one_record_moves_no_sum_by_more_than_its_clip_norm(classes: int) -> None:
    """All sums, of residuals and of counts, with and without one record, at scores that are anything."""
    table = rides(400, 5)
    records = _encoded(table, classes)
    cells = Cells.of(records, axes(_schema(classes)))
    draw = np.random.default_rng(0)
    work = Boosting(cells, loss_for(classes), schedule(1.0, 3), Ledger(Header()), SeededSource(0))
    work.scores[:] = draw.normal(0, 30, work.scores.shape)
    whole = Shapes.of(_schema(classes)).terms[0]
    for clip_norm in (1e-3, 0.3, 1.0):
        every = work.clipped(slice(0, 400), clip_norm)
        assert (np.linalg.norm(every, axis=1) <= clip_norm).all()
        sums = work.sums(whole, clip_norm)
        assert np.allclose(sums.sum(axis=0), every.sum(axis=0))
    assert work.count(whole).sum() <= 400


def test_a_record_of_an_undiscovered_class_adds_nothing() -> None:
    targets = np.array([0, 1, UNKNOWN])
    for classes in (2, 3):
        loss = loss_for(classes)
        left = loss.residuals(np.full((3, loss.outputs), 7.0, dtype=np.float32), targets)
        assert not left[2].any() and left[:2].any(axis=1).all()
        assert loss.first(targets).sum() == 2


def test_declared_bins_are_used_and_declared_bounds_get_private_ones() -> None:
    columns = {
        "hour": Number(low=0, high=24, bins=(6.0, 12.0, 18.0)),
        "work": Category(values=("0", "1")),
        "other": Number(low=-4, high=4),
        "y": Number(low=0, high=500),
    }
    schema = Schema(columns=columns, target="y")
    assert list(lacking_bins(schema)) == ["other"]
    outcome = trained(rides(3000, 0), schema)
    found = outcome.model.encoding.schema.columns
    hour, other = found["hour"], found["other"]
    assert isinstance(hour, Number) and hour.bins == (6.0, 12.0, 18.0)
    assert isinstance(other, Number) and len(other.bins) > 8


def test_classes_are_predicted_and_the_model_comes_back_from_its_files(tmp_path: Path) -> None:
    schema = Schema.from_json(SCHEMA)
    outcome = trained(people(6000), schema, epsilon=4.0)
    new = people(1500, seed=7)
    right = outcome.model.predict(new) == new["employed"]
    assert right.mean() > 0.85
    outcome.model.save(tmp_path)
    again = TableModel.load(tmp_path)
    assert (again.predict(new) == outcome.model.predict(new)).all()
    assert np.allclose(again.probabilities(new), outcome.model.probabilities(new))
    assert np.allclose(again.probabilities(new).sum(axis=1), 1.0)
    facts = json.loads((tmp_path / "model.json").read_text())
    facts["terms"][0]["columns"] = [99]
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="does not fit its column"):
        TableModel.load(tmp_path)


def test_the_exported_shapes_add_up_to_the_prediction() -> None:
    outcome = trained(rides(3000, 0), UNKNOWN_RIDES)
    shapes = outcome.model.network
    assert isinstance(shapes, Shapes)
    facts = exported(shapes, outcome.model.encoding)
    new = rides(50, 9)
    compact = torch.from_numpy(outcome.model.encoding.compact(new))
    codes = compact.long().numpy() + np.array([axis.missing for axis in shapes.axes])
    totals = np.full(50, facts["intercept"][0])
    for term, table in zip(shapes.terms, facts["terms"], strict=True):
        flat = term.flat([codes[:, place] for place in term.places])
        totals += np.array(table["adds"]).reshape(-1)[flat]
    assert np.allclose(totals.clip(0, 500), outcome.model.predict(new), atol=0.05)


def test_missing_entries_have_a_cell_of_their_own() -> None:
    table = rides(3000, 0)
    gone = np.random.default_rng(1).random(3000) < 0.3
    hour = np.where(gone, "", table["hour"].astype(str)).astype(object)
    table = {**table, "hour": hour, "y": np.where(gone, 450.0, table["y"])}
    outcome = trained(table, UNKNOWN_RIDES)
    assert outcome.model.predict({**rides(5, 3), "hour": np.array([""] * 5, dtype=object)}).min() > 350


def test_too_few_records_are_refused_before_anything_is_charged() -> None:
    ledger = Ledger(Header(secure_randomness=False))
    table = rides(60, 0)
    with pytest.raises(ValueError, match="too few for boosting 3 columns"):
        train_table(
            lambda: from_columns(table, UNKNOWN_RIDES.columns),
            UNKNOWN_RIDES,
            budget=Budget(epsilon=0.5, delta=1e-5),
            ledger=ledger,
            model="boosted",
            seed=1,
        )
    assert not len(ledger)


def test_the_rule_chooses_by_public_numbers_and_says_why() -> None:
    kind, why = choose_model(records=7000, columns=12, epsilon=3.0, classes=False)
    assert kind == "boosted" and "7000 records" in why and "12 columns" in why
    assert choose_model(records=1000, columns=12, epsilon=1.0, classes=False)[0] == "linear"
    assert choose_model(records=7000, columns=12, epsilon=1.0, classes=True)[0] == "linear"
    outcome = trained(rides(3000, 0), UNKNOWN_RIDES, model="auto")
    assert outcome.model.kind == "boosted" and outcome.why.startswith("The model is boosted")


def test_a_shape_of_noise_is_flat_and_a_loud_one_is_kept() -> None:
    draw = np.random.default_rng(0)
    prior, precision = [Prior(neighbours(30, ordered=True, missing=False))], np.full(30, 4.0)
    noise = draw.normal(0, 0.5, (30, 1))
    assert np.ptp(smoothed(noise, precision, prior)) < 0.3 * np.ptp(noise)
    wave = 10 * np.sin(np.arange(30) / 4)[:, None]
    assert np.abs(smoothed(wave + noise, precision, prior) - wave).mean() < 0.5
    assert np.abs(smoothed(noise, precision, [])).mean() < 0.3 * np.abs(noise).mean()


def test_evidence_is_of_acting_together_only() -> None:
    draw = np.random.default_rng(0)
    expected, rows, columns = np.full(64, 100.0), draw.normal(size=(8, 1)), draw.normal(size=(1, 8))
    noise = draw.normal(0, 10, (64, 1))
    alone = 100 * (rows + columns).reshape(-1, 1) + noise
    together = 100 * (rows * columns).reshape(-1, 1) + noise
    variance = np.full(64, 100.0)
    assert evidence(alone, variance, expected, (8, 8)) < 3 < 100 < evidence(together, variance, expected, (8, 8))


def test_counts_add_up_to_the_records_and_none_is_noise_alone() -> None:
    noisy = np.array([500.0, -40.0, 3.0, 540.0])
    found = settled_counts(noisy, np.full(4, 250.0), 30.0, 1000)
    assert math.isclose(found.sum(), 1000) and found.min() > 10


def test_merged_cells_keep_neighbours_together_and_common_values_apart() -> None:
    ordered = Axis(name="x", size=41, ordered=True, missing=True)
    groups = merged(ordered, np.ones(41), 9)
    assert groups[0] == 0 and list(groups) == sorted(groups) and max(groups) == 8
    named = Axis(name="x", size=30, ordered=False, missing=False)
    counts = np.arange(30.0)
    assert merged(named, counts, 5)[26:] == (0, 1, 2, 3) and set(merged(named, counts, 5)[:26]) == {4}


def test_cells_on_disk_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    records = _encoded(rides(3000, 0))
    memory = Cells.of(records, axes(_schema()))
    monkeypatch.setattr("tacit.tables.boosting.cells._IN_MEMORY", 0)
    monkeypatch.setattr("tacit.tables.boosting.cells._CHUNK", 700)
    disk = Cells.of(records, axes(_schema()))
    for place in range(3):
        one, other = (np.concatenate([codes for _, (codes,) in cells.chunks(place)]) for cells in (memory, disk))
        assert len(one) == 3000 and (one == other).all()


def _schema(classes: int = 0) -> Schema:
    target = Category(values=tuple(map(str, range(classes)))) if classes else Number(low=0, high=500)
    columns = {
        "hour": Number(low=0, high=24),
        "work": Category(values=("0", "1")),
        "other": Number(low=-4, high=4),
        "y": target,
    }
    return binned(Schema(columns=columns, target="y"))


def _encoded(table: dict[str, np.ndarray], classes: int = 0) -> Records:
    schema = _schema(classes)
    if classes:
        table = {**table, "y": np.arange(len(table["y"])) % classes}
    return encode(from_columns(table, schema.columns), Encoding(schema))


def test_a_target_that_is_not_a_number_adds_nothing_to_the_first_sum() -> None:
    """One record that is not a number would make the whole released sum none, and so tell of itself."""
    found = loss_for(0).first(np.array([0.5, np.nan, -0.25, 7.0]))
    assert found.tolist() == [1.25]
