"""Pointwise uses of a parameter: give every example its own copy, and read the copies' gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from tacit.gradients.factors.contribution import Contribution, Dense, own_sums
from tacit.gradients.factors.sparse import Diagonal
from tacit.gradients.layers.registry import ALWAYS, layout_of, operation
from tacit.gradients.layout import Layout, Mixed, Tag, Total, by_example, owners
from tacit.gradients.names import words, writes
from tacit.gradients.nested import detached, replaced, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark, plain


def lift(
    recorder: Recording,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tagged: list[tuple[Tensor, Tag]],
    shared: list[Tensor],
) -> Any:
    """Run `func` with every shared argument expanded to the shape of the result (strides of zero, no memory).

    The gradient of the expanded argument, added up over what belongs to one example, is then the gradient of the
    original for each example.
    """
    if name in _SINGLE and len(tagged) == len(shared) == 1 and not writes(func):
        found = with_one_parameter(recorder, func, args, kwargs)
        if found is not None:
            return found
    joins = name in ("cat", "stack")
    met = [*(t for t, _ in tagged), *shared]
    full: Sequence[int] = ()
    place: Layout | None = None
    with without_subclasses():
        if not joins and name not in ("to", "type_as"):  # which look at another tensor's type, whatever its shape
            met = tensors((args, kwargs))
            full = _common_shape([t.shape for t in met])
        rank = max([t.ndim for t in met])
        for t, tag in tagged:
            if isinstance(tag, Layout):
                dim = tag.dim if joins else rank - t.ndim + tag.dim
                here = tag if dim == tag.dim else tag.at(dim)
                if place is not None and (place.dim != here.dim or not place.same_order(here)):
                    recorder.problems.add(f"`{name}` combines different examples of the batch with each other")
                    place = None
                    break
                place, size = here if place is None or here.by_data else place, t.shape[tag.dim]
    if place is None:
        with without_subclasses():
            out = func(*detached(args, shared), **detached(kwargs, shared))
        return recorder.finish(name, func, args, kwargs, out, [(t, Mixed("mixed examples")) for t, _ in tagged])
    copies: dict[int, Tensor] = {}
    for q in shared:
        if id(q) in copies:
            continue
        copies[id(q)] = personal(recorder, q, place, size, rank if not joins else q.ndim, full)
    new_args, new_kwargs = replaced(args, copies), replaced(kwargs, copies)
    with without_subclasses():
        out = func(*new_args, **new_kwargs)
        if full and name in _SINGLE and not writes(func) and out.ndim == rank and _are_regular(tagged):
            return mark(out, recorder, place)  # as the rule would find, if it were asked
    return recorder.finish(name, func, new_args, new_kwargs, out, tagged)


_SINGLE = words("add sub mul div true_divide")


def with_one_parameter(recorder: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """`lift` for examples that stand first and one tensor to which they are not broadcast; None for anything else."""
    if len(args) != 2 or kwargs or not isinstance(args[0], Tensor) or not isinstance(args[1], Tensor):
        return None
    x, q = args if type(args[0]) is Traced else args[::-1]
    place, batch = layout_of(recorder, x), recorder.batch or 0
    if place is None or place.dim or place.owner is not None or place.inner != 1 or place.by_data:
        return None
    if type(q) is not nn.Parameter:
        recorder.scan((q,), {})  # which refuses what was computed from the batch out of sight
    with without_subclasses():
        more = x.ndim - q.ndim
        shape = (1,) * more + q.shape
        if more < 0 or shape[0] != 1 or x.shape[0] != batch or batch < 2:
            return None
        met = []
        for d in range(1, x.ndim):
            if shape[d] != x.shape[d]:
                if shape[d] != 1:
                    return None
                met.append(d)

        def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
            each = own_sums(grad, tuple(met)) if met else grad
            return [(q, Dense(each.reshape(batch, *q.shape)))]

        copy = recorder.tap(q.detach().expand(x.shape), (), make)
        return mark(func(x, copy) if args[0] is x else func(copy, x), recorder, place)


def _are_regular(tagged: list[tuple[Tensor, Tag]]) -> bool:
    return all(isinstance(tag, Layout) and tag.owner is None and not tag.by_data for _, tag in tagged)


def _common_shape(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the shape that tensors of these are broadcast to; where they do not fit the operation says so itself."""
    full = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, len(full) - len(shape)):
            if size != 1:
                full[place] = size
    return full


