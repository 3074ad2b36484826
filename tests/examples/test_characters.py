"""The model of characters, small: it learns with and without privacy."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
LINES = [
    "the prince of night and day",
    "in fair verona where we lay our scene",
    "from ancient grudge break to new mutiny",
]


@pytest.fixture(scope="module")
def example() -> Any:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("characters", ROOT / "examples" / "characters.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_has_a_start_the_characters_an_end_and_padding(example: Any) -> None:
    row, long = example.encoded(["Ab ~", "x" * 200])
    assert row[:6].tolist() == [0, ord("A") - 30, ord("b") - 30, 2, 96, 1] and not row[6:].any()
    assert len(row) == len(long) == example.LENGTH + 1 and long[-1] == 1 and (long[1:-1] == ord("x") - 30).all()


def test_scores_depend_on_earlier_characters_only(example: Any) -> None:
    model = example.Window()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    rows = example.encoded(LINES)[:, :-1]
    changed = rows.clone()
    changed[:, 10] = 5
    with torch.no_grad():
        same = (model(rows) == model(changed)).all(2)
    assert same[:, :10].all() and not same[:, 10].any()


def test_a_model_of_characters_learns_within_its_budget(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "text", lambda: LINES * 100)
    found = {eps: example.main(eps, epochs=6, lot_size=30, rate=1.0) for eps in (0.0, 8.0)}
    assert found[0.0]["epsilon"] == 0 and 7.5 < found[8.0]["epsilon"] <= 8 and found[8.0]["n"] == 270
    assert found[0.0]["bits"] < found[8.0]["bits"] < 1.1 * math.log2(example.SYMBOLS)
    assert found[0.0]["bits"] < 5
