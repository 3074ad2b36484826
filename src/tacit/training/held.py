"""What the model holds, as it should be: to see that it changed, however it was written, and to put it back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._compiled import KEY_WORDS, kernels
from tacit._threads import threads
from tacit.gradients.traced import Traced
from tacit.training.pieces import is_shard, local

Kind = Literal["_buffers", "_parameters"]

_KEY = np.frombuffer(os.urandom(4 * KEY_WORDS), dtype=np.uint32)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW, _ROWS = 1024, 4096  # words of a row and rows at a time, of a digest by arrays
_FACTORS = torch.from_numpy(np.frombuffer(os.urandom(8 * (_ROW + _ROWS)), dtype=np.int64) | 1)


class Held:
    """One tensor: the object, the memory it had, a digest of its values, and a copy of them if ``copied``.

    The values are compared and not `_version`, which a write through ``.data`` leaves as it was. Other values have the
    same digest with probability 2^-27.
    """

    _memory: Tensor
    _rooms: list[int]
    _digest: tuple[int, ...]
    _copy: Tensor | None

    def __init__(self, tensor: Tensor, *, copied: bool) -> None:
        self.tensor, self._copied = tensor, copied
        self.renew()

    def renew(self) -> None:
        """The values of now are right."""
        renew_all([self])

    def remember(self) -> None:
        """Everything but the digest."""
        self._memory = local(self.tensor.detach())
        self._rooms = [part.untyped_storage().nbytes() for part in _dense_parts(self._memory)]
        self._copy = self._memory.clone() if self._copied else None

    def same(self, now: Tensor | None) -> bool:
        """Whether ``now`` is this tensor with these values."""
        return are_same([(self, now)]) == [True]

    def _is_there(self, now: Tensor | None) -> bool:
        """Whether ``now`` is this tensor, whatever its values."""
        if now is not self.tensor or type(now) is Traced:
            return False
        here = local(now)
        return _alike(here, self._memory) and self._has_room(here)

    def _has_room(self, memory: Tensor) -> bool:
        """Whether nobody made the storage smaller, beyond the end of which one would read."""
        parts = _dense_parts(memory)
        return all(part.untyped_storage().nbytes() >= room for part, room in zip(parts, self._rooms, strict=True))

    @torch.no_grad()
    def put_back(self) -> bool:
        """The object, its memory and its values; if these are lost, others in place of them, and False."""
        if type(self.tensor) is Traced:
            self.tensor.__class__ = Tensor  # type: ignore[assignment]
        if is_shard(self.tensor):
            self.tensor._local_tensor = self._memory  # type: ignore[attr-defined]
        else:
            self.tensor.data = self._memory
        here = local(self.tensor)  # of a wrapper or a sparse tensor not what was put back
        if self._has_room(here):
            if digests([here]) == [self._digest]:
                return True
        else:
            for part, room in zip(_dense_parts(here), self._rooms):
                part.untyped_storage().resize_(room)
        if self._copy is not None:
            here.copy_(self._copy)
            return True
        for part in _parts(here):
            _overwrite(part)
        return False


def renew_all(several: Sequence[Held]) -> None:
    """The values of now are right."""
    for held in several:
        held.remember()
    for held, found in zip(several, digests([held._memory for held in several])):
        held._digest = found


def are_same(pairs: Sequence[tuple[Held, Tensor | None]]) -> list[bool]:
    """For each pair whether the second is the tensor that the first holds, with the same values."""
    there = [held._is_there(now) for held, now in pairs]
    found = iter(digests([local(held.tensor) for (held, _), here in zip(pairs, there) if here]))
    return [here and next(found) == held._digest for (held, _), here in zip(pairs, there)]


def _overwrite(tensor: Tensor) -> None:
    """With what nobody takes for values."""
    if tensor.layout is not torch.strided or tensor.dtype is torch.bool:
        tensor.zero_()
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def put_back(
    model: nn.Module, kind: Kind, held: Mapping[str, Held], found: Mapping[str, Tensor]
) -> tuple[list[str], list[str]]:
    """Undo what differs between ``held`` and what the model was ``found`` to have.

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
    """All parameters or buffers by name, under every name that they have."""
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


def _parts(tensor: Tensor) -> list[Tensor]:
    """The tensors that a wrapper around others (a quantised weight, say) consists of; any other by itself."""
    if type(tensor) in (Tensor, nn.Parameter) or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    return [part for part in _parts(tensor) if part.layout is torch.strided]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and a.layout == b.layout


def _bits(tensor: Tensor) -> Tensor:
    """The values as integers: NaN is then equal to itself, so that a run that diverged is not taken for a write."""
    plain = tensor.detach().resolve_neg()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.view(_WORDS[plain.element_size()])


def digests(several: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """What other values have with a probability of 2^-27, by a key of this process; see `Kernels.digests`."""
    if kernels is not None and all(map(_is_usual, several)):
        return [(found,) for found in kernels.digests(_KEY, threads(), *several)]
    return [tuple(each for part in _parts(tensor) for each in _digest(part)) for tensor in several]


def _is_usual(tensor: Tensor) -> bool:
    """Whether compiled loops can read it as it is."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in (torch.float32, torch.float64):
        return False
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and tensor.data_ptr() % 4 == 0
    )


def _digest(tensor: Tensor) -> tuple[int, ...]:
    bits = tensor if _is_usual(tensor) else _bits(tensor).contiguous()
    if kernels is None or bits.device.type != "cpu" or bits.nbytes % 4 or bits.data_ptr() % 4:
        return _digest_by_arrays(_bits(bits))
    return kernels.digests(_KEY, threads(), bits)


def _digest_by_arrays(bits: Tensor) -> tuple[int, ...]:
    """Row by row, and then of the rows, the sum of the words times odd random numbers, modulo 2^64.

    A word differs by less than 2^33, so that the sum of its row is another with a probability of 1 - 2^-30.
    """
    words = bits.view(-1)
    if words.element_size() == 8:
        words = words.view(torch.int32)
    along, down = torch.split(_FACTORS.to(words.device), [_ROW, _ROWS])
    found = []
    for piece in torch.split(words, _ROW * _ROWS):
        whole = F.pad(piece, (0, -len(piece) % _ROW))
        rows = whole.view(len(whole) // _ROW, _ROW).to(torch.int64)
        found.append((rows.mul_(along).sum(1) * down[: len(rows)]).sum())
    return tuple(torch.stack(found).tolist())


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of the bits, modulo 2⁶⁴: any one changed value changes it; where the values lie in memory does not."""
    bits = _bits(local(tensor)).contiguous()
    if bits.nbytes % 8 == 0:  # several values a word: five times as fast, and no wide copy
        if bits.storage_offset() * bits.element_size() % 8:
            bits = bits.clone()
        bits = bits.view(-1).view(torch.int64)
    return bits.sum(dtype=torch.int64)
