"""Snapshots of parameters and buffers, to detect writes, however they were made, and to undo them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.gradients.traced import Traced
from tacit.training.digests import Digest, bits_of, digests, equal, parts_of
from tacit.training.dtensor_local import is_shard, local

Kind = Literal["_buffers", "_parameters"]


class Snapshot:
    """One tensor: the object, the memory it had, a digest of its values, and a copy of them if ``copied``.

    The values are compared and not `_version`, which a write through ``.data`` leaves as it was. Other values have the
    same digest with probability 2^-27.
    """

    _memory: Tensor
    _rooms: list[int]
    _digest: Digest
    _copy: Tensor | None

    def __init__(self, tensor: Tensor, *, copied: bool) -> None:
        self.tensor, self._copied = tensor, copied
        self.renew()

    def renew(self) -> None:
        """Take the current values as the right ones."""
        renew_all([self])

    def remember(self) -> None:
        """Take a snapshot of everything but the digest."""
        self._memory = local(self.tensor.detach())
        self._rooms = [part.untyped_storage().nbytes() for part in _dense_parts(self._memory)]
        self._copy = self._memory.clone() if self._copied else None

    def same(self, now: Tensor | None) -> bool:
        """Return True if ``now`` is this tensor with these values."""
        return are_same([(self, now)]) == [True]

    def _is_there(self, now: Tensor | None) -> bool:
        """Return True if ``now`` is this tensor, whatever its values."""
        if now is not self.tensor or type(now) is Traced:
            return False
        here = local(now)
        return _alike(here, self._memory) and self._has_room(here)

    def _has_room(self, memory: Tensor) -> bool:
        """Return False if the storage became smaller than the tensor, so that reading it would pass its end."""
        parts = _dense_parts(memory)
        return all(part.untyped_storage().nbytes() >= room for part, room in zip(parts, self._rooms, strict=True))

    @torch.no_grad()
    def put_back(self) -> bool:
        """Restore the object, its memory and its values; if the values are lost, write stand-ins and return False."""
        if type(self.tensor) is Traced:
            self.tensor.__class__ = Tensor  # type: ignore[assignment]
        if is_shard(self.tensor):
            self.tensor._local_tensor = self._memory  # type: ignore[attr-defined]
        else:
            self.tensor.data = self._memory
        here = local(self.tensor)  # of a wrapper or a sparse tensor not what was put back
        if self._has_room(here):
            if equal([(digests([here])[0], self._digest)]) == [True]:
                return True
        else:
            for part, room in zip(_dense_parts(here), self._rooms):
                part.untyped_storage().resize_(room)
        if self._copy is not None:
            here.copy_(self._copy)
            return True
        for part in parts_of(here):
            _overwrite(part)
        return False


def renew_all(several: Sequence[Snapshot]) -> None:
    """Take the current values as the right ones."""
    for held in several:
        held.remember()
    for held, found in zip(several, digests([held._memory for held in several])):
        held._digest = found


def are_same(pairs: Sequence[tuple[Snapshot, Tensor | None]]) -> list[bool]:
    """Return for each pair True if the second is the tensor of the first, with the same values."""
    there = [held._is_there(now) for held, now in pairs]
    several = [held for (held, _), here in zip(pairs, there) if here]
    found = digests([local(held.tensor) for held in several])
    same = iter(equal([(now, held._digest) for now, held in zip(found, several)]))
    return [here and next(same) for here in there]


def _overwrite(tensor: Tensor) -> None:
    """Overwrite with values that cannot be taken for real ones."""
    if tensor.layout is not torch.strided or tensor.dtype is torch.bool:
        tensor.zero_()
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def put_back(
    model: nn.Module, kind: Kind, held: Mapping[str, Snapshot], found: Mapping[str, Tensor]
) -> tuple[list[str], list[str]]:
    """Undo the differences between ``held`` and ``found``, the tensors that the model has.

    Returns the names of all that changed, and of those whose values are lost. May be interrupted, and called again.
    """
    same = are_same([(each, found.get(name)) for name, each in held.items()])
    changed = [name for name, unchanged in zip(held, same) if not unchanged]
    changed += [name for name in found if name not in held]
    lost = [name for name in changed if name in held and not held[name].put_back()]
    gone = []
    for name in changed:
        path, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            gone.append(path)
            continue
        getattr(module, kind)[leaf] = held[name].tensor if name in held else None
    if gone:
        raise RuntimeError(
            f"module {', '.join(map(repr, dict.fromkeys(gone)))} is no longer in the model, which took it away while a "
            "batch was worked on; put it back, or make model and run anew."
        )
    return changed, lost


def members(model: nn.Module, kind: Kind) -> dict[str, Tensor]:
    """Return all parameters or buffers by name, under each of their names."""
    found: dict[str, Tensor] = {}
    _walk(model, "", kind, found)
    return found


def _walk(module: nn.Module, path: str, kind: Kind, found: dict[str, Tensor]) -> None:
    for name, tensor in getattr(module, kind).items():
        if tensor is not None:
            found[path + name] = tensor
    for name, child in module._modules.items():
        if child is not None:
            _walk(child, f"{path}{name}.", kind, found)


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    return [part for part in parts_of(tensor) if part.layout is torch.strided]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and a.layout == b.layout


def bit_sum(tensor: Tensor) -> Tensor:
    """Return the sum of the bits modulo 2⁶⁴: any one changed value changes it; the place in memory does not."""
    bits = bits_of(local(tensor)).contiguous()
    if bits.nbytes % 8 == 0:  # several values a word: five times as fast, and no wide copy
        if bits.storage_offset() * bits.element_size() % 8:
            bits = bits.clone()
        bits = bits.view(-1).view(torch.int64)
    return bits.sum(dtype=torch.int64)
