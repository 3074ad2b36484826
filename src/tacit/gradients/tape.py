"""Recording: attach to a model, let the user's own loop run, take norms and clipped sums."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tacit.gradients import convolutions, lookups, losses, normalisations, operations, recurrent, sources
from tacit.gradients.check import module_problems, refuse
from tacit.gradients.clipping import Clipping, checked_partition, checked_weights
from tacit.gradients.layout import Layout
from tacit.gradients.recorder import Recorder, Reduction
from tacit.gradients.traced import Traced, mark

RULES = (operations, convolutions, lookups, normalisations, recurrent)
"""Modules that register rules when they are imported."""

BatchDim = int | Mapping[str | int, int | None]


class Engine:
    """Per-example gradients of a model in an ordinary training loop.

    While attached, the model's trainable parameters receive no `.grad` from losses computed through the model; instead
    `clipped_sum` gives Σ_i w_i·∇ℓ_i. The model is not wrapped, copied or renamed. All calls of the model that enter one
    backward pass must be on the same examples in the same order: example i is what the i-th entries have in common.

    With `rows_per_record` = r an example (a record) is r consecutive rows along the batch dimension: augmented copies,
    or the examples of one user. A mean loss is then the mean over records of each record's own mean, a sum the sum over
    records of each record's own sum, and a loss for every row belongs to the row's record.

    What the engine cannot see: a number read out of the batch in the user's own loop (`loss.item()`, allowed for
    logging) and put back into a loss, the batch's size, and labels that never enter the model, beyond the entry that
    stands beside each example. Inside the model's forward, reading values is an error.
    """

    _stays_readable = False

    def __init__(
        self,
        model: nn.Module,
        *,
        reduction: Reduction | None = None,
        batch_dim: BatchDim = 0,
        rows_per_record: int = 1,
    ) -> None:
        if getattr(model, "_forward_pre_hooks", None) and any(
            isinstance(getattr(h, "__self__", None), Engine) for h in model._forward_pre_hooks.values()
        ):
            raise RuntimeError("this model is already being recorded; detach the other engine first")
        if not isinstance(rows_per_record, int) or rows_per_record < 1:
            raise ValueError(f"rows_per_record must be a whole number of at least 1, not {rows_per_record!r}")
        refuse(module_problems(model))
        self._rows = rows_per_record
        self._recorder = Recorder(model, reduction, batch_dim)
        if not self._recorder.parameters:
            raise ValueError("the model has no trainable parameter")
        for name, parameter in self._recorder.parameters.items():
            if parameter.is_complex():
                raise ValueError(f"parameter {name!r} is complex; keep its real and imaginary parts as two parameters")
        self._depth = 0
        self._squares: dict[str, Tensor] | None = None
        self._uses: dict[str, sources.Uses] = {}
        self._known_scale: float | None = None
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        for name, parameter in self._recorder.parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(_refuse(name)))  # type: ignore[no-untyped-call]

    # -- following the model -----------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return None
        self._recorder.problems = []
        marked = self._marked(args, kwargs)
        self._recorder.inside = True
        return marked

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._recorder.inside = False
            if output is not None:
                self._recorder.check_problems()

    def _marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        dims = self._recorder.batch_dim
        found: list[tuple[Tensor, int]] = []

        def dim_of(key: str | int) -> int | None:
            return dims if isinstance(dims, int) else dims.get(key, dims.get("*", 0))

        def walk(value: Any, dim: int | None, key: str | int | None = None) -> Any:
            if isinstance(value, PackedSequence):
                return self._packed(value)
            if isinstance(value, Tensor):
                if (
                    dim is None
                    or value.ndim == 0
                    or (
                        type(value) is Traced
                        and value._recorder is self._recorder
                        and value._epoch == self._recorder.epoch
                    )
                ):
                    if type(value) is Traced:
                        found.append((value, -1))
                    return value
                copy = value.as_subclass(torch.Tensor)
                copy = copy.view_as(copy) if copy is value else copy
                found.append((copy, dim % value.ndim))
                return copy
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*(walk(v, dim) for v in value))
            if isinstance(value, (tuple, list)):
                return type(value)(walk(v, dim) for v in value)
            if isinstance(value, dict):
                pairs = {
                    k: walk(v, dim_of(k) if isinstance(k, str) and not isinstance(dims, int) else dim)
                    for k, v in value.items()
                }
                try:
                    return type(value)(pairs)
                except TypeError:
                    return pairs
            return value

        if isinstance(dims, Mapping):
            positions = {name: i for i, name in enumerate(inspect.signature(self._recorder.model.forward).parameters)}
            dims = {**{positions[k]: d for k, d in dims.items() if k in positions}, **dims}
        new_args = tuple(walk(a, dim_of(i)) for i, a in enumerate(args))
        new_kwargs = {k: walk(v, dim_of(k)) for k, v in kwargs.items()}
        fresh = [(t, d) for t, d in found if d >= 0]
        sizes = {t.shape[d] for t, d in fresh}
        if len(sizes) > 1:
            shown = ", ".join(f"{tuple(t.shape)} (dimension {d})" for t, d in fresh)
            raise ValueError(
                f"the model's inputs do not agree on the number of examples: {shown}; declare where the examples are, "
                "e.g. batch_dim={'mask': None, 0: 1} (argument name or position → dimension, None for shared inputs)"
            )
        if sizes:
            self._recorder.begin(self._records(sizes.pop()))
            self._squares = self._known_scale = None
        for t, d in fresh:
            mark(t, self._recorder, Layout(d, self._rows))
        return new_args, new_kwargs

    def _records(self, rows: int) -> int:
        if rows % self._rows:
            raise ValueError(
                f"a batch of {rows} rows does not divide into records of rows_per_record={self._rows} rows each"
            )
        return rows // self._rows

    def _packed(self, packed: PackedSequence) -> PackedSequence:
        sizes = packed.batch_sizes
        sequences = int(sizes[0]) if sizes.numel() else 0
        self._recorder.begin(self._records(sequences))
        order = (
            packed.sorted_indices
            if packed.sorted_indices is not None
            else torch.arange(sequences, device=packed.data.device)
        )
        order = order.div(self._rows, rounding_mode="floor")
        if not sequences:
            sizes = sizes.new_zeros(1)  # recurrent layers read the first entry
        owner = torch.cat([order[:n] for n in sizes.tolist()])
        data = packed.data.view_as(packed.data)
        mark(data, self._recorder, Layout(0, 1, owner))
        return PackedSequence(data, sizes, packed.sorted_indices, packed.unsorted_indices)

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trainable parameters by name, as recorded when the engine was attached."""
        return dict(self._recorder.parameters)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self._recorder.parameters.items()}

    @property
    def batch_size(self) -> int:
        """How many examples the current batch has. This is private data: nothing released may depend on it."""
        if self._recorder.batch is None:
            raise RuntimeError("no batch was seen: call the model on a batch first")
        return self._recorder.batch

    @property
    def ready(self) -> bool:
        """Whether a backward pass has run whose clipped sum was not yet taken."""
        return self._recorder.task is not None or (self._recorder.batch == 0)

    @property
    def slow_operations(self) -> frozenset[str]:
        """Operations without a fast rule that were met so far."""
        return frozenset(self._recorder.slow)

    def norms(self, groups: Clipping | Sequence[tuple[str, ...]] | None = None) -> Tensor:
        """Every example's gradient norm: [batch], or [batch, groups] for a clipping strategy or partition.

        The values are upper bounds: each is the computed norm enlarged by a few units of rounding, so that a factor
        S / norm brings the true norm to at most S. A NaN or infinite gradient has norm infinity.
        """
        squares = self._all_squares()
        if groups is None:
            partition = [tuple(self.shapes)]
        else:
            listed = groups.partition(self.shapes) if isinstance(groups, Clipping) else groups
            partition = checked_partition(listed, self.shapes)
        columns = []
        for group in partition:
            total = torch.stack([squares[name] for name in group]).sum(0)
            columns.append(total)
        stacked = torch.stack(columns, 1)
        norms = stacked.clamp_min(0).sqrt() * (1 + 16 * torch.finfo(stacked.dtype).eps)
        norms = torch.where(torch.isfinite(stacked), norms, torch.inf)
        return norms[:, 0] if groups is None else norms

    @torch.no_grad()
    def clipped_sum(
        self,
        clipping: Clipping,
        *,
        out: Mapping[str, Tensor] | None = None,
        scale: float = 1.0,
        keep: bool = False,
    ) -> dict[str, Tensor]:
        """scale·Σ_i w_i·∇ℓ_i by parameter name, in float32 or better.

        Bounded: for every norm group g, adding or removing one example changes the group's part of the sum by at most
        max_n weights(n)_g·n_g, the strategy's own bound, because every example's loss depends on that example alone
        (checked operation by operation) and its weight on its own norms alone. That holds for the computed tensors, up
        to the roundings accounted for in `contributions.cancelled`: huge terms that cancel within one example are never
        added where others are. An example with a NaN or infinite
        gradient contributes zero.

        With `out` the sum is added into the given tensors, to gather the batches of a lot. The batch is forgotten
        afterwards unless `keep` is set. `scale` must be public (one over the expected lot size, say), never the number
        of examples that happened to be drawn.
        """
        shapes = self.shapes
        partition = checked_partition(clipping.partition(shapes), shapes)
        norms = self.norms(partition)
        finite = torch.isfinite(norms).all(1)
        all_finite = bool(finite.all())
        weights = checked_weights(clipping.weights(torch.where(finite.unsqueeze(1), norms, 0.0)), norms)
        weights = torch.where(finite.unsqueeze(1), weights, 0.0)
        scale = scale * self._scale()
        result: dict[str, Tensor] = {}
        column = {name: g for g, group in enumerate(partition) for name in group}
        for name, parameter in self._recorder.parameters.items():
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            total = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device) if out is None else out[name]
            uses = self._uses.get(name)
            if uses is not None:
                if not all_finite:
                    uses = uses.without(~finite)
                uses.accumulate(total, weights[:, column[name]] * scale)
            result[name] = total
        if not keep:
            self.discard()
        return result

    def discard(self) -> None:
        """Forget the current batch."""
        self._recorder.reset()
        self._squares = self._known_scale = None
        self._uses = {}

    def detach(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._depth = 0
        self._recorder.active = self._stays_readable

    def _scale(self) -> float:
        if self._known_scale is None:
            self._known_scale = losses.scale_of(self._recorder) if self._recorder.parts else 1.0
        return self._known_scale

    def _all_squares(self) -> dict[str, Tensor]:
        recorder = self._recorder
        if recorder.batch is None:
            raise RuntimeError(
                "no batch was seen: call the model on a batch (inside the recording), then loss.backward()"
            )
        if recorder.task is None and recorder.batch > 0:
            raise RuntimeError("backward was not run: call loss.backward() on a loss computed through the model first")
        if self._squares is None:
            scale = self._scale()
            self._squares = {}
            with torch.no_grad():
                for name, parameter in recorder.parameters.items():
                    parts = recorder.parts.get(name)
                    if parts:
                        uses = self._uses[name] = sources.Uses(parts, parameter.shape)
                        recorder.parts[name] = uses.parts
                        found = uses.squares() * scale**2
                    else:
                        found = torch.zeros(recorder.batch, device=parameter.device)
                    self._squares[name] = found.to(torch.promote_types(found.dtype, torch.float32))
            if len({s.dtype for s in self._squares.values()}) > 1:
                self._squares = {name: s.double() for name, s in self._squares.items()}
        return self._squares


def _refuse(name: str) -> Any:
    def refuse(parameter: Tensor) -> None:
        parameter.grad = None
        raise RuntimeError(
            f"parameter {name!r} received a gradient outside the engine's sight, so its examples cannot be told apart: "
            "it was used by a custom autograd function or compiled code, or the loss has a term that depends on no "
            "example (use the optimizer's weight_decay for penalties), or backward ran on something not computed by "
            "calling the model"
        )

    return refuse


class Tape(Engine, AbstractContextManager["Tape"]):
    """An engine for one `with` block; its results stay readable afterwards."""

    _stays_readable = True

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def clipped_sum(
        self,
        clipping: Clipping,
        *,
        out: Mapping[str, Tensor] | None = None,
        scale: float = 1.0,
        keep: bool = True,
    ) -> dict[str, Tensor]:
        return super().clipped_sum(clipping, out=out, scale=scale, keep=keep)


def record(
    model: nn.Module, *, reduction: Reduction | None = None, batch_dim: BatchDim = 0, rows_per_record: int = 1
) -> Tape:
    """Record one batch: `with record(model) as tape: …; loss.backward()`, then `tape.norms()`, `tape.clipped_sum()`."""
    return Tape(model, reduction=reduction, batch_dim=batch_dim, rows_per_record=rows_per_record)


def attach(
    model: nn.Module, *, reduction: Reduction | None = None, batch_dim: BatchDim = 0, rows_per_record: int = 1
) -> Engine:
    """Record every batch of an ordinary training loop until `detach()`."""
    return Engine(model, reduction=reduction, batch_dim=batch_dim, rows_per_record=rows_per_record)
