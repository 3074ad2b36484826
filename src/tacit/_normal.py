"""Normal values from random words, piece by piece in the cache: the arithmetic of `tacit.randomness.Source.normal_`.

In float32 it is compiled (`_kernels.c`) where a C compiler was found when Tacit was installed. Otherwise PyTorch and
NumPy do the same with arrays, and take twice as long: from the same words, the same values up to their rounding.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.int32]


class Kernels(Protocol):
    """The compiled functions; what they do is said in `_kernels.c`."""

    def edges(self, words: Words, /) -> int: ...
    def normal(self, words: Words, more: npt.NDArray[np.uint64], out: Singles, std: float, /) -> None: ...
    def add_rounded(self, noise: Singles, total: Singles, grid: float, /) -> None: ...


kernels: Kernels | None
try:
    kernels = importlib.import_module("tacit._kernels")
except ImportError:
    kernels = None

_PIECE = 1 << 17  # values: large beside the cost of a dozen calls, small beside the cache
_EDGE = 1 << 22  # a 32-bit radius word nearer to 0 or 2^32 than this has too few significant bits: it gets 64 more


class Stream(Protocol):
    """What normal values are made of; a `tacit.randomness.Source`."""

    def fill(self, buffer: bytearray | memoryview) -> None: ...
    def words(self, size: int) -> npt.NDArray[np.uint64]: ...
    def exponential(self, size: int) -> Doubles: ...


class Normal:
    """Normal values piece by piece. The memory is reused: of one source, under its lock."""

    def __init__(self) -> None:
        self._raw = bytearray(4 * _PIECE)
        self._one = torch.ones((), dtype=torch.float32)

    def draw(self, stream: Stream, out: Singles | Doubles, std: float) -> None:
        """Overwrite ``out`` with independent N(0, std^2) values."""
        draw: Any = self._single if out.dtype == np.float32 else _double
        pieces = -(-out.size // _PIECE)
        for index in range(pieces):  # equal pieces, so that none is mostly thrown away
            piece = out[out.size * index // pieces : out.size * (index + 1) // pieces]
            draw(stream, piece, std)

    def _single(self, stream: Stream, out: Singles, std: float) -> None:
        """Box-Muller in float32: radius sqrt(-2 log u), u being the radius word over 2^32, finer near 0 and 1."""
        pairs = (out.size + 1) // 2
        raw = memoryview(self._raw)[: 8 * pairs]
        stream.fill(raw)
        words = np.frombuffer(raw, dtype=np.int32)
        if kernels is not None:
            kernels.normal(words, stream.words(kernels.edges(words[:pairs])), out, std)
            return
        shifted = (words[:pairs] + np.int32(_EDGE)).view(np.uint32)
        near = np.flatnonzero(shifted < np.uint32(2 * _EDGE))
        self._with_arrays(words, near, _log_uniform(words[near], stream.words(near.size)), out, std)

    def _with_arrays(self, words: Words, near: npt.NDArray[np.int64], logs: Doubles, out: Singles, std: float) -> None:
        """Everything happens in the memory of the words and of the result, which fits in the cache."""
        pairs = words.size // 2
        rest = out.size - pairs
        floats = words.view(np.float32)
        radius, angle, scratch = floats[:pairs], floats[pairs:], out[:pairs]
        np.copyto(scratch, words[:pairs].view(np.uint32), casting="unsafe")
        np.multiply(scratch, np.float32(2.0**-32), out=radius)
        _torch(torch.log, radius, radius)  # minus infinity where the word is zero, which is one of `near`
        radius[near] = logs
        np.multiply(radius, np.float32(-8), out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, np.float32(std), out=radius)  # from here on twice the radius
        np.copyto(angle, words[pairs:], casting="unsafe")
        np.multiply(angle, np.float32(math.pi * 2.0**-32), out=angle)
        _torch(torch.tan, angle, angle)
        # With t = tan(angle / 2) and q = 2 r / (1 + t^2), r cos(angle) = q - r and r sin(angle) = q t.
        twice, tangent, first = (torch.from_numpy(each) for each in (radius, angle, scratch))
        torch.addcmul(self._one, tangent, tangent, out=first)
        torch.div(twice, first, out=first)
        np.multiply(scratch[:rest], angle[:rest], out=out[pairs:])
        torch.sub(first, twice, alpha=0.5, out=first)


def _double(stream: Stream, out: Doubles, std: float) -> None:
    """Box-Muller in float64, with 64 bits for the radius and 64 for the angle."""
    pairs = (out.size + 1) // 2
    radius = std * np.sqrt(2 * stream.exponential(pairs))
    angle = stream.words(pairs).view(np.int64) * (math.pi * 2.0**-63)
    out[:pairs] = radius * np.cos(angle)
    out[pairs:] = (radius * np.sin(angle))[: out.size - pairs]


def _log_uniform(words: Words, more: npt.NDArray[np.uint64]) -> Doubles:
    """log u where u is t or 1 + t, t being ``words`` / 2^32 with the 64 bits of ``more`` after them."""
    wide = words.astype(np.int64)
    small = (np.where(wide >= 0, wide, ~wide) + (more + 0.5) * 2.0**-64) * 2.0**-32
    return np.asarray(np.where(wide >= 0, np.log(small), np.log1p(-small)))


def _torch(function: Any, values: Singles, out: Singles) -> None:
    function(torch.from_numpy(values), out=torch.from_numpy(out))  # twice as fast as NumPy's
