"""Normal values from random bits, for `tacit.randomness.Source.normal_` and `tacit.randomness.Source.add_normal_`.

In float32, each piece has a key of its own from the stream, and is made from the AES-256-CTR keystream of that key: in
one compiled call, piece beside piece in several threads, where the loops are compiled (`tacit._compiled`) and the
processor has instructions for AES. Otherwise PyTorch and NumPy do the same with arrays: from the same keys, the same
values up to their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tacit._aes import KEY_BYTES, compared, keystream
from tacit._compiled import Singles
from tacit._compiled import kernels as compiled
from tacit._threads import threads

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.int32]
Longs = npt.NDArray[np.uint64]

_PIECE = 1 << 14  # values: large beside the cost of a key or a dozen calls, small beside the cache
_EDGE = 1 << 22  # a 32-bit radius word nearer to 0 or 2^32 than this has too few significant bits: it gets 64 more
_ONE = torch.ones((), dtype=torch.float32)

kernels = compared(compiled, blocks=_PIECE // 2)
"""Compared over the longest keystream that a piece can need: if every word of a radius is an edge."""


class Stream(Protocol):
    """The random words behind normal values; a `tacit.randomness.Source`."""

    def fill(self, buffer: bytearray | memoryview) -> None: ...
    def words(self, size: int) -> Longs: ...
    def exponential(self, size: int) -> Doubles: ...


def noise(stream: Stream, arrays: Sequence[tuple[npt.NDArray[Any], float, float]]) -> None:
    """For triples (values, std, grid): overwrite the values with independent N(0, std^2) ones.

    With a grid, a power of two, the noise is added to the values in units of the grid and the result is rounded to a
    whole number of them: nothing rounds before that but the addition itself. Without one it is zero.
    """
    keys = bytearray(sum(_key_bytes(values) for values, _, _ in arrays))
    stream.fill(keys)
    try:
        rest = memoryview(keys)
        for values, std, grid in arrays:
            if not values.flags.c_contiguous:
                raise ValueError("the values are not contiguous: noise would be added to a copy of them.")
            size = _key_bytes(values)
            if kernels is not None and size:
                kernels.noise(rest[:size], values, std, grid, _PIECE, threads())
            else:
                _with_arrays(stream, rest[:size], values.reshape(-1), std, grid)
            rest = rest[size:]
    finally:
        keys[:] = bytes(len(keys))


_MOST_STREAMS = 64
"""How many streams the compiled loops add up in one pass."""


def mixed_noise(
    streams: Sequence[tuple[Stream, float]], arrays: Sequence[tuple[npt.NDArray[Any], float, float]]
) -> None:
    """As `noise`, with the weighted sum of the normal values of several streams, one (stream, weight) each.

    Whether several arrays are given at once or one after the other, each stream makes the same values for them.
    """
    for values, _, _ in arrays:
        if not values.flags.c_contiguous:
            raise ValueError("the values are not contiguous: noise would be added to a copy of them.")
    if kernels is None or len(streams) > _MOST_STREAMS or any(values.dtype != np.float32 for values, _, _ in arrays):
        for values, std, grid in arrays:
            _mixed_with_arrays(streams, values, std, grid)
        return
    sizes = [_key_bytes(values) for values, _, _ in arrays]
    weights, total = np.array([weight for _, weight in streams], dtype=np.float32), sum(sizes)
    keys = bytearray(total * len(streams))
    view = np.frombuffer(keys, dtype=np.uint8).reshape(len(streams), total)
    try:
        for (stream, _), row in zip(streams, view, strict=True):
            stream.fill(row.data)
        start = 0
        for (values, std, grid), size in zip(arrays, sizes, strict=True):
            if size:
                own = np.ascontiguousarray(view[:, start : start + size])
                kernels.mixed_noise(own.data.cast("B", (own.size,)), weights, values, std, grid, _PIECE, threads())
                own.fill(0)
            start += size
    finally:
        view.fill(0)


class Past(NamedTuple):
    """Noise of earlier steps: as many rows as weights, of as many values as the noise that they are taken from.

    Without ``decays`` a row is the noise of one step, the one at ``oldest`` is overwritten; with them each is a
    decaying sum over all steps.
    """

    rows: torch.Tensor
    weights: Singles
    decays: Singles
    oldest: int


def recursive_noise(stream: Stream, values: npt.NDArray[Any], std: float, grid: float, past: Past) -> None:
    """As `noise`, of float32 values y = z - weights · rows, with z standard normal; the rows are brought up to date."""
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError("recursive noise is made in contiguous float32.")
    if kernels is not None and values.size:
        keys = bytearray(_key_bytes(values))
        stream.fill(keys)
        try:
            kernels.recursive_noise(
                keys, past.weights, past.decays, past.rows, values, past.oldest, std, grid, _PIECE, threads()
            )
        finally:
            keys[:] = bytes(len(keys))
        return
    made, rows = np.empty_like(values), past.rows.numpy()
    noise(stream, [(made, 1.0, 0.0)])
    made -= past.weights @ rows
    if len(past.decays):
        rows *= past.decays[:, None]
        rows += made
    else:
        rows[past.oldest] = made
    _put(made, values, std, grid)


def _mixed_with_arrays(
    streams: Sequence[tuple[Stream, float]], values: npt.NDArray[Any], std: float, grid: float
) -> None:
    total, made = np.zeros_like(values), np.empty_like(values)
    for stream, weight in streams:
        noise(stream, [(made, 1.0, 0.0)])
        total += made * values.dtype.type(weight)
    _put(total, values, std, grid)


def _put(made: npt.NDArray[Any], values: npt.NDArray[Any], std: float, grid: float) -> None:
    """Overwrite the values with std times what was made, or, with a grid, add it and round."""
    made *= values.dtype.type(std)
    if grid:
        made += values * values.dtype.type(1 / grid)
        np.multiply(np.rint(made, out=made), values.dtype.type(grid), out=values)
    else:
        values[...] = made


def _key_bytes(values: npt.NDArray[Any]) -> int:
    return KEY_BYTES * -(-values.size // _PIECE) if values.dtype == np.float32 else 0


def _with_arrays(stream: Stream, keys: memoryview, values: npt.NDArray[Any], std: float, grid: float) -> None:
    """Each piece from bits of its own: drawing the values in several parts gives the same values."""
    for number, first in enumerate(range(0, values.size, _PIECE)):
        piece = values[first : first + _PIECE]
        made = np.empty_like(piece) if grid else piece
        if piece.dtype == np.float64:
            _double(stream, made, std)
        else:
            _single(keys[KEY_BYTES * number : KEY_BYTES * (number + 1)], made, std)
        if grid:
            np.add(made, piece * piece.dtype.type(1 / grid), out=made)
            np.multiply(np.rint(made, out=made), piece.dtype.type(grid), out=piece)


def _single(key: memoryview, out: Singles, std: float) -> None:
    """Box-Muller in float32: radius sqrt(-2 log u), u being the radius word over 2^32, finer near 0 and 1.

    Everything happens in the memory of the words and of the result, which fits in the cache.
    """
    pairs = (out.size + 1) // 2
    rest = out.size - pairs
    radii, angles, near, more = _words(key, pairs)
    logs = _log_uniform(radii[near], more)
    radius, angle, scratch = radii.view(np.float32), angles.view(np.float32), out[:pairs]
    np.copyto(scratch, radii.view(np.uint32), casting="unsafe")
    np.multiply(scratch, np.float32(2.0**-32), out=radius)
    _torch(torch.log, radius, radius)  # minus infinity where the word is zero, which is one of `near`
    radius[near] = logs
    np.multiply(radius, np.float32(-8), out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(radius, np.float32(std), out=radius)  # from here on twice the radius
    np.copyto(angle, angles, casting="unsafe")
    np.multiply(angle, np.float32(math.pi * 2.0**-32), out=angle)
    _torch(torch.tan, angle, angle)
    # With t = tan(angle / 2) and q = 2 r / (1 + t^2), r cos(angle) = q - r and r sin(angle) = q t.
    twice, tangent, first = (torch.from_numpy(each) for each in (radius, angle, scratch))
    torch.addcmul(_ONE, tangent, tangent, out=first)
    torch.div(twice, first, out=first)
    np.multiply(scratch[:rest], angle[:rest], out=out[pairs:])
    torch.sub(first, twice, alpha=0.5, out=first)


def _words(key: memoryview, pairs: int) -> tuple[Words, Words, npt.NDArray[np.intp], Longs]:
    """Return a word of the keystream for every radius, from the next block on one for every angle, and which radii
    need 64 bits more, with these, from the next block on.
    """
    bits = keystream(key)
    padded = -(-pairs // 4) * 4  # a block has four words
    words = np.empty(2 * padded, dtype=np.int32)
    bits.update_into(bytes(words.nbytes), words.data.cast("B"))
    near = np.flatnonzero(_near(words[:pairs]))
    more = np.frombuffer(bits.update(bytes(8 * near.size)), dtype=np.uint64)
    return words[:pairs], words[padded : padded + pairs], near, more


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
