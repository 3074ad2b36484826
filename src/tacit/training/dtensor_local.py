"""The local part of a tensor: all of it, or a shard where several processes share it (`DTensor`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def is_shard(tensor: Any) -> bool:
    """Return True if this process holds only a part of the tensor."""
    made = sys.modules.get("torch.distributed.tensor")  # a shard cannot exist without it
    return made is not None and isinstance(tensor, made.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of the tensor: the same memory."""
    return tensor.detach().to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def as_part_of(like: Tensor, mine: Tensor) -> Tensor:
    """Return ``mine``, this process's part, as a tensor sharded like ``like``."""
    if not is_shard(like):
        return mine
    part = torch.empty_like(like)
    local(part).copy_(mine)
    return part


def whole(tensor: Tensor, *, keep: bool = True) -> Tensor:
    """Gather the shards of all processes, which must all call this; return an empty tensor where ``keep`` is false."""
    if not is_shard(tensor):
        return tensor
    full: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return full.cpu() if keep else full.new_empty(0)


def cut_like(value: Any, like: Any) -> Any:
    """Return ``value`` with each whole tensor sharded like the tensor at the same place of ``like``."""
    if isinstance(like, Mapping) and isinstance(value, Mapping):
        return type(value)({key: cut_like(each, like.get(key)) for key, each in value.items()})  # type: ignore[call-arg]
    if isinstance(like, list | tuple) and isinstance(value, list | tuple) and len(like) == len(value):
        return type(value)(cut_like(each, other) for each, other in zip(value, like))
    if not isinstance(value, Tensor) or not is_shard(like):
        return value
    if value.shape != like.shape:
        raise ValueError(f"a tensor has shape {tuple(value.shape)} where {tuple(like.shape)} is needed.")
    from torch.distributed.tensor import DTensor

    mesh = like.device_mesh
    mine = value[rows_of(len(value), mesh.get_local_rank(), mesh.size())].to(like.device).contiguous()
    return DTensor.from_local(
        mine, mesh, like.placements, run_check=False, shape=like.shape, stride=value.contiguous().stride()
    )


def rows_of(length: int, rank: int, size: int) -> slice:
    """Return the rows of ``length`` that belong to process ``rank`` of ``size``: equal parts, the last shorter or
    empty.

    >>> [rows_of(5, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    each = -(-length // size)
    return slice(min(rank * each, length), min((rank + 1) * each, length))
