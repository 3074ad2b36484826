"""Keyed digests of tensors: different values have different digests, except with probability 2^-27.

Off the CPU a digest stays on its device until it is compared: the digests of a whole model cost a few kernels,
and comparing them with earlier ones makes the host wait once, however many tensors there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacit._compiled import KEY_WORDS, kernels
from tacit._threads import threads

Digest = tuple[int, ...] | Tensor
"""Digests as numbers or, off the CPU, as a tensor that the host has not read."""

_KEY = np.frombuffer(os.urandom(4 * KEY_WORDS), dtype=np.uint32)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW, _ROWS = 1024, 4096  # words of a row and rows at a time, of a digest by arrays
_FACTORS = torch.from_numpy(np.frombuffer(os.urandom(8 * (_ROW + _ROWS)), dtype=np.int64) | 1)


def digests(several: Sequence[Tensor]) -> list[Digest]:
    """Return the digest of each tensor; see `Kernels.digests`."""
    if kernels is not None and all(map(_is_usual, several)):
        return [(found,) for found in kernels.digests(_KEY, threads(), *several)]
    parts = [parts_of(tensor) for tensor in several]
    away = {part.device for each in parts for part in each if not part.is_cpu}
    found: dict[int, Tensor] = {}
    for device in away:
        own = [part for each in parts for part in each if part.device == device]
        found.update(zip(map(id, own), _by_arrays([_words(part) for part in own], device)))
    result: list[Digest] = []
    for each in parts:
        if len(each) == 1 and id(each[0]) in found:
            result.append(found[id(each[0])])
        else:
            result.append(tuple(n for part in each for n in _read(found.get(id(part), part))))
    return result


def equal(pairs: Sequence[tuple[Digest, Digest]]) -> list[bool]:
    """Return for each pair True if the digests are equal; waits once for each device."""
    result = [not _is_away(a) and not _is_away(b) and a == b for a, b in pairs]
    devices = {a.device for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device == b.device}
    for device in devices:
        own = [
            (place, a, b)
            for place, (a, b) in enumerate(pairs)
            if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device == b.device == device and len(a) == len(b)
        ]
        before, after = (torch.cat([triple[side] for triple in own]) for side in (1, 2))  # type: ignore[misc]
        same = iter((before == after).tolist())
        for place, a, _ in own:
            result[place] = all([next(same) for _ in range(len(a))])
    return result


def _is_away(digest: Digest) -> bool:
    return isinstance(digest, Tensor)


def _read(part: Tensor) -> tuple[int, ...]:
    """Return the digest of a tensor on the CPU, or the unread numbers of one on another device."""
    if not part.is_cpu:
        return tuple(part.tolist())
    bits = part if _is_usual(part) else bits_of(part).contiguous()
    if kernels is None or bits.nbytes % 4 or bits.data_ptr() % 4:
        return tuple(_by_arrays([_words(part)], part.device)[0].tolist())
    return kernels.digests(_KEY, threads(), bits)


def parts_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors inside a wrapper (a quantised weight, say), or the tensor itself."""
    if type(tensor) in (Tensor, nn.Parameter) or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of(getattr(tensor, name))]


def bits_of(tensor: Tensor) -> Tensor:
    """Return the values as integers: NaN then equals itself, so that a diverged run does not look like a write."""
    plain = tensor.detach().resolve_neg()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.view(_WORDS[plain.element_size()])


def _is_usual(tensor: Tensor) -> bool:
    """Return True if compiled loops can read the tensor's memory directly."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in (torch.float32, torch.float64):
        return False
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and tensor.data_ptr() % 4 == 0
    )


def _words(tensor: Tensor) -> Tensor:
    words = bits_of(tensor).contiguous().view(-1)
    return words.view(torch.int32) if words.element_size() == 8 else words


def _by_arrays(several: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Row by row, and then of the rows, the sum of the words times odd random numbers, modulo 2^64.

    A word differs by less than 2^33, so that the sum of its row is another with a probability of 1 - 2^-30. A tensor
    has one sum for each `_ROW` · `_ROWS` words. Whole numbers are added, so that the order does not matter.
    """
    plan = _plan(tuple(map(len, several)), device)
    found = torch.zeros(sum(plan.sums), dtype=torch.int64, device=device)
    for tray in plan.trays:
        pieces = []
        for place, start, stop in tray.pieces:
            pieces += [several[place][start:stop], plan.zeros[: -(stop - start) % _ROW]]
        rows = torch.cat(pieces).view(-1, _ROW).to(torch.int64).mul_(plan.along).sum(1)
        found.index_add_(0, tray.sums, rows.mul_(tray.factors))
    return list(torch.split(found, plan.sums))


@dataclass(frozen=True)
class _Tray:
    pieces: tuple[tuple[int, int, int], ...]
    """The (tensor, first word, last word) of each piece of a sum."""
    sums: Tensor
    """The number of the sum of each row."""
    factors: Tensor


@dataclass(frozen=True)
class _Plan:
    trays: tuple[_Tray, ...]
    sums: list[int]
    """The number of sums of each tensor."""
    along: Tensor
    zeros: Tensor


@functools.lru_cache(maxsize=32)
def _plan(lengths: tuple[int, ...], device: torch.device) -> _Plan:
    """Cut tensors of the given sizes into pieces, and combine small ones, at most `_ROWS` rows at a time."""
    along, down = torch.split(_FACTORS, [_ROW, _ROWS])
    most = _ROW * _ROWS
    trays: list[_Tray] = []
    pieces: list[tuple[int, int, int]] = []
    sums: list[int] = []
    factors: list[Tensor] = []

    def close() -> None:
        if pieces:
            owners = torch.tensor(sums).to(device)
            trays.append(_Tray(tuple(pieces), owners, torch.cat(factors).to(device)))
            for each in (pieces, sums, factors):
                each.clear()

    counts = [-(-length // most) for length in lengths]
    number = 0
    for place, length in enumerate(lengths):
        for start in range(0, length, most):
            stop = min(start + most, length)
            rows = -(-(stop - start) // _ROW)
            if len(sums) + rows > _ROWS:
                close()
            pieces.append((place, start, stop))
            sums.extend([number] * rows)
            factors.append(down[:rows])
            number += 1
    close()
    zeros = torch.zeros(_ROW, dtype=torch.uint8, device=device)
    return _Plan(tuple(trays), counts, along.to(device), zeros)
