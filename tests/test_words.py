"""How the library is written: docstrings, comments and names of tests that a stranger can place.

These are checks of words, not of sense: they keep out the openings and the words that made sentences into riddles.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RIDDLE = re.compile(r"(What|Whatever|Whether|Who|Whose|Whom|Whoever|Of|Nor|Nobody|Somebody)\b")
RIDDLE_WORD = re.compile(r"\b([Ww]hoever|[Nn]obody|[Ss]omebody)\b|\b(is|are) (let|told)\b")
RIDDLE_NAME = re.compile(
    r"test_(nor|what|who|whose|whoever|of|and|but)_|_(nobody|somebody|whoever)(_|$)|_(is|are)_(told|let)(_|$)"
)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string that stands alone, with its line: of modules, classes, functions and attributes."""
    for node in getattr(tree, "body", ()):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.If() | ast.Try():
                yield from docstrings(node)


def test_a_docstring_begins_with_what_its_function_returns_or_does() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text("utf-8")))
        if RIDDLE.match(text)
    ]
    assert not found, "\n".join(found)


def test_sentences_name_their_subject() -> None:
    """Docstrings, comments, texts for users and pages have no whoever, nobody or somebody, and nothing *is told*."""
    files = list((ROOT / "src/tacit").rglob("*.py"))
    files += (ROOT / "docs").rglob("*.md")
    files += ROOT.glob("*.md")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if RIDDLE_WORD.search(line)
    ]
    assert len(files) > 300
    assert not found, "\n".join(found)


def test_the_name_of_a_test_is_a_claim() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M)
        if RIDDLE_NAME.search(name)
    ]
    assert not found, "\n".join(found)
