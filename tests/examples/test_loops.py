"""The loops of examples/loops, plain and private: both run, and docs/frameworks.md says how many lines differ."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.ledger import Ledger

ROOT = Path(__file__).parents[2]
LOOPS = {
    "trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "fabric": ("lightning",),
}


def changed_lines(name: str) -> int:
    """Count the lines of the private loop that the plain one does not have, imports included, docstring left out."""
    plain, private = (
        (ROOT / "examples" / "loops" / f"{name}_{kind}.py").read_text().splitlines()[1:]
        for kind in ("plain", "private")
    )
    return sum(line.startswith("+ ") and bool(line[2:].strip()) for line in difflib.ndiff(plain, private))


def run(name: str, kind: str, directory: Path) -> float:
    path = ROOT / "examples" / "loops" / f"{name}_{kind}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return float(module.main(str(directory)))


@pytest.mark.parametrize("name", LOOPS)
def test_the_page_says_how_many_lines_change(name: str) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    said = re.search(rf"examples/loops/{name}_private.py.*\| (\d+) \|", page)
    assert said is not None and int(said[1]) == changed_lines(name)
    assert name not in ("trainer", "lightning") or changed_lines(name) <= 4


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.slow), "private"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_learns_with_and_without_privacy(name: str, kind: str, tmp_path: Path) -> None:
    for package in LOOPS[name]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    torch.set_num_threads(1)
    assert run(name, kind, tmp_path) > (0.7 if name == "trainer" else 0.9)
    written = tmp_path / "ledger.jsonl"
    if kind == "private" and name in ("trainer", "lightning"):
        assert len(Ledger.load(written)) > 0
