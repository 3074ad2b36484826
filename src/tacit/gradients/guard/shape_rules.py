"""Tags after operations that move entries without changing them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from tacit.gradients.guard.assignment import written
from tacit.gradients.guard.indexing import indexed
from tacit.gradients.guard.picked_examples import picked, whole
from tacit.gradients.layers.registry import ELSEWHERE, Call, aligned, mixes, pairs, removed, rule, rule_of_one, unknown
from tacit.gradients.layout import Layout, Only, Tag, Total, owners, reshaped
from tacit.gradients.nested import tensors


@rule("view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as _unsafe_view _reshape_alias")
def _reshape(call: Call) -> Tag:
    x, layout = call.first()
    if call.out.ndim == 0:
        return Total("sum")  # one example with one entry: the loss of a batch of one
    if call.name == "unsqueeze":
        return layout.at(layout.dim + (call.dim(1, call.out.ndim) <= layout.dim))
    found = reshaped(layout, call.batch, x.shape, call.out.shape)
    return found or mixes(call, f"merges the examples, which are in dimension {layout.dim}, with other dimensions")


@rule_of_one("transpose permute t T mT H mH movedim moveaxis swapaxes swapdims adjoint transpose_")
def _permute(call: Call) -> Tag:
    x, layout = call.first()
    if call.name in ("transpose", "swapaxes", "swapdims"):
        a, b = (d % x.ndim for d in (call.arg(1, "dim0", "axis0"), call.arg(2, "dim1", "axis1")))
        return layout.at(b if layout.dim == a else a if layout.dim == b else layout.dim)
    sketch = torch.empty([d + 1 for d in range(x.ndim)], device="meta")
    args = [sketch if a is x else a for a in call.args]
    kwargs = {k: sketch if v is x else v for k, v in call.kwargs.items()}
    return layout.at(list(call.func(*args, **kwargs).shape).index(layout.dim + 1))


@rule("expand expand_as broadcast_to repeat tile")
def _expand(call: Call) -> Tag:
    x, layout = call.first()
    if not call.has_only(call.main()) and call.name != "expand_as":
        return mixes(call, ELSEWHERE)
    dim = call.out.ndim - x.ndim + layout.dim
    if layout.owner is not None and call.out.shape[dim] != x.shape[layout.dim]:
        return Layout(dim, 1, layout.owner.repeat(call.out.shape[dim] // x.shape[layout.dim]))
    return layout.at(dim)


@rule_of_one("repeat_interleave")
def _repeat_interleave(call: Call) -> Tag:
    x, layout = call.first()
    repeats, dim = call.arg(1, "repeats"), call.arg(2, "dim")
    if dim is not None and call.dim(2, x.ndim) != layout.dim:
        return layout
    if isinstance(repeats, Tensor):
        return mixes(call, "repeats examples by numbers in a tensor")
    if dim is None:
        return Layout(0, call.out.shape[0] // call.batch) if layout.dim == 0 and whole(layout) else unknown(call)
    if layout.owner is not None:
        return Layout(layout.dim, 1, layout.owner.repeat_interleave(repeats))
    return Layout(layout.dim, layout.inner * repeats)


@rule_of_one("chunk split split_with_sizes tensor_split unsafe_chunk unsafe_split")
def _split(call: Call) -> Tag:
    x, layout = call.first()
    if call.dim(2, x.ndim) != layout.dim:
        return layout
    every = call.batch * layout.inner
    if layout.owner is None and all(part.shape[layout.dim] % every == 0 for part in call.out):
        return layout
    return mixes(call, "separates examples into different tensors")


@rule_of_one("unbind select narrow slice")
def _select(call: Call) -> Any:
    x, layout = call.first()
    dim = call.dim(1, x.ndim)
    if dim != layout.dim:
        return layout if call.name in ("narrow", "slice") else removed(layout, [dim], False)
    if call.name in ("unbind", "select") and whole(layout) and x.shape[dim] == call.batch:
        if call.name == "unbind":
            return [Only(i) for i in range(call.batch)]
        index = call.arg(2, "index")
        if type(index) is int:
            return Only(index % call.batch)
    return mixes(call, "picks single examples out of the batch")


@rule("cat concat concatenate stack")
def _cat(call: Call) -> Tag:
    dim = call.dim(1, call.out.ndim)
    found: Layout | None = None
    for _, tag in call.layouts():
        here = tag.at(tag.dim + (call.name == "stack" and dim <= tag.dim))
        if found is not None and (found.dim != here.dim or not found.same_order(here)):
            return pairs(call)
        found = here
    assert found is not None
    if call.name == "stack" or found.dim != dim:
        return found
    parts = call.args[0] if call.args else call.kwargs["tensors"]
    if len(call.layouts()) != len(parts) or found.owner is not None:
        return mixes(call, "joins examples with something that is not an example")
    fits = all(part.shape[dim] % (call.batch * found.inner) == 0 for part in parts)
    return Layout(found.dim, found.inner) if fits else pairs(call)


@rule("getitem")
def _getitem(call: Call) -> Any:
    own = next((tag for t, tag in call.tagged if t is call.args[0]), None)
    only = picked(call.args[0], own, call.args[1], call.batch) if isinstance(own, Layout) else None
    if only is not None:
        return only
    return indexed(call.args[0], call.args[1], call.out, dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("index")
def _index(call: Call) -> Any:
    """`aten.index`, which some modes put in the place of `x[i, j]`."""
    key = tuple(slice(None) if part is None else part for part in call.arg(1, "indices"))
    return indexed(call.args[0], key, call.out, dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("setitem")
def _setitem(call: Call) -> Tag:
    return written(call.args[0], call.args[1], call.args[2], dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("index_select")
def _index_select(call: Call) -> Any:
    x, dim, index = call.main(), call.dim(1, call.main().ndim), call.arg(2, "index")
    if not index.ndim:
        return mixes(call, "takes an index without a dimension")
    key: list[Any] = [slice(None)] * (dim % x.ndim) + [index]
    return indexed(x, tuple(key), call.out, dict((id(t), tag) for t, tag in call.tagged), call.batch)


@rule("gather scatter scatter_add scatter_reduce")
def _scatter(call: Call) -> Tag:
    """Entries are moved along one dimension: within each example if that is not where the examples are."""
    x, dim, index = call.main(), call.arg(1, "dim"), call.arg(2, "index")
    found = aligned(call, x.ndim)
    if call.name == "gather" and isinstance(found, Layout) and found.dim == dim % x.ndim and call.has_only(index):
        return found  # entries of a constant, looked up
    if not isinstance(found, Layout) or found.dim == dim % x.ndim:
        return pairs(call)
    source = call.arg(3, "src", "value")
    sizes = {t.shape[found.dim] for t in (x, index, source) if isinstance(t, Tensor) and t.ndim == x.ndim}
    return found if len(sizes) == 1 else pairs(call)


@rule("masked_scatter")
def _masked_scatter(call: Call) -> Tag:
    """Places take entries in their order: each must get its own example's (features of images in a text, say)."""
    x, mask, source = call.main(), call.arg(1, "mask"), call.arg(2, "source")
    tags = {id(t): tag for t, tag in call.layouts()}
    new, here = tags.pop(id(source), None), [t for t in (x, mask) if id(t) in tags]
    if new is None or not here:
        return pairs(call)
    dims = {(call.out.ndim - t.ndim + tags[id(t)].dim) for t in here}
    found = tags[id(here[0])].at(dims.pop())
    if dims or not all(tags[id(t)].same_order(found) for t in here):
        return pairs(call)
    chosen = mask.as_subclass(Tensor).expand(call.out.shape)
    places = _spread(owners(found, call.batch, call.out.shape[found.dim], chosen.device), found.dim, chosen)[chosen]
    given = _spread(owners(new, call.batch, source.shape[new.dim], chosen.device), new.dim, source).flatten()
    return found if torch.equal(places, given[: places.numel()]) else pairs(call)


