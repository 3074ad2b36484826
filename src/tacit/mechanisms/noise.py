"""Noise added to sums, in place.

Formal guarantee: each sum gets independent noise of its standard deviation (or scale) on every coordinate, from the
source, once. The noisy value is then rounded to a public grid, the largest power of two not above 2^-14 of the noise:
that is post-processing, adds a variance of less than 2^-31 of the noise's, and hides the low bits, in which a
floating-point sum of real noise tells too much about the true value (Mironov 2012). It is a defence, not a proof: the
guarantee assumes that floating-point noise, so rounded, is as good as real noise.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from tacit.keyed_noise import Mixture, Recursion
from tacit.mechanisms.noise_ahead import PIECE as _PIECE
from tacit.randomness import Drawn, Source

_GRID_BITS = 14

Noisy = Sequence[tuple[torch.Tensor, float]]
"""Sums, and the standard deviation (or scale) of the noise of each."""


def add_gaussian_(sums: Noisy, source: Source) -> None:
    """Add N(0, std^2) to every coordinate of each sum, for pairs (sum, std)."""
    _check(sums)
    if source.join_ is None and all(total.is_contiguous() and total.device.type == "cpu" for total, _ in sums):
        source.add_normals_([(total, std, _grid(std)) for total, std in sums])
    else:
        _add_(sums, source.normal_, source, source.drawn)


def add_mixture_(sums: Noisy, mixture: Mixture | Recursion) -> None:
    """Add std times the mixture's values to each sum, for pairs (sum, std): the same ones on every device."""
    _check(sums)
    if all(total.is_contiguous() and total.device.type == "cpu" for total, _ in sums):
        mixture.add_normals_([(total, std, _grid(std)) for total, std in sums])
    else:
        add_taken_(sums, lambda count, dtype: mixture.normal_(_scratch(dtype)[:count]))


def add_taken_(sums: Noisy, take: Callable[[int, torch.dtype], torch.Tensor]) -> None:
    """Add noise that ``take`` hands out in units of the standard deviation, for pairs (sum, std), sum after sum."""
    _check(sums)
    with torch.no_grad():
        flats = [(total.reshape(-1), scale) for total, scale in sums]  # views where they can be
        for flat, scale in flats:
            grid = _grid(scale)
            for piece in torch.split(flat, _PIECE):
                noisy = take(piece.numel(), piece.dtype).to(piece.device)
                noisy.mul_(scale / grid).add_(piece, alpha=1 / grid).round_()
                torch.mul(noisy, grid, out=piece)
        _put_back(sums, flats)


def add_laplace_(sums: Noisy, source: Source) -> None:
    """Add Laplace noise to every coordinate of each sum, for pairs (sum, scale)."""
    if source.share not in (0.0, 1.0):
        raise ValueError("Laplace noise cannot be split among processes; let the first of them add it.")
    _check(sums)
    _add_(sums, source.laplace_, source)


Draw = Callable[[torch.Tensor, float], torch.Tensor]
"""Overwrite a tensor with noise of the given standard deviation (or scale)."""


def _check(sums: Noisy) -> None:
    for total, scale in sums:
        if total.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a sum is {total.dtype}; sums are accumulated and released in float32 or float64.")
        if not 1e-20 < scale < 1e20:
            raise ValueError(f"the noise is {scale!r}; it must be between 1e-20 and 1e20: change the units of the sum.")


def _grid(scale: float) -> float:
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - _GRID_BITS)


def _add_(sums: Noisy, draw_: Draw, source: Source, drawn: Drawn | None = None) -> None:
    with torch.no_grad():
        flats = [(total.reshape(-1), scale) for total, scale in sums]  # views where they can be
        for tray in _trays(flats):
            _add_to_tray_(tray, draw_, source, drawn)
        _put_back(sums, flats)


def _put_back(sums: Noisy, flats: Noisy) -> None:
    """Copy the flat values back into sums that are not contiguous."""
    for (total, _), (flat, _) in zip(sums, flats):
        if flat.data_ptr() != total.data_ptr():
            total.copy_(flat.view(total.shape))


def _trays(flats: Noisy) -> Iterator[Noisy]:
    """Yield the sums in trays of at most `_PIECE` values: large ones cut up, small ones of one dtype together."""
    tray: list[tuple[torch.Tensor, float]] = []
    room = 0
    for flat, scale in flats:
        for piece in torch.split(flat, _PIECE) if flat.numel() > _PIECE else (flat,):
            same = tray and (tray[0][0].dtype, tray[0][0].device) == (piece.dtype, piece.device)
            if tray and (not same or piece.numel() > room):
                yield tray
                tray = []
            room = (room if tray else _PIECE) - piece.numel()
            tray.append((piece, scale))
    if tray:
        yield tray


def _add_to_tray_(tray: Noisy, draw_: Draw, source: Source, drawn: Drawn | None) -> None:
    """In units of the grid, a power of two, so that nothing but the addition itself rounds before `round_` does.

    Where several processes hold parts of a sum, the parts are all-reduced between the noise and the rounding.
    """
    pieces = [piece for piece, _ in tray]
    grids = [_grid(scale) for _, scale in tray]
    sizes = [piece.numel() for piece in pieces]
    # Where noise is split between processes, each adds its part of it: rounding that would not be one of the whole sum.
    dtype = torch.float64 if 0 < source.share < 1 else pieces[0].dtype
    noisy = drawn(sum(sizes), dtype, pieces[0].device) if drawn is not None and source.share == 1 else None
    if noisy is not None:
        torch._foreach_mul_(list(torch.split(noisy, sizes)), [scale / grid for (_, scale), grid in zip(tray, grids)])
    else:
        noisy = _fresh(tray, draw_, source.share, dtype)
    parts = list(torch.split(noisy, sizes))
    in_units = torch._foreach_mul([piece.to(dtype) for piece in pieces], [1 / grid for grid in grids])
    torch._foreach_add_(parts, in_units)
    if source.join_ is not None:
        source.join_(noisy)
    noisy.round_()
    torch._foreach_mul_(parts, grids)
    torch._foreach_copy_(pieces, parts)


def _fresh(tray: Noisy, draw_: Draw, share: float, dtype: torch.dtype) -> torch.Tensor:
    """Noise for a tray, in units of the grids, on its device."""
    sizes = [piece.numel() for piece, _ in tray]
    room = _scratch(dtype)[: sum(sizes)]
    for part, (_, scale) in zip(torch.split(room, sizes), tray):
        if share:
            draw_(part, share * scale / _grid(scale))
        else:
            part.zero_()
    return room.to(tray[0][0].device)


def _scratch(dtype: torch.dtype) -> torch.Tensor:
    """Return this thread's memory for `_PIECE` values, reused because new pages cost more than the arithmetic."""
    if dtype not in _memory.kept:
        _memory.kept[dtype] = torch.empty(_PIECE, dtype=dtype, device="cpu")
    return _memory.kept[dtype]


class _Memory(threading.local):
    def __init__(self) -> None:
        self.kept: dict[torch.dtype, torch.Tensor] = {}


_memory = _Memory()
