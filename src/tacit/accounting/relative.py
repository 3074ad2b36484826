"""Convolution of masses, each result accurate relative to itself, however small.

The rounding of a Fourier transform is relative to the largest mass. So masses are sorted by size into levels, each
within a factor `_BAND`, and transformed apart: a product of two levels is off by a small part of their own product (the
idea of Wilson & Keich 2016).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacit.accounting.effort import spend
from tacit.accounting.losses import Array

ROUNDING = 1e-10
"""More than any sum of masses is off by, relatively."""

_BAND, _WIDE = 1e3, 1e4
"""Within a level, where rounding is charged and where it is not."""
_FEW = 1024
"""Up to so many masses sums are quicker than transforms, and off by less: 1024 roundings, of ROUNDING / 64 allowed."""
_EPS = float(np.finfo(np.float64).eps)


def convolved(a: Array, b: Array, *, same: bool = False, sign: int = +1) -> Array:
    """A bound on the convolution of two vectors of masses, close to it: from above for ``sign`` +1, from below for -1.

    ``same``: they are one vector. Products of levels i and j are of one size for all i + j = m: they are added up
    before the transform back. What two transforms, a product and a transform back can be off by is added to every
    entry they touch, or taken away from it.
    """
    if min(len(a), len(b)) <= _FEW:
        spend(len(a) * len(b) / 50)
        return np.asarray(np.convolve(a, b) * (1 + sign * ROUNDING / 64))
    ours = _levels(a, _BAND)
    theirs = ours if same else _levels(b, _BAND)
    out = np.zeros(len(a) + len(b) - 1)
    size = next_fast_len(len(out), real=True)
    spend(4.0 * size * (2 * len(ours) + (1 if same else 2) * len(theirs)))
    left = [rfft(_placed(begin, masses, size)) for _, begin, masses in ours]
    right = left if same else [rfft(_placed(begin, masses, size)) for _, begin, masses in theirs]
    rounding = 3 * (4 * math.log2(size) + 64) * _EPS
    for together in _pairs(ours, theirs):
        spectrum = np.zeros_like(left[0])
        off, begin, end = 0.0, len(out), 0
        for i, j in together:
            (_, start, one), (_, first, other) = ours[i], theirs[j]
            spectrum += left[i] * right[j]
            off += math.sqrt(float(one @ one) * float(other @ other))
            begin, end = min(begin, start + first), max(end, start + first + len(one) + len(other) - 1)
        found = irfft(spectrum, size)[begin:end]
        if sign > 0:
            found = np.maximum(found, 0.0) + rounding * off
        else:
            found = np.where(found > 2 * rounding * off, found - rounding * off, 0.0)
        out[begin:end] += found
    return out * (1 + sign * ROUNDING / 64)


def both_convolved(a: Array, b: Array, *, same: bool = False) -> Array:
    """P * P' and P * W' + W * (P' + W') of rows (P, W) and (P', W'), * the convolution; rounding is not charged.

    Both rows have the levels of the larger one of each column, so that they share transforms.
    """
    if min(a.shape[1], b.shape[1]) <= _FEW:
        spend(3 * a.shape[1] * b.shape[1] / 50)
        mixed = np.convolve(a[0], b[1]) + np.convolve(a[1], b[0] + b[1])
        return np.stack([np.convolve(a[0], b[0]), mixed])
    ours = _levels(a, _WIDE)
    theirs = ours if same else _levels(b, _WIDE)
    out = np.zeros((2, a.shape[1] + b.shape[1] - 1))
    size = next_fast_len(out.shape[1], real=True)
    spend(8.0 * size * (2 * len(ours) + (1 if same else 2) * len(theirs)))
    left = [rfft(_placed(begin, masses, size)) for _, begin, masses in ours]
    right = left if same else [rfft(_placed(begin, masses, size)) for _, begin, masses in theirs]
    for together in _pairs(ours, theirs):
        spectra = np.zeros_like(left[0])
        begin, end = out.shape[1], 0
        for i, j in together:
            (p, w), (q, v) = left[i], right[j]
            spectra[0] += p * q
            spectra[1] += p * v + w * (q + v)
            start = ours[i][1] + theirs[j][1]
            begin, end = min(begin, start), max(end, start + ours[i][2].shape[1] + theirs[j][2].shape[1] - 1)
        out[:, begin:end] += irfft(spectra, size)[:, begin:end]
    return out


Level = tuple[int, int, Array]


def _pairs(ours: list[Level], theirs: list[Level]) -> list[list[tuple[int, int]]]:
    """Return the pairs of places whose levels have the same sum, together."""
    pairs: dict[int, list[tuple[int, int]]] = {}
    for i, (high, _, _) in enumerate(ours):
        for j, (low, _, _) in enumerate(theirs):
            pairs.setdefault(high + low, []).append((i, j))
    return list(pairs.values())


def _levels(p: Array, band: float) -> list[Level]:
    """The masses by size: level i has those within a factor ``band`` below max / band^i; each with its first place.

    Of several rows, by the largest of each column.
    """
    out = []
    with np.errstate(divide="ignore"):
        size = np.abs(p) if p.ndim == 1 else np.abs(p).max(axis=0)
        level = np.floor((math.log(max(float(size.max()), 1e-300)) - np.log(size)) / math.log(band))
    for i in np.unique(level[np.isfinite(level)]):
        places = np.flatnonzero(level == i)
        begin, end = int(places[0]), int(places[-1]) + 1
        out.append((int(i), begin, np.where(level[begin:end] == i, p[..., begin:end], 0.0)))
    return out


def _placed(begin: int, masses: Array, size: int) -> Array:
    out = np.zeros((*masses.shape[:-1], size))
    out[..., begin : begin + masses.shape[-1]] = masses
    return out
