"""Nothing is ever unpickled: not by the look of the source, and not when a file asks for it."""

from __future__ import annotations

import ast
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.features.cache import cached
from tacit.ledger import Ledger
from tacit.recipes import Trained
from tacit.reports import report
from tacit.tables.model import TableModel
from tacit.tables.reading import columns_of

LIBRARY = Path(tacit.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "yaml"}


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def offences(source: str) -> list[str]:
    """What in a source text can run code from a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            called, options = name_of(node.func), {word.arg: word.value for word in node.keywords}
            if called in ("eval", "exec", "__import__", "torch.hub.load", "pandas.read_pickle", "os.system"):
                found.append(called)
            if called in ("torch.load", "torch.jit.load"):
                only = options.get("weights_only")
                if called == "torch.jit.load" or not (isinstance(only, ast.Constant) and only.value is True):
                    found.append(called)
            if called in ("np.load", "numpy.load"):
                allowed = options.get("allow_pickle")
                if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                    found.append(called)
            if any(isinstance(value, ast.Constant) and value.value is True for word, value in options.items()
                   if word == "allow_pickle"):  # fmt: skip
                found.append(called)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "numpy.savez(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert offences(source)


def test_no_module_can_unpickle() -> None:
    files = sorted(LIBRARY.rglob("*.py"))
    assert len(files) > 150
    assert {str(file): found for file in files if (found := offences(file.read_text(encoding="utf-8")))} == {}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (Path.touch, (self.place,))


def traps(place: Path) -> dict[str, bytes]:
    """A trap as pickle, as a checkpoint of PyTorch, and as an array of NumPy."""
    torch_file, numpy_file = io.BytesIO(), io.BytesIO()
    torch.save({"weight": Trap(place)}, torch_file)
    np.save(numpy_file, np.array([Trap(place)], dtype=object), allow_pickle=True)
    return {"pickle": pickle.dumps(Trap(place)), "torch": torch_file.getvalue(), "numpy": numpy_file.getvalue()}


class Fitted:
    """A front end that takes pictures as they are."""

    shape = (1,)

    def transform(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :1].float()

    def state(self) -> dict[str, torch.Tensor]:
        return {}


@pytest.mark.parametrize("kind", ["pickle", "torch", "numpy"])
def test_no_reader_springs_the_trap(kind: str, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    content = traps(sprung)[kind]
    run = tmp_path / "run"
    run.mkdir()
    for name in ("ledger.jsonl", "run.json", "model.json", "model.safetensors", "table.csv", "table.parquet"):
        (run / name).write_bytes(content)
    readers = [
        lambda: Ledger.load(run / "ledger.jsonl"),
        lambda: Ledger.open(run / "ledger.jsonl"),
        lambda: report(run),
        lambda: Trained.load(run),
        lambda: TableModel.load(run),
        lambda: columns_of(run / "table.csv"),
        lambda: columns_of(run / "table.parquet"),
    ]
    for read in readers:
        with pytest.raises((ValueError, OSError)):
            read()
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    cached(images, Fitted(), run / "cache", configuration="x")
    (file,) = (run / "cache").iterdir()
    file.write_bytes(content)
    with pytest.raises((ValueError, OSError)):
        cached(images, Fitted(), run / "cache", configuration="x")
    assert not sprung.exists()
    if kind == "pickle":
        pickle.loads(content)
        assert sprung.exists()  # the trap works
