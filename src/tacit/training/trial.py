"""The trial: run the first lot's loop on a few records together and in parts, and compare each record's result.

The engine follows every operation on the batch, but only what PyTorch shows it. A loop can still let records influence
each other before the model, or through the batch's size: a loss divided by ``len(x)`` entry by entry, a mean of a NumPy
copy, padding to the longest, a size that data decided. The library cannot run such code again, because it does not own
the loop. So the first lot of at least four records begins with three batches that count for nothing: a few of its
records, which are charged already, together (W) and in two parts (A and B), each part in reversed order. Every record's
gradient norm for every parameter, every observed value, and the sum of the gradients over W against those over A and B
must agree. Nothing of these batches stays: no gradient, no statistics, no buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients import Engine
from tacit.gradients.guard.model_copies import HIDDEN_DROPOUT
from tacit.gradients.guard.run_in_parts import MOST
from tacit.gradients.guard.standing_still import Still, seeded
from tacit.randomness import Integers
from tacit.sampling import LotReader
from tacit.training.buffers import WatchedBuffers
from tacit.training.collated_rows import NotRows, Rows, describe
from tacit.training.schedulers import KeptSchedule
from tacit.training.still_in_loop import StillInLoop
from tacit.training.trial_parts import Part, difference, own_differences

log = logging.getLogger("tacit")

FEWEST = 4
"""The fewest records of a lot that is tried."""

CANDIDATES = 64
"""The largest number of records of the first batch among which the trial chooses."""

_ROWS = (
    "the collate function gives a record different rows in different batches (it pads to the longest of the batch, "
    "say), and "
)

_FOUND = (
    "{} in the first lot, when a few of its records were run together and in two parts: one record can then change "
    "the others' gradients, which the clip norm does not bound. Compute every example's loss, and every observed "
    "value, from that example and constants alone. Usual causes, with their remedies: losses divided by len(x) one by "
    "one (take the mean of all losses at once, F.cross_entropy(…) or each.mean()); penalties divided by "
    "len(x) (divide by a constant); statistics of the batch taken before the model, of a copy or by way of NumPy (use "
    "constants); padding to the longest of the batch (pad to a "
    "fixed length with tacit.data.pad_to(length) as the collate function, pack the sequences, or give the model an "
    "attention mask that it honours); sizes that data decide, x[mask].shape[0] or F.one_hot(y) (give num_classes)."
)

_RANDOM = (
    "the trial could not compare the gradients of the first lot with those of its parts, because the loop is random: "
    "the same records had different gradients in a second run. So the trial cannot find records that influence each "
    "other before the model, or through the batch's size."
)

_NEIGHBOURS = (
    "the collate function gives a record a row that depends on the other records of the batch (padding to the longest, "
    "say). The gradients of the first lot did not change with it; a fixed length (tacit.data.pad_to) makes sure that "
    "those of later lots do not either."
)

_RANDOM_ROWS = (
    "the collate function is random, so that a record's row beside other records could not be compared with the one it "
    "has here; the rows of the first lot were compared as they are. Make each row from its record alone."
)

_SHARDED = (
    "the parameters are sharded: the gradients of the first lot are not compared with those of its parts, for which "
    "the processes would have to stay in step. Try the loop once in one process."
)


class Unclipped:
    """Returns every gradient unclipped."""

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return [(name,) for name in shapes]

    def weights(self, norms: Tensor) -> Tensor:
        return torch.ones_like(norms)


class Trial:
    """Compares the first lot's gradients with those of its parts; once a run.

    Formal guarantee: it looks only at records of a lot that the ledger holds, releases nothing but an error or a
    warning, and leaves sums, statistics, parameters and buffers as they were.
    """

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        wanted: bool,
        sharded: bool,
        rows: Rows,
    ) -> None:
        self._engine, self._model, self._optimizer = engine, model, optimizer
        self._wanted, self._sharded, self._rows = wanted, sharded, rows
        self._part: Part | None = None
        self._still: Still | None = None
        self._buffers: WatchedBuffers | None = None
        self._schedule: KeptSchedule | None = None
        self._sums: dict[str, Tensor] = {}
        """W - A - B, parameter by parameter."""

    @property
    def running(self) -> bool:
        """True if the current batch belongs to the trial."""
        return self._part is not None

    def batches(self, reader: LotReader, lot: Integers, batch_size: int) -> Iterator[tuple[int, Any]]:
        """Yield (records, batch) for the batches of the trial, if the lot is the first that is large enough.

        Raises a ValueError after the last of them if a record's gradient depends on the others.
        """
        each = self._rows.each
        first = lot[: min(batch_size, CANDIDATES * each)]
        most = min(MOST, len(first) // each)
        if not self._wanted or len(lot) // each < FEWEST or most < 2:
            return
        if self._sharded:
            self._wanted = False
            log.warning(_SHARDED)
            return
        make = reader.sample(first)
        chosen = self._chosen(make, len(first) // each, most)
        self._schedule = KeptSchedule(self._optimizer)
        try:
            finished = yield from self._tried(
                lambda records: make(self._rows.of([chosen[record] for record in records])), most
            )
        finally:
            self._end()
        self._wanted = not finished

    def _chosen(self, make: Callable[[Sequence[int]], Any], count: int, most: int) -> list[int]:
        """Return places of records that differ, the longest first: an influence of the longest shows in the parts."""
        descriptions = {record: describe(make(self._rows.of([record]))) for record in range(count)}
        ordered = sorted(descriptions, key=lambda record: descriptions[record])
        distinct = list({descriptions[record]: record for record in ordered}.values())
        ends = [distinct[-1 - i // 2] if i % 2 == 0 else distinct[i // 2] for i in range(len(distinct))]
        chosen = [*ends, *(record for record in ordered if record not in set(ends))][:most]
        return sorted(chosen, key=ordered.index, reverse=True)

    def _tried(self, make: Callable[[Sequence[int]], Any], most: int) -> Generator[tuple[int, Any], None, bool]:
        """Yield the batches; return False if one was not measured: a step failed, and the loop caught the error."""
        finished = yield from self._compared(make, most)
        if finished is None:  # the loss is a mean that the loop computes as a sum over len(x)
            finished = yield from self._compared(make, most)
        return bool(finished)

    def _compared(
        self, make: Callable[[Sequence[int]], Any], most: int
    ) -> Generator[tuple[int, Any], None, bool | None]:
        """Measure once; return None if the loss turned out to be divided by the number of records."""
        everybody = list(range(most))
        halves = [everybody[: most // 2][::-1], everybody[most // 2 :][::-1]]
        with seeded(0):
            whole, again = make(everybody), make(everybody)
            given = [make(half) for half in halves]
        alike = all(self._rows.agree(whole, most, part, half) for part, half in zip(given, halves, strict=True))
        cut = not alike and self._is_random(make, whole, most)
        if cut:
            try:
                given = [self._rows.cut(whole, most, half) for half in halves]
                again = self._rows.cut(whole, most, everybody)
            except NotRows:
                log.warning(_RANDOM)
                return True
            log.warning(_RANDOM_ROWS)
        self._buffers = WatchedBuffers(self._model, ())
        together, parts = Part(everybody, 1), [Part(half, -1) for half in halves]
        for part, batch in zip((together, *parts), (whole, *given), strict=True):
            yield from self._run(part, batch)
            if not part.names:
                return False
        found = difference(together, parts, self._sums)
        if found is not None and self._engine.learn_mean():
            return None
        if found is None:
            if not alike and not cut:
                log.warning(_NEIGHBOURS)
            return True
        repeated = Part(everybody, 0)
        yield from self._run(repeated, again, seed=1)
        if not repeated.names:
            return False
        if own_differences(together, repeated) is not None:
            log.warning(_RANDOM)
            return True
        raise ValueError(("" if alike or cut else _ROWS) + _FOUND.format(found))

    def _is_random(self, make: Callable[[Sequence[int]], Any], whole: Any, most: int) -> bool:
        """Return True if the collate function is random: two calls make different rows of the same records."""
        with seeded(1):
            other = make(range(most))
        return not self._rows.agree(whole, most, other, range(most))

    def _run(self, part: Part, batch: Any, seed: int = 0) -> Iterator[tuple[int, Any]]:
        self._part = part
        with self._standing(seed):
            yield len(part.records), batch
        self._part = None

    @contextmanager
    def _standing(self, seed: int) -> Iterator[None]:
        """Freeze dropout and noise until ``optimizer.step()``; afterwards random numbers continue as before."""
        with ExitStack() as stack:
            for module in self._model.modules():
                if isinstance(module, HIDDEN_DROPOUT) and module.dropout:
                    stack.callback(setattr, module, "dropout", module.dropout)
                    module.dropout = 0.0
            stack.enter_context(self._engine.learning())
            stack.enter_context(seeded(seed))
            self._still = stack.enter_context(StillInLoop())
            stack.callback(self.stop)
            yield

    def stop(self) -> None:
        """Unfreeze dropout and noise, wherever the caller is."""
        if self._still is not None:
            self._still.active = False

    def observe(self, name: str, values: Tensor) -> None:
        """Keep one value for each record, in their order, for the comparison."""
        assert self._part is not None
        self._part.observed[name] = values.detach().clone()

    def measure(self) -> None:
        """Take the norms and sums of the current batch, forget the batch, and undo its writes to buffers."""
        part, engine = self._part, self._engine
        assert part is not None and self._buffers is not None
        self.stop()
        self._buffers.put_back()
        part.norms, part.dtype = engine.norms(Unclipped()).detach(), engine.coarsest_dtype
        part.names, part.penalties = tuple(engine.shapes), engine.penalties
        if part.sign == 0:
            engine.discard()
            return
        for name, total in engine.clipped_sums(Unclipped()):
            self._sums[name] = total if part.sign > 0 else self._sums[name] - total

    def put_back_schedule(self) -> None:
        """Undo the loop's changes to its learning-rate schedule after the current batch."""
        if self._schedule is not None:
            self._schedule.put_back()

    def _end(self) -> None:
        """Forget all measurements."""
        self.stop()
        self.put_back_schedule()
        self._part, self._buffers, self._schedule, self._sums = None, None, None, {}
