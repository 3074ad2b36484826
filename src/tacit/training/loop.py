"""Iterators for training loops: the batches of all lots, or those of one epoch after the other."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from tacit.ledger import BudgetExceeded
from tacit.training.open_run import OpenRun
from tacit.training.run_settings import RunSettings

log = logging.getLogger("tacit")


class Batches(Iterator[Any]):
    """Batches of lot after lot, until the planned steps are taken or the next one would overrun the budget.

    ``len`` is the number of lots, and so of steps, that are still to come. A lot may come in several batches; in how
    many is private, because it tells the lot's size. An iterator that has ended says so when a loop asks it again.
    """

    def __init__(self, run: OpenRun, lots: int | None = None) -> None:
        self._run, self._progress = run, _Progress(lots)
        self._batches = _read(run, self._progress)  # which does not hold this object: it ends as soon as a loop is left
        self._over = False

    def __iter__(self) -> Batches:
        if self._over:
            log.warning("this loop has no batches: the one before it used them all. %s", _REMEDY)
        return self

    def __next__(self) -> Any:
        if self._progress.end is None:
            self._run.begin_loop(self)
        try:
            return next(self._batches)
        except StopIteration:
            self._over = True
            raise

    def __len__(self) -> int:
        return max(0, self._progress.last(self._run) - self._run.step)

    @property
    def begun(self) -> bool:
        return self._progress.end is not None

    @property
    def stopped(self) -> bool:
        """True if the budget ended the training."""
        return self._progress.stopped

    def close(self) -> None:
        """Leave the loop; a lot that is half-way stays charged."""
        self._batches.close()


@dataclass
class _Progress:
    lots: int | None
    end: int | None = None  # the step at which it ends, once it has begun
    stopped: bool = False

    def last(self, run: OpenRun) -> int:
        if self.end is not None:
            return self.end
        return run.steps if self.lots is None else min(run.steps, run.step + self.lots)


def _read(run: OpenRun, progress: _Progress) -> Generator[Any]:
    end = progress.end = progress.last(run)
    if run.step >= run.steps:
        log.warning("this loop has no batches: the run has taken all its %d steps. %s", run.steps, _REMEDY)
    lot = run.lot
    while run.step < end:
        try:
            yield from lot()
            lot = run.following_lot
        except BudgetExceeded as error:
            progress.stopped = True
            log.warning("stopped after %d of %d steps: %s", run.step, run.steps, error)
            return


_REMEDY = (
    "For a loop over epochs write `for epoch in run.epochs(): for x, y in epoch: ...`; to train longer, make a run "
    "with more epochs= or steps=."
)


class Epoch(Batches):
    """The batches of one epoch: as many lots as draw every record once on average."""

    def __init__(self, run: OpenRun, lots: int, number: int) -> None:
        super().__init__(run, lots)
        self.number = number
        """Counted from 0, over resumptions too."""


def epochs(run: OpenRun, *, whole_lots: bool) -> Iterator[Epoch]:
    """Yield the epochs that are left; the first is the rest of one where a checkpoint was loaded in its middle."""
    ends = epoch_ends(run.settings, run.sampler.records, whole_lots=whole_lots)
    at = run.step
    if at >= run.steps:
        log.warning("this loop has no epochs: the run has taken all its %d steps. %s", run.steps, _REMEDY)
    for number, end in enumerate(ends):
        if end <= at:
            continue
        epoch = Epoch(run, end - at, number)
        yield epoch
        if epoch.begun:
            epoch.close()  # its loop may have been left early
        if epoch.stopped:
            return
        at = end


def epoch_ends(settings: RunSettings, records: int, *, whole_lots: bool) -> list[int]:
    """Return the step after which each epoch ends: the first at which its lots have as many records as the data set.

    With ``whole_lots`` an epoch is a partition of the records into lots, of which the last may be smaller.

    >>> from tacit import Flat
    >>> from tacit.mechanisms import Proportional
    >>> settings = RunSettings(steps=11, clipping=Flat, noise=Proportional, lot_size=lambda step: 11, batch_size=11)
    >>> epoch_ends(settings, 60, whole_lots=False), epoch_ends(settings, 24, whole_lots=True)
    ([6, 11], [3, 6, 9, 11])
    """
    ends, seen = [], 0
    for step in range(settings.steps):
        seen += settings.lot_size(step)
        if seen >= records:
            ends.append(step + 1)
            seen = 0 if whole_lots else seen - records
    return ends if ends and ends[-1] == settings.steps else [*ends, settings.steps]
