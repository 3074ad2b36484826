"""The package as a whole: start-up, types, public names."""

from __future__ import annotations

import subprocess
import sys
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
