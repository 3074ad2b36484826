"""Linear maps with trainable weights, and what all rules for trainable operations share.

Each runs the operation on detached parameters, so that autograd computes activation gradients only, and keeps
(input, output gradient), from which every example's gradient follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from tacit.gradients.factors.contribution import Contribution, Dense, own_sums
from tacit.gradients.factors.outer import Outer
from tacit.gradients.kernels import batch_invariant_matmul
from tacit.gradients.layers.generic import generic
from tacit.gradients.layers.matmul import einsum_arguments, expand_equation, matmul_letters, operands
from tacit.gradients.layers.registry import ALWAYS, FROZEN, bare, bound, layout_of, operation, trainable
from tacit.gradients.layout import Layout, by_example
from tacit.gradients.nested import detached, replaced
from tacit.gradients.recording import Recording
from tacit.gradients.tap import LinearTap
from tacit.gradients.traced import Traced, mark, plain


def fallback(recorder: Recording, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    tagged, shared = recorder.scan(args, kwargs)
    return generic(recorder, name, func, args, kwargs, tagged, shared)


def finish(recorder: Recording, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    tagged, _ = recorder.scan(args, kwargs)
    return recorder.finish(name, func, args, kwargs, out, tagged)  # type: ignore[no-any-return]


def sequences(x: Tensor, layout: Layout, batch: int, width: int) -> Tensor:
    """[batch, 1, positions, width] from a tensor whose last dimension is the feature, each example's together."""
    if layout.dim == 0 and layout.owner is None and layout.inner * batch == x.shape[0]:
        return x.reshape(batch, 1, -1, width) if batch else x.reshape(0, 1, 0, width)
    return by_example(x, layout, batch).reshape(batch, 1, -1, width).contiguous()


@operation("to type_as", ALWAYS)
def cast(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Casting a tensor to a batch tensor's dtype does not make it batch data, nor does it combine the two."""
    like = next((t for t in (*args[1:], *kwargs.values()) if isinstance(t, Tensor)), None)
    if like is None:
        return recorder.carry_out(func, args, kwargs)
    others = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    return args[0].to(plain(like).device, plain(like).dtype, *args[2:], **others)


@operation("linear")
def linear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias = bound("input weight bias", args, kwargs)
    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or type(weight) is Traced or type(bias) is Traced or weight.is_complex():
        out = torch.matmul(x, weight.mT)
        return out if bias is None else out + bias
    assert batch is not None
    features = plain(x)
    if layout.dim == features.ndim - 1 or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return fallback(recorder, "linear", func, args, kwargs)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = sequences(grad, layout, batch, grad.shape[-1])
        single = g.shape[2] == 1
        summed = Dense(g.reshape(batch, g.shape[-1]) if single else own_sums(g, (1, 2))) if trainable(bias) else None
        pairs: list[tuple[Tensor, Contribution]] = [] if summed is None else [(bias, summed)]
        if trainable(weight):
            a = sequences(features.detach(), layout, batch, features.shape[-1])
            pairs.append((weight, Outer(a, g, weight.shape, output=summed if single else None)))
        return pairs

    saved = [features] if trainable(weight) else []
    if torch.is_autocast_enabled(features.device.type):
        out = recorder.tap(batch_invariant_matmul.linear(features, bare(weight), bare(bias)), saved, make)
    else:
        arrived = recorder.arrival(saved, make)
        out = LinearTap.apply(recorder.anchor, features, bare(weight), bare(bias), arrived)  # type: ignore[no-untyped-call]
    return mark(out, recorder, layout)


@operation("linear", FROZEN)
def frozen_linear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Computes each row alike too (`alike`)."""
    x, weight, bias = args = tuple(bound("input weight bias", args, kwargs))
    layout, kwargs = layout_of(recorder, x), {}
    if layout is None or layout.dim == x.ndim - 1 or forward_ad._current_level >= 0:
        return recorder.carry_out(func, args, kwargs)
    if not batch_invariant_matmul.is_linear(plain(x), weight, bias):
        return recorder.carry_out(func, args, kwargs)
    out = LinearTap.apply(None, plain(x), weight, bias, None)  # type: ignore[no-untyped-call]
    return recorder.finish("linear", func, args, kwargs, out, [(x, layout)])


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


@operation("addmm baddbmm addmv")
def addmm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    bias, a, b = operands(args, kwargs)[:3]
    product = torch.matmul(a, b)
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


@operation("bilinear")
def bilinear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x1, x2, weight, bias = bound("input1 input2 weight bias", args, kwargs)
    layout, batch = layout_of(recorder, x1), recorder.batch
    other = layout_of(recorder, x2)
    assert batch is not None
    if layout is None or other is None or layout.dim != other.dim or not layout.same_order(other):
        out = torch.einsum("...i,oij,...j->...o", x1, weight, x2)
        return out if bias is None else out + bias
    left, right = plain(x1), plain(x2)
    out = F.bilinear(left, right, bare(weight), bare(bias))

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = sequences(grad, layout, batch, grad.shape[-1])
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            product = (left.detach().unsqueeze(-1) * right.detach().unsqueeze(-2)).flatten(-2)
            pairs.append((weight, Outer(sequences(product, layout, batch, product.shape[-1]), g, weight.shape)))
        if trainable(bias):
            pairs.append((bias, Dense(own_sums(g, (1, 2)))))
        return pairs

    out = recorder.tap(out, [left, right], make)
    return finish(recorder, "bilinear", func, args, kwargs, out)
