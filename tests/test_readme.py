"""The README's example does what it says."""

from __future__ import annotations

import importlib.util
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def test_example_runs_and_spends_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(code) == 1
    exec(compile(code[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert printed == "(ε = 2.00, δ = 1e-05) example-level, add/remove, Poisson, pld"


def test_files_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"(?:docs|tests)/[\w./-]+\.(?:md|png|py)", text):
        assert (ROOT / name).exists(), name


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_accuracy_in_the_readme_is_that_of_the_page(benchmark: ModuleType) -> None:
    page, readme = (ROOT / "docs" / "accuracy.md").read_text(), " ".join((ROOT / "README.md").read_text().split())
    shown = page.split(benchmark.BEGIN)[1].split(benchmark.END)[0].strip()
    assert shown == benchmark.table(benchmark.rows())
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:]]

    def mean(values: str) -> str:
        return f"{statistics.mean(map(float, values.split(', '))):.1f}"

    for name in dict.fromkeys(cells[0] for cells in lines):
        means = " / ".join(mean(cells[3]) for cells in lines if cells[0] == name)
        epsilons = " / ".join(cells[1] for cells in lines if cells[0] == name)
        assert f"{name} reaches {means} % at ε = {epsilons}" in readme
    assert all(re.fullmatch(r"2026-\d\d-\d\d(?: to 2026-\d\d-\d\d)?", cells[6]) for cells in lines)
