"""One lot after the other: hand out its batches, add them up, release the sums, take the optimizer's step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tacit.gradients import Engine
from tacit.randomness import Source
from tacit.training.adam import AdamBC
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.drawing import Drawing
from tacit.training.first_rows import FirstRows
from tacit.training.lot import Lot
from tacit.training.run_settings import RunSettings
from tacit.training.sums import GradientSums
from tacit.training.trial import Trial
from tacit.training.updates import Updates
from tacit.training.watched_model import WatchedModel

log = logging.getLogger("tacit")


class Lots:
    """Works through a lot that the ledger holds, and turns it into one step of the optimizer.

    Formal guarantee: what leaves is the sums of the recorded queries, each bounded as recorded and released once, with
    the recorded noise, divided by the expected lot size.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        sums: GradientSums,
        layers: Mapping[str, PrivateBatchNorm],
        watched: WatchedModel,
        drawing: Drawing,
        trial: Trial,
        source: Source,
    ) -> None:
        self.current: Lot | None = None
        self.abandoned = 0
        """The number of lots that were drawn and charged but not released."""
        self.open = True
        self._engine, self._optimizer, self._sums, self._layers = engine, optimizer, sums, layers
        self._watched, self._drawing, self._trial, self._source = watched, drawing, trial, source

    def batches(self, lot: Lot, updates: Updates, settings: RunSettings) -> Iterator[Any]:
        """Yield the lot's batches; whatever happens, nothing of the records is kept after the last."""
        self.current = lot
        left_as_found = False
        try:
            self._sums.clear()
            updates.begin_lot()
            for batch in self._drawing.batches(lot.receipt, settings):
                lot.turn(batch.rows, real=batch.real, last=batch.last)
                for layer in self._layers.values():
                    layer.expect()
                self._watched.weights.hold()
                yield self._engine.trace(batch.data, batch.rows)
                lot.check_taken(backward_run=self._engine.ready)
            self._watched.buffers.check()  # the model may have seen the last batch once more, after its step
            left_as_found = lot.done
        finally:
            if self.open:  # else it was forgotten by `close`, and the model may be in another run by now
                self.forget()
            if not lot.done:
                self.abandoned += 1
                log.warning(
                    "a lot was drawn but its step not completed; it stays charged (such lots so far: %d)",
                    self.abandoned,
                )
            if not left_as_found and self.open:
                self._watched.undo()

    def forget(self) -> None:
        """Drop every exact value of the records: their gradients, sums and statistics."""
        self.current = None
        for layer in self._layers.values():
            layer.forget()
        self._sums.clear()
        self._engine.discard()

    def close(self) -> None:
        """Restore the model's state from before the lot."""
        try:
            if self.current is not None:
                self._watched.undo()
            self._watched.weights.put_back()
        finally:
            self.open = False

    def take(self, updates: Updates, closure: Callable[[], Any] | None) -> tuple[Any, dict[str, float] | None]:
        """Do the work of ``optimizer.step()``: add up the batch and, after the lot's last one, release and step.

        Returns the closure's loss, and the metrics that were released: None before the lot's last batch.
        """
        lot = self.current
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
        if self._engine.batch_size != lot.size:
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
        self._watched.check()
        if self._trial.running:
            self._trial.measure()
            for layer in self._layers.values():
                layer.forget()
            return loss, None
        clipping = lot.queries.clipping
        self._sums.add(self._engine, clipping if lot.real == lot.size else FirstRows(clipping, lot.real))
        for name, layer in self._layers.items():
            lot.queries.tallies[name].add(layer.collect(lot.size)[: lot.real])
        updates.compare_rates()
        return loss, self._release(lot, updates) if lot.last else None

    def _release(self, lot: Lot, updates: Updates) -> dict[str, float]:
        updates.refuse_raw_gradients()
        receipt, clipping, size = lot.receipt, lot.queries.clipping, lot.queries.lot_size
        metrics = {}
        if isinstance(self._optimizer, AdamBC):
            self._optimizer.expect_noise(self._sums.noise(receipt, clipping, lot_size=size))
        with torch.no_grad():
            self._sums.release(receipt, clipping, self._source, lot_size=size)
            for name, tally in lot.queries.tallies.items():
                mean = tally.mean(receipt, self._source, lot_size=size)
                if name in self._layers:
                    self._layers[name].update(mean)
                else:
                    metrics[name.removeprefix("metrics/")] = float(mean)
        updates.apply()
        lot.done = True
        return metrics
