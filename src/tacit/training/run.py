"""The private run: a model, an optimizer and a data set, trained by the user's own loop.

One step is, in this order (Abadi et al. 2016, Algorithm 1):

1. the ledger gets the sampling event and every query of the step, and flushes them (a budget may refuse here);
2. the lot is drawn and handed out in physical batches; the user computes losses and calls ``loss.backward()``;
3. each batch's clipped gradients are added up; how the lot is cut into batches changes nothing but memory;
4. after the last batch the recorded noise is added, the sums are divided by the *expected* lot size, which is public,
   and the user's own optimizer takes its step. An empty lot goes the same way.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tacit.accounting import Guarantee, account
from tacit.gradients import Engine
from tacit.ledger import AdaptiveBudget, Budget, Ledger, Step
from tacit.mechanisms import AdaptiveClipping, Clipping
from tacit.randomness import SeededSource, Source
from tacit.sampling import EpochSampler, LotReader, Sampler, UserSampler
from tacit.training import checkpoint
from tacit.training.arithmetic import missing_kernels
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.block_file import keep_keys
from tacit.training.drawing import Drawing
from tacit.training.json_state import Stateful
from tacit.training.loop import Batches, Epoch, epochs
from tacit.training.lot import Lot
from tacit.training.lots import Lots
from tacit.training.rank_agreement import state_facts
from tacit.training.run_settings import RunSettings
from tacit.training.shards import ShardedSums
from tacit.training.statement import statement
from tacit.training.step_queries import StepQueryMaker
from tacit.training.sums import GradientSums
from tacit.training.tally import Metric
from tacit.training.team import Team
from tacit.training.trial import Trial
from tacit.training.updates import Updates
from tacit.training.watched_model import WatchedModel

log = logging.getLogger("tacit")


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
        sums: GradientSums,
        sampler: Sampler | UserSampler,
        reader: LotReader,
        settings: RunSettings,
        ledger: Ledger,
        source: Source,
        metrics: Mapping[str, Metric],
        budget: Budget | AdaptiveBudget | None,
        accountant: str,
        team: Team,
        public_buffers: Sequence[str] = (),
        until_closed: ExitStack,
        trial: Trial,
    ) -> None:
        self.model, self.optimizer, self.engine, self.sampler = model, optimizer, engine, sampler
        self._source, self.team, self._trial = source, team, trial
        self.settings, self.ledger, self.budget, self.accountant = settings, ledger, budget, accountant
        self.step, self.metrics = 0, dict[str, float]()
        layers = {f"statistics/{n}": m for n, m in model.named_modules() if isinstance(m, PrivateBatchNorm)}
        self._query_maker = StepQueryMaker(
            shapes=engine.shapes,
            sampler=sampler,
            metrics=metrics,
            layers=layers,
            adaptive=isinstance(budget, AdaptiveBudget),
        )
        self._sums, self._shards = sums, isinstance(sums, ShardedSums)
        self._watched = WatchedModel(model, public_buffers)
        self._loop: weakref.ref[Batches] | None = None
        self._lots = Lots(
            engine=engine,
            optimizer=optimizer,
            sums=sums,
            layers=layers,
            watched=self._watched,
            # With shards every forward and backward pass gathers parameters from all processes: equally many batches.
            drawing=Drawing(sampler, reader, source, team, trial, even=self._shards),
            trial=trial,
            source=source,
        )
        self._updates = Updates(optimizer, engine.parameters, self._take)
        self._attached, self._until_closed = True, until_closed

    # -- the loop ----------------------------------------------------------------------------------------------------

    def batches(self) -> Batches:
        """Batches of lot after lot, until the planned steps are taken or the next one would overrun the budget."""
        return Batches(self)

    def epochs(self) -> Iterator[Epoch]:
        """The same batches, epoch by epoch: ``for epoch in run.epochs(): for x, y in epoch: ...``.

        An epoch is as many lots as draw every record once on average. ``epoch.number`` counts from 0.
        """
        return epochs(self, whole_lots=isinstance(self.sampler, EpochSampler))

    def begin_loop(self, loop: Batches) -> None:
        """Note the loop that continues the run; an earlier loop, left between two lots, has ended."""
        before = self._loop() if self._loop is not None else None
        if before is not None and self.lot_finished:
            before.close()
        self._loop = weakref.ref(loop)

    @property
    def abandoned(self) -> int:
        """The number of lots that were drawn and charged but not released."""
        return self._lots.abandoned

    @property
    def _lot(self) -> Lot | None:
        return self._lots.current

    @property
    def steps(self) -> int:
        """The number of planned steps; `step` is the number of steps taken."""
        return self.settings.steps

    @property
    def lot_finished(self) -> bool:
        """True if the last batch ended its lot, so that ``optimizer.step()`` has acted; step a scheduler then."""
        return self._lot is None or self._lot.done

    @property
    def real_rows(self) -> int:
        """The number of rows of the current batch that are records, not padding (``max_lot_size``). Private."""
        return 0 if self._lot is None else self._lot.real

    @property
    def last_batch(self) -> bool:
        """True if the batch at hand is its lot's last, so that ``optimizer.step()`` releases the lot and acts."""
        return self._lot is not None and self._lot.last and not self._lot.done

    def lot(self) -> Iterator[Any]:
        """Yield the batches of one lot, for your own loop. Raises `BudgetExceeded` before a record is drawn."""
        if self._attached and self._lot is None:
            self._watched.buffers.check()
        yield from self.following_lot()

    def following_lot(self) -> Iterator[Any]:
        """Yield the batches of the next lot, if no other code ran since the last one ended and checked the buffers."""
        if not self._attached:
            raise RuntimeError("the run was closed; make a new one.")
        if self._lot is not None:
            raise RuntimeError("the previous lot is still being worked on; finish its batches first.")
        self._watched.weights.refuse_lost()
        queries = self._query_maker.at(self.step, self.settings)
        if self.abandoned and self.team.size > 1:
            raise RuntimeError("this process left a lot half-way and the others wait for it; resume from a checkpoint.")
        receipt = self.team.record(self.ledger, queries.step, lambda: state_facts(self))
        yield from self._lots.batches(Lot(receipt=receipt, queries=queries), self._updates, self.settings)

    def observe(self, **values: Tensor) -> None:
        """Report one value for each example of the current batch, for metrics declared in `make_private`."""
        if self._lot is None or self._lot.taken:
            raise RuntimeError("there is no batch to observe; call observe in the loop, before optimizer.step().")
        for name, rows in values.items():
            self._lot.observe(name, rows, self._trial if self._trial.running else None)

    @property
    def in_trial(self) -> bool:
        """True if the batch at hand is one of the first lot's trial, which counts for nothing (see `make_private`)."""
        return self._trial.running

    # -- one step ----------------------------------------------------------------------------------------------------

    def _take(self, closure: Callable[[], Any] | None) -> Any:
        """Return what ``optimizer.step()`` does: add up the batch; at the end of the lot, release and step."""
        if not self._attached:
            return self._updates.apply() if closure is None else self._updates.apply(closure)
        loss, metrics = self._lots.take(self._updates, closure)
        if metrics is not None:
            self.metrics |= metrics
            self.step += 1
        return loss

    # -- what it cost ------------------------------------------------------------------------------------------------

    @property
    def noise_multiplier(self) -> float:
        """z of the current step, or else of the next one, with all its queries together."""
        return (self.next_step() if self._lot is None else self._lot.receipt.step).noise_multiplier

    @property
    def contributions(self) -> int:
        """The largest number of examples that a record can bring to a lot."""
        return self._query_maker.contributions

    def next_step(self) -> Step:
        """Return the step that the ledger will record for the next lot, if no setting changes before."""
        self.between_steps()
        return self._query_maker.at(self.step, self.settings).step

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return the guarantee of all steps in the ledger, including those of other runs."""
        if delta is None:
            if self.budget is None:
                raise ValueError("give delta (for example 1e-5); the run has no budget to take it from.")
            delta = self.budget.delta
        return account(self.ledger, delta=delta, accountant=self.accountant, budget=self.budget)

    def statement(self, delta: float | None = None) -> str:
        """Return the guarantee in full sentences, for a report or a model card."""
        return statement(
            self.guarantee(delta),
            self.ledger,
            records=self.sampler.records,
            isolated=self.engine.isolated,
            missing=missing_kernels(self.model),
        )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path, **others: Stateful) -> None:
        """Write a checkpoint between two lots (see `tacit.training.checkpoint`).

        ``others`` are saved with it under their names: ``run.save(path, scheduler=scheduler)``. Their state must
        consist of plain values and tensors, and must not contain values of the records.
        """
        self.between_steps(saving=True)
        self._trial.put_back_schedule()
        self._watched.buffers.check()
        self._watched.weights.refuse_lost()
        content = checkpoint.collect(self, others) if self._shards else None
        self.team.first_does(lambda: checkpoint.save(content or checkpoint.collect(self, others), directory))
        keep_keys(self)

    def load(self, directory: str | Path, **others: Stateful) -> None:
        """Continue from a checkpoint, with the same ``others`` by name; steps recorded after it stay charged."""
        self.between_steps()
        self._watched.weights.put_back()  # if an interruption left something to undo, not what is loaded
        read = checkpoint.load(self, directory, others)
        self._watched.buffers.hold()
        self.team.agree("checkpoint", lambda: f"{state_facts(self)} {read}")

    def between_steps(self, *, saving: bool = False) -> None:
        """Raise an error in the middle of a lot; saving is allowed after a step of the trial, which changes nothing."""
        tried = saving and self._trial.running and self._lot is not None and self._lot.taken
        if self._lot is not None and not self._lot.done and not tried:
            raise RuntimeError("a lot is being worked on; save or load between lots, after optimizer.step().")

    def clipping(self) -> Clipping:
        """How the next lot is clipped."""
        return self._query_maker.clipping(self.step, self.settings)

    def clipping_state(self) -> dict[str, Any]:
        clipping = self.clipping()
        return clipping.state() if isinstance(clipping, AdaptiveClipping) else {}

    def renew_randomness(self) -> None:
        """Skip a seeded source's draws of the steps in the ledger, because it begins again with each process."""
        for source in (self._source, self._sums.source):
            if isinstance(source, SeededSource):
                source.branch(f"after {len(self.ledger)} steps")

    def close(self) -> None:
        """Give model and optimizer back as they were, and close a ledger that was given as a path."""
        if not self._attached:
            return
        self._trial.stop()
        if self.step >= self.steps:
            keep_keys(self)
        try:
            self._lots.close()
        finally:
            self._attached = False
            self.engine.detach()
            self._lots.forget()
            self._updates.restore()
            self._until_closed.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copies: a second run would draw and release what the ledger holds once."""
        raise TypeError("a PrivateRun cannot be pickled or copied; write a checkpoint with run.save(directory).")
