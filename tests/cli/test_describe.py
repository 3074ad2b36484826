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
from tacit.tables.moments import Moments
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
        means, squares, *products = Moments(count, 1.0).queries
        assert isinstance(means, SumQuery) and len(products) == (count > 1)
        rows, above = np.ones(count), np.triu_indices(count, 1)
        assert np.linalg.norm(np.concatenate([rows, rows])) <= means.clip_norm + 1e-12
        assert np.linalg.norm(rows**2) <= squares.clip_norm + 1e-12
        if products:
            assert np.linalg.norm(np.outer(rows, rows)[above]) <= products[0].clip_norm + 1e-12


def test_the_moments_cost_what_was_planned() -> None:
    for count in (1, 2, 7):
        spent = sum((query.clip_norm / query.noise_std) ** 2 for query in Moments(count, 3.0).queries)
        assert spent == pytest.approx(1 / 9)


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, np.ndarray]]:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    columns: dict[str, np.ndarray] = {
        "year": draw.integers(1994, 2007, 12000),
        "debt": np.where(draw.random(12000) < 0.5, np.nan, draw.normal(0, 3, 12000).round(2)),
        **{f"x{place}": draw.integers(0, 2, 12000) for place in range(8)},
    }
    columns["age"] = 2030 - columns["year"] + draw.integers(0, 3, 12000)
    columns["loan"] = 2 * columns["debt"] + draw.normal(0, 1, 12000).round(2)
    columns["guest"] = (draw.random(len(columns["year"])) < 0.04).astype(
        float
    )  # nearly all are 0, and the mean is of the others
    columns["waits"] = np.where(
        draw.random(len(columns["year"])) < 0.1, draw.exponential(60.0, len(columns["year"])).round(), 0.0
    )
    written = {name: np.where(np.isnan(values), "", values.astype(str)) for name, values in columns.items()}
    return write_csv(tmp_path / "survey.csv", written), columns


def test_spreads_and_correlations_are_true_within_the_stated_noise(
    survey: tuple[Path, dict[str, np.ndarray]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Years lie far from 0, and half of the debts are missing: neither may make up a spread or hide a relation."""
    path, columns = survey
    assert tacit("describe", path, "--epsilon", "2", "--out", "look", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    for name, values in columns.items():
        told, true = facts["columns"][name], float(np.nanstd(values))
        assert abs(told["mean"] - np.nanmean(values)) < 6 * told["mean_noise"] + 0.02 * true
        assert true < 1.5 * told["standard_deviation_at_most"]
        if told["standard_deviation"] is not None:
            assert abs(told["standard_deviation"] - true) < 6 * told["standard_deviation_noise"] + 0.05 * true
    assert facts["columns"]["year"]["mean_noise"] < 1 and facts["columns"]["guest"]["mean"] > 0.02
    assert facts["correlations"]["year"]["age"] < -0.4
    assert facts["correlations"]["debt"]["loan"] > 0.4
    assert "±" in Path("look/description.html").read_text()


def test_a_spread_below_the_noise_is_said_to_be_that(
    survey: tuple[Path, dict[str, np.ndarray]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = survey
    assert tacit("describe", path, "--epsilon", "0.02", "--out", "look") == 0
    assert "standard deviation below" in capsys.readouterr().out
    facts = json.loads(Path("look/description.json").read_text())
    spreads = [told["standard_deviation"] for told in facts["columns"].values() if told["type"] == "number"]
    assert None in spreads
