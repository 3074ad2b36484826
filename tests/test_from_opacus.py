"""docs/from-opacus.md: both sides of every example run, and no public name of Opacus is left out."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[1] / "docs" / "from-opacus.md").read_text()
BLOCKS = re.findall(r"<!-- (opacus|tacit): (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
(SETUP,) = re.findall(r"<!-- setup -->\n```python\n(.*?)```", PAGE, re.DOTALL)
MODULES = (
    "opacus",
    "opacus.accountants",
    "opacus.data_loader",
    "opacus.distributed",
    "opacus.grad_sample",
    "opacus.layers",
    "opacus.optimizers",
    "opacus.schedulers",
    "opacus.utils.batch_memory_manager",
    "opacus.utils.uniform_sampler",
    "opacus.validators",
)


def public_names() -> set[str]:
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed (extra 'dev')")
    names: set[str] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        made_here = [
            key for key, value in vars(module).items() if str(getattr(value, "__module__", "")).startswith("opacus")
        ]
        names |= set(getattr(module, "__all__", None) or made_here)
    engine = opacus.PrivacyEngine
    names |= {name for name, _ in inspect.getmembers(engine, inspect.isfunction)}
    for method in (engine.make_private, engine.make_private_with_epsilon):
        names |= set(inspect.signature(method).parameters) - {"self", "kwargs"}
    return {name for name in names if not name.startswith("_")} - {"utils"}


def test_every_public_name_of_opacus_is_in_the_table() -> None:
    table = PAGE.split("## Every public name")[1]
    listed = {word for code in re.findall(r"`([^`]+)`", table) for word in re.findall(r"\w+", code)}
    assert sorted(public_names() - listed) == []


@pytest.mark.parametrize(("side", "name", "code"), BLOCKS, ids=[f"{name}-{side}" for side, name, _ in BLOCKS])
def test_both_sides_of_each_example_run(
    side: str, name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if side == "opacus":
        pytest.importorskip("opacus", reason="Opacus is not installed (extra 'dev')")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(SETUP, space)
    model = space["model"]
    before = model[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, f"docs/from-opacus.md ({name})", "exec"), space)
    assert name == "checkpoint" or not torch.equal(before, model[0].weight)
    if side == "tacit" and name != "checkpoint":
        assert space["run"].step == space["run"].steps == len(space["run"].ledger)


def test_each_example_has_two_sides() -> None:
    sides = {side: [name for found, name, _ in BLOCKS if found == side] for side in ("opacus", "tacit")}
    assert sides["opacus"] == sides["tacit"] == ["loop", "schedules", "checkpoint"]
