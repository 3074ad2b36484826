"""Budgets of data sets: what is added up, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tables.conftest import people, write_csv
from tacit.cli import main
from tacit.ledger import Budget, Ledger
from tacit.tables.registry import Registry, registry_for

WORDS = ("--target", "employed", "--classes", "no,yes", "--test-fraction", "0", "--epochs", "1")


def tacit(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_csv(tmp_path / "people.csv", people(2000))


def test_runs_on_one_file_are_added_up_and_refused_beyond_its_budget(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit("budget", table, "--epsilon", "2.5") == 0
    assert tacit("train", table, *WORDS, "--epsilon", "1", "--out", "a") == 0
    copied = shutil.copy(table, table.with_name("copy.csv"))  # the same records, whatever the file is called
    assert tacit("train", copied, *WORDS, "--epsilon", "1", "--out", "b") == 0
    capsys.readouterr()
    assert tacit("train", table, *WORDS, "--epsilon", "1", "--out", "c") == 2
    error = capsys.readouterr().err
    assert "the budget of" in error and "Ask for at most epsilon 0.5" in error and not Path("c").exists()
    assert tacit("account", "--data", table, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert 1.9 < facts["epsilon"] <= 2.0 and facts["delta"] == pytest.approx(2e-5) and len(facts["runs"]) == 2
    assert Ledger.load(Path("a/ledger.jsonl")).header.fingerprint == facts["identity"]
    assert tacit("train", table, *WORDS, "--epsilon", "0.49", "--out", "c") == 0


def test_a_budget_is_set_once(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit("budget", table, "--epsilon", "1") == 0
    assert tacit("budget", table, "--epsilon", "9") == 2
    assert "was set to epsilon 1" in capsys.readouterr().err
    assert tacit("budget", table, "--json") == 0
    assert json.loads(capsys.readouterr().out)["budget"]["epsilon"] == 1


def test_a_run_that_was_refused_before_it_released_anything_costs_nothing(table: Path) -> None:
    assert tacit("train", table, *WORDS, "--epsilon", "0.001", "--out", "a") == 2
    assert Registry(table).spent() == (0.0, 0.0)


def test_a_name_adds_up_runs_on_a_file_that_grows(table: Path) -> None:
    assert tacit("train", table, *WORDS, "--epsilon", "1", "--data-name", "survey", "--out", "a") == 0
    write_csv(table, people(2100))
    assert tacit("train", table, *WORDS, "--epsilon", "1", "--data-name", "survey", "--out", "b") == 0
    assert len(Registry(name="survey").costs()) == 2 and not Registry(table).costs()


def test_a_run_whose_ledger_is_unreadable_counts_with_its_whole_budget(table: Path) -> None:
    registry, budget = Registry(table), Budget(epsilon=1.5, delta=1e-6)
    assert tacit("train", table, *WORDS, "--epsilon", "1", "--out", "a") == 0
    shutil.rmtree("a")
    [gone] = registry.costs()
    assert (gone.epsilon, gone.delta) == (1.0, 1e-5) and "gone" in gone.note
    with registry.reserved(Path("gone/ledger.jsonl"), budget):
        pass  # a ledger that is gone before the run has ended
    assert registry.spent()[0] == 2.5
    killed = registry.reserved(Path("b/ledger.jsonl"), budget)
    killed.__enter__()
    assert registry.spent() == (4.0, pytest.approx(1.2e-5))


def test_two_runs_cannot_both_have_what_is_left(table: Path) -> None:
    first, second = Registry(table), Registry(table)
    first.set_budget(Budget(epsilon=1.0, delta=1e-4))
    budget = Budget(epsilon=0.6, delta=1e-6)
    with first.reserved(Path("a"), budget) as reservation:
        reservation.nothing_released = True
        with pytest.raises(ValueError, match=r"Ask for at most epsilon 0\.4"):
            second.check(budget)
    assert second.spent() == (0.0, 0.0)


def test_the_hash_in_a_ledger_says_nothing_without_the_key(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Registry(table).identity
    monkeypatch.setenv("TACIT_STATE", str(table.parent / "elsewhere"))
    assert Registry(table).identity != here
    assert (table.parent / "elsewhere" / "budgets" / "key").stat().st_mode & 0o077 == 0


def test_a_damaged_registry_is_not_taken_for_an_empty_one(table: Path) -> None:
    registry = Registry(table)
    registry.set_budget(Budget(epsilon=1.0, delta=1e-4))
    [place] = Path(os.environ["TACIT_STATE"]).glob("budgets/*.jsonl")
    place.write_text(place.read_text() + "{\n")
    with pytest.raises(ValueError, match="line 2 is damaged"):
        registry.spent()


def test_an_unwritable_state_directory_gives_a_warning(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (table.parent / "file").write_text("")
    monkeypatch.setenv("TACIT_STATE", str(table.parent / "file"))
    assert registry_for(table, None) is None
    assert "not added up" in capsys.readouterr().err
