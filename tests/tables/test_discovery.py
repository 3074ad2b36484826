"""Bounds and values nobody declared: found with noise, and every look is in the ledger."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.ledger import Everyone, GaussianSum, Header, Ledger, ThresholdedCounts
from tacit.randomness import SeededSource
from tacit.tables.discovery import bounds, discover, histogram
from tacit.tables.schema import Category, Number, Schema

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
    return discover(lambda: [rows], SCHEMA, noise_multiplier=noise, slack=1e-6, ledger=ledger, source=SeededSource(3))


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
        discover(unreadable, SCHEMA, noise_multiplier=3.0, slack=1e-6, ledger=ledger, source=SeededSource(3))
    [(sampling, queries, count)] = list(ledger)
    assert isinstance(sampling, Everyone) and count == 1
    kinds = {type(query): query for query in queries}
    assert kinds[GaussianSum].clip_norm == 1.0 and kinds[GaussianSum].noise_std == pytest.approx(3 * math.sqrt(2))
    assert kinds[ThresholdedCounts].noise_std == pytest.approx(3 * math.sqrt(2))
    assert kinds[ThresholdedCounts].slack <= 1e-6


def test_one_record_moves_one_histogram_by_one() -> None:
    draw = np.random.default_rng(1)
    values = np.concatenate([draw.normal(0, 10.0**power, 50) for power in range(-6, 15)])
    ones = histogram(np.append(values, np.nan)).numpy()
    assert (np.linalg.norm(ones, axis=1)[:-1] == 1).all() and not ones[-1].any()


@pytest.mark.parametrize("value", [-1e300, -3.0, -1e-9, 0.0, 1e-9, 3.0, 1e300])
def test_bounds_hold_the_value_or_the_end_of_the_scale(value: float) -> None:
    counts = 1000.0 * histogram(np.array([value])).numpy()[0].astype(float)
    low, high = bounds(counts, 1.0)
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
    known = discover(lambda: [rows], schema, noise_multiplier=3.0, slack=1e-6, ledger=ledger, source=SeededSource(3))
    height, town = known.columns["height"], known.columns["town"]
    assert isinstance(height, Number) and (height.low, height.high) == (128.0, 256.0) and height.text == "missing"
    assert isinstance(town, Category) and town.values == ("A", "B")
    assert "secret" not in known.columns  # a value of one's own shows nowhere
    assert known.classes == ("no", "yes")
    [(_, queries, _)] = list(ledger)
    assert len(queries) == 7  # numbers and values of three columns, values of the target
