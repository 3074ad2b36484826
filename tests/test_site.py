"""The documentation: its pages fit together, its tutorials run, and every public name has an example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RUN_ALONE = [DOCS / "start.md", DOCS / "api" / "tacit.md", *sorted((DOCS / "tutorials").glob("*.md"))]


def code(page: Path) -> str:
    """Return the Python of a page, in order."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))


@pytest.mark.parametrize("page", RUN_ALONE, ids=lambda page: page.stem)
def test_the_code_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = code(page)
    if "init_process_group" in program:  # as torchrun starts one process
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
            monkeypatch.setenv(name, value)
        program = program.replace(
            'init_process_group("gloo")',
            f'init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1)',
        )
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})


def test_every_public_name_has_an_example() -> None:
    page = (DOCS / "api" / "tacit.md").read_text("utf-8")
    examples = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)```", page, re.M | re.S))
    assert sorted(examples) == sorted(set(tacit.__all__) - {"__version__"})
    assert all(re.search(rf"tacit\.{name}|run\.ledger|promise", text) for name, text in examples.items())


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    pages = (tmp_path / "site").rglob("*.html")
    assert {"index.html", "tacit-planner.html", "glossary.html"} <= {page.name for page in pages}
