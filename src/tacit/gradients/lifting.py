"""Pointwise uses of a parameter: give every example its own copy, and read the copies' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit.gradients.contributions import Contribution, Dense
from tacit.gradients.layout import Layout, Mixed, Tag, by_example, owners
from tacit.gradients.nested import detached, replaced
from tacit.gradients.sparse import Diagonal

if TYPE_CHECKING:
    from tacit.gradients.recorder import Recorder


def lift(
    recorder: Recorder,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tagged: list[tuple[Tensor, Tag]],
    shared: list[Tensor],
) -> Any:
    """Run `func` with every shared argument expanded along the batch dimension (a stride of zero, no memory).

    The gradient of the expanded argument is then, by autograd's own broadcasting rule, the gradient of the original
    for each example.
    """
    joins = name in ("cat", "stack")
    rank = max(t.ndim for t in [*(t for t, _ in tagged), *shared])
    place: Layout | None = None
    for t, tag in tagged:
        if isinstance(tag, Layout):
            here = tag.at(tag.dim if joins else rank - t.ndim + tag.dim)
            if place is not None and (place.dim != here.dim or not place.same_order(here)):
                recorder.problems.add(f"`{name}` combines different examples of the batch with each other")
                place = None
                break
            place, size = here, t.shape[tag.dim]
    if place is None:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*detached(args, shared), **detached(kwargs, shared))
        return recorder.finish(name, func, args, kwargs, out, [(t, Mixed("mixed examples")) for t, _ in tagged])
    copies: dict[int, Tensor] = {}
    for q in shared:
        if id(q) in copies:
            continue
        copies[id(q)] = personal(recorder, q, place, size, rank if not joins else q.ndim)
    new_args, new_kwargs = replaced(args, copies), replaced(kwargs, copies)
    with torch._C.DisableTorchFunctionSubclass():
        out = func(*new_args, **new_kwargs)
    return recorder.finish(name, func, new_args, new_kwargs, out, tagged)


def personal(recorder: Recorder, q: Tensor, place: Layout, size: int, rank: int) -> Tensor:
    batch = recorder.batch
    assert batch is not None
    dim = place.dim - (rank - q.ndim)
    if dim >= 0 and q.shape[dim] == size and size > 1 and q.stride(dim) == 0:
        q = q.narrow(dim, 0, 1)
    shape = (1,) * (rank - q.ndim) + tuple(q.shape)
    own = shape[place.dim] != 1
    source = q
    with torch.no_grad():
        copy = q.detach().reshape(shape)
        if not own:
            copy = copy.expand(*shape[: place.dim], size, *shape[place.dim + 1 :])

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        if own:
            ids = owners(place, batch, size, grad.device)
            full = grad.reshape(source.shape) if rank != source.ndim else grad
            return [(source, Diagonal(full, dim, ids, batch))]
        if place.owner is not None:
            moved = grad.movedim(place.dim, 0)
            each = moved.new_zeros((batch, *moved.shape[1:])).index_add_(0, place.owner, moved)
        else:
            each = by_example(grad, place, batch)
            each = each[:, 0] if each.shape[1] == 1 else each.sum(1)
        return [(source, Dense(each.reshape(batch, *source.shape)))]

    return recorder.tap(copy, (), make)