def _spread(owner: Tensor, dim: int, like: Tensor) -> Tensor:
    """The example of every entry of a tensor."""
    return owner.view(-1, *(1,) * (like.ndim - dim - 1)).expand(like.shape)


@rule("take_along_dim")
def _take_along_dim(call: Call) -> Tag:
    """Each example takes its own entries along one dimension."""
    x, dim = call.main(), call.arg(2, "dim")
    found = aligned(call, x.ndim)
    own = dim is not None and isinstance(found, Layout) and found.dim != dim % x.ndim
    return found if own else pairs(call)


@rule("index_add")
def _index_add(call: Call) -> Tag:
    """Rows are added where the index says: each must be its own example's there."""
    x, dim, index, source = call.main(), call.dim(1, call.main().ndim), call.arg(2, "index"), call.arg(3, "source")
    tags = {id(t): tag for t, tag in call.layouts()}
    mine, own, new = tags.get(id(x)), tags.get(id(index)), tags.get(id(source))
    if mine is not None and mine.dim != dim:
        return aligned(call, x.ndim) if own is None else pairs(call)
    if mine is None or own is None or new is None or new.dim != dim or not new.same_order(own.at(dim)):
        return pairs(call)
    places = owners(mine, call.batch, x.shape[dim], x.device)
    theirs = owners(own, call.batch, index.numel(), x.device)
    return mine if torch.equal(places[index.as_subclass(Tensor)], theirs) else pairs(call)


