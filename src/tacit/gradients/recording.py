"""The state of the batch that is followed, as the rules and the guard see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tacit.gradients.factors.contribution import Contribution
from tacit.gradients.factors.parameter_uses import Part
from tacit.gradients.layout import Tag
from tacit.gradients.problems import Problems
from tacit.gradients.torch_internals import write_count

Reduction = Literal["mean", "sum", "none"]
Pairs = Iterable[tuple[Tensor, Contribution]]

COMPARED = -1
"""The epoch of examples that were only compared (`guard.run_in_parts`): their tensors are no constants."""


class Guard(Protocol):
    """Decides whether an operation lets one example influence another: all that the recorder asks of `guard`."""

    def metadata(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer of an operation that reads no values (shapes, types)."""

    def tag(self, call: Any) -> Any:
        """Return the tag (or one tag per output) of a finished call."""

    def tag_written(self, call: Any, out: Any) -> Any:
        """Return the tag of a finished call, and see to what a write in place changed elsewhere."""

    def tagged(self, call: Any) -> None:
        """The outputs of a call have their tags."""

    def stale(self, value: Tensor) -> Tag | None:
        """Return the tag of a tensor that another batch left; None if it is a constant for this one."""

    def evaluated(self, out: Any, given: Any) -> None:
        """The model ran between batches, on this, and computed that."""


