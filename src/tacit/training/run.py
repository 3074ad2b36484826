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
from dataclasses import replace
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
from tacit.training.adam import AdamBC
from tacit.training.arithmetic import missing_kernels
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.block_file import keep_keys
from tacit.training.buffers import WatchedBuffers
from tacit.training.clip_notice import clipping_noticed
from tacit.training.drawing import Drawing
from tacit.training.first_rows import FirstRows
from tacit.training.json_state import Stateful
from tacit.training.loop import Batches, Epoch, epochs
from tacit.training.lot import Lot
from tacit.training.malloc_tuning import freed_memory_kept
from tacit.training.parameters import WatchedParameters
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
        self.settings, self.ledger, self.budget, self.accountant = settings, ledger, budget, accountant
        self.step, self.abandoned = 0, 0
        self.metrics: dict[str, float] = {}
        self._source, self.team = source, team
        self._layers = {f"statistics/{n}": m for n, m in model.named_modules() if isinstance(m, PrivateBatchNorm)}
        self._query_maker = StepQueryMaker(
            shapes=engine.shapes,
            sampler=sampler,
            metrics=metrics,
            layers=self._layers,
            adaptive=isinstance(budget, AdaptiveBudget),
        )
        self._sums, self._shards = sums, isinstance(sums, ShardedSums)
        self._buffers, self._weights = WatchedBuffers(model, public_buffers), WatchedParameters(model)
        self._trial = trial
        # With shards every forward and backward pass gathers parameters from all processes: equally many batches.
        self._drawing = Drawing(sampler, reader, source, team, trial, even=self._shards)
        self._lot: Lot | None = None
        self._loop: weakref.ref[Batches] | None = None
        self._attached = True
        self._updates = Updates(optimizer, engine.parameters, self._take)
        self._until_closed = until_closed
        until_closed.enter_context(clipping_noticed(engine.parameters.values()))
        if not self._shards:  # parameters are cut up where memory is short: what is gathered must be given back
            self._until_closed.enter_context(freed_memory_kept())

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
        """Note the loop that goes on with the run; one that was left between two lots, and is still held, has ended."""
        before = self._loop() if self._loop is not None else None
        if before is not None and self.lot_finished:
            before.close()
        self._loop = weakref.ref(loop)

    @property
    def steps(self) -> int:
        """How many steps are planned; `step` is how many are taken."""
        return self.settings.steps

    @property
    def lot_finished(self) -> bool:
        """True if the last batch ended its lot, so that ``optimizer.step()`` has acted: the time for a scheduler's."""
        return self._lot is None or self._lot.done

    @property
    def real_rows(self) -> int:
        """How many rows of the batch at hand are records; the rest fill it up (``max_lot_size``). Private."""
        return 0 if self._lot is None else self._lot.real

    @property
    def last_batch(self) -> bool:
        """True if the batch at hand is its lot's last, so that ``optimizer.step()`` releases the lot and acts."""
        return self._lot is not None and self._lot.last and not self._lot.done

    def lot(self) -> Iterator[Any]:
        """The batches of one lot, for loops of one's own. Raises `BudgetExceeded` before anyone is drawn."""
        if self._attached and self._lot is None:
            self._buffers.check()
        yield from self.following_lot()

    def following_lot(self) -> Iterator[Any]:
        """The batches of the next lot where nothing ran since the last one ended, which has looked at the buffers."""
        if not self._attached:
            raise RuntimeError("the run was closed; make a new one.")
        if self._lot is not None:
            raise RuntimeError("the previous lot is still being worked on; finish its batches first.")
        self._weights.refuse_lost()
        queries = self._query_maker.at(self.step, self.settings)
        if self.abandoned and self.team.size > 1:
            raise RuntimeError("a lot was left half-way in this process; the others cannot go on without it. Resume.")
        receipt = self.team.record(self.ledger, queries.step, lambda: state_facts(self))
        lot = self._lot = Lot(receipt=receipt, queries=queries)
        left_as_found = False
        try:
            self._sums.clear()
            self._updates.begin_lot()
            for batch in self._drawing.batches(lot.receipt, self.settings):
                lot.turn(batch.rows, real=batch.real, last=batch.last)
                for layer in self._layers.values():
                    layer.expect()
                self._weights.hold()
                yield self.engine.trace(batch.data, batch.rows)
                lot.check_taken(backward_run=self.engine.ready)
            self._buffers.check()  # the model may have seen the last batch once more, after its step
            left_as_found = lot.done
        finally:
            if self._attached:  # else it was forgotten by `close`, and the model may be in another run by now
                self._forget_lot()
            if not lot.done:
                self.abandoned += 1
                log.warning("a lot was drawn but its step not completed; it stays charged (%d so far)", self.abandoned)
            if not left_as_found:
                try:
                    self._undo_writes()
                except BaseException:  # an impatient Ctrl-C
                    self._undo_writes()
                    raise

    def _forget_lot(self) -> None:
        """Drop every exact value of the records: their gradients, sums and statistics."""
        self._lot = None
        for layer in self._layers.values():
            layer.forget()
        self._sums.clear()
        self.engine.discard()

    def _undo_writes(self) -> None:
        """Undo what a lot that was left half-way wrote into the model (which is the caller's own after `close`)."""
        if not self._attached:
            return
        try:
            changed = self._buffers.put_back()
        finally:
            weights = self._weights.put_back()
        changed += weights
        if changed:
            lost = self._weights.what_is_lost()
            log.warning("%s changed in a lot that was not completed; that was undone%s", ", ".join(changed), lost)

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
        lot = self._lot
        if lot is None:
            raise RuntimeError(
                "optimizer.step() was called outside run.batches(): there is no lot to take a step with."
            )
        if lot.taken:
            raise RuntimeError("optimizer.step() was called twice for one batch.")
        loss = None
        if closure is not None:
            # Once, before the noise: evaluated after it, the closure would put raw gradients in its place.
            with torch.enable_grad():
                loss = closure()
        if self.engine.batch_size != lot.size:
            raise ValueError(
                "the model saw another number of examples than the batch has records; one record would count several "
                "times, or not at all. Say where the examples are with batch_dim, and let collate_fn give one row for "
                "each record."
            )
        lot.check_observed()
        # Taken from here on: after a failure half-way the batch must not be added a second time, nor at all where the
        # model was written to, since each example's gradient then depends on the others.
        lot.taken = True
        if lot.last and not self._trial.running:
            self._sums.draw_ahead(lot.receipt, self._source, lot_size=lot.queries.lot_size)
        try:
            self._buffers.check()
        finally:
            self._weights.check()
        if self._trial.running:
            self._trial.measure()
            for layer in self._layers.values():
                layer.forget()
            return loss
        clipping = lot.queries.clipping
        self._sums.add(self.engine, clipping if lot.real == lot.size else FirstRows(clipping, lot.real))
        for name, layer in self._layers.items():
            lot.queries.tallies[name].add(layer.collect(lot.size)[: lot.real])
        self._updates.compare_rates()
        if lot.last:
            self._release(lot)
        return loss

    def _release(self, lot: Lot) -> None:
        self._updates.refuse_raw_gradients()
        receipt, clipping, size = lot.receipt, lot.queries.clipping, lot.queries.lot_size
        if isinstance(self.optimizer, AdamBC):
            self.optimizer.expect_noise(self._sums.noise(receipt, clipping, lot_size=size))
        with torch.no_grad():
            self._sums.release(receipt, clipping, self._source, lot_size=size)
            for name, tally in lot.queries.tallies.items():
                mean = tally.mean(receipt, self._source, lot_size=size)
                if name in self._layers:
                    self._layers[name].update(mean)
                else:
                    self.metrics[name.removeprefix("metrics/")] = float(mean)
        self._updates.apply()
        self.step += 1
        lot.done = True

    # -- what it cost ------------------------------------------------------------------------------------------------

    @property
    def noise_multiplier(self) -> float:
        """z of the step as a whole, the current one or else the next, all its queries taken together."""
        return (self.next_step() if self._lot is None else self._lot.receipt.step).noise_multiplier

    @property
    def contributions(self) -> int:
        """How many examples a record can bring to a lot."""
        return self._query_maker.contributions

    def next_step(self) -> Step:
        """Return what will be recorded for the next lot, if nothing changes before."""
        self.between_steps()
        return self._query_maker.at(self.step, self.settings).step

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return what everything in the ledger costs so far, other runs on the same ledger included."""
        if delta is None:
            if self.budget is None:
                raise ValueError("give delta (for example 1e-5); the run has no budget to take it from.")
            delta = self.budget.delta
        return account(self.ledger, delta=delta, accountant=self.accountant, budget=self.budget)

    def statement(self, delta: float | None = None) -> str:
        """The guarantee in full sentences, for a report or a model card."""
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

        ``others`` are saved with it under their names: ``run.save(path, scheduler=scheduler)``. Their state must be
        made of plain values and tensors, and of nothing the records could be read from.
        """
        self.between_steps(saving=True)
        self._trial.put_back_schedule()
        self._buffers.check()
        self._weights.refuse_lost()
        content = checkpoint.collect(self, others) if self._shards else None
        self.team.first_does(lambda: checkpoint.save(content or checkpoint.collect(self, others), directory))
        keep_keys(self)

    def load(self, directory: str | Path, **others: Stateful) -> None:
        """Continue from a checkpoint, with the same ``others`` by name; steps recorded after it stay charged."""
        self.between_steps()
        self._weights.put_back()  # if an interruption left something to undo, not what is loaded
        read = checkpoint.load(self, directory, others)
        self._buffers.hold()
        self.team.agree("checkpoint", lambda: f"{state_facts(self)} {read}")

    def between_steps(self, *, saving: bool = False) -> None:
        """Refuse what may only happen between lots; saving also after a step of the trial, which changes nothing."""
        tried = saving and self._trial.running and self._lot is not None and self._lot.taken
        if self._lot is not None and not self._lot.done and not tried:
            raise RuntimeError("a lot is being worked on; save or load between lots, after optimizer.step().")

    def clipping(self) -> Clipping:
        """How the next lot is clipped."""
        return self._query_maker.clipping(self.step, self.settings)

    def clipping_state(self) -> dict[str, Any]:
        clipping = self.clipping()
        return clipping.state() if isinstance(clipping, AdaptiveClipping) else {}

    def restore_clipping(self, state: dict[str, Any]) -> None:
        clipping = self.clipping()
        if isinstance(clipping, AdaptiveClipping):
            clipping.restore(state)

    def restore_noise(self, noise_multiplier: float) -> None:
        """Go on with the noise that was solved for when the run began; the budget is watched over all the same."""
        if self.settings.solved is not None:
            assert self.settings.allocate is not None
            noise = self.settings.allocate(noise_multiplier)
            self.settings = replace(self.settings, noise=lambda step: noise, solved=noise_multiplier)

    def renew_randomness(self) -> None:
        """A seeded source begins again with each process; what the ledger has seen must not be drawn again."""
        for source in (self._source, self._sums.source):
            if isinstance(source, SeededSource):
                source.branch(f"after {len(self.ledger)} steps")

    def close(self) -> None:
        """Leave model and optimizer as they were found, and close a ledger that was given as a path."""
        if not self._attached:
            return
        self._trial.stop()
        if self.step >= self.steps:
            keep_keys(self)
        try:
            if self._lot is not None:
                self._undo_writes()
            self._weights.put_back()
        finally:
            self._attached = False
            self.engine.detach()
            self._forget_lot()
            self._updates.restore()
            self._until_closed.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copies: a second run would draw and release what the ledger holds once."""
        raise TypeError("a PrivateRun cannot be pickled or copied; write a checkpoint with run.save(directory).")
