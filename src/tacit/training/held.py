"""What the model holds, as it should be: to see that it changed, however it was written, and to put it back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacit._compiled import KEY_WORDS, array, kernels
from tacit.gradients.traced import Traced
from tacit.training.pieces import is_shard, local

Kind = Literal["_buffers", "_parameters"]

_KEY = np.frombuffer(os.urandom(4 * KEY_WORDS), dtype=np.uint32)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Held:
    """One tensor: the object, the memory it had, a digest of its values, and a copy of them unless ``copied`` is false.

    The values are compared and not `_version`, which a write through ``.data`` leaves as it was. Other values have the
    same digest with probability 2^-27; where there is none, the copy is compared, or the sum of the bits.
    """

    def __init__(self, tensor: Tensor, *, copied: bool = True) -> None:
        self.tensor, self._copied = tensor, copied
        self._copy: Tensor | None = None
        self.renew()

    @property
    def copied(self) -> bool:
        return self._copied

    def renew(self) -> None:
        """The values of now are right."""
        self._memory = local(self.tensor.detach())
        self._digest = digest(self._memory)
        self._sum = bit_sum(self._memory) if self._digest is None and not self._copied else None
        if not self._copied:
            return
        if self._copy is not None and _alike(self._copy, self._memory):
            self._copy.copy_(self._memory)
        else:
            self._copy = self._memory.clone()

    def drop_copy(self) -> None:
        """Until the next `renew`, before which there is nothing to compare or to put back."""
        self._copy = None

    def same(self, now: Tensor | None) -> bool:
        """Whether ``now`` is this tensor with these values."""
        if now is not self.tensor or type(now) is Traced:
            return False
        here = local(now)
        if not _alike(here, self._memory):
            return False
        if self._digest is not None:
            return digest(here) == self._digest
        if self._copy is not None:
            return torch.equal(_bits(here), _bits(self._copy))
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


def _bits(tensor: Tensor) -> Tensor:
    """The values as integers: NaN is then equal to itself, so that a run that diverged is not taken for a write."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.view(_WORDS[plain.element_size()])


def digest(tensor: Tensor) -> int | None:
    """See `Kernels.digest`: by a key of this process. None where that is not compiled, or cannot read the memory."""
    if kernels is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    bits = _bits(tensor).contiguous()
    return kernels.digest(array(bits), _KEY) if not (bits.nbytes % 4 or bits.data_ptr() % 4) else None


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of the bits, modulo 2⁶⁴: any one changed value changes it; where the values lie in memory does not."""
    bits = _bits(local(tensor)).contiguous()
    if bits.nbytes % 8 == 0:  # several values a word: five times as fast, and no wide copy
        if bits.storage_offset() * bits.element_size() % 8:
            bits = bits.clone()
        bits = bits.view(-1).view(torch.int64)
    return bits.sum(dtype=torch.int64)
