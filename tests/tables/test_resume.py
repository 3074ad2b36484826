"""Runs on tables that are interrupted and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tables.conftest import SCHEMA, people, write_csv
from tacit.accounting import account
from tacit.cli import main
from tacit.ledger import Budget, Ledger
from tacit.tables.boosting import planned, weight_left
from tacit.tables.boosting.plan import STAGES, schedule
from tacit.tables.columns import Category, Undeclared
from tacit.tables.registry import Registry
from tacit.tables.run import TableFile, run_table
from tacit.tables.schema import Schema
from tacit.tables.training import TableOutcome

BUDGET = Budget(epsilon=4.0, delta=1e-5)
NAMES = ("age", "school", "town", "employed")
NOTHING_KNOWN = Schema(
    columns={name: Category(values=None) if name == "employed" else Undeclared() for name in NAMES}, target="employed"
)


class Stop:
    """Progress that presses Ctrl-C when a stage has come so far."""

    def __init__(self, stage: str, share: float = 0.0) -> None:
        self.stage, self.share, self.told = stage, share, list[tuple[str, int, int | None]]()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.told.append((stage, done, total))
        if stage == self.stage and (not total or done >= self.share * total):
            self.stage = "never again"
            raise KeyboardInterrupt


def run(table: Path, out: Path, model: str, stop: Stop | None = None, *, resume: bool = False) -> TableOutcome:
    return run_table(
        TableFile(table, NOTHING_KNOWN),
        NOTHING_KNOWN,
        budget=BUDGET,
        out=out,
        model=model,
        progress=stop,
        registry=Registry(table),
        resume=resume,
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "people.csv", people(3000))


@pytest.mark.parametrize(
    ("model", "stage", "share"),
    [
        ("linear", "discovering", 1.0),
        ("linear", "encoding", 0.0),
        ("linear", "training", 0.3),
        ("boosted", "training", 0.6),
    ],
)
def test_an_interrupted_run_goes_on_within_its_budget(
    table: Path, tmp_path: Path, model: str, stage: str, share: float
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(table, out, model, Stop(stage, share))
    before = Ledger.load(out / "ledger.jsonl")
    assert len(before) and not json.loads((out / "run.json").read_text())["finished"]
    outcome = run(table, out, model, resume=True)
    after = Ledger.load(out / "ledger.jsonl")
    assert after.entries[: len(before.entries) - 1] == before.entries[:-1] and len(after) > len(before)
    assert account(after, delta=BUDGET.delta).epsilon <= BUDGET.epsilon
    assert outcome.score is not None and outcome.score.value > 0.75
    assert not (out / "work").exists() and json.loads((out / "run.json").read_text())["finished"]
    costs = Registry(table).costs()  # one run, counted once
    assert len(costs) == 1 and costs[0].epsilon == pytest.approx(outcome.guarantee.epsilon)


def test_nothing_that_was_released_is_asked_again(table: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "out", "boosted", Stop("encoding"))
    run(table, tmp_path / "out", "boosted", resume=True)
    asked = [
        query.group for step, _ in Ledger.load(tmp_path / "out" / "ledger.jsonl").entries for query in step.queries
    ]
    looks = [name for name in asked if name.startswith(("values/", "bounds/", "quantiles/"))]
    assert len(looks) == len(set(looks))


def test_the_same_people_are_held_out_after_an_interruption(table: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "out", "linear", Stop("training", 0.1))
    work = tmp_path / "out" / "work"
    held = (work / "aside").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "out", "linear", Stop("training", 0.5), resume=True)
    assert (work / "aside").read_bytes() == held
    assert (work / "aside").stat().st_mode & 0o077 == 0  # it tells who is in the table's test part


def test_nothing_is_left_of_a_run_that_was_stopped_while_reading(table: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "out", "linear", Stop("reading"))
    assert not (tmp_path / "out").exists() and Registry(table).spent() == (0.0, 0.0)


_SAID = {"table": "has become longer", "options": "with another setup", "ledger": "is missing"}


@pytest.mark.parametrize("change", ["table", "options", "ledger"])
def test_another_table_or_other_options_are_refused(
    table: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.schema.json").write_text(json.dumps(SCHEMA))
    out, words = tmp_path / "out", ["train", str(table), "--model", "linear", "--out", str(tmp_path / "out")]
    schema = Schema.from_json(SCHEMA)
    with pytest.raises(KeyboardInterrupt):
        run_table(
            TableFile(table, schema),
            schema,
            budget=Budget(epsilon=2.0, delta=1e-5),
            out=out,
            progress=Stop("training", 0.1),
            registry=Registry(table),
        )
    if change == "table":
        table.write_text(table.read_text() + "30,some,A,yes\n")
    elif change == "ledger":
        (out / "ledger.jsonl").unlink()
    else:
        words += ["--clip", "0.5"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--resume"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and _SAID[change] in error


def test_ctrl_c_says_what_was_kept_and_how_to_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ["train", "people.csv", "--target", "employed", "--epsilon", "3", "--model", "linear", "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr("tacit.tables.slopes.descend", broken)
        patch.setattr("sys.argv", ["tacit", *words])
        with pytest.raises(SystemExit) as stop:
            main(words)
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert (
        stop.value.code == 130 and "is kept in run" in told and told.endswith(" ".join(["tacit", *words, "--resume"]))
    )
    epsilon, _ = Registry(table).spent()
    assert 0 < epsilon < 1.5  # finding out what the columns are, and no more
    with pytest.raises(SystemExit) as stop:
        main([*words, "--resume", "--json"])
    assert stop.value.code == 0 and json.loads(capsys.readouterr().out)["epsilon"] <= 3


@pytest.mark.parametrize("columns", [1, 5])
def test_weight_left_equals_the_precision_of_the_planned_looks(columns: int) -> None:
    """Adaptive Gaussian sums on everyone compose like one with 1/z² = Σ 1/z_i²."""
    for stage in range(len(STAGES) + 1):
        looks = planned(2.0, columns, "example", stage)
        precision = sum(count / step.queries[0].noise_std ** 2 for step, count in looks)
        assert precision * 2.0**2 == pytest.approx(weight_left(columns, stage))
    assert weight_left(columns, 0) == pytest.approx(1.0) and schedule(2.0, columns)
