"""The discrete Gaussian on the whole numbers, sampled exactly (Canonne, Kamath & Steinke 2020, Algorithm 3).

N_Z(0, σ²) takes the value y with probability proportional to exp(-y² / (2σ²)). A candidate is

* a sign, and a magnitude y = u + t v with u uniform on 0, ..., t - 1, where t is a power of two, so that u is k bits;
* v geometric, P(v >= j) = exp(-j): v counts the j >= 1 for which one uniform number is below exp(-j).

It is accepted with probability exp(-γ), γ = y²/(2σ²) - v + σ²/(2t²) = u/t + (y - σ²/t)²/(2σ²) >= 0. (The paper's two
rejections, of u with exp(-u/t) and of y, are here one trial with the product.) The sign minus with y = 0 is rejected,
so that zero is not counted twice. Candidates (sign, u, v) have weight exp(-v), so what is accepted has weight exp(-v)
exp(-γ) = exp(-y²/(2σ²)) times a constant: the distribution is the one asked for, for every t and σ.

Exact, although fast: every comparison of a uniform number with an exponential is first made with 32 bits of it and
whole numbers known to enclose the exponential (`_enclosure`). Where that leaves the answer open, about four times in
100,000, that candidate is decided by `tacit.mechanisms.bernoulli` with as many more bits as it takes. There is no
floating-point number anywhere. What remains assumed is that the keystream cannot be told from random bits; how long
drawing takes depends on what is drawn, and is not hidden.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.mechanisms.bernoulli import Uniform, exp_bounds
from tacit.randomness import Integers, Source

LARGEST = 2.0**44
"""The largest σ: sums of values and noise then stay far below the range of 64 bits."""

_CHUNK = 1 << 15  # candidates at a time: large beside the cost of a NumPy call, small beside the cache
_FINE = 16  # γ is known to 2^-16, from below
_OPEN = (2 << 32 - _FINE) + 2  # how far above the lower end of the enclosure 2^32 exp(-γ) can be
_END = 11  # for γ beyond, the enclosure is [0, _OPEN): 2^32 exp(-11) is less
_MOST_V = 12  # larger v are left to exact arithmetic, one candidate in 160,000
_FAR = 2**62  # a magnitude that does not fit is released as this: a sum to which it is added is clamped far below

_Words = npt.NDArray[np.uint64]


def draw(sigma: float, size: int, source: Source) -> Integers:
    """``size`` independent values of N_Z(0, sigma²), for 1 <= sigma <= 2^44. ``sigma`` is taken as the exact number."""
    if not 1 <= sigma <= LARGEST:
        raise ValueError(f"sigma is {sigma!r}; it must be from 1 to 2^44 steps of the lattice: choose another step.")
    shape = _Shape(Fraction(sigma) ** 2)
    out = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        # Half of the candidates are accepted, or a little less. Of independent ones the first are as good as any.
        found = shape.candidates(min(2 * (size - done) + 2 * math.isqrt(size - done) + 8, _CHUNK), source)
        kept = found[: size - done]
        out[done : done + kept.size] = kept
        done += kept.size
    return out


class _Shape:
    """The constants of one σ. t = 2^k is the largest power of two with t² <= 2σ², so that 1/2 <= σ²/t² < 2."""

    def __init__(self, variance: Fraction) -> None:
        self.variance = variance
        self.k = (math.floor(2 * variance).bit_length() - 1) // 2
        square = 1 << 2 * self.k
        self.factor = np.int64(math.floor(square / (2 * variance) * 2**30))  # of x² in γ, in units of 2^-30; at most 1
        self.offset = np.int64(math.floor(variance / (2 * square) * 2**54))
        self.leading = np.int64((1 << 22) - (1 << max(22 - self.k, 0)))  # where u has fewer than 22 bits: those

    def candidates(self, size: int, source: Source) -> Integers:
        """Return the accepted ones of ``size`` candidates, in order."""
        first = source.words(size)
        second = source.words(size).view(np.uint32)
        chosen, trial = second[:size], second[size:]
        v, doubtful = _geometric(chosen)
        low = self._enclosure(first, v)
        accepted = trial < low
        np.subtract(trial, low, out=low)  # modulo 2^32
        unsure = np.flatnonzero((low < np.uint32(_OPEN)) | doubtful)
        magnitudes: dict[int, int] = {}
        for index in unsure:
            found = self._exactly(int(first[index]), int(chosen[index]), int(trial[index]), source)
            accepted[index] = found is not None
            if found is not None:
                magnitudes[int(index)] = min(found, _FAR)
        kept = np.flatnonzero(accepted)
        words = first[kept]
        values = self._u(words) + (v[kept].astype(np.int64) << self.k)
        if magnitudes:
            values[np.searchsorted(kept, list(magnitudes))] = list(magnitudes.values())
        minus = (words & np.uint64(1)).view(np.int64)
        signed = (values ^ -minus) + minus
        twice = (values == 0) & (minus == 1)
        return signed[~twice] if twice.any() else signed

    def _u(self, words: _Words) -> Integers:
        """u: the leading k bits. (The sign is the last bit, and k is far below 63.)"""
        return (words >> np.uint64(64 - self.k)).view(np.int64) if self.k else np.zeros(words.size, dtype=np.int64)

    def _enclosure(self, words: _Words, v: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """Lower ends L with L <= 2^32 exp(-γ) <= L + `_OPEN`, where v is right or at least 11.

        With x = y/t = v + u/t: γ = x² t²/(2σ²) - v + σ²/(2t²). X = floor(2^22 x), and everything is rounded down: in
        units of 2^-16, for x < 12 and with t²/(2σ²) <= 1, X costs less than 2 · 12 · 2^-6 = 3/8, the shift by 20 less
        than 2^-8, the factor less than 144 · 2^-14, the offset 2^-38 and the last shift less than 1: G <= 2^16 γ < G +
        2 (or G = -1, and then G = 0 as γ >= 0). From v = 11 on γ >= (11 - 2)²/4 > 11 since (x - σ²/t²)² t²/(2σ²) falls
        with σ²/t² < 2: the last entry encloses it, which is 0. All products stay below 2^63.
        """
        whole = np.minimum(v, np.uint8(_END)).astype(np.int64)
        x = (words >> np.uint64(42)).view(np.int64)
        if self.k < 22:
            x &= self.leading
        x += whole << 22
        x *= x
        x >>= 20
        x *= self.factor
        x += self.offset
        whole <<= 54
        x -= whole
        x >>= 54 - _FINE
        return _table().take(x, mode="clip")

    def _exactly(self, first: int, chosen: int, trial: int, source: Source) -> int | None:
        """Return the magnitude of one candidate, given its random words, or None if it is rejected."""
        uniform, v = Uniform(chosen, 32), 0
        while uniform.below_exp(Fraction(v + 1), source):
            v += 1
        y = (first >> 64 - self.k) + (v << self.k)
        return y if Uniform(trial, 32).below_exp(self.gamma(y, v), source) else None

    def gamma(self, y: int, v: int) -> Fraction:
        """Return γ: a candidate of magnitude y, made with v, is accepted with probability exp(-γ)."""
        return y * y / (2 * self.variance) - v + self.variance / (2 << 2 * self.k)


def _geometric(words: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return how many of exp(-1), exp(-2), ... exceed words / 2^32, and where 32 bits cannot decide."""
    floors = _floors()
    v = (words < floors[0]).view(np.uint8)
    for floor in floors[1:_MOST_V]:
        v += (words < floor).view(np.uint8)
    return v, (words == floors.take(v)) | (v == _MOST_V)


@lru_cache(maxsize=1)
def _floors() -> npt.NDArray[np.uint32]:
    """Return floor(2^32 exp(-j)) for j = 1, 2, ..."""
    return np.array([exp_bounds(Fraction(j), 128)[0] >> 96 for j in range(1, _MOST_V + 2)], dtype=np.uint32)


@lru_cache(maxsize=1)
def _table() -> npt.NDArray[np.uint32]:
    """floor(2^32 exp(-(G + 2) / 2^16)), or one less, for G = 0, 1, ..., and 0 for the last.

    Each entry is the one before times exp(-2^-16), rounded down in units of 2^-128: 720,896 times, which adds up to
    less than 2^-107, so that an entry is wrong only where 2^32 exp(-x) is as near above a whole number as that.
    """
    size = _END << _FINE
    ratio = exp_bounds(Fraction(1, 1 << _FINE), 128)[0]
    value = exp_bounds(Fraction(2, 1 << _FINE), 128)[0]
    entries = np.zeros(size + 1, dtype=np.uint32)
    for index in range(size):
        entries[index] = value >> 96
        value = value * ratio >> 128
    return entries
