"""A made-up table with a pattern that can be learned."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCHEMA: dict[str, Any] = {
    "target": "employed",
    "columns": {
        "age": {"type": "number", "low": 0, "high": 100},
        "school": {"type": "category", "values": ["none", "some", "much"]},
        "town": {"type": "category", "values": ["A", "B"], "other": True},
        "employed": {"type": "category", "values": ["no", "yes"]},
    },
}


def people(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    age, school = draw.integers(18, 90, count), draw.integers(0, 3, count)
    score = 1.5 * (school - 1) - (age - 50) / 15 + draw.normal(0, 0.7, count)
    return {
        "age": age.astype(str),
        "school": np.array(["none", "some", "much"])[school],
        "town": np.array(["A", "B", "C"])[draw.integers(0, 3, count)],
        "employed": np.where(score > 0, "yes", "no"),
    }


def write_csv(path: Path, table: dict[str, np.ndarray]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values()))
    return path


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    (tmp_path / "people.schema.json").write_text(json.dumps(SCHEMA))
    return write_csv(tmp_path / "people.csv", people(4000))
