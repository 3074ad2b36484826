"""The starting points of docs/first-settings.md are those of the example, and a run with them keeps its budget."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_settings", ROOT / "examples" / "first_settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_table_in_the_documentation_has_the_settings_that_were_tried(example: ModuleType) -> None:
    page = (ROOT / "docs" / "first-settings.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == list(example.STARTS)
    for kind, _, epsilon, lot_size, epochs, clip_norm, rate, momentum, accuracy in rows:
        start = example.STARTS[kind.strip("`")]
        told = [float(cell) for cell in (epsilon, lot_size, epochs, clip_norm, rate, momentum)]
        kept = [start.epsilon, start.lot_size, start.epochs, start.clip_norm, start.learning_rate, start.momentum]
        assert told == kept and accuracy.endswith(" %") and 50 < float(accuracy[:-2]) < 100


@pytest.mark.parametrize("kind", ["table", "text", "dense", "convolutions"])
def test_every_starting_point_trains_within_its_budget(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    start = dataclasses.replace(example.STARTS[kind], epochs=1, lot_size=50)
    monkeypatch.setitem(example.STARTS, kind, start)
    x = torch.randn(100, 1, 28, 28) if kind in ("dense", "convolutions") else torch.randn(100, 20)
    network, guarantee = example.train(kind, x, torch.arange(100) % 2)
    assert 0 < guarantee.epsilon <= start.epsilon
    assert 0 <= example.accuracy(network, x, torch.arange(100) % 2) <= 1


def test_hashed_words_have_their_places_whatever_else_is_said(example: ModuleType) -> None:
    assert torch.equal(example.hashed(["a", "b"], 64), example.hashed(["a"], 64) + example.hashed(["b"], 64))