class Recording(ABC):
    """The batch that is followed: what is known of it, and what a rule may ask of the recorder."""

    def __init__(self, model: nn.Module, reduction: Reduction | None) -> None:
        if reduction not in ("mean", "sum", "none", None):
            raise ValueError(
                f"reduction is {reduction!r}; choose 'mean', 'sum' or 'none', or leave it out: it is detected."
            )
        self.model = model
        self.reduction = reduction
        self.rows = 1
        """How many rows of the batch an example is."""
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.sharded_modules: list[Any] = []
        self.sharded = False
        """True if parameters are whole only while their module runs: captured gradients may not use their values."""
        self.buffers = {id(b): name for name, b in model.named_buffers()}
        self._kept = list(model.buffers())  # one that is replaced must not leave its id to a tensor of the batch
        self.active = True
        self.inside = False
        """True if the model's forward is running."""
        self.trail: list[Any] = []
        """The functions that were called on tensors of the batch since the model's forward began, and from where.

        The same operations in a branch that was not taken before may read values that no operation shows.
        """
        self.evaluating = False
        """True if it is running without gradients, and nothing is captured."""
        self.epoch = 0
        self.batch: int | None = None
        self.anchor = torch.zeros((), requires_grad=True)
        self.parts: dict[str, list[Part]] = {}
        self.problems = Problems(model)
        self.seeds: list[tuple[str, Tensor]] = []
        """Gradients that arrived at reductions over examples, with the kind of the reduction."""
        self.inner_seeds: list[tuple[str, Tensor]] = []
        """The same for reductions inside the model."""
        self.output_seeds: list[tuple[str, Tensor]] = []
        """Gradients that arrived at outputs of the model that are such a reduction (see `inferred`)."""
        self.scales: set[float] = set()
        """The scales of the model's own reductions for the few examples of the plan."""
        self.inferred: dict[int, str] = {}
        """Outputs of the model that are a mean or sum of losses whose scale was seen not to depend on their number."""
        self.learning = False
        """True if the batches at hand count for nothing, and only show by what the loss is scaled."""
        self.learned: dict[int, set[frozenset[tuple[str, float]] | None]] = {}
        """The kinds and scales of the loss's parts that such batches had, by their sizes (see `layers.loss_mean`)."""
        self.learned_factors: frozenset[float] = frozenset()
        """The factors of the parts of a mean that they have shown, which all batches must have; empty if none."""
        self.factors = set[int]()
        """Numbers by which counts are multiplied, and which are not the number of examples (`layers.own_means`)."""
        self.divided = False
        """True if a sum over the examples of this batch was divided by their number."""
        self.divides: bool | None = None
        """The same of the first batch: so must be all others."""
        self.captures = 0
        """How many times gradients of the current batch arrived."""
        self.capturing = True
        """True if arriving gradients are the parameters'; not while the user differentiates with respect to inputs."""
        self.inputs: list[Tensor] = []
        self.seen: set[tuple[int, int]] = set()
        """Memory and version of the batch's inputs, which are kept so that no other tensor gets their memory."""
        self.dropped = {COMPARED}
        """Epochs of batches that were not used before the next came: their tensors are no constants."""
        self.aliases: list[Any] = []
        """For every call of an isolated module, each example's own aliases of its parameters (`isolation.isolate`)."""
        self.planned_for: Recording | None = None
        """The recorder for which this one only made a plan: tensors kept from the plan are no constants."""
        self.plan: dict[str, Any] = {}
        """The modules that run one example at a time (see `isolation.plan`)."""
        self.isolating = False
        """True if a module is running on one example, and nothing is followed."""
        self.penalties: list[Tensor] = []
        """The values of terms of parameters alone that this batch's losses add to a mean over examples."""
        self.in_backward = False
        """True if the backward of a custom autograd function is running."""
        self.strangers = False
        """True if the model was entered, after a backward pass, with inputs that need not be the same examples."""

    # -- the batch ---------------------------------------------------------------------------------------------------

    def begin(self, batch: int, inputs: list[Tensor]) -> None:
        """A batch of this many examples enters the model (perhaps again, for a second use).

        A batch that was not used is dropped by the next. After a backward pass, gradients of another batch would add
        up with the first one's, example i with example i: only unchanged memory is surely the same examples, and only
        memory that PyTorch alone writes to (a NumPy array that shares it changes no version; one that came by DLPack is
        not seen).
        """
        seen = set()
        for t in inputs:
            seen.add((t.data_ptr(), write_count(t)))
        if self.captures:
            if batch != self.batch:
                raise RuntimeError(
                    "the model was called with another number of examples than the batch whose backward pass has run "
                    "and whose clipped sum was not yet taken; take it first"
                )
            sure = seen <= self.seen and all(t.untyped_storage().resizable() for t in inputs)
            self.strangers = self.strangers or not sure
            return
        if self.batch is not None and batch != self.batch:
            self.dropped.add(self.epoch)
            self.epoch += 1
            self.seen, self.inputs, self.aliases = set(), [], []
        self.batch = batch
        self.seen |= seen
        self.inputs += inputs

    def reset(self) -> None:
        """Forget the batch and its gradients. Its tensors take part in nothing that follows (`guard`)."""
        self.epoch += 1
        self.batch, self.captures, self.dropped = None, 0, {COMPARED}
        self.parts, self.seeds, self.inputs, self.seen, self.strangers = {}, [], [], set(), False
        self.aliases, self.inner_seeds, self.output_seeds, self.trail, self.penalties = [], [], [], [], []
        self.divided = False
        self.problems.forget()

    def is_isolated(self) -> bool:
        """Return whether the whole model runs one example at a time."""
        return "" in self.plan

    @contextmanager
    def isolation(self) -> Iterator[None]:
        """A module runs on one example at a time; it may not touch tensors of the whole batch."""
        self.isolating = True
        try:
            yield
        finally:
            self.isolating = False

    # -- operations --------------------------------------------------------------------------------------------------

    guard: Guard

    @abstractmethod
    def handle(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any = None, *, own_rule: bool = True
    ) -> Any:
        """Carry out an operation on tensors of the batch."""

    def carry_out(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation without the rule that takes it over."""
        return self.handle(func, args, kwargs, own_rule=False)

    @abstractmethod
    def follows(self, value: Any) -> bool:
        """Return whether a value is a tensor of the current batch."""

    @abstractmethod
    def scan(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[tuple[Tensor, Tag]], list[Tensor]]:
        """Return the tagged tensors among the arguments, and the shared ones that lead to trainable parameters."""

    @abstractmethod
    def finish(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, tagged: list[tuple[Tensor, Tag]]) -> Any:
        """Tag the outputs of an operation that ran."""

    @abstractmethod
    def tag_outputs(self, out: Any, tag: Any, tagged: list[tuple[Tensor, Tag]]) -> None:
        """Say whose the entries of outputs are."""

    @abstractmethod
    def tap(self, out: Tensor, saved: Sequence[Tensor], make: Callable[[Tensor], Pairs]) -> Tensor:
        """When the gradient of `out` arrives, keep what `make` derives from it."""

    @abstractmethod
    def capture(self, pairs: Pairs, epoch: int) -> None:
        """Keep contributions to the gradients of parameters, or of tensors computed from them."""

    @abstractmethod
    def border(self, out: Tensor, upstream: list[Any]) -> Tensor:
        """Return the output of an isolated module; `upstream` are the nodes that made its inputs."""

    @abstractmethod
    def arrival(self, saved: Sequence[Tensor], make: Callable[[Tensor], Pairs]) -> Callable[[Tensor], None]:
        """Return what a node does with the gradient that arrives at it; see `tap`."""
