"""How tags pass through operations that have no trainable argument.

A rule sees the finished call and answers with the tag of its output. An operation without a rule is *probed*: it is
run again on single examples, and its tag is what explains both results (see `probe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.indexing import indexed, written
from tacit.gradients.layout import Layout, Mixed, Tag, Total, owners, reshaped
from tacit.gradients.traced import Traced


@dataclass(slots=True)
class Call:
    """One executed operation: canonical name, arguments, result, and the tagged tensors among its arguments."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    batch: int
    tagged: list[tuple[Tensor, Tag]]

    def arg(self, position: int, *names: str, default: Any = None) -> Any:
        if len(self.args) > position:
            return self.args[position]
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return default

    def layouts(self) -> list[tuple[Tensor, Layout]]:
        return [(t, tag) for t, tag in self.tagged if isinstance(tag, Layout)]

    def first(self) -> tuple[Tensor, Layout]:
        """The main argument, with its layout if it has one (else that of the first tagged argument)."""
        main = self.args[0] if self.args else next(iter(self.kwargs.values()))
        for t, tag in self.layouts():
            if t is main:
                return t, tag
        return self.layouts()[0]


Rule = Callable[[Call], Any]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


POINTWISE = frozenset(
    """add sub mul div true_divide floor_divide remainder fmod pow rsub neg negative positive abs absolute exp exp2 expm1
    log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh asinh acosh atanh
    erf erfc erfinv sigmoid logit relu relu6 leaky_relu elu selu celu gelu silu mish softplus softshrink hardshrink
    tanhshrink hardtanh hardsigmoid hardswish threshold log_sigmoid logsigmoid rrelu clamp clip clamp_min clamp_max minimum
    maximum fmin fmax where masked_fill lerp addcmul addcdiv eq ne lt le gt ge logical_and logical_or logical_not
    logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not and or xor invert isnan isinf isfinite sign sgn floor ceil
    round trunc frac reciprocal square to type float double half bfloat16 int long bool short byte cpu cuda clone
    contiguous detach dropout alpha_dropout zeros_like ones_like rand_like randn_like full_like empty_like bernoulli
    nan_to_num copy zero fill type_as requires_grad xlogy hypot atan2 heaviside copysign logaddexp logaddexp2 lgamma
    digamma sinc isclose data uniform normal exponential conj real imag angle softsign pin_memory alias
    signbit float_power eq ge gt not_equal greater greater_equal less less_equal
    new_zeros_like native_dropout retain_grad""".split()
)
"""Operations whose output entry depends on the entries at the same (broadcast) position only."""

_LINEAR = frozenset(
    """add sub neg positive rsub clone contiguous to type float double half bfloat16 detach cpu cuda type_as sum mean reshape view
    flatten squeeze unsqueeze stack cat transpose permute t T getitem select unbind expand alias requires_grad data
    retain_grad movedim chunk split""".split()
)
_SAME_VALUES = frozenset(["to", "clone", "contiguous", "detach", "cpu", "cuda", "long"])
_SCALING = frozenset(["mul", "div", "true_divide"])


def propagate(call: Call) -> Any:
    """The tag (or one tag per output) of a finished call; None for a result that is the same for any batch."""
    found = _propagate(call)
    if call.batch != 1:
        return found
    # A batch of one cannot mix: whatever a rule objects to, every entry belongs to the one example.
    if isinstance(found, list):
        return [_alone(tag, out) for tag, out in zip(found, call.out)]
    if isinstance(call.out, (tuple, list)) and not isinstance(found, Layout):
        return [_alone(found, out) for out in call.out]
    return _alone(found, call.out) if not isinstance(call.out, (tuple, list)) else found


def _alone(tag: Tag | None, out: Any) -> Tag | None:
    if tag is None or not isinstance(out, Tensor) or (isinstance(tag, Layout) and tag.dim < out.ndim):
        return tag
    return Layout(0, 1) if out.ndim else Total("sum")


