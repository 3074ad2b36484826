"""Files from others, damaged in any way: one sentence, no traceback, nothing accepted in silence, nothing changed."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from safety.damage import altered, damaged
from tacit.features import RandomProjection
from tacit.ledger import GaussianSum, Header, Ledger, LedgerCorrupt, Poisson, Step
from tacit.recipes import Linear, Trained
from tacit.recipes.outcome import described
from tacit.reports import report
from tacit.tables.model import TableModel
from tacit.tables.reading import columns_of, read
from tacit.tables.schema import Schema
from tacit.training import PrivateRun

# The fast run tries the same examples every time, so that a few of them do; `make test-all` tries others each time.
EXPLORE = "TACIT_EXPLORE" in os.environ
FEW = settings(max_examples=40 if EXPLORE else 12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def one_sentence() -> Iterator[None]:
    """What may go wrong with a file is a ValueError or OSError that says something; the command line keeps it short."""
    try:
        yield
    except (ValueError, OSError) as error:
        text = str(error)
        assert text.strip()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- the ledger --------------------------------------------------------------------------------------------------------


def ledger_bytes(folder: Path) -> bytes:
    path = folder / "whole.jsonl"
    with Ledger.open(path, Header(purpose="test")) as book:
        for noise in (1.0, 1.0, 2.0):
            query = GaussianSum(group="g", clip_norm=1.0, noise_std=noise)
            book.record(Step(Poisson(rate=0.1, records=100), (query,)))
    return path.read_bytes()


@FEW
@given(data=st.data())
def test_a_damaged_ledger_is_refused_or_counts_no_less(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    path = folder / "ledger.jsonl"
    path.write_bytes(data.draw(damaged(ledger_bytes(folder))))
    before = path.read_bytes()
    try:
        assert len(Ledger.load(path)) in (3, 4)
    except (LedgerCorrupt, OSError):
        with pytest.raises((LedgerCorrupt, OSError)):
            Ledger.open(path)
    assert path.read_bytes() == before or len(Ledger.load(path)) in (3, 4)


# -- checkpoints -------------------------------------------------------------------------------------------------------

X, Y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3


def start(ledger: Ledger) -> PrivateRun:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return tacit.make_private(
        model,
        optimizer,
        TensorDataset(X, Y),
        lot_size=10,
        steps=6,
        clipping=tacit.Adaptive(initial=1.0),
        noise_multiplier=0.5,
        ledger=ledger,
    )


def state(run: PrivateRun) -> str:
    """Everything that a load could change."""
    tensors = [value.tolist() for value in run.model.state_dict().values()]
    optimizer = json.dumps(run.optimizer.state_dict(), default=lambda value: value.tolist(), sort_keys=True)
    return repr((tensors, optimizer, run.step, run.sampler.state(), run.clipping_state(), run.metrics))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, Path]:
    folder = tmp_path_factory.mktemp("checkpoint")
    ledger = Ledger()
    run = start(ledger)
    for x, y in run.batches():
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.step == 3:
            run.save(folder / "point")
            break
    run.close()
    return ledger, folder / "point"


@FEW
@given(data=st.data())
@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_changes_nothing(
    name: str, saved: tuple[Ledger, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    ledger, whole = saved
    folder = tmp_path_factory.mktemp("damaged") / "point"
    shutil.copytree(whole, folder)
    content = (folder / name).read_bytes()
    if name == "run.json" and data.draw(st.booleans()):
        (folder / name).write_text(json.dumps(data.draw(altered(json.loads(content)))))
    else:
        (folder / name).write_bytes(data.draw(damaged(content)))
    run = start(ledger)
    before, book = state(run), ledger.digest
    accepted = False
    with one_sentence():
        run.load(folder)
        accepted = True
    if accepted:
        assert 0 <= run.step <= len(ledger)
        assert all(group["lr"] >= 0 for group in run.optimizer.param_groups)
    else:
        assert state(run) == before
    assert ledger.digest == book
    run.close()


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tacit.randomness import SecureSource
    from tacit.recipes.outcome import write_json, write_tensors

    folder = tmp_path_factory.mktemp("trained")
    front = RandomProjection(dimensions=5)
    fitted = front.fit(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), ledger=Ledger(), source=SecureSource())
    head = Linear()
    net = head.build(tuple(fitted.shape), 3)
    tensors = {f"front.{name}": value for name, value in fitted.state().items()}
    write_tensors(folder / "model.safetensors", tensors | {f"model.{n}": v for n, v in net.state_dict().items()})
    facts = {
        "format": 1,
        "front": described(front),
        "model": described(head),
        "image_shape": [1, 4, 4],
        "feature_shape": list(fitted.shape),
        "classes": 3,
    }
    write_json(folder / "model.json", facts)
    assert Trained.load(folder).scores(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).shape == (2, 3)
    return folder


@FEW
@given(data=st.data())
def test_a_damaged_model_is_one_sentence(
    trained: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(trained, folder)
    facts = json.loads((folder / "model.json").read_text())
    if data.draw(st.booleans()):
        (folder / "model.json").write_text(json.dumps(data.draw(altered(facts))))
    else:
        name = data.draw(st.sampled_from(["model.json", "model.safetensors"]))
        (folder / name).write_bytes(data.draw(damaged((folder / name).read_bytes())))
    before = snapshot(folder)
    with one_sentence():
        Trained.load(folder)
    assert snapshot(folder) == before


SCHEMA = {
    "target": "c",
    "columns": {
        "a": {"type": "number", "low": 0, "high": 10},
        "b": {"type": "category", "values": ["x", "y"]},
        "c": {"type": "category", "values": ["no", "yes"]},
    },
}


@FEW
@given(data=st.data())
def test_a_damaged_model_of_a_table_is_one_sentence(
    table_model: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(table_model, folder)
    if data.draw(st.booleans()):
        facts = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(data.draw(altered(facts))))
    else:
        name = data.draw(st.sampled_from(["model.json", "model.safetensors"]))
        (folder / name).write_bytes(data.draw(damaged((folder / name).read_bytes())))
    with one_sentence():
        TableModel.load(folder)


# -- tables ------------------------------------------------------------------------------------------------------------


@FEW
@given(content=damaged(b"a,b,c\n1,x,no\n2.5,y,yes\n,x,no\n") | st.binary(max_size=300))
def test_any_csv_is_read_or_refused_by_one_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    path.write_bytes(content)
    with one_sentence():
        names = columns_of(path)
        rows = 0
        for piece in read(path, names):
            lengths = {len(column) for column in piece.values()}
            assert len(lengths) <= 1
            rows += lengths.pop() if lengths else 0
        text = content.decode("utf-8-sig")
        assert rows <= text.count("\n") + text.count("\r")
    assert path.read_bytes() == content


@FEW
@given(
    rows=st.lists(
        st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=2, max_size=2), min_size=1, max_size=8
    )
)
def test_rows_written_as_csv_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["p", "q"], *rows])
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    pieces = list(read(path, ["p", "q"]))
    found = [(_stripped(p), _stripped(q)) for piece in pieces for p, q in zip(piece["p"], piece["q"], strict=True)]
    assert found == [tuple(_stripped(entry) for entry in row) for row in rows]


def _stripped(entry: object) -> str:
    """White space around an entry means nothing, and an array of text drops zero bytes at its end."""
    return str(np.char.strip(np.array(str(entry), dtype=str)))


@FEW
@given(data=st.data())
def test_any_parquet_is_read_or_refused_by_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.mktemp("parquet") / "table.parquet"
    parquet.write_table(pyarrow.table({"a": [1.0, 2.0, None], "b": ["x", "y", None]}), path)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with one_sentence():
        for _ in read(path, columns_of(path)):
            pass


# -- run.json ----------------------------------------------------------------------------------------------------------

FACTS: dict[str, Any] = {
    "format": 1,
    "versions": {"tacit": "1", "torch": "2"},
    "finished": True,
    "started": "2026-01-01T00:00:00",
    "seconds": 1.5,
    "dataset": {"name": "digits", "records": 100, "classes": 10, "fingerprint": "ab", "source": "x"},
    "recipe": {"name": "linear", "lot_size": 10},
    "budget": {"epsilon": 2.0, "delta": 1e-5},
    "seed": None,
    "history": [{"step": 1, "epsilon": 0.1, "metrics": {"loss": {"value": 0.3, "private": True}}}],
    "result": {"test_accuracy": 0.9, "epsilon": 1.9, "delta": 1e-5, "steps": 3, "noise_multiplier": 1.0},
    "notes": ["fine"],
}


@settings(FEW, max_examples=10 if EXPLORE else 3)
@given(data=st.data())
def test_any_run_json_gives_a_report_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "ledger.jsonl").write_bytes(ledger_bytes(folder))
    (folder / "whole.jsonl").unlink()
    if data.draw(st.booleans()):
        (folder / "run.json").write_text(json.dumps(data.draw(altered(FACTS))))
    else:
        (folder / "run.json").write_bytes(data.draw(damaged(json.dumps(FACTS).encode())))
    before = snapshot(folder)
    with one_sentence():
        report(folder)
    assert {
        name: value for name, value in snapshot(folder).items() if name not in ("report.html", "privacy.json")
    } == before


@pytest.fixture(scope="module")
def table_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    TableModel.new("linear", Schema.from_json(SCHEMA)).save(folder)
    assert TableModel.load(folder).classes == ("no", "yes")
    return folder
