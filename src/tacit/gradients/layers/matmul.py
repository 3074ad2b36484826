"""Tags after matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tacit.gradients.guard.probing import probed
from tacit.gradients.layers.registry import Call, aligned, mixes, pairs, rule
from tacit.gradients.layout import Layout, Tag
from tacit.gradients.traced import Traced


def letters(call: Call, operands: Sequence[str], output: str, tensors: Sequence[Tensor]) -> Tag:
    """The rule of Einstein sums: the batch letter must be one letter, shared by all data operands and kept."""
    tags = {id(t): tag for t, tag in call.layouts()}
    found: tuple[str, Layout] | None = None
    for t, names in zip(tensors, operands):
        tag = tags.get(id(t))
        if tag is None:
            continue
        if found is not None and (names[tag.dim] != found[0] or not tag.same_order(found[1])):
            return pairs(call)
        found = (names[tag.dim], tag)
    assert found is not None
    if found[0] not in output:
        return mixes(call, "sums over examples")
    return found[1].at(output.index(found[0]))


def matmul_letters(a: int, b: int) -> tuple[str, str, str]:
    """Einstein notation of matmul for operands of a and b dimensions."""
    if a == 1 and b == 1:
        return "k", "k", ""
    lead = "abcdefgh"[: max(a, b) - 2] if max(a, b) > 2 else ""
    left = "k" if a == 1 else lead[len(lead) - (a - 2) :] + "ik"
    right = "k" if b == 1 else lead[len(lead) - (b - 2) :] + "kj"
    return left, right, lead + ("i" if a > 1 else "") + ("j" if b > 1 else "")


def operands(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What is added and multiplied, in PyTorch's order, however it was given."""
    names = ("self", "input", "mat1", "batch1", "mat", "other", "mat2", "batch2", "vec", "tensor")
    return [*args, *(kwargs[name] for name in names if name in kwargs)]


@rule("matmul rmatmul mm bmm mv dot inner_")
def _matmul(call: Call) -> Tag:
    a, b = operands(call.args, call.kwargs)[:2]
    if call.name == "rmatmul":
        a, b = b, a
    left, right, out = matmul_letters(a.ndim, b.ndim)
    return letters(call, (left, right), out, (a, b))


@rule("addmm baddbmm addmv")
def _addmm(call: Call) -> Tag:
    bias, a, b = operands(call.args, call.kwargs)[:3]
    left, right, out = matmul_letters(a.ndim, b.ndim)
    names = [n for n, t in zip((left, right, out[len(out) - bias.ndim :]), (a, b, bias)) if isinstance(t, Traced)]
    return letters(call, names, out, [t for t in (a, b, bias) if isinstance(t, Traced)])


@rule("einsum")
def _einsum(call: Call) -> Any:
    equation, operands = einsum_arguments(call.args)
    expanded = expand_equation(equation, operands)
    if expanded is None:
        return probed(call)
    return letters(call, expanded[0], expanded[1], operands)


def einsum_arguments(args: Sequence[Any]) -> tuple[str, list[Tensor]]:
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    return args[0], operands


def expand_equation(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str] | None:
    """Explicit letters for every dimension, `...` written out in Greek from the right."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    names, longest = [], ""
    for part, t in zip(left.split(","), operands):
        if "..." in part:
            dots = "θηζεδγβα"[: t.ndim - len(part) + 3][::-1]  # none that somebody may have written
            longest = max(longest, dots, key=len)
            part = part.replace("...", dots)
        if len(part) != t.ndim or len(set(part)) != len(part):
            return None
        names.append(part)
    if not arrow:
        every = "".join(names)
        right = longest + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in longest))
    return names, right.replace("...", longest)


@rule("linear")
def _linear(call: Call) -> Tag:
    x, w = call.main(), call.arg(1, "weight")
    if isinstance(w, Traced):
        return mixes(call, "uses data as a weight matrix")
    if id(x) not in {id(t) for t, _ in call.layouts()}:
        return mixes(call, "uses data as a bias")
    if len(call.layouts()) == 1:
        layout = call.layouts()[0][1]
        return layout if layout.dim != x.ndim - 1 else mixes(call, "sums over examples")
    return aligned(call, call.out.ndim, call.out.ndim - 1)  # a bias may have a row for each example