def _propagate(call: Call) -> Any:
    exempt = call.name in ("index_select", "_pack_padded_sequence", "_pad_packed_sequence", "getitem")
    if not exempt:
        for _, tag in call.tagged:
            if isinstance(tag, Mixed):
                return tag if call.name in _SAME_VALUES or not tag.order else Mixed(tag.reason)
    totals = [t for t, tag in call.tagged if isinstance(tag, Total)]
    if totals and not (exempt and call.layouts()):
        return _after_total(call, len(totals))
    if call.name in POINTWISE:
        return broadcast(call)
    known = RULES.get(call.name)
    if known is not None:
        return known(call)
    return probe(call)


def _after_total(call: Call, totals: int) -> Tag | None:
    first = next(tag for _, tag in call.tagged if isinstance(tag, Total))
    if call.layouts():
        return Mixed(
            f"`{call.name}` combines a quantity of the whole batch (a sum, mean, count or loss over examples) with single "
            "examples; compute it per example, or from public constants"
        )
    if call.name in _LINEAR:
        return first
    if call.name in _SCALING and totals == 1 and (call.name == "mul" or isinstance(call.args[0], Traced)):
        return first
    if call.name in ("arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like"):
        return None
    return Mixed(
        f"`{call.name}` is a non-linear function of a quantity of the whole batch; the loss must be a sum or mean over "
        "examples of something computed from each example alone"
    )


def _pairs(call: Call) -> Mixed:
    return Mixed(
        f"`{call.name}` combines different examples of the batch with each other; "
        "every example's loss must be computed from that example alone"
    )


def mixes(call: Call, what: str) -> Mixed:
    return Mixed(f"`{call.name}` {what}; every example's loss must be computed from that example alone")


def aligned(call: Call, rank: int, limit: int | None = None) -> Tag:
    """The common layout of right-aligned broadcast arguments in an output of the given rank."""
    found: Layout | None = None
    for t, tag in call.layouts():
        dim = rank - t.ndim + tag.dim
        here = tag.at(dim)
        if found is not None and (found.dim != dim or not found.same_order(here)):
            return _pairs(call)
        found = here
    assert found is not None
    if limit is not None and found.dim >= limit:
        return _pairs(call)
    return found


def broadcast(call: Call) -> Any:
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return aligned(call, out.ndim)


def _dims(call: Call, position: int, rank: int) -> list[int]:
    dim = call.arg(position, "dim", "axis")
    if dim is None or (isinstance(dim, (tuple, list)) and not len(dim)):
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


