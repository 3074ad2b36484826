"""Rules for the operations that carry a model's parameters.

Each runs the operation on detached parameters, so that autograd computes activation gradients only, and keeps
(input, output gradient), from which every example's gradient follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.contributions import Contribution, Convolution, Dense, Outer, Rows
from tacit.gradients.fallback import generic
from tacit.gradients.layout import Layout, Mixed, by_example, owners
from tacit.gradients.propagation import einsum_arguments, expand_equation, matmul_letters
from tacit.gradients.recorder import ALWAYS, OPERATIONS, Operation, Recorder, detached
from tacit.gradients.traced import Traced, plain


def operation(names: str, always: bool = False) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        (ALWAYS if always else OPERATIONS).update(dict.fromkeys(names.split(), function))
        return function

    return register


def layout_of(recorder: Recorder, x: Any) -> Layout | None:
    if type(x) is Traced and x._recorder is recorder and x._epoch == recorder.epoch and isinstance(x._tag, Layout):
        return x._tag
    return None


def trainable(q: Any) -> bool:
    return isinstance(q, Tensor) and type(q) is not Traced and q.requires_grad


def bare(q: Any) -> Any:
    """An argument as the operation should see it: without tag, and without a path to the parameters."""
    if type(q) is Traced:
        return plain(q)
    return q.detach() if isinstance(q, Tensor) else q


def bound(names: str, args: Sequence[Any], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """Arguments by name in a given order, whether they came by position or by keyword."""
    keys = names.split()
    values = {**defaults, **dict(zip(keys, args)), **kwargs}
    return [values.get(k) for k in keys]


def _fallback(recorder: Recorder, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    tagged, shared = recorder.scan(args, kwargs)
    return generic(recorder, name, func, args, kwargs, tagged, shared)


def _finish(recorder: Recorder, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    tagged, _ = recorder.scan(args, kwargs)
    return recorder.finish(name, func, args, kwargs, out, tagged)  # type: ignore[no-any-return]


def sequences(x: Tensor, layout: Layout, batch: int, width: int) -> Tensor:
    """[batch, 1, positions, width] from a tensor whose last dimension is the feature."""
    return by_example(x, layout, batch).reshape(batch, 1, -1, width)


@operation("linear")
def linear(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias = bound("input weight bias", args, kwargs)
    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or type(weight) is Traced or type(bias) is Traced:
        out = torch.matmul(x, weight.mT)
        return out if bias is None else out + bias
    if layout.dim == x.ndim - 1:
        return _fallback(recorder, "linear", func, args, kwargs)
    assert batch is not None
    features = plain(x)
    out = F.linear(features, bare(weight), bare(bias))

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = sequences(grad, layout, batch, grad.shape[-1])
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            a = sequences(features.detach(), layout, batch, features.shape[-1])
            pairs.append((weight, Outer(a, g, weight.shape)))
        if trainable(bias):
            pairs.append((bias, Dense(g[:, 0, 0] if g.shape[2] == 1 else g.sum((1, 2)))))
        return pairs

    out = recorder.tap(out, [features] if trainable(weight) else [], make)
    return _finish(recorder, "linear", func, args, kwargs, out)


@operation("matmul rmatmul mm bmm mv dot")
def matmul(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(func, "__name__", "matmul")
    a, b = args[0], args[1] if len(args) > 1 else next(iter(kwargs.values()))
    if "rmatmul" in name:
        a, b = b, a
    left, right, out = matmul_letters(a.ndim, b.ndim)
    return contraction(recorder, "matmul", torch.matmul, (a, b), {}, [left, right], out, (a, b))


@operation("einsum")
def einsum(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    equation, operands = einsum_arguments(args)
    expanded = expand_equation(equation, operands)
    if expanded is None or len(operands) != 2:
        return _fallback(recorder, "einsum", func, args, kwargs)
    return contraction(recorder, "einsum", func, args, kwargs, expanded[0], expanded[1], operands)


def contraction(
    recorder: Recorder,
    name: str,
    func: Any,
    args: Any,
    kwargs: Any,
    names: Sequence[str],
    output: str,
    operands: Sequence[Tensor],
) -> Any:
    """Two-operand Einstein sums, data × parameter: letters say which dimensions are in, out, block or position."""
    batch = recorder.batch
    assert batch is not None
    which = [i for i in (0, 1) if layout_of(recorder, operands[i]) is not None]
    if len(which) != 1 or not trainable(operands[1 - which[0]]):
        return _fallback(recorder, name, func, args, kwargs)
    x, q = operands[which[0]], operands[1 - which[0]]
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
        return _fallback(recorder, name, func, args, kwargs)
    places = [c for c in xs if c in output and c != example and c not in qs]
    data = plain(x)
    result = func(*detached(_swap(args, x, data), [q]), **kwargs)

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
        a, g = shaped(data.detach(), xs, ins), shaped(grad, output, outs)
        if not blocks and len(ins) == 1 and len(outs) == 1:
            first, second = (a, g) if qs.index(outs[0]) == 0 else (g, a)
            return [(q, Outer(first, second, q.shape))]
        return [(q, Outer(a, g, q.shape, spread, order))]

    result = recorder.tap(result, [data], make)
    return _finish(recorder, name, func, args, kwargs, result)


def _swap(value: Any, old: Tensor, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, (tuple, list)):
        return type(value)(_swap(v, old, new) for v in value)
    return value


@operation("addmm baddbmm addmv")
def addmm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    product = torch.matmul(args[1], args[2])
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    return (product if alpha == 1 else product * alpha) + (args[0] if beta == 1 else args[0] * beta)


@operation("bilinear")
def bilinear(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
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
            pairs.append((bias, Dense(g.sum((1, 2)))))
        return pairs

    out = recorder.tap(out, [left, right], make)
    return _finish(recorder, "bilinear", func, args, kwargs, out)


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value) * (rank if len(value) == 1 else 1)


@operation("conv1d conv2d conv3d")
def convolution(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias, stride, padding, dilation, groups = bound(
        "input weight bias stride padding dilation groups", args, kwargs, stride=1, padding=0, dilation=1, groups=1
    )
    rank = weight.ndim - 2
    stride, dilation = _tuple(stride, rank), _tuple(dilation, rank)
    if isinstance(padding, str):
        if padding == "same":
            ends = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
            x = F.pad(x, [p for e in reversed(ends) for p in (e // 2, e - e // 2)])
        padding = 0
    padding = _tuple(padding, rank)
    layout = layout_of(recorder, x)
    call = (x, weight, bias, stride, padding, dilation, groups)
    if layout is None or layout.dim != 0 or x.ndim != rank + 2:
        return _fallback(recorder, func.__name__, func, call, {})
    image = plain(x)
    out = func(image, bare(weight), bare(bias), stride, padding, dilation, groups)
    return _tap_convolution(recorder, func, call, out, image, weight, bias, (stride, padding, dilation, groups), False)


@operation("conv_transpose1d conv_transpose2d conv_transpose3d")
def transposed_convolution(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias, stride, padding, output_padding, groups, dilation = bound(
        "input weight bias stride padding output_padding groups dilation",
        args,
        kwargs,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        dilation=1,
    )
    rank = weight.ndim - 2
    stride, padding, dilation = _tuple(stride, rank), _tuple(padding, rank), _tuple(dilation, rank)
    layout = layout_of(recorder, x)
    call = (x, weight, bias, stride, padding, _tuple(output_padding, rank), groups, dilation)
    if layout is None or layout.dim != 0 or x.ndim != rank + 2:
        return _fallback(recorder, func.__name__, func, call, {})
    image = plain(x)
    out = func(image, bare(weight), bare(bias), *call[3:])
    return _tap_convolution(recorder, func, call, out, image, weight, bias, (stride, padding, dilation, groups), True)


def _tap_convolution(
    recorder: Recorder,
    func: Any,
    call: Any,
    out: Tensor,
    image: Tensor,
    weight: Tensor,
    bias: Any,
    shape: tuple[Any, Any, Any, int],
    transposed: bool,
) -> Any:
    layout, batch = layout_of(recorder, call[0]), recorder.batch
    assert layout is not None
    assert batch is not None

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g, a = by_example(grad, layout, batch), by_example(image.detach(), layout, batch)
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(bias):
            pairs.append((bias, Dense(g.flatten(3).sum((1, 3)))))
        if trainable(weight):
            windows, rows = (g, a) if transposed else (a, g)
            pairs.append((weight, Convolution(windows, rows, weight.detach(), *shape, transposed)))
        return pairs

    out = recorder.tap(out, [image] if trainable(weight) else [], make)
    return _finish(recorder, func.__name__, func, call, {}, out)


@operation("embedding")
def embedding(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    weight, index, padding_idx, by_frequency, _ = bound(
        "weight input padding_idx scale_grad_by_freq sparse", args, kwargs, padding_idx=-1, scale_grad_by_freq=False
    )
    layout, batch = layout_of(recorder, index), recorder.batch
    assert batch is not None
    if layout is None or type(weight) is Traced:
        return _fallback(recorder, "embedding", func, args, kwargs)
    if by_frequency:
        recorder.problem("an embedding with scale_grad_by_freq counts words over the whole batch; set it to False")
    rows = plain(index)
    out = torch.embedding(bare(weight), rows)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = by_example(grad, layout, batch).reshape(batch, -1, grad.shape[-1])
        which = by_example(rows, layout, batch).reshape(-1)
        owner = torch.arange(batch).repeat_interleave(g.shape[1])
        return [(weight, _lookups(which, owner, g.reshape(-1, g.shape[-1]), weight, batch, padding_idx))]

    out = recorder.tap(out, [rows], make)
    return _finish(recorder, "embedding", func, (weight, index), {}, out)


def _lookups(which: Tensor, owner: Tensor, grads: Tensor, weight: Tensor, batch: int, padding_idx: int | None) -> Rows:
    if padding_idx is not None and padding_idx >= 0:
        kept = (which != padding_idx).nonzero().flatten()
        which, owner, grads = which[kept], owner[kept], grads[kept]
    return Rows(which.long(), owner, grads, weight.shape, batch)


@operation("embedding_renorm", always=True)
def embedding_renorm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    recorder.problem(
        "an embedding with max_norm rescales rows because of the examples that read them; leave max_norm out"
    )
    return args[0]


@operation("embedding_bag")
def embedding_bag(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    names = "weight input offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx"
    weight, index, offsets, _, mode, _, scales, last, padding_idx = bound(
        names, args, kwargs, mode=0, include_last_offset=False
    )
    batch = recorder.batch
    assert batch is not None
    rows, starts = plain(index), plain(offsets)
    bags = starts.numel() - bool(last)
    own, of_bags = layout_of(recorder, index), layout_of(recorder, offsets)
    bag = torch.searchsorted(starts[:bags].contiguous(), torch.arange(rows.numel()), right=True) - 1
    if of_bags is not None and not last:
        place: Layout | None = of_bags
    elif (
        own is not None
        and own.owner is None
        and bags % batch == 0
        and rows.numel()
        == bags * (own.inner * batch * bags // (bags * batch) if bags == batch else rows.numel() // bags)
    ):
        place = Layout(0, max(1, own.inner * bags // rows.numel())) if rows.numel() else Layout(0)
    else:
        place = None
    if place is None or mode == 2 or (isinstance(scales, Tensor) and trainable(scales)):
        recorder.problem(
            "embedding_bag in this form has no per-example rule: pass offsets with one bag per example (declared as data), "
            "use mode 'sum' or 'mean', or an embedding followed by a reduction"
        )
        place = place or Layout(0)
    assert place is not None
    out, *rest = func(bare(weight), rows, starts, False, mode, False, bare(scales), last, padding_idx)
    counted = torch.ones(rows.numel()) if padding_idx is None or padding_idx < 0 else (rows != padding_idx).float()
    counts = torch.zeros(bags).index_add_(0, bag, counted).clamp_min(1)
    examples = owners(place, batch, bags)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = grad[bag]
        if scales is not None:
            g = g * bare(scales).detach().unsqueeze(1)
        if mode == 1:
            g = g / counts.to(g.dtype)[bag].unsqueeze(1)
        return [(weight, _lookups(rows, examples[bag], g, weight, batch, padding_idx))]

    from tacit.gradients.traced import mark

    out = recorder.tap(out, [rows], make)
    return (mark(out, recorder, place), *rest)


@operation("layer_norm rms_norm")
def layer_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    centred = func.__name__ == "layer_norm"
    if centred:
        x, shape, weight, bias, eps, _ = bound(
            "input normalized_shape weight bias eps cudnn_enable", args, kwargs, eps=1e-5
        )
    else:
        x, shape, weight, eps = bound("input normalized_shape weight eps", args, kwargs)
        bias = None
    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or layout.dim >= x.ndim - len(shape):
        return _fallback(recorder, func.__name__, func, args, kwargs)
    assert batch is not None
    data = plain(x)
    out = func(data, shape, bare(weight), bare(bias), eps) if centred else func(data, shape, bare(weight), eps)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            unit = func(data.detach(), shape, None, None, eps) if centred else func(data.detach(), shape, None, eps)
            pairs.append((weight, Dense(_per_example(unit * grad, layout, batch, tuple(shape)))))
        if trainable(bias):
            pairs.append((bias, Dense(_per_example(grad, layout, batch, tuple(shape)))))
        return pairs

    out = recorder.tap(out, [data] if trainable(weight) else [], make)
    return _finish(recorder, func.__name__, func, args, kwargs, out)


def _per_example(x: Tensor, layout: Layout, batch: int, shape: tuple[int, ...]) -> Tensor:
    x = by_example(x, layout, batch).reshape(batch, -1, *shape)
    return x[:, 0] if x.shape[1] == 1 else x.sum(1)


@operation("group_norm instance_norm batch_norm")
def channel_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    if func.__name__ == "group_norm":
        x, groups, weight, bias, eps, _ = bound(
            "input num_groups weight bias eps cudnn_enabled", args, kwargs, eps=1e-5
        )

        def run(data: Tensor, w: Any, b: Any) -> Tensor:
            return torch.group_norm(data, groups, w, b, eps)
    else:
        x, weight, bias, *rest = bound(
            "input weight bias running_mean running_var training momentum eps cudnn_enabled", args, kwargs
        )
        if func.__name__ == "batch_norm" and rest[2]:
            tagged, shared = recorder.scan(args, kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*detached(args, shared), **detached(kwargs, shared))
            out = recorder.tap(out, [], lambda grad: [])
            return recorder.finish("batch_norm", func, args, kwargs, out, tagged)

        def run(data: Tensor, w: Any, b: Any) -> Tensor:
            return func(data, w, b, *rest)  # type: ignore[no-any-return]

    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or layout.dim != 0:
        return _fallback(recorder, func.__name__, func, args, kwargs)
    assert batch is not None
    data = plain(x)
    out = run(data, bare(weight), bare(bias))

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        def reduced(t: Tensor) -> Tensor:
            each = by_example(t, layout, batch)
            return each.flatten(3).sum((1, 3)) if each.ndim > 3 else each.sum(1)

        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            pairs.append((weight, Dense(reduced(run(data.detach(), None, None) * grad))))
        if trainable(bias):
            pairs.append((bias, Dense(reduced(grad))))
        return pairs

    out = recorder.tap(out, [data] if trainable(weight) else [], make)
    return _finish(recorder, func.__name__, func, args, kwargs, out)


@operation("prelu")
def prelu(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight = bound("input weight", args, kwargs)
    shaped = weight.view(-1, *(1,) * (x.ndim - 2)) if weight.numel() > 1 and x.ndim > 1 else weight
    return torch.where(x > 0, x, shaped * x)


@operation("masked_fill")
def masked_fill(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, mask, value = bound("input mask value", args, kwargs)
    return torch.where(mask, value, x)


@operation("getitem index_select")
def lookup(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    table = args[0]
    if func.__name__ == "index_select":
        dim, index = bound("input dim index", args, kwargs)[1:]
    else:
        dim, index = 0, args[1]
    simple = isinstance(index, Traced) and not index.is_floating_point() and index.dtype != torch.bool
    if not trainable(table) or not simple or dim != 0:
        name = "getitem" if func.__name__ == "__getitem__" else func.__name__
        return _fallback(recorder, name, func, args, kwargs)
    rows = table.reshape(table.shape[0], -1)
    index = torch.where(index < 0, index + table.shape[0], index)
    found = torch.embedding(rows, index)
    return found.reshape(*found.shape[:-1], *table.shape[1:])


@operation("cross_entropy_loss nll_loss_nd", always=True)
def cross_entropy(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """A mean over the targets that are not ignored divides by a number that depends on other examples.

    Undeclared, that is refused. Declared as a mean, it is read as the mean over examples of each one's own (weighted)
    mean, which is the same whenever every example has as many targets.
    """
    names = "input target weight reduction ignore_index label_smoothing"
    x, target, weight, reduction, ignore, smoothing = bound(
        names, args, kwargs, reduction=1, ignore_index=-100, label_smoothing=0.0
    )
    tagged, shared = recorder.scan(args, kwargs)
    layout = layout_of(recorder, x)
    hard = isinstance(target, Tensor) and not target.is_floating_point()
    uneven = hard and (weight is not None or bool((plain(target) == ignore).any()))
    if reduction == 1 and layout is not None and recorder.batch:
        uneven = uneven or layout.owner is not None
        if uneven and recorder.reduction == "mean":
            ce = func.__name__ == "cross_entropy_loss"
            each = func(x, target, weight, 0, ignore, smoothing) if ce else func(x, target, weight, 0, ignore)
            bare_target = plain(target)
            valid = (bare_target != ignore).to(x.dtype)
            if weight is not None:
                valid = valid * weight.to(x.dtype)[bare_target.clamp(0, weight.numel() - 1)]
            per_layout = each._tag
            counts = by_example(valid, per_layout, recorder.batch).reshape(recorder.batch, -1).sum(1).clamp_min(1e-12)
            ids = owners(per_layout, recorder.batch, each.shape[per_layout.dim])
            shape = [1] * each.ndim
            shape[per_layout.dim] = -1
            return (each * (1 / counts)[ids].view(shape)).sum().div(recorder.batch)
        if uneven:
            reason = (
                "the mean of this loss divides by the number (or weight) of the targets that count, which depends on all "
                "examples; use reduction='sum' or 'none' and a per-example mean, or declare reduction='mean' to take the mean "
                "over examples of each one's own mean"
            )
            recorder.problem(reason)
            tagged = [(t, Mixed(reason)) for t, _ in tagged]
    with torch._C.DisableTorchFunctionSubclass():
        out = func(*args, **kwargs)
    return recorder.finish(func.__name__, func, args, kwargs, out, tagged)
