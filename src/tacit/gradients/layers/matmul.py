"""Tags after matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution
from tacit.gradients.factors.outer import Outer
from tacit.gradients.layers.generic import fallback, finish
from tacit.gradients.layers.registry import Call, layout_of, mixes, operation, pairs, rule, trainable, unknown
from tacit.gradients.layout import Layout, Tag, by_example
from tacit.gradients.nested import detached, replaced
from tacit.gradients.recording import Recording
from tacit.gradients.traced import Traced, plain


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
    """Return the operands in PyTorch's order, given by position or by keyword."""
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
        return unknown(call)
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
            dots = "θηζεδγβα"[: t.ndim - len(part) + 3][::-1]  # no letter that an equation may have
            longest = max(longest, dots, key=len)
            part = part.replace("...", dots)
        if len(part) != t.ndim or len(set(part)) != len(part):
            return None
        names.append(part)
    if not arrow:
        every = "".join(names)
        right = longest + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in longest))
    return names, right.replace("...", longest)


@operation("matmul rmatmul mm bmm mv dot")
def matmul(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(func, "__name__", "matmul")
    a, b = operands(args, kwargs)[:2]
    if "rmatmul" in name:
        a, b = b, a
    left, right, out = matmul_letters(a.ndim, b.ndim)
    return contraction(recorder, "matmul", torch.matmul, (a, b), {}, [left, right], out, (a, b))


@operation("einsum")
def einsum(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    equation, given = einsum_arguments(args)
    expanded = expand_equation(equation, given)
    if expanded is None or len(given) != 2:
        return fallback(recorder, "einsum", func, args, kwargs)
    return contraction(recorder, "einsum", func, args, kwargs, expanded[0], expanded[1], given)


def contraction(
    recorder: Recording,
    name: str,
    func: Any,
    args: Any,
    kwargs: Any,
    names: Sequence[str],
    output: str,
    given: Sequence[Tensor],
) -> Any:
    """Two-operand Einstein sums, data × parameter: letters say which dimensions are in, out, block or position."""
    batch = recorder.batch
    assert batch is not None
    which = [i for i in (0, 1) if layout_of(recorder, given[i]) is not None]
    if len(which) != 1 or not trainable(given[1 - which[0]]):
        return fallback(recorder, name, func, args, kwargs)
    x, q = given[which[0]], given[1 - which[0]]
    xs, qs = names[which[0]], names[1 - which[0]]
    layout = layout_of(recorder, x)
    assert layout is not None
    example = xs[layout.dim]
    sizes: dict[str, int] = {}
    regular = example in output and example not in qs and len(set(xs)) == len(xs) and len(set(qs)) == len(qs)
    for letter_list, t in ((xs, x), (qs, q)):
        for c, n in zip(letter_list, t.shape):
            regular = regular and sizes.setdefault(c, n) == n
    ins = [c for c in qs if c in xs and c not in output]
    outs = [c for c in qs if c in output and c not in xs]
    blocks = [c for c in qs if c in output and c in xs]
    regular = regular and len(ins) + len(outs) + len(blocks) == len(qs) and all(c in output or c in ins for c in xs)
    if not regular:
        return fallback(recorder, name, func, args, kwargs)
    places = [c for c in xs if c in output and c != example and c not in qs]
    data = plain(x)
    result = func(*detached(replaced(args, {id(x): data}), [q]), **kwargs)

    def shaped(t: Tensor, letters_of: str, features: list[str]) -> Tensor:
        own = [c for c in letters_of if c != example]
        t = by_example(t, layout.at(letters_of.index(example)), batch)
        order = [0, *(2 + own.index(c) for c in blocks), 1, *(2 + own.index(c) for c in places + features)]
        t = t.permute(order)
        count = 1
        for c in blocks:
            count *= sizes[c]
        width = 1
        for c in features:
            width *= sizes[c]
        return t.reshape(batch, count, -1, width)

    spread = [sizes[c] for c in blocks + outs + ins]
    order = [(blocks + outs + ins).index(c) for c in qs]

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        factor = data.detach().conj_physical() if data.is_complex() else data.detach()
        a, g = shaped(factor, xs, ins), shaped(grad, output, outs)
        if not blocks and len(ins) == 1 and len(outs) == 1:
            first, second = (a, g) if qs.index(outs[0]) == 0 else (g, a)
            return [(q, Outer(first, second, q.shape))]
        return [(q, Outer(a, g, q.shape, spread, order))]

    result = recorder.tap(result, [data], make)
    return finish(recorder, name, func, args, kwargs, result)


@operation("baddbmm addmv")
def added_product(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    bias, a, b = operands(args, kwargs)[:3]
    product = torch.matmul(a, b)
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)
