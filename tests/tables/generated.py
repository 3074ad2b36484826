"""Ten made-up tables, of the kinds of columns that real ones have: hours, years, prices, codes, skewed amounts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Table = dict[str, np.ndarray]


def bikes(draw: np.random.Generator, n: int) -> Table:
    hour, work, temp = draw.integers(0, 24, n), draw.integers(0, 2, n), draw.normal(15, 8, n).round(1)
    peak = np.exp(-((hour - 8) ** 2) / 4) + np.exp(-((hour - 17.5) ** 2) / 6)
    rides = 300 * peak * (1 + 0.02 * (temp - 15)).clip(0.2) + 30 * work + 20 * draw.normal(size=n)
    return {"hour": hour, "work": work, "temp": temp, "month": draw.integers(1, 13, n), "y": rides.clip(0, 900)}


def computers(draw: np.random.Generator, n: int) -> Table:
    speed, hd = draw.choice([25, 33, 50, 66, 75, 100], n), draw.choice(np.arange(80, 2100, 35), n)
    ram, trend = draw.choice([2, 4, 8, 16, 24, 32], n), draw.integers(1, 36, n)
    price = 1000 + 6 * speed + 0.6 * hd + 40 * ram - 50 * trend + 100 * draw.normal(size=n)
    return {"speed": speed, "hd": hd, "ram": ram, "trend": trend, "y": price.clip(0, 5400)}


def diamonds(draw: np.random.Generator, n: int) -> Table:
    carat, clarity = np.exp(draw.normal(-0.4, 0.55, n)).clip(0.2, 5).round(2), draw.integers(0, 8, n)
    price = np.exp(8.4 + 1.7 * np.log(carat) + 0.1 * (clarity - 4) + 0.1 * draw.normal(size=n))
    names = np.array(["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"])[clarity]
    return {"carat": carat, "clarity": names, "depth": draw.normal(61.7, 1.4, n).round(1), "y": price.clip(0, 19000)}


def wages(draw: np.random.Generator, n: int) -> Table:
    age, school = draw.integers(18, 70, n), draw.integers(6, 20, n)
    wage = 2 * age - 0.02 * age**2 + 3 * school + 8 * draw.normal(size=n)
    return {"age": age, "school": school, "savings": np.exp(draw.normal(9, 2, n)).round(), "y": wage.clip(0, 150)}


def cut(draw: np.random.Generator, n: int) -> Table:
    depth, table = draw.normal(61.7, 1.4, n).round(1), draw.normal(57, 2, n).round()
    off = np.abs(depth - 61.7) + 0.5 * np.abs(table - 56) + 0.3 * draw.normal(size=n)
    return {"depth": depth, "table": table, "y": np.array(["ideal", "good", "fair"])[np.digitize(off, [1.2, 2.2])]}


def income(draw: np.random.Generator, n: int) -> Table:
    age, wealth = draw.integers(18, 80, n), np.exp(draw.normal(10, 1.5, n)).round()
    return {"age": age, "wealth": wealth, "y": np.where((wealth > 4e4) | (np.abs(age - 45) < 8), "more", "less")}


def houses(draw: np.random.Generator, n: int) -> Table:
    built, place = draw.integers(1900, 2021, n), draw.uniform(47.1, 47.9, n).round(4)
    score = np.sin((built - 1900) / 15) + 0.8 * np.sin((place - 47) * 9) + 0.3 * draw.normal(size=n)
    return {"built": built, "place": place, "y": np.where(score > 0, "sold", "let")}


def codes(draw: np.random.Generator, n: int) -> Table:
    region, kind, value = draw.integers(1, 9, n), draw.integers(100, 112, n), draw.normal(size=n).round(3)
    score = np.array([0, 1, -1, 2, -2, 1, -1, 0, 1])[region] + ((kind * 7) % 5 - 2) + value
    return {"region": region, "kind": kind, "value": value, "y": np.where(score > 0, "1", "0")}


def visits(draw: np.random.Generator, n: int) -> Table:
    count, age = draw.geometric(0.3, n) - 1, draw.integers(0, 95, n)
    ill = (count > 4) | ((age < 6) | (age > 70)) & (draw.random(n) < 0.9)
    return {"visits": count, "age": age, "sex": draw.choice(["f", "m"], n), "y": np.where(ill, "ill", "well")}


def sensors(draw: np.random.Generator, n: int) -> Table:
    x = draw.normal(size=(n, 4)) * [1e-3, 1.0, 1e3, 1e6]
    score = (x / [1e-3, 1.0, 1e3, 1e6])[:, :2].sum(axis=1) + 0.3 * draw.normal(size=n)
    return {**{f"s{place}": x[:, place] for place in range(4)}, "y": np.where(score > 0, "up", "down")}


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], Table], tuple[float, float] | None]] = {
    "bikes": (bikes, (0, 900)),
    "computers": (computers, (0, 5400)),
    "diamonds": (diamonds, (0, 19000)),
    "wages": (wages, (0, 150)),
    **{each.__name__: (each, None) for each in (cut, income, houses, codes, visits, sensors)},
}


def as_text(table: Table) -> Table:
    """Return the table as it would stand in a file."""
    return {name: values if values.dtype.kind == "U" else values.astype(str) for name, values in table.items()}
