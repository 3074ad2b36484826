"""Noise that can be made again from its key, and sums of it: what correlated noise between steps is made of.

A `KeyedSource` gives the same stream for the same key and number. `Mixture` adds several streams with weights in one
pass; `Recursion` takes a weighted sum of past noise off the noise of a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from tacit._aes import keystream
from tacit._normal import Past as Past
from tacit._normal import mixed_noise, recursive_noise
from tacit.randomness import Source


class KeyedSource(Source):
    """A stream of a key from another source: the same key and number give the same stream again.

    For noise of past steps that later steps need again. It is as secret as its key. Stream ``number`` begins at block
    ``number`` 2^64 of the key's keystream, so that streams of different numbers share nothing.
    """

    secure = False

    def __init__(self, key: bytes | bytearray, number: int = 0) -> None:
        self._given, self._number = key, number
        super().__init__()

    def _key(self, *, forked: bool) -> bytes:
        return bytes(self._given)

    def _rekey(self, *, forked: bool) -> None:
        self._pid = os.getpid()
        self._stream = keystream(self._key(forked=forked), (self._number << 64).to_bytes(16, "big"))


class Mixture:
    """The weighted sum of keyed streams, made in one pass: noise of this step and of earlier ones. Each stream gives
    the same values whether the tensors come at once or one after the other.
    """

    def __init__(self, parts: Sequence[tuple[KeyedSource, float]]) -> None:
        self._parts = parts

    def normal_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite ``tensor``, contiguous and in the memory of the processor, with the sum of standard normals."""
        mixed_noise(self._parts, [(tensor.detach().numpy(), 1.0, 0.0)])
        return tensor

    def add_normals_(self, sums: Sequence[tuple[torch.Tensor, float, float]]) -> None:
        """For each (total, std, grid), add std times the sum and round to multiples of ``grid``, a power of two."""
        mixed_noise(self._parts, [(total.detach().numpy(), std / grid, grid) for total, std, grid in sums])


class Recursion:
    """The noise of a step less a weighted sum of rows of past noise, a matrix for each piece of ``piece`` values.

    Pieces are taken in turn, whether the tensors are given at once or one after the other.
    """

    def __init__(self, source: KeyedSource, past: Sequence[Past], piece: int) -> None:
        self._source, self._past, self._piece = source, iter(past), piece

    def normal_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite ``tensor``, the next piece, with the noise for a standard deviation of 1."""
        made = tensor if tensor.dtype == torch.float32 else torch.empty_like(tensor, dtype=torch.float32)
        recursive_noise(self._source, made.detach().numpy(), 1.0, 0.0, next(self._past))
        return tensor if made is tensor else tensor.copy_(made)

    def add_normals_(self, sums: Sequence[tuple[torch.Tensor, float, float]]) -> None:
        """For each (total, std, grid), add std times the noise and round to multiples of ``grid``, a power of two."""
        for total, std, grid in sums:
            for part in torch.split(total.detach().view(-1), self._piece):
                if part.dtype == torch.float32:
                    recursive_noise(self._source, part.numpy(), std / grid, grid, next(self._past))
                else:
                    noisy = self.normal_(torch.empty_like(part)).mul_(std / grid).add_(part, alpha=1 / grid)
                    torch.mul(noisy.round_(), grid, out=part)
