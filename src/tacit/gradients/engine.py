"""Recording: attach to a model, let the user's own loop run, take norms and clipped sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from tacit.gradients import layers, shards, short_way
from tacit.gradients.clip import Measured
from tacit.gradients.clipping import Clipping, checked_partition
from tacit.gradients.guard import backward
from tacit.gradients.guard.guard import BatchGuard
from tacit.gradients.inputs import BatchDim, Inputs
from tacit.gradients.isolation.divided import Split
from tacit.gradients.layers.loss_mean import learned_mean
from tacit.gradients.passes import Passes
from tacit.gradients.problems import module_problems, refuse
from tacit.gradients.recorder import Recorder
from tacit.gradients.recording import Reduction
from tacit.gradients.self_test import prove_hooks
from tacit.gradients.torch_internals import forward_pre_hooks

RULES = (backward, layers, short_way)
"""Modules that register rules when they are imported, or the way of operations to them."""


class Options(TypedDict, total=False):
    """How an engine follows a model.

    Attributes:
        reduction: how the loss is reduced over examples; detected unless declared.
        batch_dim: the dimension that holds the examples, or one for each input.
        rows_per_record: rows along that dimension that are one record.
        isolate: modules that run one example at a time: by name, all (True), none (False), or as needed (None).
        split: cuts a batch that is one object (a batch of graphs) into its examples.
    """

    reduction: Reduction | None
    batch_dim: BatchDim
    rows_per_record: int
    isolate: Sequence[str] | bool | None
    split: Split | None


class Engine:
    """Per-example gradients of a model in an ordinary training loop.

    While attached, the model's trainable parameters receive no `.grad` from losses computed through the model; instead
    `clipped_sum` gives Σ_i w_i·∇ℓ_i. The model is not wrapped, copied or renamed. All calls of the model that enter one
    backward pass must be on the same examples in the same order: example i is what the i-th entries have in common.

    With `rows_per_record` = r an example (a record) is r consecutive rows along the batch dimension: augmented copies,
    or the examples of one user. A mean loss is then the mean over records of each record's own mean, a sum the sum over
    records of each record's own sum, and a loss for every row belongs to the row's record.

    An error, inside the model's forward: reading values of the batch, text of them, or sizes that they decided; nested
    tensors of the batch. An error anywhere: custom autograd functions that gradients pass, backward hooks on modules,
    hooks that change gradients of the batch, tensors of an earlier batch that gradients depend on. Where a module can
    run one example at a time instead, it does (`isolation`).

    Influence that no operation shows (the batch's size, places in it, scripted functions, `torch.Tensor(x)`) is found
    by running seven examples in parts (`guard.run_in_parts`): of the first batch, and of a later one whose pass has
    other operations, or calls them from other places in the code; `record` does not, `check` does.

    The engine cannot see:

    - a number or tensor that the user's loop takes from a batch (`loss.item()`) and puts back into a loss or the model;
    - labels that never enter the model, beyond the entry that stands beside each example;
    - memory changed without PyTorch (a NumPy array that shares it), or exchanged in a tensor that is not of the batch;
    - changes of gradients by hooks on nodes of the graph (`grad_fn.register_hook`);
    - side effects of custom operators (`torch.library`) and of dispatch modes;
    - lengths of sequences that were padded before the model;
    - sizes that PyTorch's own code reads for the model (`torch.distributions`), or that a `try` finds out;
    - threads of the model's own.
    """

    _stays_readable = False
    _compares = True

    def __getstate__(self) -> dict[str, Any]:
        """Leave everything out: a copy of an engine holds no record."""
        return {}

    def __init__(self, model: nn.Module, **options: Unpack[Options]) -> None:
        if unknown := set(options) - set(Options.__annotations__):
            raise TypeError(f"unknown options {sorted(unknown)}; there are {sorted(Options.__annotations__)}")
        rows_per_record, isolate = options.get("rows_per_record", 1), options.get("isolate")
        prove_hooks(record)
        hooks = [getattr(hook, "__self__", None) for hook in forward_pre_hooks(model).values()]
        if any(isinstance(owner, Passes) and not owner.is_copy for owner in hooks):
            raise RuntimeError("this model is already being recorded; detach the other engine first")
        if not isinstance(rows_per_record, int) or rows_per_record < 1:
            raise ValueError(f"rows_per_record must be a whole number of at least 1, not {rows_per_record!r}")
        refuse(module_problems(model))
        modules = shards.sharded_modules(model)
        shards.cut_up(modules)
        self._recorder = Recorder(model, options.get("reduction"), BatchGuard)
        self._recorder.sharded_modules = modules
        self._inputs = Inputs(model, self._recorder, options.get("batch_dim", 0), rows_per_record, options.get("split"))
        if not self._recorder.parameters:
            raise ValueError("the model has no trainable parameter; call requires_grad_(True) on those to train.")
        self._measured = Measured(self._recorder)
        self._wholes = wholes = shards.whole_parameters(model, self._recorder.parameters)
        self._recorder.names |= {id(whole): name for name, whole in wholes.items()}
        self._recorder.sharded = bool(wholes)
        self._passes = Passes(self._recorder, self._inputs, isolate=isolate, compares=self._compares)
        self._handles: list[Any] = [
            shards.Withheld(model),
            *shards.keep_tags(model, self._recorder),
            model.register_forward_pre_hook(self._passes.enter, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._passes.leave, with_kwargs=True, always_call=True),
        ]
        watched: list[tuple[str, Tensor]] = [*self._recorder.parameters.items(), *wholes.items()]
        for name, tensor in watched:
            self._handles.append(tensor.register_post_accumulate_grad_hook(backward.refuse_gradient(name)))  # type: ignore[no-untyped-call]

    # -- following the model -----------------------------------------------------------------------------------------

    @property
    def isolated(self) -> tuple[str, ...]:
        """The names of the modules that run one example at a time; "" is the whole model."""
        return tuple(self._recorder.plan)

    def trace(self, batch: Any, size: int) -> Any:
        """A batch of `size` examples, so that operations on it before the model are followed too.

        Tensors with one row for each example (inputs, labels) come back as tensors that know whose their entries are;
        all else as it was. Mixing examples (subtracting the batch's mean, mixup) is then refused like in the model.
        """
        return self._inputs.traced(batch, size)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Inside the block batches count for nothing; they show by which constants the loss is scaled."""
        self._recorder.learning = True
        try:
            yield
        finally:
            self._recorder.learning = False

    def learn_mean(self) -> bool:
        """Take the loss as a mean if `learning` has shown that it is a sum divided by the number of examples."""
        recorder = self._recorder
        factors = learned_mean(recorder) if recorder.reduction is None else None
        if factors is None:
            return False
        recorder.reduction, recorder.learned_factors = "mean", factors
        recorder.learned.clear()
        return True

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trainable parameters by name, as recorded when the engine was attached."""
        return dict(self._recorder.parameters)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return dict(self._measured.shapes)

    @property
    def batch_size(self) -> int:
        """How many examples the current batch has. This is private data: nothing released may depend on it."""
        if self._recorder.batch is None:
            raise RuntimeError("no batch was seen: call the model on a batch first")
        return self._recorder.batch

    @property
    def ready(self) -> bool:
        """Return whether a backward pass has run whose clipped sum was not yet taken."""
        return self._recorder.captures > 0 or (self._recorder.batch == 0)

    @property
    def slow_operations(self) -> frozenset[str]:
        """Operations without a fast rule that were met so far."""
        return frozenset(self._recorder.problems.slow)

    @property
    def penalties(self) -> list[Tensor]:
        """The values of terms of parameters alone that the batch's losses add to a mean over examples."""
        return list(self._recorder.penalties)

    @property
    def coarsest_dtype(self) -> torch.dtype:
        """The type of fewest bits among those that the current batch's gradients are made of."""
        return self._measured.coarsest_dtype()

    def norms(self, groups: Clipping | Sequence[tuple[str, ...]] | None = None) -> Tensor:
        """Every example's gradient norm: [batch], or [batch, groups] for a clipping strategy or partition.

        The values are upper bounds up to 2·`precision.NORM_SHARE`: a factor S / norm brings the true norm to at most
        (1 + 2^-10)·S, which is part of the margin. A NaN or infinite gradient has norm infinity.
        """
        if groups is None:
            return _infinite(self._measured.norms([tuple(self.shapes)]))[:, 0]
        listed = groups.partition(self.shapes) if isinstance(groups, Clipping) else groups
        return _infinite(self._measured.norms(checked_partition(listed, self.shapes)))

    @torch.no_grad()
    def clipped_sum(
        self,
        clipping: Clipping,
        *,
        out: Mapping[str, Tensor] | None = None,
        overwrite: bool = False,
        scale: float = 1.0,
        keep: bool | None = None,
    ) -> dict[str, Tensor]:
        """scale·Σ_i w_i·∇ℓ_i by parameter name, in float32 or better.

        Bounded: for every norm group g, adding or removing one example changes the group's part of the sum by at most
        S_g = max_n weights(n)_g·n_g, the strategy's own bound, because every example's loss depends on that example
        alone (checked operation by operation) and its weight on its own norms alone. The computed sum of a batch of at
        most `precision.LARGEST_BATCH` examples moves by at most (1 + `precision.MARGIN`)·S_g, roundings of all the
        others included (docs/finite-precision.md). An example with a NaN or infinite gradient contributes zero.

        With `out` the sum is added into the given tensors, which rounds once more; with `overwrite` it replaces what
        they held. The batch is forgotten afterwards unless `keep` is set (a tape keeps it). `scale` must be public (one
        over the expected lot size, say), never the number of examples that happened to be drawn.
        """
        keep = self._stays_readable if keep is None else keep
        try:
            column, finite = self._measured.weights(clipping, scale, once=not keep)
            result = self._measured.sums(column, finite, out, overwrite)
        except BaseException:
            self._measured.begin_again()
            raise
        if not keep:
            self.discard()
        return result

    def clipped_sums(self, clipping: Clipping) -> Iterator[tuple[str, Tensor]]:
        """The same as `clipped_sum`, one parameter at a time, for who does not want to hold all of them at once.

        To be run to its end, which forgets the batch.
        """
        with torch.no_grad():
            column, finite = self._measured.weights(clipping, 1.0)
        for name in self._recorder.parameters:
            self._measured.refuse_writes()  # since the one before
            with torch.no_grad():
                total = self._measured.sum_up(name, column[name], finite)
            yield name, total
        self.discard()

    def discard(self) -> None:
        """Forget the current batch."""
        if not self._passes.are_running():  # Ctrl-C may have ended even the hook that ends a pass
            self._passes.stop_watching()
        self._recorder.reset()
        self._measured.forget()

    def detach(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._passes.end()
        self._recorder.active = self._stays_readable


def _infinite(norms: Tensor) -> Tensor:
    return norms.nan_to_num_(nan=torch.inf, posinf=torch.inf)


class Tape(Engine, AbstractContextManager["Tape"]):
    """An engine for one `with` block; its results stay readable afterwards."""

    _stays_readable = True
    _compares = False

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def record(model: nn.Module, **options: Unpack[Options]) -> Tape:
    """Record one batch: `with record(model) as tape: …; loss.backward()`, then `tape.norms()`, `tape.clipped_sum()`."""
    return Tape(model, **options)


def attach(model: nn.Module, **options: Unpack[Options]) -> Engine:
    """Record every batch of an ordinary training loop until `detach()`."""
    return Engine(model, **options)
