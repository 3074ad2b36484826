"""``tacit describe``: private statistics of a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tables.conftest import write_csv
from tacit.accounting import account
from tacit.cli import main
from tacit.ledger import Ledger
from tacit.mechanisms import SumQuery
from tacit.tables.describe import moment_queries
from tacit.tables.registry import Registry


def tacit(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    height = draw.normal(170, 10, 8000)
    columns = {
        "height": height.round(1),
        "weight": (height - 100 + draw.normal(0, 5, 8000)).round(1),
        "town": draw.choice(["<b>A</b>", "B"], 8000, p=[0.7, 0.3]),
        "id": np.arange(8000).astype(str),
    }
    return write_csv(tmp_path / "people.csv", columns)


def test_the_statistics_are_close_and_within_the_budget(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit("describe", table, "--epsilon", "1", "--out", "look", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    height = facts["columns"]["height"]
    assert abs(height["mean"] - 170) < 2 and 7 < height["standard_deviation"] < 14
    assert abs(height["quantiles"]["0.5"] - 170) < 4 and abs(sum(height["histogram"]["counts"]) - 8000) < 1500
    town = facts["columns"]["town"]["counts"]
    assert abs(town["<b>A</b>"] - 5600) < 300 and abs(town["B"] - 2400) < 300
    assert facts["correlations"]["height"]["weight"] > 0.6
    ledger = Ledger.load(Path("look/ledger.jsonl"))
    assert 0.9 < account(ledger, delta=1e-5).epsilon <= 1.0 and facts["epsilon"] <= 1.0
    assert 0.9 < Registry(table).spent()[0] <= 1.0
    page = Path("look/description.html").read_text()
    assert "<b>A" not in page and "&lt;b&gt;A" in page and "Correlations" in page and "<script" not in page


def test_fewer_columns_have_less_noise_and_others_are_not_looked_at(table: Path) -> None:
    assert tacit("describe", table, "--epsilon", "1", "--columns", "height", "--out", "one") == 0
    assert tacit("describe", table, "--epsilon", "1", "--out", "all") == 0
    noise = [
        min(query.noise_std for step, _ in Ledger.load(Path(place)).entries for query in step.queries)
        for place in ("one/ledger.jsonl", "all/ledger.jsonl")
    ]
    assert noise[0] < noise[1]
    assert "weight" not in Path("one/ledger.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--epsilon", "0"), "budget epsilon is 0"),
        (("--epsilon", "1", "--columns", "height,size"), "no column 'size'"),
        (("--epsilon", "1", "--columns", "height,height"), "give each once"),
        (("--epsilon", "9"), "Ask for at most epsilon 2"),
    ],
)
def test_wrong_arguments_raise_before_anything_is_charged(
    table: Path, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit("budget", table, "--epsilon", "2") == 0
    assert tacit("describe", table, *words, "--out", "look") == 2
    assert text in capsys.readouterr().err and Registry(table).spent() == (0.0, 0.0)


def test_no_row_adds_more_to_the_moments_than_is_recorded() -> None:
    for count in (1, 2, 7):
        first, second = moment_queries(count, 1.0)
        assert isinstance(first, SumQuery)
        rows, above = np.ones(count), np.triu_indices(count)
        assert np.linalg.norm(np.concatenate([rows, rows])) <= first.clip_norm + 1e-12
        assert np.linalg.norm(np.outer(rows, rows)[above]) <= second.clip_norm
