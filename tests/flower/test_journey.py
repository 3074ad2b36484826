"""The fragments of docs/journey.md about federations do what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flower.helpers import MemoryGrid
from tacit.ledger import Ledger
from test_journey import LINE, fragment


def run(name: str) -> None:
    """The app of a fragment, after all of the laptop's but its training, with one node."""
    names: dict[str, Any] = {}
    exec(compile(fragment("laptop").partition(LINE)[0] + fragment(name), name, "exec"), names)
    grid = MemoryGrid(names["client"], [7])
    names["server"](grid, grid.contexts[7])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_federation_without_a_trusted_party() -> None:
    run("exchange")
    assert len(Ledger.load("runs/people/ledger.jsonl")) == 3 * 4  # lots
    assert Path("runs/server/server.sqlite").exists()


def test_a_federation_that_trusts_its_server() -> None:
    run("averaging")
    ledger = Ledger.load("runs/server/ledger.jsonl")
    assert len(ledger) == 3 and ledger.header.unit == "participant"