def removed(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    return layout if keepdim else layout.at(layout.dim - sum(d < layout.dim for d in dims))


@rule("sum mean")
def _linear_reduction(call: Call) -> Tag:
    x, layout = call.first()
    dims = _dims(call, 1, x.ndim)
    if layout.dim in dims:
        if call.name == "mean" and layout.owner is not None:
            return mixes(
                call, "divides by a number of rows that depends on the examples; use a sum, or a mean per example"
            )
        return Total("mean" if call.name == "mean" else "sum")
    return removed(layout, dims, bool(call.arg(2, "keepdim", default=False)))


@rule(
    "amax amin argmax argmin prod logsumexp any all median nanmedian nansum nanmean count_nonzero max min std var aminmax mode"
)
def _reduction(call: Call) -> Tag:
    if len(call.args) > 1 and isinstance(call.args[1], Tensor):
        return broadcast(call)
    x, layout = call.first()
    dims = _dims(call, 1, x.ndim)
    if layout.dim in dims:
        return mixes(call, "reduces over examples")
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return removed(layout, dims, out.ndim == x.ndim)


@rule(
    "softmax log_softmax cumsum cumprod logcumsumexp sort argsort topk kthvalue glu flip _softmax softmin unfold diff"
)
def _along(call: Call) -> Any:
    x, layout = call.first()
    position = 2 if call.name in ("topk", "kthvalue") else 1
    dim = call.arg(position, "dim", "dims", default=-1)
    dims = [d % x.ndim for d in ([dim] if isinstance(dim, int) and not isinstance(dim, bool) else dim or [-1])]
    if layout.dim in dims:
        found = mixes(call, "works across examples")
        if x.ndim == 1 and call.name == "argsort":
            return Mixed(found.reason, order=True)
        return [found, Mixed(found.reason, order=x.ndim == 1)] if call.name == "sort" else found
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return removed(layout, dims, out.ndim >= x.ndim)


@rule("view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as _unsafe_view _reshape_alias")
def _reshape(call: Call) -> Tag:
    x, layout = call.first()
    if call.out.ndim == 0:
        return Total("sum")  # one example with one entry: the loss of a batch of one
    found = reshaped(layout, call.batch, x.shape, call.out.shape)
    return found or mixes(call, f"from {tuple(x.shape)} to {tuple(call.out.shape)} merges examples")


@rule("transpose permute t T mT H mH movedim moveaxis swapaxes swapdims adjoint transpose_")
def _permute(call: Call) -> Tag:
    x, layout = call.first()
    if call.name in ("transpose", "swapaxes", "swapdims"):
        a, b = (d % x.ndim for d in (call.arg(1, "dim0", "axis0"), call.arg(2, "dim1", "axis1")))
        return layout.at(b if layout.dim == a else a if layout.dim == b else layout.dim)
    sketch = torch.empty([d + 1 for d in range(x.ndim)], device="meta")
    args = [sketch if a is x else a for a in call.args]
    return layout.at(list(call.func(*args, **call.kwargs).shape).index(layout.dim + 1))


@rule("expand expand_as broadcast_to repeat tile")
def _expand(call: Call) -> Tag:
    x, layout = call.first()
    dim = call.out.ndim - x.ndim + layout.dim
    if layout.owner is not None and call.out.shape[dim] != x.shape[layout.dim]:
        return Layout(dim, 1, layout.owner.repeat(call.out.shape[dim] // x.shape[layout.dim]))
    return layout.at(dim)


@rule("repeat_interleave")
def _repeat_interleave(call: Call) -> Tag:
    x, layout = call.first()
    repeats, dim = call.arg(1, "repeats"), call.arg(2, "dim")
    if dim is None or dim % x.ndim != layout.dim or not isinstance(repeats, int):
        return layout if dim is not None and dim % x.ndim != layout.dim else probe(call)
    if layout.owner is not None:
        return Layout(layout.dim, 1, layout.owner.repeat_interleave(repeats))
    return Layout(layout.dim, layout.inner * repeats)


@rule("chunk split split_with_sizes tensor_split unsafe_chunk unsafe_split")
def _split(call: Call) -> Tag:
    x, layout = call.first()
    if call.arg(2, "dim", default=0) % x.ndim != layout.dim:
        return layout
    whole = call.batch * layout.inner
    if layout.owner is None and all(part.shape[layout.dim] % whole == 0 for part in call.out):
        return layout
    return mixes(call, "separates examples into different tensors")


@rule("unbind select narrow")
def _select(call: Call) -> Tag:
    x, layout = call.first()
    dim = call.arg(1, "dim", default=0) % x.ndim
    if dim != layout.dim:
        return layout if call.name == "narrow" else removed(layout, [dim], False)
    return mixes(call, "picks single examples out of the batch")


@rule("cat concat concatenate stack")
def _cat(call: Call) -> Tag:
    out, dim = call.out, call.arg(1, "dim", "axis", default=0) % call.out.ndim
    found: Layout | None = None
    for t, tag in call.layouts():
        here = tag.at(tag.dim + (call.name == "stack" and dim <= tag.dim))
        if found is not None and (found.dim != here.dim or not found.same_order(here)):
            return _pairs(call)
        found = here
    assert found is not None
    if call.name == "stack" or found.dim != dim:
        return found
    parts = call.args[0] if call.args else call.kwargs["tensors"]
    if len(call.layouts()) != len(parts) or found.owner is not None:
        return mixes(call, "joins examples with something that is not an example")
    return Layout(found.dim, found.inner) if out.shape[dim] % (call.batch * found.inner) == 0 else _pairs(call)


@rule("getitem")
def _getitem(call: Call) -> Any:
    return indexed(call.args[0], call.args[1], call.out, dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("setitem")
def _setitem(call: Call) -> Tag:
    return written(call.args[0], call.args[1], call.args[2], dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("index_select")
def _index_select(call: Call) -> Any:
    x, dim, index = call.args[0], call.arg(1, "dim"), call.arg(2, "index")
    key: list[Any] = [slice(None)] * (dim % x.ndim) + [index]
    return indexed(x, tuple(key), call.out, dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("masked_select")
def _masked_select(call: Call) -> Tag:
    shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)
    tag = aligned(call, len(shape))
    if not isinstance(tag, Layout):
        return tag
    ids = owners(tag, call.batch, shape[tag.dim]).view(-1, *(1,) * (len(shape) - tag.dim - 1)).expand(shape)
    return Layout(0, 1, ids[call.args[1].as_subclass(Tensor).expand(shape)])


def letters(call: Call, operands: Sequence[str], output: str, tensors: Sequence[Tensor]) -> Tag:
    """The rule of Einstein sums: the batch letter must be one letter, shared by all data operands and kept."""
    tags = {id(t): tag for t, tag in call.layouts()}
    found: tuple[str, Layout] | None = None
    for t, names in zip(tensors, operands):
        tag = tags.get(id(t))
        if tag is None:
            continue
        if found is not None and (names[tag.dim] != found[0] or not tag.same_order(found[1])):
            return _pairs(call)
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


@rule("matmul rmatmul mm bmm mv dot inner_")
def _matmul(call: Call) -> Tag:
    a, b = call.args[0], call.arg(1, "other", "mat2", "vec", "tensor")
    if call.name == "rmatmul":
        a, b = b, a
    left, right, out = matmul_letters(a.ndim, b.ndim)
    return letters(call, (left, right), out, (a, b))


@rule("addmm baddbmm addmv")
def _addmm(call: Call) -> Tag:
    bias, a, b = call.args[:3]
    left, right, out = matmul_letters(a.ndim, b.ndim)
    names = [n for n, t in zip((left, right, out[len(out) - bias.ndim :]), (a, b, bias)) if isinstance(t, Traced)]
    return letters(call, names, out, [t for t in (a, b, bias) if isinstance(t, Traced)])


@rule("einsum")
def _einsum(call: Call) -> Tag:
    equation, operands = einsum_arguments(call.args)
    expanded = expand_equation(equation, operands)
    if expanded is None:
        return probe(call)
    return letters(call, expanded[0], expanded[1], operands)


def einsum_arguments(args: Sequence[Any]) -> tuple[str, list[Tensor]]:
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    return args[0], operands


def expand_equation(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str] | None:
    """Explicit letters for every dimension, `...` written out in capitals from the right."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    names, longest = [], ""
    for part, t in zip(left.split(","), operands):
        if "..." in part:
            dots = "ZYXWVUTS"[: t.ndim - len(part) + 3][::-1]
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
    x, w = call.args[0], call.arg(1, "weight")
    if isinstance(w, Traced):
        return mixes(call, "uses data as a weight matrix")
    layout = dict((id(t), tag) for t, tag in call.layouts()).get(id(x))
    if layout is None:
        return mixes(call, "uses data as a bias")
    return layout if layout.dim != x.ndim - 1 else mixes(call, "sums over examples")


_RANK = {"1d": 3, "2d": 4, "3d": 5}


@rule(
    """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d avg_pool1d
    avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d pixel_shuffle pixel_unshuffle
    group_norm instance_norm prelu channel_shuffle im2col col2im feature_dropout feature_alpha_dropout"""
)
def _leading(call: Call) -> Tag:
    """Operations that treat every slice of the first dimension by itself."""
    x, layout = call.first()
    rank = _RANK.get(call.name[-2:], 4 if call.name in ("im2col", "pixel_shuffle", "pixel_unshuffle") else None)
    if call.name == "col2im":
        rank = 3
    if layout.dim != 0 or (rank is not None and x.ndim != rank and call.batch != 1):
        return mixes(call, "treats the dimension that holds the examples as channels or space; move the examples first")
    return layout


@rule("batch_norm")
def _batch_norm(call: Call) -> Tag:
    training = call.arg(5, "training", default=False)
    if training:
        return mixes(
            call,
            "in training mode normalises with statistics of the whole batch: replace BatchNorm by GroupNorm, "
            "or put the module in eval mode (frozen statistics)",
        )
    x, layout = call.first()
    return layout if layout.dim != 1 else mixes(call, "treats examples as channels")


@rule("layer_norm rms_norm")
def _layer_norm(call: Call) -> Tag:
    x, layout = call.first()
    shape = call.arg(1, "normalized_shape")
    return layout if layout.dim < x.ndim - len(shape) else mixes(call, "normalises across examples")


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> Tag:
    return aligned(call, call.out.ndim, call.out.ndim - 2)


@rule("embedding")
def _embedding(call: Call) -> Tag:
    index = call.arg(1, "input", "indices")
    tags = dict((id(t), tag) for t, tag in call.layouts())
    return tags[id(index)] if id(index) in tags else mixes(call, "looks up rows of data")


@rule("one_hot")
def _one_hot(call: Call) -> Tag:
    return call.first()[1]


@rule("pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d")
def _pad(call: Call) -> Tag:
    x, layout = call.first()
    touched = len(call.arg(1, "pad")) // 2
    return layout if layout.dim < x.ndim - touched else mixes(call, "pads among the examples")


@rule("_pack_padded_sequence")
def _pack(call: Call) -> Any:
    x, layout = call.first()
    columns = owners(layout, call.batch, x.shape[layout.dim])
    sizes = call.out[1].tolist()
    return [Layout(0, 1, torch.cat([columns[:n] for n in sizes])), None]


@rule("_pad_packed_sequence")
def _unpack(call: Call) -> Any:
    layout = call.first()[1]
    assert layout.owner is not None
    owner = layout.owner[: int(call.args[1][0])]
    return [tidy(Layout(0 if call.args[2] else 1, 1, owner), call.batch), None]


def tidy(layout: Layout, batch: int) -> Layout:
    """Regular form of an irregular layout whose order turns out to be the natural one."""
    owner = layout.owner
    if owner is not None and owner.numel() == batch and torch.equal(owner, torch.arange(batch)):
        return Layout(layout.dim)
    return layout


@rule("broadcast_tensors")
def _broadcast_tensors(call: Call) -> Any:
    given = call.args[0] if len(call.args) == 1 and isinstance(call.args[0], (tuple, list)) else call.args
    tags = {id(t): tag for t, tag in call.layouts()}
    return [
        tags[id(t)].at(out.ndim - t.ndim + tags[id(t)].dim) if id(t) in tags else None
        for t, out in zip(given, call.out)
    ]


@rule("new_zeros new_ones new_full new_empty new_tensor arange zeros ones full empty randn rand size shape")
def _fresh(call: Call) -> None:
    return None


@rule("native_layer_norm lstm gru rnn_tanh rnn_relu")
def _refused(call: Call) -> Tag:
    return mixes(call, "was called in a form the engine does not know")


def probe(call: Call) -> Any:
    """Find the tag of an unknown operation by running it on single examples.

    Entries of the output that belong to example b must equal what the operation gives for b alone; an operation for
    which no layout explains the result mixes examples (or is random) and is refused.
    """
    from tacit.gradients.probing import probed

    return probed(call)
