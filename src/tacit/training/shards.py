"""Parameters cut into shards among the processes of a team (`fully_shard`, FSDP2), one shard in each.

Each process runs its own records through whole parameters, which FSDP gathers module by module, so the norm of a
record over all parameters is known where the record is. The clipped sums are then put together and cut up, parameter
by parameter: a process gets the rows of the sum that belong to its shards, adds the noise of these rows, all of it,
and updates its shards. No other process has these rows or draws for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacit.gradients import Engine
from tacit.gradients.shards import sharded_modules
from tacit.ledger import Receipt
from tacit.mechanisms import Clipping
from tacit.randomness import Source
from tacit.training.dtensor_local import is_shard, local
from tacit.training.first_rows import FirstRows
from tacit.training.sums import GradientSums

Scatter = Callable[[Sequence[Tensor]], list[Tensor]]
_TOGETHER = 1 << 22  # values in one message: many small parameters cost no more than one large one


def has_shards(model: nn.Module) -> bool:
    return any(is_shard(parameter) for parameter in model.parameters())


def check_shards(model: nn.Module, ranks: list[int], *, noise: str) -> None:
    """Refuse parameters that are not cut into one shard of rows for each process of the team."""
    from torch.distributed.tensor import Shard

    gathered = {id(parameter) for module in sharded_modules(model) for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        if not is_shard(parameter):
            if parameter.requires_grad:
                raise ValueError(
                    f"parameter {name!r} is whole and others are sharded; call fully_shard on the model itself too, "
                    "after its parts, and leave out ignored_params."
                )
            continue
        if id(parameter) not in gathered:
            raise ValueError(
                f"parameter {name!r} is distributed and not by fully_shard; tensor parallelism is not supported, "
                "because records of different processes meet in its layers."
            )
        mesh, places = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        if tuple(places) != (Shard(0),) or dist.get_process_group_ranks(mesh.get_group()) != ranks:
            raise ValueError(
                f"parameter {name!r} is placed as {tuple(places)} on {mesh}; a private run shards rows (dimension 0) "
                "over all its processes: use a mesh of one dimension with all of them and no shard_placement_fn."
            )
        if parameter.device.type != mesh.device_type:
            raise ValueError(
                f"parameter {name!r} is on {parameter.device.type} and computed with on {mesh.device_type}; a private "
                "run needs shards where they are used: leave out offload_policy."
            )
    if noise != "first":
        raise ValueError(
            f"noise is {noise!r} and the model is sharded, where each process adds the noise of its own shards; "
            "use tacit.Parallel()."
        )


class ShardedSums(GradientSums):
    """The sums of a lot over all processes, of which this one holds the rows that belong to its shards.

    Formal guarantee: a record is clipped whole, by its norms over whole parameters, before anything is cut up, so the
    shards of the sum together are the sum that the ledger knows. Every coordinate is in one shard, and the process
    that holds it adds noise of the recorded deviation, once, from a key of its own: together the shards have
    independent noise on every coordinate, as the Gaussian mechanism asks.

    The processes' sums, rounded by the rules of one batch each, are put together and added up in float64, and rounded
    once, as the sum of the lot: nothing of the margin depends on how many processes there are.
    """

    source: Source

    def __init__(self, parameters: Mapping[str, Tensor], scatter: Scatter, source: Source) -> None:
        complex_ones = [name for name, parameter in parameters.items() if parameter.is_complex()]
        if complex_ones:
            raise ValueError(
                f"parameter {complex_ones[0]!r} is complex and sharded, for which there are no sums; keep its real and "
                "imaginary parts as two parameters."
            )
        super().__init__(parameters)
        self._scatter, self.source = scatter, source

    def add(self, engine: Engine, clipping: Clipping | FirstRows) -> None:
        """Add the current batch of every process, every record clipped."""
        if not self._batches:
            self._sums = {
                name: torch.zeros_like(local(parameter), dtype=torch.float64)
                for name, parameter in self._parameters.items()
            }
        waiting: dict[str, Tensor] = {}
        for name, total in engine.clipped_sums(clipping):
            if waiting and sum(each.numel() for each in waiting.values()) + total.numel() > _TOGETHER:
                self._exchange(waiting)
                waiting = {}
            waiting[name] = total.double()
        self._exchange(waiting)
        self._batches += 1

    def draw_ahead(self, receipt: Receipt, source: Source, *, lot_size: float) -> None:
        """Draw nothing: there is no memory for a second copy of the shards."""

    def _exchange(self, totals: Mapping[str, Tensor]) -> None:
        for name, mine in zip(totals, self._scatter(list(totals.values())), strict=True):
            self._sums[name] += mine

    def _add_noise_(self, sums: Mapping[str, Tensor], receipt: Receipt, clipping: Clipping, source: Source) -> None:
        clipping.release_(receipt, sums, self.source, counts=source)
