"""Private names of PyTorch are used in one module of the engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from pathlib import Path

from torch import Tensor, nn

from tacit.gradients import torch_internals

LISTED = Path(torch_internals.__file__)
ENGINE = LISTED.parent
COUNTED = 24
"""Private names in use, those in texts among them: 22 of PyTorch's and two of Python's frames. Only ever lower it."""
FOLDERS = {"_C", "_functorch", "_autograd", "eval_frame"}
"""PyTorch's private modules, in which other names are looked up: they are not counted, the names in them are."""
NOT_PYTORCHS = {"_apply_gate", "_is_expert_parallel", "_bias", "_fields", "_vmap_expansion_sdpa"}
"""Private names of `transformers`, which `libraries` replaces, and a public one of named tuples."""
RULED = {
    "_pack_padded_sequence",
    "_pad_packed_sequence",
    "_native_batch_norm_legit",
    "_foreach_",
    "_is_",
    "_grad",
    "_base",
}
"""Names of operations that a model's code may call: the engine has rules for them and calls none of them itself."""


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


def private_names(tree: ast.AST, own: set[str], ruled: Container[str] = ()) -> set[str]:
    """Return the private names of other libraries that a module reads: attributes, imports, texts that are names."""
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
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+", str(node.value)):
            parts = str(node.value).split(".")
            found |= {part for part in parts if is_private(part) and part not in own and part not in ruled}
    return found


def test_no_other_module_of_the_engine_uses_private_names_of_pytorch() -> None:
    own = own_names()
    found = {
        path.name: private_names(tree, own, RULED) - NOT_PYTORCHS
        for path, tree in trees(ENGINE).items()
        if path != LISTED
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_a_private_name_in_a_text_is_found() -> None:
    tree = ast.parse("vars(module)['_hidden'], sys.modules.get('torch._folder.name'), 'some text of _words', x._seen")
    assert private_names(tree, set()) == {"_hidden", "_folder", "_seen"}


def test_the_private_names_are_as_few_as_counted() -> None:
    tree = ast.parse(LISTED.read_text(encoding="utf-8"))
    inside = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_in(node, FOLDERS)}
    assert len((private_names(tree, own_names()) | inside) - FOLDERS) == COUNTED


def is_in(node: ast.Attribute, folders: set[str]) -> bool:
    """Return whether a name is looked up in one of PyTorch's private modules."""
    around = node.value
    return isinstance(around, ast.Attribute) and (around.attr in folders or is_in(around, folders))