def is_listing(call: Call) -> bool:
    """Return whether `torch.where` was given a condition alone, and lists the places where it holds."""
    return call.name == "where" and len(call.args) + len(call.kwargs) == 1


@rule("where nonzero argwhere")
def _places(call: Call) -> Any:
    """Every place that is listed belongs to the example whose entry is there."""
    x, layout = call.first()
    several = isinstance(call.out, (tuple, list))
    along = call.out[layout.dim] if several else call.out[:, layout.dim]
    ids = owners(layout, call.batch, x.shape[layout.dim], x.device)
    found = Layout(0, 1, ids[along.as_subclass(Tensor)], "count")
    return [found] * len(call.out) if several else found


@rule("masked_select")
def _masked_select(call: Call) -> Tag:
    mask = call.arg(1, "mask")
    shape = torch.broadcast_shapes(call.main().shape, mask.shape)  # type: ignore[no-untyped-call]
    tag = aligned(call, len(shape))
    if not isinstance(tag, Layout):
        return tag
    ids = (
        owners(tag, call.batch, shape[tag.dim], call.out.device)
        .view(-1, *(1,) * (len(shape) - tag.dim - 1))
        .expand(shape)
    )
    by_data: Literal["count"] | None = "count" if any(t is mask for t, _ in call.tagged) else None
    return Layout(0, 1, ids[mask.as_subclass(Tensor).expand(shape)], by_data)


@rule("broadcast_tensors")
def _broadcast_tensors(call: Call) -> Any:
    given = call.args[0] if len(call.args) == 1 and isinstance(call.args[0], (tuple, list)) else call.args
    tags = {id(t): tag for t, tag in call.layouts()}
    return [
        tags[id(t)].at(out.ndim - t.ndim + tags[id(t)].dim) if id(t) in tags else None
        for t, out in zip(given, call.out)
    ]


@rule("new_zeros new_ones new_full new_empty arange zeros ones full empty randn rand size shape")
def _fresh(call: Call) -> Tag | None:
    """A constant, unless tensors of the batch say how large it is."""
    given = call.args[1:] if call.name.startswith("new_") else call.args
    return mixes(call, "takes its size from values of the batch") if _has_any(call, given) else None


def _has_any(call: Call, given: Any) -> bool:
    """Return whether a tensor of the batch is among arguments."""
    return any(t is other for t in tensors((given, call.kwargs)) for other, _ in call.tagged)
