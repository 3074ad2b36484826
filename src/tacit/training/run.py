"""The private run: a model, an optimizer and a data set, trained by the user's own loop.

One step is, in this order (Abadi et al. 2016, Algorithm 1):

1. the ledger gets the sampling event and every query of the step, and flushes them (a budget may refuse here);
2. the lot is drawn and handed out in physical batches; the user computes losses and calls ``loss.backward()``;
3. each batch's clipped gradients are added up; how the lot is cut into batches changes nothing but memory;
4. after the last batch the recorded noise is added, the sums are divided by the *expected* lot size, which is public,
   and the user's own optimizer takes its step. A lot with nobody in it goes the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.accounting import Guarantee, account
from tacit.gradients import Engine
from tacit.gradients.layout import Layout
from tacit.gradients.traced import Traced
from tacit.ledger import AdaptiveBudget, Budget, BudgetExceeded, FixedSize, Ledger, Poisson, Receipt, Sampling, Step
from tacit.mechanisms import AdaptiveClipping, Allocation, Clipping, Strategy
from tacit.randomness import Integers, SeededSource, Source
from tacit.sampling import FixedSizeSampler, LotReader, PoissonSampler, Sampler, UserLot, UserSampler, batches
from tacit.training.adam import AdamBC
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.statement import statement
from tacit.training.tally import Metric, Tally

log = logging.getLogger("tacit")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run does at each step: functions of the step's number, fixed before the first release."""

    steps: int
    clipping: Callable[[int], Strategy]
    noise: Callable[[int], Allocation]
    lot_size: Callable[[int], int]
    batch_size: int
    microbatch_size: int = 1
    solved: float | None = None
    """The noise multiplier, where it was solved for; a resumed run keeps the one it began with."""


@dataclass
class _Lot:
    """The lot being worked on."""

    receipt: Receipt
    clipping: Clipping
    tallies: dict[str, Tally]
    expected: float
    size: int = 0  # of the current batch
    observed: set[str] = field(default_factory=set)
    first: bool = True
    last: bool = False
    taken: bool = False