def personal(recorder: Recording, q: Tensor, place: Layout, size: int, rank: int, full: Sequence[int] = ()) -> Tensor:
    """A copy of a shared tensor for each example, expanded to `full` where it meets other dimensions too.

    Left to autograd, sums over these other dimensions would go through memory as it lies (see `own_sums`).
    """
    batch = recorder.batch
    assert batch is not None
    dim = place.dim - (rank - q.ndim)
    if dim >= 0 and q.shape[dim] == size and size > 1 and q.stride(dim) == 0:
        q = q.narrow(dim, 0, 1)
    shape = (1,) * (rank - q.ndim) + tuple(q.shape)
    own = shape[place.dim] != 1
    source = q
    wanted = list(full or shape)
    wanted[place.dim] = shape[place.dim] if own else size
    copy = q.detach().expand(wanted)
    met = [d for d in range(rank) if d != place.dim and wanted[d] != shape[d]]
    if not own and place.dim == 0 and place.owner is None and place.inner == 1 and size == batch:

        def make_simply(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
            each = own_sums(grad, tuple(met)) if met else grad
            return [(source, Dense(each.reshape(batch, *source.shape)))]

        return recorder.tap(copy, (), make_simply)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        rows = grad.movedim(place.dim, 0)
        if met:
            rows = own_sums(rows, tuple(d + (d < place.dim) for d in met), keepdim=True)
        if own:
            ids = owners(place, batch, size, grad.device)
            return [(source, Diagonal(rows.movedim(0, place.dim).reshape(source.shape), dim, ids, batch))]
        if place.owner is not None:
            each = rows.new_zeros((batch, *rows.shape[1:])).index_add_(0, place.owner, rows)
        else:
            each = by_example(rows, place.at(0), batch)
            each = each[:, 0] if each.shape[1] == 1 else own_sums(each, 1)
        return [(source, Dense(each.reshape(batch, *source.shape)))]

    return recorder.tap(copy, (), make)


def penalised(
    recorder: Recording, name: str, args: Any, kwargs: Any, tagged: list[tuple[Tensor, Tag]], shared: list[Tensor]
) -> tuple[Any, Any]:
    """Return the arguments of a sum in which a penalty on the parameters stands beside a mean over examples.

    mean_i(ℓ_i) + r = mean_i(ℓ_i + r): the penalty is a term of each example's own loss, and clipped with it. It may not
    depend on the number of examples: the first batch's penalties are compared with those of its parts.
    """
    if name not in ("add", "sub") or not all(isinstance(tag, Total) and tag.kind == "mean" for _, tag in tagged):
        return args, kwargs
    batch = recorder.batch or 0

    def own(penalty: Tensor) -> Tensor:
        def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
            return [(penalty, Dense(grad.expand(batch, *penalty.shape)))]

        recorder.penalties.append(penalty.detach())
        return recorder.tap(penalty.detach(), (), make)

    table = {id(q): own(q) for q in shared if q.numel() == 1}
    return replaced(args, table), replaced(kwargs, table)


@operation("to type_as", ALWAYS)
def cast(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Casting a tensor to a batch tensor's dtype does not make it batch data, nor does it combine the two."""
    like = next((t for t in (*args[1:], *kwargs.values()) if isinstance(t, Tensor)), None)
    if like is None:
        return recorder.carry_out(func, args, kwargs)
    others = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    return args[0].to(plain(like).device, plain(like).dtype, *args[2:], **others)
