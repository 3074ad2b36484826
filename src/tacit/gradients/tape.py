"""Recording: attach to a model, let the user's own loop run, take norms and clipped sums."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients import (
    backward,
    convolutions,
    data_independent,
    lookups,
    losses,
    means,
    normalisations,
    operations,
    pooling,
    prefix,
    recurrent,
    shards,
)
from tacit.gradients.check import module_problems
from tacit.gradients.clipping import Clipping, checked_partition
from tacit.gradients.comparison import Comparison
from tacit.gradients.compiled import Eager
from tacit.gradients.divided import Split
from tacit.gradients.independence import outputs_of
from tacit.gradients.inputs import BatchDim, Inputs, divisions
from tacit.gradients.isolate import Installed
from tacit.gradients.measured import Measured
from tacit.gradients.memory import Memory
from tacit.gradients.module_state import State
from tacit.gradients.plan import FEWEST, make_plan
from tacit.gradients.problems import refuse
from tacit.gradients.recorder import Recorder, Reduction
from tacit.gradients.self_test import prove_hooks
from tacit.gradients.traced import plain
from tacit.gradients.unseen import Unseen

RULES = (backward, operations, convolutions, lookups, losses, means, normalisations, pooling, recurrent)
"""Modules that register rules when they are imported."""


class Engine:
    """Per-example gradients of a model in an ordinary training loop.

    While attached, the model's trainable parameters receive no `.grad` from losses computed through the model; instead
    `clipped_sum` gives Σ_i w_i·∇ℓ_i. The model is not wrapped, copied or renamed. All calls of the model that enter one
    backward pass must be on the same examples in the same order: example i is what the i-th entries have in common.

    With `rows_per_record` = r an example (a record) is r consecutive rows along the batch dimension: augmented copies,
    or the examples of one user. A mean loss is then the mean over records of each record's own mean, a sum the sum over
    records of each record's own sum, and a loss for every row belongs to the row's record.

    What the engine cannot see: a number or tensor that the user's own loop takes from a batch (`loss.item()`, allowed
    for logging) and puts back into a loss or the model, the batch's size, and labels that never enter the model, beyond
    the entry that stands beside each example; memory changed without PyTorch (a NumPy array that shares it) or
    exchanged in a tensor that is not of the batch (`parameter.data = …`); what hooks on nodes of the graph
    (`grad_fn.register_hook`) do to gradients; what somebody's own operators (`torch.library`) and dispatch modes do
    beside their results; lengths of sequences that were padded before the model; sizes that
    PyTorch's own code reads for the model (`torch.distributions`), or that a `try` finds out; and threads of the
    model's own. Code that gets at the batch where PyTorch tells nobody (scripted functions, `torch.Tensor(x)`, `set_`,
    nodes of the graph called as functions) is found by the memory that it reads (`memory`), in the model's first pass,
    the second, the fourth, the eighth and so on, not in those between. What comes to depend on the batch's size or on
    places in it is found by running seven examples of the first batch in parts (`independence` says what). Inside the
    model's forward, reading values, text of them and sizes that they decided is an error, and so are nested tensors of
    the batch; custom autograd functions that gradients pass, backward hooks on modules, hooks that change gradients of
    the batch, and tensors of an earlier batch that gradients depend on are errors anywhere.
    """

    _stays_readable = False
    _compares = True
    _is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave everything out: a copy of the model has hooks of an engine that follows nothing and holds no record."""
        return {"_is_copy": True}

    def __init__(
        self,
        model: nn.Module,
        *,
        reduction: Reduction | None = None,
        batch_dim: BatchDim = 0,
        rows_per_record: int = 1,
        isolate: Sequence[str] | bool | None = None,
        split: Split | None = None,
    ) -> None:
        prove_hooks(record)
        hooks = [getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values()]
        if any(isinstance(owner, Engine) and not owner._is_copy for owner in hooks):
            raise RuntimeError("this model is already being recorded; detach the other engine first")
        if not isinstance(rows_per_record, int) or rows_per_record < 1:
            raise ValueError(f"rows_per_record must be a whole number of at least 1, not {rows_per_record!r}")
        refuse(module_problems(model))
        self._eager = Eager(model)
        modules = shards.sharded_modules(model)
        shards.cut_up(modules)
        self._recorder = Recorder(model, reduction)
        self._recorder.sharded_modules = modules
        self._inputs = Inputs(model, self._recorder, batch_dim, rows_per_record, split)
        if not self._recorder.parameters:
            raise ValueError("the model has no trainable parameter; call requires_grad_(True) on those to train.")
        for name, parameter in self._recorder.parameters.items():
            if parameter.is_complex():
                raise ValueError(f"parameter {name!r} is complex; keep its real and imaginary parts as two parameters")
        self._calls: list[int] = []
        """Calls of the model that are running, by their frames: one, or more if it calls itself."""
        self._isolate = ([""] if isolate else []) if isinstance(isolate, bool) else list(isolate or ())
        for name in self._isolate:
            model.get_submodule(name)
        self._planned = isolate is False
        self._late: Any = None
        """The first batch of a model that is isolated as a whole: PyTorch has looked up its forward before."""
        self._isolated = Installed(self._recorder, model, {})
        self._comparison = Comparison(self._recorder, wanted=self._compares)
        self._measured = Measured(self._recorder)
        self._wholes = wholes = shards.whole_parameters(model, self._recorder.parameters)
        self._recorder.names |= {id(whole): name for name, whole in wholes.items()}
        self._recorder.sharded = bool(wholes)
        self._prefixes = prefix.Prefixes(model, self._recorder)
        self._unseen, self._memory = Unseen(self._recorder), Memory(self._recorder)
        self._handles: list[Any] = [
            shards.Withheld(model),
            *shards.keep_tags(model, self._recorder),
            model.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        watched: list[tuple[str, Tensor]] = [*self._recorder.parameters.items(), *wholes.items()]
        for name, tensor in watched:
            self._handles.append(tensor.register_post_accumulate_grad_hook(_refuse(name)))  # type: ignore[no-untyped-call]

    # -- following the model -----------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_copy:
            return None
        self._forget_ended_calls()
        self._calls.append(id(sys._getframe(1)))
        if len(self._calls) > 1:
            return None
        if not torch.is_grad_enabled():
            self._recorder.evaluating = True
            return None
        backward.refuse_module_hooks(self._recorder.model)
        shards.gather_again(self._recorder.model, self._recorder.sharded_modules)
        self._recorder.problems.enter()
        marked = self._inputs.marked(args, kwargs)
        self._eager.put()
        fresh = self._make_plan(marked)
        if divisions(marked) and not self._recorder.is_isolated():
            raise ValueError(
                "the batch is one object (a batch of graphs), and the model gives other outputs for its examples one "
                "at a time than together: somewhere examples influence each other"
            )
        if not self._recorder.is_isolated():  # alone, examples cannot influence each other
            self._comparison.begin(*marked)
        if fresh and "" in self._recorder.plan:
            self._late = marked, State(self._recorder.model), torch.get_rng_state()
            self._late[1].begin()
            return plain(args), plain(kwargs)
        self._watch(marked)
        return marked

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._is_copy:
            return None
        call = id(sys._getframe(1))
        failed = output is None and call not in self._calls  # PyTorch calls hooks from elsewhere then
        if failed or not self._calls:
            self._forget_ended_calls()
            return None
        late = self._end_late()
        if late is not None and output is not None:
            self._watch(late)
            output = module.forward(*late[0], **late[1])
        self._calls.remove(call if call in self._calls else self._calls[-1])  # compiled frames are others
        if not self._calls:
            evaluated = self._recorder.evaluating
            self._stop_watching()
            if output is not None:
                self._recorder.problems.check()
                if not evaluated:  # else what the last pass left, which was refused, would count
                    self._comparison.conclude()
                    self._memory.end()
                    self._recorder.note_outputs(outputs_of(output) if self._recorder.inferred else [])
        return None if late is None else output

    def _end_late(self) -> Any:
        """Of a pass that PyTorch had begun before the plan nothing stays; return the arguments to be followed."""
        if self._late is None:
            return None
        (given, state, random), self._late = self._late, None
        state.__exit__(None, None, None)
        torch.set_rng_state(random)
        return given

    def _forget_ended_calls(self) -> None:
        """Of calls that failed, or that Ctrl-C ended, for which `_leave` is not called at all."""
        if not self._calls:
            return
        running = _running_frames()
        self._calls = [call for call in self._calls if call in running]
        if not self._calls:
            self._abandon()

    def _abandon(self) -> None:
        self._calls = []
        self._end_late()
        self._recorder.problems.fail()
        self._stop_watching()

    def _make_plan(self, marked: Any) -> bool:
        """Before the first batch with somebody in it, decide which modules run one example at a time."""
        if self._planned or not self._recorder.batch or self._recorder.sharded:
            return False
        self._planned = self._recorder.batch >= FEWEST  # with fewer the plan is made again: equal examples tell little
        self._isolated.remove()
        self._recorder.plan = make_plan(self._recorder, marked[0], marked[1], self._isolate)
        self._isolated = Installed(self._recorder, self._recorder.model, self._recorder.plan)
        return True

    @property
    def isolated(self) -> tuple[str, ...]:
        """The names of the modules that run one example at a time; "" is the whole model."""
        return tuple(self._recorder.plan)

    def _watch(self, marked: Any) -> None:
        self._recorder.inside = True
        self._isolated.begin()
        self._eager.put()
        data_independent.begin()
        self._prefixes.put()
        self._unseen.put()
        self._memory.put(marked)

    def _stop_watching(self) -> None:
        if self._recorder.inside:
            data_independent.end()
        self._recorder.inside = self._recorder.evaluating = False
        self._memory.remove()
        self._unseen.remove()
        self._prefixes.remove()
        self._eager.remove()

    def trace(self, batch: Any, size: int) -> Any:
        """A batch of `size` examples, so that what is done to it before the model is followed too.

        Tensors with one row for each example (inputs, labels) come back as tensors that know whose their entries are;
        all else as it was. Mixing examples (subtracting the batch's mean, mixup) is then refused like in the model.
        """
        return self._inputs.traced(batch, size)

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
        """Whether a backward pass has run whose clipped sum was not yet taken."""
        return self._recorder.captures > 0 or (self._recorder.batch == 0)

    @property
    def slow_operations(self) -> frozenset[str]:
        """Operations without a fast rule that were met so far."""
        return frozenset(self._recorder.problems.slow)

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
        keep: bool = False,
    ) -> dict[str, Tensor]:
        """scale·Σ_i w_i·∇ℓ_i by parameter name, in float32 or better.

        Bounded: for every norm group g, adding or removing one example changes the group's part of the sum by at most
        S_g = max_n weights(n)_g·n_g, the strategy's own bound, because every example's loss depends on that example
        alone (checked operation by operation) and its weight on its own norms alone. The computed sum of a batch of at
        most `precision.LARGEST_BATCH` examples moves by at most (1 + `precision.MARGIN`)·S_g, roundings of all the
        others included (docs/finite-precision.md). An example with a NaN or infinite gradient contributes zero.

        With `out` the sum is added into the given tensors, which rounds once more; with `overwrite` it replaces what
        they held. The batch is forgotten afterwards unless `keep` is set. `scale` must be public (one over the expected
        lot size, say), never the number of examples that happened to be drawn.
        """
        result: dict[str, Tensor] = {}
        try:
            column, finite = self._measured.weights(clipping, scale, once=not keep)
            for name in self._recorder.parameters:
                given, replaces = (None, True) if out is None else (out[name], overwrite)
                result[name] = self._measured.sum_up(name, column[name], finite, given, overwrite=replaces)
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
        self._forget_ended_calls()
        if not self._calls:  # Ctrl-C may have ended even `_leave`
            self._stop_watching()
        self._recorder.reset()
        self._measured.forget()

    def detach(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._isolated.remove()
        self._abandon()
        self._eager.end()
        self._recorder.active = self._stays_readable


def _running_frames() -> set[int]:
    """All that threads are in the middle of, but for the call that is just beginning (three frames up from here)."""
    found: set[int] = set()
    tops = sys._current_frames()
    tops[threading.get_ident()] = sys._getframe(3)
    for frame in tops.values():
        found.update(id(each) for each, _ in traceback.walk_stack(frame))
    found.discard(id(tops[threading.get_ident()]))
    return found


def _infinite(norms: Tensor) -> Tensor:
    return norms.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def _refuse(name: str) -> Any:
    def refuse(parameter: Tensor) -> None:
        parameter.grad = None
        raise RuntimeError(
            f"parameter {name!r} received a gradient outside the engine's sight, so its examples cannot be told apart: "
            "it was used by a custom autograd function or compiled code, or the loss has a term that depends on no "
            "example (use the optimizer's weight_decay for penalties), or backward ran on something not computed by "
            "calling the model, or the batch was given to it in an object that is no tuple, list or dict"
        )

    return refuse


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

    def clipped_sum(
        self,
        clipping: Clipping,
        *,
        out: Mapping[str, Tensor] | None = None,
        overwrite: bool = False,
        scale: float = 1.0,
        keep: bool = True,
    ) -> dict[str, Tensor]:
        return super().clipped_sum(clipping, out=out, overwrite=overwrite, scale=scale, keep=keep)


def record(
    model: nn.Module,
    *,
    reduction: Reduction | None = None,
    batch_dim: BatchDim = 0,
    rows_per_record: int = 1,
    isolate: Sequence[str] | bool | None = None,
    split: Split | None = None,
) -> Tape:
    """Record one batch: `with record(model) as tape: …; loss.backward()`, then `tape.norms()`, `tape.clipped_sum()`."""
    return Tape(
        model,
        reduction=reduction,
        batch_dim=batch_dim,
        rows_per_record=rows_per_record,
        isolate=isolate,
        split=split,
    )


def attach(
    model: nn.Module,
    *,
    reduction: Reduction | None = None,
    batch_dim: BatchDim = 0,
    rows_per_record: int = 1,
    isolate: Sequence[str] | bool | None = None,
    split: Split | None = None,
) -> Engine:
    """Record every batch of an ordinary training loop until `detach()`."""
    return Engine(
        model,
        reduction=reduction,
        batch_dim=batch_dim,
        rows_per_record=rows_per_record,
        isolate=isolate,
        split=split,
    )
