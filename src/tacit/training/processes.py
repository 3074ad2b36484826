"""The processes of a `torch.distributed` group as one team: the first sends messages, all add up sums."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacit.gradients.shards import cut_up, sharded_modules
from tacit.ledger import BudgetExceeded, Ledger, Receipt, Step
from tacit.ledger.events import from_json, to_json
from tacit.randomness import Integers, Source
from tacit.training.distributed_noise import ReducedNoise, SeededReducedNoise
from tacit.training.dtensor_local import is_shard, rows_of
from tacit.training.shards import check_shards, has_shards
from tacit.training.team import Alone, Drawn, Parallel, Team, own_source

T = TypeVar("T")


class Processes:
    """The processes of a `torch.distributed` group."""

    def __init__(self, config: Parallel) -> None:
        self._config = config
        self.rank, self.size = dist.get_rank(config.group), dist.get_world_size(config.group)
        ranks = dist.get_process_group_ranks(config.group or dist.group.WORLD)
        # A group of our own: a collective in the caller's loop must never be paired with a release.
        backend = dist.get_backend(config.group)
        self._group = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
        self._first = ranks[0]
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._broken: str | None = None

    def source(self, seed: int | None) -> Source:
        if self._config.noise == "split":
            share = self.size**-0.5
        else:
            share = 1.0 if self.rank == 0 else 0.0
        return (
            ReducedNoise(share, self.add_up_)
            if seed is None
            else SeededReducedNoise(seed, self.rank, share, self.add_up_)
        )

    def own_source(self, seed: int | None) -> Source:
        return own_source(seed, self.rank)

    def ledger(self, make: Callable[[], Ledger]) -> Ledger:
        if self.rank == 0:
            book = self._or_tell(make)
            entries = [[to_json(step), count] for step, count in book.entries]
            self._tell("ledger", {"header": to_json(book.header), "entries": entries})
            return book
        told = self._hear("ledger")
        copy = Ledger(from_json(told["header"]))
        for step, count in told["entries"]:
            event = from_json(step)
            for _ in range(count):
                copy.record(event, secure=copy.header.secure_randomness)
        return copy

    def record(self, ledger: Ledger, step: Step, state: Callable[[], str]) -> Receipt:
        here = hashlib.sha256(state().encode()).hexdigest()
        if self.rank == 0:
            receipt = self._or_tell(lambda: ledger.record(step))
            self._tell("step", {"step": to_json(step), "digest": ledger.digest, "state": here})
            return receipt
        told = self._hear("step")
        if told["state"] != here:
            raise self._break("the step, the clipping or the parameters here are not those of the first process")
        receipt = ledger.record(from_json(told["step"]), secure=ledger.header.secure_randomness)
        if ledger.digest != told["digest"]:
            raise self._break("this process's copy of the ledger is not the first process's")
        return receipt

    def share(self, draw: Callable[[], Drawn]) -> Integers:
        if self.rank == 0:
            lot = np.stack(self._or_tell(draw))
            self._tell("lot", {"size": lot.shape[1]})
            both = torch.from_numpy(lot).contiguous().to(self._device)
        else:
            both = torch.empty(2, self._hear("lot")["size"], dtype=torch.int64, device=self._device)
        self._together(lambda: dist.broadcast(both, self._first, group=self._group))
        indices, processes = both.cpu().numpy()
        return np.ascontiguousarray(indices[processes == self.rank])

    def most(self, count: int) -> int:
        largest = torch.tensor([count], dtype=torch.int64, device=self._device)
        self._together(lambda: dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group))
        return int(largest)

    def scatter(self, several: Sequence[Tensor]) -> list[Tensor]:
        parts = [self._in_parts(values.to(self._device)) for values in several]
        there = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        mine = there.new_empty(there.shape[1])
        reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before 2.13
        self._together(lambda: reduce(mine, there.view(-1), group=self._group))
        found = []
        for values, part in zip(several, torch.split(mine, [part.shape[1] for part in parts])):
            rows = rows_of(len(values), self.rank, self.size)
            shape = rows.stop - rows.start, *values.shape[1:]
            found.append(part[: math.prod(shape)].view(shape).to(values.device))  # without the zeros at the end
        return found

    def _in_parts(self, values: Tensor) -> Tensor:
        """The rows of each process, one after the other, with zeros where they are fewer: [processes, entries]."""
        missing = -len(values) % self.size
        if missing:
            values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        return values.reshape(self.size, values.numel() // self.size)

    def agree(self, what: str, facts: Callable[[], str]) -> None:
        digest = bytearray(hashlib.sha256(facts().encode()).digest())
        mine = torch.frombuffer(digest, dtype=torch.uint8).to(self._device)
        all_of_them = [torch.empty_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(all_of_them, mine, group=self._group))
        others = [rank for rank, each in enumerate(all_of_them) if not torch.equal(each, all_of_them[0])]
        if others:
            self._break(f"process {others[0]} has another {what} than process 0")
            raise ValueError(
                f"process {others[0]} has another {what} than process 0; every process must call make_private with "
                "the same model, data set and settings."
            )

    def begin_alike(self, model: nn.Module) -> None:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if is_shard(tensor):
                    continue  # there is one of each
                values = tensor.detach().to(self._device).contiguous()
                self._together(lambda values=values: dist.broadcast(values, self._first, group=self._group))  # type: ignore[misc]
                if self.rank:
                    tensor.copy_(values)

    def first_does(self, work: Callable[[], None]) -> None:
        if self.rank:
            self._hear("done")
            return
        self._or_tell(work)
        self._tell("done", {})

    def add_up_(self, values: Tensor) -> None:
        """Replace ``values`` by their sum over all processes, the same to the bit in each of them."""
        there = values.to(self._device)  # the same tensor where it is there already
        self._together(lambda: dist.all_reduce(there, group=self._group))
        if there is not values:
            values.copy_(there)

    # -- messages of the first process to the others -------------------------------------------------------------------

    def _or_tell(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``; if it fails, tell the other processes before raising the error."""
        try:
            return work()
        except BudgetExceeded as error:
            self._tell("refused", {"why": str(error)})
            raise
        except BaseException as error:
            self._tell("failed", {"why": str(error)})
            self._break(str(error))
            raise

    def _tell(self, kind: str, message: dict[str, Any]) -> None:
        data = json.dumps({"kind": kind, **message}, allow_nan=False).encode()
        size = torch.tensor([len(data)], dtype=torch.int64, device=self._device)
        text = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        self._together(lambda: dist.broadcast(size, self._first, group=self._group))
        self._together(lambda: dist.broadcast(text, self._first, group=self._group))

    def _hear(self, kind: str) -> dict[str, Any]:
        size = torch.empty(1, dtype=torch.int64, device=self._device)
        self._together(lambda: dist.broadcast(size, self._first, group=self._group))
        text = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        self._together(lambda: dist.broadcast(text, self._first, group=self._group))
        message: dict[str, Any] = json.loads(text.cpu().numpy().tobytes())
        if message["kind"] == "refused":
            raise BudgetExceeded(message["why"])
        if message["kind"] == "failed":
            raise self._break(f"the first process could not go on: {message['why']}")
        if message["kind"] != kind:
            raise self._break(f"this process waits for a {kind}, the first one is at a {message['kind']}")
        return message

    def _together(self, collective: Callable[[], object]) -> None:
        """Run a collective operation; after a failure refuse all others: the processes' positions are unknown."""
        if self._broken is not None:
            raise RuntimeError(f"this run of {self.size} processes cannot go on: {self._broken}. Resume it.")
        try:
            collective()
        except BaseException as error:
            self._break(f"a process was lost ({error})")
            raise

    def _break(self, why: str) -> RuntimeError:
        self._broken = self._broken or why
        return RuntimeError(f"this run of {self.size} processes cannot go on: {why}. Resume it from a checkpoint.")


