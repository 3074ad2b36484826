"""Numbers nobody declared stay numbers, with knots at their values or their quantiles; all of it is charged."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tables.generated import TABLES, as_text
from tacit.accounting import account
from tacit.ledger import Budget, Header, Ledger
from tacit.randomness import SeededSource
from tacit.tables.columns import Category, Number, Undeclared
from tacit.tables.discovery import Discovery
from tacit.tables.encoding import Encoding
from tacit.tables.histograms import CELLS, COUNTS, cell_edges, counts, quantile_knots, tree_counts
from tacit.tables.reading import from_columns
from tacit.tables.schema import Schema
from tacit.tables.training import TableOutcome, train_table

_NUMBERS = st.floats(allow_nan=True, allow_infinity=False)


@given(
    everyone=st.lists(_NUMBERS, min_size=1, max_size=30),
    place=st.integers(0, 29),
    noisy=st.lists(st.floats(-50, 500), min_size=103, max_size=103),
)
def test_one_record_moves_cells_and_groups_by_the_square_root_of_two(
    everyone: list[float], place: int, noisy: list[float]
) -> None:
    edges = cell_edges(np.array(noisy), 10.0)
    assert len(edges) == CELLS + 1 and (np.diff(edges) > 0).all()
    numbers = np.array(everyone)
    fewer = np.delete(numbers, place % len(numbers))
    moved = tree_counts(numbers, edges) - tree_counts(fewer, edges)
    assert len(moved) == COUNTS and np.linalg.norm(moved) <= math.sqrt(2) + 1e-12


@pytest.mark.parametrize("values", ["normal", "skewed", "years", "both signs"])
def test_knots_are_quantiles(values: str) -> None:
    draw = np.random.default_rng(0)
    numbers = {
        "normal": draw.normal(61.7, 1.4, 20_000),
        "skewed": np.exp(draw.normal(9, 2, 20_000)),
        "years": draw.integers(1900, 2021, 20_000).astype(float),
        "both signs": draw.normal(0, 1e-2, 20_000),
    }[values]
    edges = cell_edges(counts(numbers), 5.0)
    noisy = tree_counts(numbers, edges) + draw.normal(0, 10, COUNTS)
    knots = quantile_knots(noisy, edges, std=10.0, most=9)
    assert len(knots) == 9 and list(knots) == sorted(knots)
    shares = np.searchsorted(np.sort(numbers), knots) / len(numbers)
    assert np.abs(shares[1:-1] - np.arange(1, 8) / 8).max() < 0.03


def test_noise_alone_has_no_knots() -> None:
    draw = np.random.default_rng(0)
    edges = cell_edges(draw.normal(0, 10, 103), 10.0)
    assert all(quantile_knots(draw.normal(0, 10, COUNTS), edges, std=10.0, most=9) == () for _ in range(200))


def test_a_number_is_shared_out_to_the_knots_beside_it() -> None:
    number = {"type": "number", "knots": [0, 10, 100], "missing": "own", "text": "missing"}
    schema = Schema.from_json(
        {"target": "y", "columns": {"x": number, "y": {"type": "category", "values": ["a", "b"]}}}
    )
    assert Schema.from_json(schema.to_json()) == schema
    encoding = Encoding(schema)
    rows = {"x": np.array(["-5", "5", "10", "55", "1e9", "", "old"]), "y": np.array(["a"] * 7)}
    features = torch.from_numpy(encoding.expand(encoding.compact(rows)))
    assert features.tolist() == [
        [1, 0, 0, 0],
        [0.5, 0.5, 0, 0],
        [0, 1, 0, 0],
        [0, 0.5, 0.5, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]
    assert encoding.width == len(encoding.names) == 4


@pytest.mark.parametrize("noise", [1e-3, 0.1, 3.0])
def test_a_number_with_many_values_is_never_a_category(noise: float) -> None:
    draw = np.random.default_rng(0)
    columns = {name: Undeclared() for name in ("size", "flag", "town")}
    schema = Schema(columns={**columns, "y": Category(values=("a", "b"))}, target="y")
    table = {
        "size": draw.choice(np.arange(80, 2100, 35), 5000).astype(str),
        "flag": draw.integers(0, 2, 5000).astype(str),
        "town": draw.choice(["north", "south"], 5000),
        "y": draw.choice(["a", "b"], 5000),
    }
    discovery = Discovery(schema, noise_multiplier=noise, slack=1e-6, knots=16)
    found, _ = discovery.release(
        lambda: [table],
        records=5000,
        ledger=Ledger(Header(secure_randomness=False)),
        source=SeededSource(1),
        fits=lambda schema: True,
    )
    size, flag = found.columns["size"], found.columns["flag"]
    assert isinstance(size, Number) and 4 <= len(size.knots) <= 16
    assert isinstance(flag, Number) and flag.knots == (0.0, 1.0)
    assert isinstance(found.columns["town"], Category)


def trained(name: str, epsilon: float, count: int) -> tuple[TableOutcome, float, Ledger]:
    """Train without a schema, and return the outcome with accuracy or R² on fresh records."""
    make, bounds = TABLES[name]
    train, test = (as_text(make(np.random.default_rng(seed), rows)) for seed, rows in ((1, count), (2, 4000)))
    target = Category(values=None) if bounds is None else Number(low=bounds[0], high=bounds[1])
    schema = Schema(columns={**{name: Undeclared() for name in train}, "y": target}, target="y")
    ledger = Ledger(Header(secure_randomness=False))
    outcome = train_table(
        lambda: from_columns(train, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=1e-5),
        ledger=ledger,
        seed=1,
        test_fraction=0.0,
    )
    predicted = outcome.model.predict(test)
    if bounds is None:
        return outcome, float((predicted == test["y"]).mean()), ledger
    truth = test["y"].astype(float)
    return outcome, 1 - float(((predicted - truth) ** 2).mean() / truth.var()), ledger


def test_quantiles_are_charged_within_the_budget() -> None:
    outcome, _, ledger = trained("houses", 2.0, 4000)
    groups = [query.group for step, _ in ledger.entries[:3] for query in step.queries]
    columns = [f"{kind}/{name}" for kind in ("bounds", "values", "quantiles") for name in ("built", "place")]
    assert groups == ["values/y", *columns]
    assert account(ledger, delta=1e-5).epsilon <= 2.0 and outcome.steps == 300


@pytest.mark.parametrize("name", ["computers", "houses"])
def test_a_larger_epsilon_is_no_worse(name: str) -> None:
    scores = [trained(name, epsilon, 5000)[1] for epsilon in (1.0, 3.0, 10.0)]
    assert all(later > before - 0.02 for before, later in pairwise(scores)), scores


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_accuracy_does_not_fall_when_epsilon_grows(name: str) -> None:
    scores = [trained(name, epsilon, 8000)[1] for epsilon in (0.5, 1.0, 3.0, 8.0, 30.0)]
    assert all(later > max(scores[:place]) - 0.02 for place, later in enumerate(scores) if place), scores
