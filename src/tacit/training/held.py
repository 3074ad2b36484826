"""What the model holds, as it should be: to see that it changed, however it was written, and to put it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from tacit._compiled import kernels
from tacit.gradients.traced import Traced
from tacit.training.pieces import is_shard, local

Kind = Literal["_buffers", "_parameters"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Held:
    """One tensor: the object, the memory it had, and a copy of its values, or only their sum where ``copied`` is false.

    The values are compared and not `_version`, which a write through ``.data`` leaves as it was.
    """

    def __init__(self, tensor: Tensor, *, copied: bool = True) -> None:
        self.tensor, self._memory = tensor, local(tensor.detach())
        self._copy = self._memory.clone() if copied else None
        self._sum = None if copied else bit_sum(tensor)

    @property
    def copied(self) -> bool:
        return self._copy is not None

    def renew(self) -> None:
        """The values of now are right."""
        self._memory = local(self.tensor.detach())
        if self._copy is None:
            self._sum = bit_sum(self._memory)
        elif _alike(self._copy, self._memory):
            self._copy.copy_(self._memory)
        else:
            self._copy = self._memory.clone()

    def same(self, now: Tensor | None) -> bool:
        """Whether ``now`` is this tensor with these values."""
        if now is not self.tensor or type(now) is Traced:
            return False
        here = local(now)
        if not _alike(here, self._memory):
            return False
        if self._copy is not None:
            return _equal(here, self._copy)
        assert self._sum is not None
        return torch.equal(bit_sum(here), self._sum)

    @torch.no_grad()
    def put_back(self) -> None:
        """The object, its memory and, if they were copied, its values."""
        if type(self.tensor) is Traced:
            self.tensor.__class__ = Tensor  # type: ignore[assignment]
        if is_shard(self.tensor):
            self.tensor._local_tensor = self._memory  # type: ignore[attr-defined]
        else:
            self.tensor.data = self._memory
        if self._copy is not None:
            self._memory.copy_(self._copy)


def put_back(model: nn.Module, kind: Kind, held: Mapping[str, Held], found: Mapping[str, Tensor]) -> list[str]:
    """Undo what differs between ``held`` and what the model was ``found`` to have; returns the names."""
    changed = [name for name, each in held.items() if not each.same(found.get(name))]
    changed += [name for name in found if name not in held]
    for name in changed:
        path, _, leaf = name.rpartition(".")
        entries = getattr(model.get_submodule(path), kind)
        if name in held:
            held[name].put_back()
            entries[leaf] = held[name].tensor
        else:
            entries[leaf] = None
    return changed


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and a.layout == b.layout


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.numel() <= 4096:
        return torch.equal(a, b) or torch.equal(_bits(a), _bits(b))
    if a.device.type != "cpu":
        return torch.equal(_bits(a), _bits(b))
    here, there = _bits(a).numpy(), _bits(b).numpy()
    if kernels is not None and here.flags.c_contiguous and there.flags.c_contiguous:
        return kernels.same(here, there)
    return bool((here == there).all())  # several times as fast as PyTorch


def _bits(tensor: Tensor) -> Tensor:
    """The values as integers: NaN is then equal to itself, so that a run that diverged is not taken for a write."""
    plain = local(tensor.detach())
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.view(_WORDS[plain.element_size()])


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of the bits, modulo 2⁶⁴: any one changed value changes it; where the values lie in memory does not."""
    bits = _bits(tensor).contiguous()
    if bits.nbytes % 8 == 0:  # several values a word: five times as fast, and no wide copy
        if bits.storage_offset() * bits.element_size() % 8:
            bits = bits.clone()
        bits = bits.view(-1).view(torch.int64)
    return bits.sum(dtype=torch.int64)
