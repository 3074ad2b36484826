"""The README's example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

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
