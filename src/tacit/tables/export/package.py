"""A model as a Python package of plain source and JSON: it needs NumPy and scikit-learn, and can be read.

Not a pickle: that would run code when it is loaded and needs the class to be installed all the same. Not skops: it
needs the class too. The package has the class, about 1,100 lines, and the model's numbers as JSON.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

from tacit._version import __version__
from tacit.tables.boosting.shapes import Shapes
from tacit.tables.model import TableModel

_SOURCES = ("notation", "columns", "entries", "ngrams", "schema", "encoding", "arrow", "frames")
_PACKAGE = re.compile(r"from tacit\.tables(?:\.export)?\.(\w+) import")


def write_package(model: TableModel, directory: Path) -> list[Path]:
    """Write the package into a new directory, whose name is the package's; return its files."""
    if not directory.name.isidentifier():
        raise ValueError(f"{directory.name!r} is no name of a Python package; use letters, digits and underscores.")
    if directory.exists():
        raise ValueError(f"{directory} exists; choose another directory with --out.")
    weights = {name: value.tolist() for name, value in model.network.state_dict().items()}
    facts = {"format": 1, "model": model.kind, "schema": model.encoding.schema.to_json(), "weights": weights}
    if isinstance(model.network, Shapes):
        facts["terms"] = model.network.structure()
    files = {"model.json": json.dumps(facts, ensure_ascii=False)}
    tables = resources.files("tacit.tables")
    for name in _SOURCES:
        files[f"{name}.py"] = tables.joinpath(f"{name}.py").read_text("utf-8")
    files["plain_estimator.py"] = tables.joinpath("export", "plain_estimator.py").read_text("utf-8")
    files = {name: _PACKAGE.sub(r"from .\1 import", text) for name, text in files.items()}
    files["__init__.py"] = (
        f'"""A model of {_quoted(model.encoding.schema.target)}, exported by tacit {__version__}; '
        'needs numpy and scikit-learn."""\n\nfrom .plain_estimator import load\n\n__all__ = ["load"]\n'
    )
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in files]


def _quoted(name: str) -> str:
    return re.sub(r"[\"\\\n]", " ", name)
