"""Bounds and values nobody declared: found with noise, and every look is in the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tacit.ledger import Everyone, GaussianSum, Header, Ledger, ThresholdedCounts
from tacit.randomness import SeededSource
from tacit.tables import column_types
from tacit.tables import looks as looks_module
from tacit.tables.columns import Category, Number
from tacit.tables.discovery import Discovery
from tacit.tables.encoding import Encoding
from tacit.tables.histograms import bounds, counts
from tacit.tables.schema import Schema

SCHEMA = Schema.from_json(
    {
        "target": "y",
        "columns": {
            "pay": {"type": "number", "low": "private", "high": "private"},
            "town": {"type": "category", "values": "private"},
            "y": {"type": "category", "values": ["0", "1"]},
        },
    }
)


def table(pay: list[float], town: list[str]) -> dict[str, np.ndarray]:
    return {"pay": np.array(pay), "town": np.array(town), "y": np.array(["0"] * len(pay))}


def found(rows: dict[str, np.ndarray], ledger: Ledger, noise: float = 3.0) -> Schema:
    return released(SCHEMA, rows, ledger, noise)


def released(
    schema: Schema,
    rows: dict[str, np.ndarray],
    ledger: Ledger,
    noise: float = 3.0,
    fits: Callable[[Schema], bool] = lambda schema: True,
) -> Schema:
    discovery = Discovery(schema, noise_multiplier=noise, slack=1e-6)
    records = len(rows[schema.target])
    return discovery.release(lambda: [rows], records=records, ledger=ledger, source=SeededSource(3), fits=fits)[0]


def test_bounds_are_powers_of_two_around_nearly_everyone() -> None:
    rows = table([20_000.0] * 500 + [60_000.0] * 500 + [5e9], ["A"] * 700 + ["B"] * 300 + ["mine"])
    ledger = Ledger(Header(secure_randomness=False))
    schema = found(rows, ledger)
    pay, town = schema.columns["pay"], schema.columns["town"]
    assert isinstance(pay, Number) and (pay.low, pay.high) == (16384.0, 65536.0)  # the one of 5e9 does not show
    assert isinstance(town, Category) and town.values == ("A", "B") and town.other


def test_everything_is_charged_before_it_is_looked_at() -> None:
    ledger = Ledger(Header(secure_randomness=False))

    def unreadable() -> list[dict[str, np.ndarray]]:
        assert len(ledger) == 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Discovery(SCHEMA, noise_multiplier=3.0, slack=1e-6).release(
            unreadable, records=9, ledger=ledger, source=SeededSource(3), fits=lambda schema: True
        )
    [(sampling, queries, count)] = list(ledger)
    assert isinstance(sampling, Everyone) and count == 1
    kinds = {type(query): query for query in queries}
    assert kinds[GaussianSum].clip_norm == 1.0 and kinds[GaussianSum].noise_std == pytest.approx(3 * math.sqrt(2))
    assert kinds[ThresholdedCounts].noise_std == pytest.approx(3 * math.sqrt(2))
    assert kinds[ThresholdedCounts].slack <= 1e-6


def test_one_record_moves_one_histogram_by_one() -> None:
    draw = np.random.default_rng(1)
    values = np.concatenate([draw.normal(0, 10.0**power, 50) for power in range(-6, 15)])
    assert all(np.linalg.norm(counts(np.array([value]))) == 1 for value in values)
    assert not counts(np.array([np.nan])).any()


@pytest.mark.parametrize("value", [-1e300, -3.0, -1e-9, 0.0, 1e-9, 3.0, 1e300])
def test_bounds_hold_the_value_or_the_end_of_the_scale(value: float) -> None:
    low, high = bounds(1000.0 * counts(np.array([value])), 1.0)
    assert low < high
    assert low <= min(max(value, -(2.0**41)), 2.0**41) <= high or value == -1e-9


def test_noise_alone_gives_bounds_that_say_nothing() -> None:
    assert bounds(np.zeros(103), 1.0) == (-1.0, 1.0)


def test_an_undeclared_column_gets_its_type_from_noisy_counts() -> None:
    schema = Schema.from_json(
        {
            "target": "y",
            "columns": {
                "height": {"type": "private"},
                "town": {"type": "private"},
                "secret": {"type": "private"},
                "y": {"type": "category", "values": "private"},
            },
        }
    )
    draw = np.random.default_rng(0)
    count = 2000
    rows = {
        "height": np.array([f"{value:.3f}" for value in draw.uniform(150, 200, count)]),
        "town": np.array(["A", "B"])[draw.integers(0, 2, count)],
        "secret": np.array([f"id{number}" for number in range(count)]),
        "y": np.array(["no", "yes"])[draw.integers(0, 2, count)],
    }
    ledger = Ledger(Header(secure_randomness=False))
    known = released(schema, rows, ledger)
    height, town = known.columns["height"], known.columns["town"]
    assert isinstance(height, Number) and (height.low, height.high) == (128.0, 256.0) and height.text == "missing"
    assert isinstance(town, Category) and town.values == ("A", "B")
    assert "secret" not in known.columns  # a value of one's own shows nowhere
    assert known.classes == ("no", "yes")
    [(_, classes, _), (_, queries, _)] = list(ledger)
    assert len(classes) == 1 and len(queries) == 6  # values of the target; numbers and values of three columns


def test_values_that_do_not_fit_are_left_out_the_rarest_first() -> None:
    rows = table([20.0] * 1550, ["A"] * 800 + ["B"] * 100 + ["C"] * 200 + ["D"] * 450)
    ledger = Ledger(Header(secure_randomness=False))
    asked: list[tuple[str, ...]] = []

    def fits(schema: Schema) -> bool:
        town = schema.columns["town"]
        assert isinstance(town, Category) and town.values is not None
        asked.append(town.values)
        return len(town.values) <= 2

    town = released(SCHEMA, rows, ledger, fits=fits).columns["town"]
    assert isinstance(town, Category) and town.values == ("A", "D") and town.other
    assert asked[0] == ("A", "B", "C", "D") and len(ledger) == 1  # cutting is post-processing


def test_the_least_schema_is_as_small_as_any_that_is_found() -> None:
    schema = Schema.from_json(
        {
            "target": "y",
            "columns": {
                "height": {"type": "private"},
                "pay": {"type": "number", "low": "private", "high": "private", "missing": "own"},
                "town": {"type": "category", "values": "private", "missing": "nowhere"},
                "y": {"type": "category", "values": "private"},
            },
        }
    )
    count = 2000
    rows = {
        "height": np.array(["tall", "small"] * (count // 2)),
        "pay": np.array(["20"] * count),
        "town": np.array(["A", "B"] * (count // 2)),
        "y": np.array(["no", "yes", "perhaps", "no"] * (count // 4)),
    }
    least = Discovery(schema, noise_multiplier=3.0, slack=1e-6).least
    cut = released(schema, rows, Ledger(Header(secure_randomness=False)), fits=lambda found: False)
    assert Encoding(cut).width <= Encoding(least).width and len(cut.classes) <= len(least.classes)
    assert cut.classes[0] == "no"
    town = cut.columns["town"]
    assert isinstance(town, Category) and "nowhere" in (town.values or ())  # what the owner declared stays


def test_values_of_many_records_are_counted_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded whatever the number of records; shares, not counts, decide."""
    monkeypatch.setattr(looks_module, "_MOST_DIFFERENT", 2000)
    monkeypatch.setattr(looks_module, "_FEWEST_COUNTED", 2000)
    counted = 0
    tally = looks_module._tally

    def watched(counter: Counter[str], entries: np.ndarray) -> None:
        nonlocal counted
        counted += len(entries)
        tally(counter, entries)

    monkeypatch.setattr(looks_module, "_tally", watched)
    estimated: dict[str, float] = {}
    category = column_types.category_from

    def looked_at(column: Category, values: dict[str, float], most: int) -> Category:
        estimated.update(values)
        return category(column, values, most)

    monkeypatch.setattr(column_types, "category_from", looked_at)
    rows = table([20.0] * 40_000, ["A"] * 20_000 + ["B"] * 20_000)
    town = found(rows, Ledger(Header(secure_randomness=False))).columns["town"]
    assert isinstance(town, Category) and town.values == ("A", "B")
    assert 1600 < counted < 2400
    # A twentieth is counted: the estimate for everyone has a deviation of about 20 √1000, and is made once.
    assert estimated["A"] == pytest.approx(20_000, rel=0.2) and estimated["B"] == pytest.approx(20_000, rel=0.2)
