"""Models that leave Tacit: the same answers from a plain scikit-learn estimator and from a graph for ONNX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.cli import main
from tacit.tables.binning import binned
from tacit.tables.export.onnx_graph import input_name, write_onnx
from tacit.tables.export.package import write_package
from tacit.tables.model import TableModel
from tacit.tables.schema import Schema

COLUMNS: dict[str, Any] = {
    "age": {"type": "number", "low": 0, "high": 100, "missing": "own"},
    "pay": {"type": "number", "low": 0, "high": 9000, "knots": [100, 800, 1500, 4000], "missing": "own"},
    "size": {"type": "number", "low": 0, "high": 10, "bins": [1.5, 2.5, 7], "missing": 2},
    "rent": {
        "type": "number",
        "low": 0,
        "high": 900,
        "decimal": ",",
        "currency": True,
        "missing": "own",
        "text": "missing",
    },
    "moved": {"type": "date", "low": "2000-01-01", "high": "2024-12-31", "missing": "own"},
    "month": {"type": "date", "of": "moved", "part": "month", "missing": "own"},
    "town": {"type": "category", "values": ["A", "B"], "other": True, "missing": "own"},
    "school": {"type": "category", "values": ["none", "some"], "other": True, "missing": "some"},
}
TARGETS: dict[str, dict[str, Any]] = {
    "two": {"type": "category", "values": ["no", "yes"]},
    "three": {"type": "category", "values": ["low", "middle", "high"]},
    "number": {"type": "number", "low": -50, "high": 150},
}
ROWS = {
    "age": ["30", "", "130", "17.5"],
    "pay": ["50", "1200", "", "9999"],
    "size": ["1.5", "", "9", "2"],
    "rent": ["1,50 €", "", "750,00", "whatever"],
    "moved": ["2010-03-31", "", "2024-12-24T12:00", "1999-01-01"],
    "town": ["A", "", "C", "B"],
    "school": ["none", "?", "phd", "some"],
}


def model_of(kind: str, target: str, texts: bool = False) -> TableModel:
    columns = {**COLUMNS, **({"note": {"type": "text", "buckets": 64}} if texts else {}), "target": TARGETS[target]}
    schema = Schema.from_json({"target": "target", "columns": columns})
    model = TableModel.new(kind, binned(schema) if kind == "boosted" else schema)
    torch.manual_seed(3)
    for tensor in model.network.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape))
    return model


def rows(texts: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    found = {name: np.array(values, dtype=object) for name, values in ROWS.items()}
    return found | ({"note": np.array(["well done", "", "not so well", "bad"], dtype=object)} if texts else {})


CALL = """
import json, sys
assert not any(name.split(".")[0] in ("tacit", "torch") for name in sys.modules)
import numpy as np
sys.path.insert(0, sys.argv[1])
from exported import load
model = load()
given = {name: np.array(values, dtype=object) for name, values in json.load(open(sys.argv[2])).items()}
answers = model.predict_proba(given) if hasattr(model, "predict_proba") else model.predict(given)
from sklearn.base import clone
assert (clone(model).predict(given) == model.predict(given)).all()
assert not any(name.split(".")[0] in ("tacit", "torch") for name in sys.modules)
print(json.dumps([answers.tolist(), model.predict(given).tolist(), model.feature_names_in_.tolist()]))
"""


@pytest.mark.parametrize(
    ("kind", "target"), [("linear", "two"), ("mlp", "number"), ("boosted", "two"), ("boosted", "three")]
)
def test_a_package_says_the_same_without_tacit(kind: str, target: str, tmp_path: Path) -> None:
    model, given = model_of(kind, target, texts=kind != "boosted"), rows(texts=kind != "boosted")
    write_package(model, tmp_path / "exported")
    (tmp_path / "rows.json").write_text(json.dumps({name: values.tolist() for name, values in given.items()}))
    words = [sys.executable, "-I", "-c", CALL, str(tmp_path), str(tmp_path / "rows.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers, labels, names = json.loads(done.stdout)
    wanted = model.predicted(given)
    expected = wanted.values if wanted.chances is None else wanted.chances
    assert np.allclose(answers, expected, rtol=1e-5, atol=1e-6) and names == list(given)
    assert labels == wanted.values.tolist() if wanted.chances is not None else np.allclose(labels, wanted.values)


@pytest.mark.parametrize("kind", ["linear", "mlp", "boosted"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_graph_says_the_same(kind: str, target: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
    from onnx.reference import ReferenceEvaluator

    model, given = model_of(kind, target), rows()
    write_onnx(model, tmp_path / "model.onnx")
    schema = model.encoding.schema
    inputs: dict[str, Any] = {}
    for name, source in schema.sources(schema.features).items():
        column = schema.columns[name]
        if hasattr(column, "notation"):
            numbers = [column.notation.number(entry) for entry in given[source].tolist()]
            inputs[input_name(name, column)] = np.array(numbers)[:, None]
        else:
            inputs[name] = given[source][:, None]
    found = ReferenceEvaluator(onnx.load(tmp_path / "model.onnx")).run(None, inputs)
    wanted = model.predicted(given)
    if wanted.chances is None:
        assert np.allclose(found[0][:, 0], wanted.values, rtol=1e-5)
    else:
        assert np.asarray(found[0]).tolist() == wanted.values.tolist()
        assert np.allclose(found[1], wanted.chances, rtol=1e-4, atol=1e-6)


def test_a_graph_of_text_is_refused_with_the_other_way(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the onnx extra is not installed")
    with pytest.raises(ValueError, match="--to sklearn"):
        write_onnx(model_of("linear", "two", texts=True), tmp_path / "model.onnx")


def test_the_command_writes_beside_the_model_and_not_over_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_of("linear", "two").save(tmp_path)
    for code, text in ((0, "from plain_model import load"), (2, "exists; choose another directory")):
        with pytest.raises(SystemExit) as stop:
            main(["export", str(tmp_path)])
        captured = capsys.readouterr()
        assert stop.value.code == code and text in captured.out + captured.err
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path), "--to", "pmml"])
    assert stop.value.code == 2 and "choose sklearn or onnx" in capsys.readouterr().err
