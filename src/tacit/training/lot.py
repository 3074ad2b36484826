"""The lot being worked on, from its record in the ledger to its release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.gradients.layout import Layout
from tacit.gradients.traced import Traced
from tacit.ledger import Receipt
from tacit.training.step_queries import StepQueries

if TYPE_CHECKING:
    from tacit.training.trial import Trial


@dataclass(kw_only=True)
class Lot:
    """A lot: its receipt, and how far its batches have come. The number of its records is private."""

    receipt: Receipt
    queries: StepQueries
    size: int = 0  # of the current batch
    real: int = 0  # its first rows that are records; the rest fill it up, with weight zero
    observed: set[str] = field(default_factory=set)
    last: bool = False  # the current batch is the last one
    taken: bool = False  # the current batch is in the sums
    done: bool = False  # released, and the step taken

    def turn(self, size: int, *, real: int, last: bool) -> None:
        """Go on to the next batch."""
        self.size, self.real, self.last, self.taken = size, real, last, False
        self.observed.clear()

    def check_taken(self, *, backward_run: bool) -> None:
        """Refuse to go on to the next batch when ``optimizer.step()`` was not called for this one."""
        if self.taken:
            return
        if backward_run:
            raise RuntimeError(
                "optimizer.step() was not called after loss.backward(). If this is gradient accumulation (a step every "
                "k batches), take it out: call optimizer.step() and optimizer.zero_grad() after every batch, and do "
                "not divide the loss by k. The step is taken once a lot: lot_size= is how many records it has, and "
                "batch_size= how many of them are in memory at once."
            )
        raise RuntimeError(
            "optimizer.step() was not called for the last batch; call it after every batch, it acts once a lot. (If "
            "the loop leaves out a batch because of its records, one record decides about others.)"
        )

    def check_observed(self) -> None:
        """Refuse to release a metric that misses some batches of the lot."""
        declared = {name.removeprefix("metrics/") for name in self.queries.tallies if name.startswith("metrics/")}
        missing = sorted(declared - self.observed)
        if missing:
            raise RuntimeError(
                f"metric {', '.join(map(repr, missing))} was declared but not observed for this batch; call "
                f"run.observe({missing[0]}=...) for every batch before optimizer.step(), or leave it out of metrics."
            )

    def observe(self, name: str, rows: Tensor, trial: Trial | None) -> None:
        """Add one value for each example of the batch to a metric; in a trial, hand it over to be compared."""
        tallies, group = self.queries.tallies, f"metrics/{name}"
        if group not in tallies:
            known = ", ".join(sorted(each.removeprefix("metrics/") for each in tallies if each.startswith("metrics/")))
            raise ValueError(f"metric {name!r} was not declared; make_private was given metrics: {known or 'none'}.")
        if name in self.observed:
            raise RuntimeError(
                f"metric {name!r} was already observed for this batch; call run.observe once for each batch."
            )
        if rows.shape != (self.size,):
            what = "another length than the batch" if rows.ndim == 1 else f"{rows.ndim} dimensions instead of one"
            raise ValueError(f"metric {name!r} has {what}; give one number for each example of the batch.")
        if isinstance(rows, Traced):
            _check_rows(name, rows, self.size)
        self.observed.add(name)
        values = rows.detach().as_subclass(Tensor)
        if trial is not None:
            trial.observe(name, values[_order(rows)])
        else:
            tallies[group].add(values if self.real == self.size else values[_order(rows)][: self.real])


def _order(rows: Tensor) -> Tensor:
    """The places of the examples' values, example by example."""
    owner = rows._tag.owner if isinstance(rows, Traced) and isinstance(rows._tag, Layout) else None
    return torch.arange(len(rows), device=rows.device) if owner is None else owner.argsort()


def _check_rows(name: str, rows: Traced, size: int) -> None:
    """Refuse values unless each example of this batch has exactly one: the sum's sensitivity is that of one row."""
    layout = rows._tag
    if not isinstance(layout, Layout):
        raise ValueError(
            f"metric {name!r} has values that depend on several examples; one record would count in all of "
            "them. Give each example's own value, for example a loss with reduction='none'."
        )
    if not rows._recorder.follows(rows):
        raise ValueError(f"metric {name!r} has values of an earlier batch; a record would count in several batches.")
    once = layout.dim == 0 and rows._recorder.batch == size
    if layout.owner is None:
        once = once and layout.inner == 1
    else:
        once = once and torch.equal(layout.owner.sort().values, torch.arange(size, device=layout.owner.device))
    if not once:
        raise ValueError(
            f"metric {name!r} has several values of one example and none of another; one record would count several "
            "times. Give each example's own value once, in any order."
        )