class PrivateRun:
    """A private training run; made by `tacit.make_private`.

    Formal guarantee: every value that leaves the records of a lot (the gradient sum, the declared metrics, the
    normalisation statistics) is a query of the step recorded before the lot was drawn, bounded as recorded, with the
    recorded noise. All else is post-processing.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        sampler: Sampler | UserSampler,
        reader: LotReader,
        recipe: Recipe,
        ledger: Ledger,
        source: Source,
        metrics: Mapping[str, Metric],
        budget: Budget | AdaptiveBudget | None,
        accountant: str,
        public_buffers: Sequence[str] = (),
    ) -> None:
        self.model, self.optimizer, self.engine, self.sampler = model, optimizer, engine, sampler
        self.recipe, self.ledger, self.budget, self.accountant = recipe, ledger, budget, accountant
        self.step = 0
        self.metrics: dict[str, float] = {}
        self._reader, self._source, self._declared = reader, source, dict(metrics)
        self._layers = {f"statistics/{n}": m for n, m in model.named_modules() if isinstance(m, PrivateBatchNorm)}
        self._sums = {
            name: torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
            for name, parameter in engine.parameters.items()
        }
        self._gradients = {name: torch.empty_like(parameter) for name, parameter in engine.parameters.items()}
        self._buffers = {
            name: (buffer, buffer._version, buffer.clone())
            for name, buffer in _watched_buffers(model, public_buffers).items()
        }
        self._bound: tuple[Strategy, Clipping] | None = None
        self._lot: _Lot | None = None
        self._attached = True
        self._optimizer_step, self._plain_step = optimizer.step, "step" not in vars(optimizer)
        self._patched = MethodType(_step_of(self), optimizer)
        optimizer.step = self._patched  # type: ignore[method-assign]

    # -- the loop ----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Any]:
        """Batches of lot after lot, until the planned steps are taken or the next one would overrun the budget."""
        while self.step < self.recipe.steps:
            try:
                yield from self.lot()
            except BudgetExceeded as error:
                log.info("stopped after %d of %d steps: %s", self.step, self.recipe.steps, error)
                return

    def lot(self) -> Iterator[Any]:
        """The batches of one lot, for loops of one's own. Raises `BudgetExceeded` before anyone is drawn."""
        if not self._attached:
            raise RuntimeError("the run was closed; make a new one.")
        if self._lot is not None:
            raise RuntimeError("the previous lot is still being worked on; finish its batches first.")
        self._check_buffers()
        event, expected = self._event()
        noise = self.recipe.noise(self.step)
        clipping, tallies = self._clipping(), self._tallies(noise)
        others = [tally.event() for tally in tallies.values()]
        gradients = clipping.queries(noise.after(others) if others else noise)
        receipt = self.ledger.record(Step(event, (*gradients, *others)))
        drawn = self.sampler.draw(receipt)
        indices = drawn.indices if isinstance(drawn, UserLot) else self._rows_of(drawn)
        self._lot = _Lot(receipt, clipping, tallies, expected)
        rows = self.recipe.microbatch_size
        sizes = [len(piece) // rows for piece in batches(indices, self.recipe.batch_size)]
        try:
            for number, (size, batch) in enumerate(zip(sizes, self._reader.read(indices), strict=True), start=1):
                self._lot.size, self._lot.taken = size, False
                self._lot.first, self._lot.last = number == 1, number == len(sizes)
                self._lot.observed.clear()
                for layer in self._layers.values():
                    layer.forget()
                yield self.engine.trace(batch, size)
                if not self._lot.taken:
                    raise RuntimeError(
                        "optimizer.step() was not called for the last batch; call it after every batch, it acts once "
                        "a lot. (Leaving out a batch because of what is in it lets one record decide about others.)"
                    )
        finally:
            self._lot = None
            self.engine.discard()

    def _rows_of(self, records: Integers) -> Integers:
        """The examples of the drawn records: microbatch r holds the examples r·m to r·m + m - 1, fixed beforehand."""
        rows = self.recipe.microbatch_size
        return records if rows == 1 else (records[:, None] * rows + np.arange(rows)).reshape(-1)

    def observe(self, **values: Tensor) -> None:
        """Report one value for each example of the current batch, for metrics declared in `make_private`."""
        if self._lot is None or self._lot.taken:
            raise RuntimeError("there is no batch to observe; call observe in the loop, before optimizer.step().")
        for name, rows in values.items():
            if name not in self._declared:
                known = ", ".join(sorted(self._declared)) or "none"
                raise ValueError(f"metric {name!r} was not declared; make_private was given metrics: {known}.")
            if name in self._lot.observed:
                raise RuntimeError(
                    f"metric {name!r} was already observed for this batch; a record is counted, and charged for, once."
                )
            if rows.shape != (self._lot.size,):
                raise ValueError(
                    f"metric {name!r} has shape {tuple(rows.shape)}; give one number for each of the {self._lot.size} "
                    "examples of the batch."
                )
            if isinstance(rows, Traced) and not isinstance(rows._tag, Layout):
                raise ValueError(
                    f"metric {name!r} has values that depend on several examples; one record would count in all of "
                    "them. Give each example's own value, for example a loss with reduction='none'."
                )
            self._lot.observed.add(name)
            self._lot.tallies[f"metrics/{name}"].add(rows.detach().as_subclass(Tensor))

    # -- one step ----------------------------------------------------------------------------------------------------

    def _take(self, closure: Callable[[], Any] | None) -> Any:
        """What ``optimizer.step()`` does: add up the batch; at the end of the lot, release and step."""
        if not self._attached:
            return self._optimizer_step() if closure is None else self._optimizer_step(closure)
        if self._lot is None:
            raise RuntimeError(
                "optimizer.step() was called outside run.batches(): there is no lot to take a step with."
            )
        if self._lot.taken:
            raise RuntimeError("optimizer.step() was called twice for one batch.")
        loss = None
        if closure is not None:
            # Once, before the noise: evaluated after it, the closure would put raw gradients in its place.
            with torch.enable_grad():
                loss = closure()
        if self.engine.batch_size != self._lot.size:
            raise ValueError(
                f"the model saw {self.engine.batch_size} examples but the batch has {self._lot.size} records; one "
                "record would count several times. Say where the examples are with batch_dim, and let collate give "
                "one row for each record."
            )
        self._check_buffers()
        # Taken from here on: after a failure half-way the batch must not be added a second time.
        self._lot.taken = True
        self.engine.clipped_sum(self._lot.clipping, out=self._sums, overwrite=self._lot.first)
        for name, layer in self._layers.items():
            self._lot.tallies[name].add(layer.collect(self._lot.size))
        if self._lot.last:
            self._release(self._lot)
        return loss

    def _release(self, lot: _Lot) -> None:
        self._refuse_raw_gradients()
        with torch.no_grad():
            lot.clipping.release_(lot.receipt, self._sums, self._source)
            for name, parameter in self.engine.parameters.items():
                # Memory that is kept: after zero_grad() a new gradient would be new pages at every step.
                gradient = self._gradients[name]
                if gradient.dtype == self._sums[name].dtype:
                    torch.div(self._sums[name], lot.expected, out=gradient)
                else:
                    gradient.copy_(self._sums[name].div_(lot.expected))
                parameter.grad = gradient
            for name, tally in lot.tallies.items():
                mean = tally.mean(lot.receipt, self._source, lot_size=lot.expected)
                if name in self._layers:
                    self._layers[name].update(mean)
                else:
                    self.metrics[name.removeprefix("metrics/")] = float(mean)
        if isinstance(self.optimizer, AdamBC):
            self.optimizer.expect_noise(self._noise_stds(lot))
        self._optimizer_step()
        self.step += 1

    def _check_buffers(self) -> None:
        """A buffer that a forward pass writes would carry what it saw out of the run, without noise."""
        for name, (buffer, version, copy) in self._buffers.items():
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
                self._buffers[name] = (buffer, buffer._version, copy)
                raise RuntimeError(
                    f"buffer {name!r} changed while training and was put back: it would carry statistics of the "
                    "records without noise. Use tacit.private_batch_norm, put such layers in eval mode, or list the "
                    "buffer in public_buffers if what is written to it does not depend on the records."
                )

    def _refuse_raw_gradients(self) -> None:
        """Whatever else the optimizer holds must not bring a gradient: nobody has added noise to it."""
        own = {id(parameter) for parameter in self.engine.parameters.values()}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in own:
                    raise RuntimeError(
                        f"the optimizer holds a parameter of shape {tuple(parameter.shape)} with a gradient that is "
                        "not private; call optimizer.zero_grad() before the run, and make a new run when other "
                        "parameters are to be trained."
                    )

    def _noise_stds(self, lot: _Lot) -> dict[Tensor, float]:
        """The standard deviation of the noise on each parameter's mean gradient: public."""
        stds = {query.group: query.noise_std for query in lot.receipt.step.queries if hasattr(query, "noise_std")}
        return {
            self.engine.parameters[name]: vector.scale * stds[group.name] / lot.expected
            for group in lot.clipping.groups
            for vector in group.vectors
            for name in vector.names
        }

    def _clipping(self) -> Clipping:
        strategy = self.recipe.clipping(self.step)
        if self._bound is None or self._bound[0] != strategy:
            bound = strategy.bind(self.engine.shapes, lot_size=self.recipe.lot_size(self.step))
            self._bound = (strategy, bound.repeated(self.contributions) if self.contributions > 1 else bound)
        return self._bound[1]

    @property
    def contributions(self) -> int:
        """How many examples a record can bring to a lot."""
        return self.sampler.most if isinstance(self.sampler, UserSampler) else 1

    def _tallies(self, noise: Allocation) -> dict[str, Tally]:
        share = getattr(noise, "noise_multiplier", None)
        tallies = {
            f"metrics/{name}": Tally(
                f"metrics/{name}",
                bound=metric.bound,
                noise_multiplier=metric.noise_multiplier,
                step_noise=share,
                contributions=self.contributions,
            )
            for name, metric in self._declared.items()
        }
        return tallies | {name: layer.tally(name, share, self.contributions) for name, layer in self._layers.items()}

    def _event(self) -> tuple[Sampling, float]:
        """The sampling event of the next step and its expected lot size."""
        size, first = self.recipe.lot_size(self.step), self.recipe.lot_size(0)
        if size == first:
            return self.sampler.event(), self.sampler.expected
        event: Poisson | FixedSize
        if isinstance(self.sampler, PoissonSampler):
            event = self.sampler.at(size / self.sampler.records)
        elif isinstance(self.sampler, FixedSizeSampler):
            event = self.sampler.at(size)
        else:
            raise ValueError("the lot size can change from step to step with Poisson or fixed-size sampling only.")
        return event, float(size)

    # -- what it cost ------------------------------------------------------------------------------------------------

    @property
    def noise_multiplier(self) -> float:
        """z of the step as a whole, the current one or else the next, all its queries taken together."""
        if self._lot is not None:
            return self._lot.receipt.step.noise_multiplier
        noise = self.recipe.noise(self.step)
        others = [tally.event() for tally in self._tallies(noise).values()]
        queries = self._clipping().queries(noise.after(others) if others else noise)
        return Step(self._event()[0], (*queries, *others)).noise_multiplier

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """What everything in the ledger costs so far, other runs on the same ledger included."""
        if delta is None:
            if self.budget is None:
                raise ValueError("give delta (for example 1e-5); the run has no budget to take it from.")
            delta = self.budget.delta
        return account(self.ledger, delta=delta, accountant=self.accountant)

    def statement(self, delta: float | None = None) -> str:
        """The guarantee in full sentences, for a report or a model card."""
        return statement(self.guarantee(delta), self.ledger, records=self.sampler.records)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint between two lots (see `tacit.training.checkpoint`)."""
        from tacit.training.checkpoint import save

        save(self, directory)

    def load(self, directory: str | Path) -> None:
        """Continue from a checkpoint; steps recorded after it stay charged."""
        from tacit.training.checkpoint import load

        load(self, directory)

    def between_steps(self) -> None:
        """Refuse what may only happen between lots."""
        if self._lot is not None and not (self._lot.last and self._lot.taken):
            raise RuntimeError("a lot is being worked on; save or load between lots, after optimizer.step().")

    def clipping_state(self) -> dict[str, Any]:
        clipping = self._clipping()
        return clipping.state() if isinstance(clipping, AdaptiveClipping) else {}

    def restore_clipping(self, state: dict[str, Any]) -> None:
        clipping = self._clipping()
        if isinstance(clipping, AdaptiveClipping):
            clipping.restore(state)

    def restore_noise(self, noise_multiplier: float) -> None:
        """Go on with the noise that was solved for when the run began; the budget is watched over all the same."""
        if self.recipe.solved is not None:
            kind: Any = type(self.recipe.noise(0))
            self.recipe = replace(self.recipe, noise=lambda step: kind(noise_multiplier), solved=noise_multiplier)

    def renew_randomness(self) -> None:
        """A seeded source begins again with each process; what the ledger has seen must not be drawn again."""
        if isinstance(self._source, SeededSource):
            self._source.branch(f"after {len(self.ledger)} steps")

    def close(self) -> None:
        """Leave model and optimizer as they were found; the ledger stays open."""
        if self._attached:
            self._attached = False
            self.engine.detach()
            if vars(self.optimizer).get("step") is self._patched:
                # A scheduler made meanwhile may have wrapped our step: then ours stays, and passes everything on.
                if self._plain_step:
                    del self.optimizer.__dict__["step"]
                else:
                    self.optimizer.step = self._optimizer_step  # type: ignore[method-assign]


def _watched_buffers(model: nn.Module, public: Sequence[str]) -> dict[str, Tensor]:
    """The buffers that must not change: all but those of `PrivateBatchNorm`, which are released, and public ones."""
    own = {id(buffer) for m in model.modules() if isinstance(m, PrivateBatchNorm) for buffer in m.buffers()}
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if id(buffer) not in own and not any(fnmatchcase(name, pattern) for pattern in public)
    }


def _step_of(run: PrivateRun) -> Callable[..., Any]:
    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return run._take(closure)

    if hasattr(run.optimizer.step, "_wrapped_by_lr_sched"):
        # A scheduler made before the run looks for this mark on the step, and warns when it is gone.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