def assemble(parallel: Parallel | None, model: nn.Module) -> Team:
    """Return the team of a run, and refuse several processes without ``parallel``: each would be a run of its own."""
    processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    cut_up(sharded_modules(model))
    sharded = has_shards(model)
    if sharded and parallel is None:
        raise ValueError("the model's parameters are sharded; give make_private parallel=tacit.Parallel().")
    if parallel is None:
        if processes > 1:
            raise ValueError(
                f"this is one of {processes} processes; give make_private parallel=tacit.Parallel() in each of them to "
                "train one model together, or run it in one process."
            )
        return Alone()
    if not isinstance(parallel, Parallel):
        raise ValueError(f"parallel is {parallel!r}; give tacit.Parallel().")
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "parallel was given but there is no process group; start the script with torchrun and call "
            "torch.distributed.init_process_group() first."
        )
    if sharded:
        check_shards(model, dist.get_process_group_ranks(parallel.group or dist.group.WORLD), noise=parallel.noise)
    return Processes(parallel)


def check_processes(team: Team, *, ledger: object, optimizer: torch.optim.Optimizer, max_lot_size: int | None) -> None:
    """Refuse arguments that several processes cannot share."""
    if team.size == 1:
        return
    if isinstance(ledger, Ledger):
        raise ValueError("several processes share one ledger file, which the first one opens; give its path.")
    if optimizer.state:
        raise ValueError(
            "the optimizer has taken steps before; give several processes a new one, or load a checkpoint."
        )
    if max_lot_size is not None:
        raise ValueError(
            f"max_lot_size is {max_lot_size}; with several processes the shares of a lot differ: leave it out."
        )
