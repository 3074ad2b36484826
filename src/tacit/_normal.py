"""Normal values from random words, piece by piece in the cache: the arithmetic of `tacit.randomness.Source.normal_`.

In float32 it is compiled where it could be (`tacit._compiled`). Otherwise PyTorch and NumPy do the same with arrays,
and take twice as long: from the same words, the same values up to their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tacit._compiled import Longs, Singles, Words, kernels

Doubles = npt.NDArray[np.float64]

_PIECE = 1 << 16  # values: large beside the cost of a dozen calls, small beside the cache
_EDGE = 1 << 22  # a 32-bit radius word nearer to 0 or 2^32 than this has too few significant bits: it gets 64 more
_NONE = np.empty(0, dtype=np.uint64)


class Stream(Protocol):
    """What normal values are made of; a `tacit.randomness.Source`."""

    def fill(self, buffer: bytearray | memoryview) -> None: ...
    def words(self, size: int) -> Longs: ...
    def exponential(self, size: int) -> Doubles: ...


class Normal:
    """Normal values piece by piece. The memory is reused: of one source, under its lock."""

    def __init__(self) -> None:
        self._raw = bytearray(4 * _PIECE)
        self._one = torch.ones((), dtype=torch.float32)

    def draw(self, stream: Stream, out: Singles | Doubles, std: float) -> None:
        """Overwrite ``out`` with independent N(0, std^2) values."""
        for piece in _pieces(out):
            if piece.dtype == np.float64:
                _double(stream, piece, std)
            elif kernels is not None:
                kernels.normal(*self._words(stream, piece.size), piece, std)
            else:
                self._with_arrays(*self._words(stream, piece.size), piece, std)

    def add(self, stream: Stream, total: Singles | Doubles, std: float, grid: float) -> None:
        """Add independent N(0, std^2) values to ``total`` and round to multiples of the grid, a power of two.

        In units of the grid, so that nothing rounds but the addition itself before the result is rounded.
        """
        for piece in _pieces(total):
            if kernels is not None and piece.dtype == np.float32:
                kernels.add_normal(*self._words(stream, piece.size), piece, std / grid, grid)
                continue
            noisy = np.empty_like(piece)
            self.draw(stream, noisy, std / grid)
            np.add(noisy, piece * piece.dtype.type(1 / grid), out=noisy)
            np.multiply(np.rint(noisy, out=noisy), piece.dtype.type(grid), out=piece)

    def _words(self, stream: Stream, size: int) -> tuple[Words, Longs]:
        """Two words for each pair of values, radii first, and 64 bits more for every radius that needs them."""
        pairs = (size + 1) // 2
        raw = memoryview(self._raw)[: 8 * pairs]
        stream.fill(raw)
        words = np.frombuffer(raw, dtype=np.int32)
        count = int(np.count_nonzero(_near(words[:pairs]))) if kernels is None else kernels.edges(words[:pairs])
        return words, stream.words(count) if count else _NONE

    def _with_arrays(self, words: Words, more: Longs, out: Singles, std: float) -> None:
        """Box-Muller in float32: radius sqrt(-2 log u), u being the radius word over 2^32, finer near 0 and 1.

        Everything happens in the memory of the words and of the result, which fits in the cache.
        """
        pairs = words.size // 2
        rest = out.size - pairs
        near = np.flatnonzero(_near(words[:pairs]))
        logs = _log_uniform(words[near], more)
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


def _pieces(values: Singles | Doubles) -> Iterator[Any]:
    """Each from words of its own: whoever draws for every so many values in turn draws the same."""
    for first in range(0, values.size, _PIECE):
        yield values[first : first + _PIECE]


def _near(radii: Words) -> npt.NDArray[np.bool_]:
    return (radii + np.int32(_EDGE)).view(np.uint32) < np.uint32(2 * _EDGE)


def _double(stream: Stream, out: Doubles, std: float) -> None:
    """Box-Muller in float64, with 64 bits for the radius and 64 for the angle."""
    pairs = (out.size + 1) // 2
    radius = std * np.sqrt(2 * stream.exponential(pairs))
    angle = stream.words(pairs).view(np.int64) * (math.pi * 2.0**-63)
    out[:pairs] = radius * np.cos(angle)
    out[pairs:] = (radius * np.sin(angle))[: out.size - pairs]


def _log_uniform(words: Words, more: Longs) -> Doubles:
    """log u where u is t or 1 + t, t being ``words`` / 2^32 with the 64 bits of ``more`` after them."""
    wide = words.astype(np.int64)
    small = (np.where(wide >= 0, wide, ~wide) + (more + 0.5) * 2.0**-64) * 2.0**-32
    return np.asarray(np.where(wide >= 0, np.log(small), np.log1p(-small)))


def _torch(function: Any, values: Singles, out: Singles) -> None:
    function(torch.from_numpy(values), out=torch.from_numpy(out))  # twice as fast as NumPy's
