"""Private names of PyTorch are used in one module of the engine."""

from __future__ import annotations

import ast
from pathlib import Path

from torch import Tensor, nn

from tacit.gradients import torch_internals

LISTED = Path(torch_internals.__file__)
ENGINE = LISTED.parent
MOST = 26 - 2
"""Two more stand in texts: `_compiled_call_impl`, and FSDP's module."""
NOT_PYTORCHS = {"_apply_gate", "_is_expert_parallel", "_fields"}
"""Private names of `transformers`, which `libraries` replaces, and a public one of named tuples."""


def trees(folder: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Return every name that the engine defines itself, but for names of PyTorch's modules and tensors."""
    found: set[str] = set()
    for tree in trees(ENGINE).values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found - {*vars(nn.Module()), *dir(Tensor)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.AST, own: set[str]) -> set[str]:
    """Return the private names of other libraries that a module reads: attributes, imports and texts for `getattr`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            foreign = node.attr not in own and not is_self(node.value)
            found |= {node.attr} if foreign else set()
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("tacit", "__future__")):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found |= {part for part in parts if is_private(part)}
        elif isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".") if is_private(part)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "attr" in node.func.id:
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found |= {text for text in texts if is_private(text) and text.isidentifier() and text not in own}
    return found


def test_no_other_module_of_the_engine_uses_private_names_of_pytorch() -> None:
    own = own_names()
    found = {
        path.name: private_names(tree, own) - NOT_PYTORCHS for path, tree in trees(ENGINE).items() if path != LISTED
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_the_private_names_are_few() -> None:
    tree = ast.parse(LISTED.read_text(encoding="utf-8"))
    folders = {"_C", "_functorch", "_autograd", "_dynamo", "eval_frame"}
    inside = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_in(node, folders)}
    assert 0 < len((private_names(tree, own_names()) | inside) - folders) < MOST


def is_in(node: ast.Attribute, folders: set[str]) -> bool:
    """Return whether a name is looked up in one of PyTorch's private modules."""
    around = node.value
    return isinstance(around, ast.Attribute) and (around.attr in folders or is_in(around, folders))
