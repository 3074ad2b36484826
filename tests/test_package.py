"""The package as a whole: start-up, types, public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import tacit

ROOT = Path(__file__).parent.parent


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_import_needs_neither_torch_nor_scipy() -> None:
    assert not {"torch", "scipy", "numpy", "matplotlib"} & _modules_after("import tacit")


def test_help_needs_neither_torch_nor_scipy() -> None:
    code = "import tacit.cli\ntry:\n    tacit.cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert not {"torch", "scipy", "numpy", "matplotlib"} & _modules_after(code)


def test_accounting_needs_no_torch() -> None:
    assert not {"torch", "scipy.stats", "matplotlib"} & _modules_after("import tacit.accounting, tacit.ledger")


def test_training_loads_the_parts_of_scipy_that_correlated_noise_needs_when_it_is_used() -> None:
    assert not {"scipy.signal", "scipy.optimize", "scipy.stats"} & _modules_after("import tacit.training")


def test_public_names_load() -> None:
    for name in tacit.__all__:
        assert getattr(tacit, name) is not None
    assert set(tacit.__all__) <= set(dir(tacit))


def test_typed() -> None:
    assert (Path(tacit.__file__).parent / "py.typed").exists()


def test_every_tested_version_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in line for line in pins)
    assert "torch==2.13.0" in pins


def test_the_constraints_of_flower_are_the_usual_ones_where_they_can_be() -> None:
    """Another version is pinned only of what flwr wants older."""

    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text().splitlines()
        return dict(line.split("==") for line in lines if "==" in line and line[0] != "#")

    usual, flower = pins("constraints.txt"), pins("constraints-flower.txt")
    assert set(usual) <= set(flower)
    assert {name for name, version in usual.items() if flower[name] != version} == {
        "packaging",
        "protobuf",
        "rich",
        "typer",
    }


def test_python_dash_m_is_the_command() -> None:
    found = subprocess.run([sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == f"tacit {tacit.__version__}\n"


def _imports(body: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Return the module and the name of every ``from tacit.… import name``."""
    found = (node for node in body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit."))
    return {(node.module or "", alias.name) for node in found for alias in node.names}


def _exports(room: Path) -> set[tuple[str, str]]:
    """Return the module and the name of everything that a room's ``__init__.py`` imports and has in ``__all__``."""
    text = room.read_text("utf-8")
    public = set(re.findall(r'"(\w+)"', text[text.rindex("__all__") :])) if "__all__" in text else set()
    return {(module, name) for module, name in _imports(ast.parse(text).body) if name in public}


def test_tests_import_what_a_room_exports_from_the_room() -> None:
    """The tests then hold for the names that users have, and modules can be split without touching them."""
    public = {found for room in (ROOT / "src/tacit").glob("*/__init__.py") for found in _exports(room)}
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
    inner = [
        f"{path}: from {'.'.join(module.split('.')[:2])} import {name}"
        for path, text in texts.items()
        if re.search(r"^\s*from tacit\.\w+\.", text, re.M)
        for module, name in sorted(_imports(ast.walk(ast.parse(text))) & public)
        if module.count(".") > 1
    ]
    assert not inner, "\n".join(inner)
