"""How the library is written: first lines of docstrings and names of tests that a stranger can place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RIDDLE = re.compile(r"(What|Whether|Who|Whose|Whom|Whoever|Of|Nor|Nobody|Somebody)\b")
RIDDLE_NAME = re.compile(r"test_(nor|what|who|whose|whoever|of|and|but|nobody|somebody)_")


def trees(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"))


def test_a_docstring_begins_with_what_its_function_returns_or_does() -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in trees("src")
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and RIDDLE.match(text)
    ]
    assert not found, "\n".join(found)


def test_the_name_of_a_test_is_a_claim() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, tree in trees("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and RIDDLE_NAME.match(node.name)
    ]
    assert not found, "\n".join(found)
