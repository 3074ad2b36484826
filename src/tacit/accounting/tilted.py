"""The tilted laws of single losses on their nodes, and the characteristic function of their sum.

What is computed, and what it can be off by, is in the text of `tacit.accounting.characteristic`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tacit.accounting.losses import Array, replaced_at
from tacit.accounting.mixture import log_mixture
from tacit.accounting.rounding import COARSE

_EPS = float(np.finfo(np.float64).eps)
_CHUNK = 1 << 19
# Bins of the loss for the bound on high frequencies, and where they end, in deviations beyond the peak.
_BINS = 96
_ENDS = (0.7, 2.0, 4.5)
_BOTH_ENDS = ((0.4, 0.4), (1.0, 1.0), (2.0, 2.0), (1.0, 4.5))  # a replaced record's loss is steep on both sides
# sin v / v never exceeds this in size from the first minimum on.
_LOBE = 0.2173


@dataclass(frozen=True)
class Cut:
    """Φ((place - x)/width) for each term."""

    place: Array
    width: Array

    def log(self, x: Array) -> tuple[Array, Array]:
        """The logarithm, and what rounding does to it, in units of 4 eps."""
        away = (self.place[:, None] - x) / self.width[:, None]
        below = np.minimum(away, 0.0)
        return log_ndtr(away), below * (below - (np.abs(x) + self.place[:, None]) / self.width[:, None])


@dataclass(frozen=True)
class SampledTerms:
    """Terms with a rate, a noise multiplier and a count each, all seen from one side, and one unsampled Gaussian.

    The record is removed, or ``added``, or ``replaced``; tilts of replaced ones are at least 0.
    """

    rates: Array
    noises: Array
    counts: Array
    shift: float
    added: bool
    cut: Cut | None = None
    replaced: bool = False


@dataclass(frozen=True)
class Tilted:
    """The tilted laws of one step of each term: masses ``weight`` at ``loss`` (less its mean), a row a term."""

    source: SampledTerms
    tilt: float
    nodes: Array
    weight: Array
    loss: Array
    mean: Array
    log_mass: Array
    missed: Array  # by tails and quadrature
    hurt: Array  # what rounding can do to each weight, relatively; sums of positive numbers are pairwise and included
    blur: Array  # and to each loss
    moved: Array  # how far the mean loss may be off because the noise multiplier was rounded down (for lower bounds)

    @cached_property
    def doubt(self) -> Array:
        """How far log_mass may be off."""
        return np.asarray((self.weight * self.hurt).sum(axis=1) + self.missed + 8 * _EPS * np.abs(self.log_mass))

    @property
    def value(self) -> float:
        """K(t) of the whole sum."""
        return float(self.source.counts @ self.log_mass) + self.source.shift**2 * self.tilt * (self.tilt + 1) / 2

    @property
    def value_doubt(self) -> float:
        rounding = 8 * _EPS * (abs(self.value) + (self.source.shift * (self.tilt + 1)) ** 2)
        return float(self.source.counts @ self.doubt) + rounding

    @property
    def value_moved(self) -> float:
        """How far below K(t) that of the true noise multipliers may be, which were rounded down."""
        power = abs(self.tilt) if self.source.added else abs(self.tilt + 1)
        whole = self.source.shift**2 * abs(self.tilt) * (self.tilt + 1) * COARSE
        return float(self.source.counts @ self.moved) * power + whole

    @property
    def centre(self) -> float:
        """K'(t)."""
        return float(self.source.counts @ self.mean) + self.source.shift**2 * (self.tilt + 0.5)

    @cached_property
    def variance(self) -> float:
        """K''(t)."""
        own = (self.weight * self.loss * self.loss).sum(axis=1)
        return float(self.source.counts @ own) + self.source.shift**2

    def characteristic(self, spacing: float, count: int) -> tuple[NDArray[np.complex128], Array, Array]:
        """log of the sum's tilted characteristic function, centred, at spacing · 1 .. count, and of two bounds.

        The first bound is what the modulus can be with all errors of this room. The second adds what changes with the
        true noise multipliers, which were rounded down by at most `COARSE`: a moment E[e^(uL)] changes by at most
        |u| E[e^(Re u L) |dL|]. What is summed is e^(iyl) - 1, so that
        rounding hurts only in proportion to y|l|, however many steps follow. At y = (aB + b) spacing it is
        (g_a - 1) e_b + (e_b - 1), so the sums over the nodes are matrix products.
        """
        terms, nodes = self.weight.shape
        inner = max(math.isqrt(count), 1)
        outer = -(-count // inner)
        less = np.zeros((terms, outer, inner), dtype=np.complex128)
        chunk = min(max(_CHUNK // (terms * (inner + outer)), 16), 256)
        near, far = spacing * np.arange(1, inner + 1), spacing * inner * np.arange(outer)
        for start in range(0, nodes, chunk):
            loss, weight = self.loss[:, start : start + chunk], self.weight[:, start : start + chunk]
            baby = _turn(loss[:, :, None] * near)
            giant = _turn(far[:, None] * loss[:, None, :]) * weight[:, None, :]
            less += (weight[:, None, :] @ baby) + giant @ (baby + 1)
        less = less.reshape(terms, -1)[:, :count]
        y = spacing * np.arange(1, count + 1)
        # |e^(iyl) - 1| <= min(2, y|l|), times: each weight's error, those of two exponentials and of sums in chunks.
        size = np.abs(self.loss)
        each = self.hurt + self.doubt[:, None] + _EPS * (64 + 2 * chunk + 2 * nodes / chunk)
        off = np.minimum(
            2 * (self.weight * each).sum(axis=1)[:, None], (self.weight * each * size).sum(axis=1)[:, None] * y
        )
        off += (self.weight * (16 * _EPS * size + self.blur)).sum(axis=1)[:, None] * y + 4 * self.missed[:, None]
        modulus = np.maximum(np.abs(1 + less), 1e-300)
        square = np.maximum(less.real * (2 + less.real) + less.imag**2, -0.9)
        log_size = np.where(modulus > 0.5, 0.5 * np.log1p(square), np.log(modulus))
        counts = self.source.counts
        gauss = self.source.shift**2 / 2 * y * y
        log_value = counts @ (log_size + 1j * np.arctan2(less.imag, 1 + less.real)) - gauss
        off += 8 * _EPS * np.abs(less)  # of the logarithm and the angle
        moved = off + self.moved[:, None] * (abs(self.tilt) + 1 + y) * 2
        bounds = [counts @ (log_size + np.log1p(each / modulus)) - gauss for each in (off, moved)]
        rounding = 8 * _EPS * (1 + gauss)
        return log_value, bounds[0] + rounding, bounds[1] + rounding + 4 * COARSE * gauss

    def log_decay(self, frequency: float) -> float:
        """A bound on log |characteristic function| at every frequency from this one on."""
        half = frequency * self._layers[1] / 2
        sinc = np.sinc(half / math.pi)
        most = np.where((half < 2.6) & (sinc > _LOBE), sinc, np.minimum(_LOBE, 1 / np.maximum(half, 1.0)))
        kept = np.minimum((self._layers[0] * (1 - most)).sum(axis=2).max(axis=0), 1 - 1e-12)
        return float(self.source.counts @ np.log1p(-kept)) / 2 - (self.source.shift * frequency) ** 2 / 2

    @cached_property
    def _layers(self) -> tuple[Array, Array]:
        """Masses and widths of the layers of a difference of losses, for each of several ranges."""
        peak = np.take_along_axis(self.nodes, np.argmax(self.weight, axis=1)[:, None], axis=1)
        ranges = _BOTH_ENDS if self.source.replaced else [(5.0, end) for end in _ENDS]
        found = [self._layers_between(peak - begin, peak + end) for begin, end in ranges]
        return np.stack([mass for mass, _ in found]), np.stack([width for _, width in found])

    def _layers_between(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The loss between two nodes in `_BINS` equal bins, a density below its own in each, and then its difference.

        The difference of two histograms has a density that is linear between multiples of the bin width, so its least
        value in a bin is at an end; running minima from 0 outwards make it fall.
        """
        rate, noise = self.source.rates[:, None], self.source.noises[:, None]
        if self.source.replaced:
            return self._bounded_layers(*self._replaced_bins(rate, noise, low, high))
        power = -self.tilt if self.source.added else self.tilt + 1
        ends = log_mixture(rate, np.hstack([low, high]) / noise - 0.5 / noise / noise)
        bins = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0.0, 1.0, _BINS + 1)
        inner = np.expm1(np.minimum(bins, 30.0)) / rate + 1
        ratio = np.where(bins > 30, bins - np.log(rate), np.log(np.maximum(inner, 1e-300)))
        x = noise * ratio + 0.5 / noise
        normal, mixed = -x * x / 2, power * bins
        # L grows with x and so does its slope: the least density in a bin is at least this.
        least = np.minimum(normal[:, :-1], normal[:, 1:]) + np.minimum(mixed[:, :-1], mixed[:, 1:])
        least[inner[:, :-1] < 1e-6] = -math.inf  # too much rounding to tell
        log_slope = np.minimum(np.log(rate) + ratio[:, 1:] - bins[:, 1:], 0.0) - np.log(noise)
        return self._bounded_layers(bins, x, least, log_slope)

    def _replaced_bins(self, rate: Array, noise: Array, low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
        """Bins of the loss of a replaced record, where they lie, and bounds on the weight and the slope in them.

        L(x) grows and L(-x) falls with x, so the weight e^((t+1) L(x) - t L(-x)) grows; the slope of the loss is the
        sum of one that grows and one that falls.
        """
        ends = [log_mixture(rate, x / noise - 0.5 / noise / noise) for x in (low, high, -low, -high)]
        first, last = ends[0] - ends[2], ends[1] - ends[3]
        bins = first + (last - first) * np.linspace(0.0, 1.0, _BINS + 1)
        x = noise * replaced_at(bins, rate, 1 / noise)
        ratio, back = x / noise - 0.5 / noise / noise, -x / noise - 0.5 / noise / noise
        one, other = log_mixture(rate, ratio), log_mixture(rate, back)
        normal, mixed = -x * x / 2, (self.tilt + 1) * one - self.tilt * other
        least = np.minimum(normal[:, :-1], normal[:, 1:]) + mixed[:, :-1]
        rising = np.minimum(np.log(rate) + ratio - one, 0.0)[:, 1:]
        falling = np.minimum(np.log(rate) + back - other, 0.0)[:, :-1]
        return bins, x, least, np.logaddexp(rising, falling) - np.log(noise)

    def _bounded_layers(self, bins: Array, x: Array, least: Array, log_slope: Array) -> tuple[Array, Array]:
        """Layers from the least weight and the largest slope in each bin."""
        if self.source.cut is not None:
            least = least + self.source.cut.log(x[:, 1:])[0]
        log_density = least - self.log_mass[:, None] - math.log(math.sqrt(2 * math.pi)) - log_slope
        width = np.diff(bins, axis=1)[:, :1]
        mass = np.exp(np.minimum(log_density, 600.0)) * width * (1 - 1e-6)
        padded = np.hstack([mass, np.zeros_like(mass)])
        shifted = np.lib.stride_tricks.sliding_window_view(padded, _BINS, axis=1)
        overlap = (shifted @ mass[:, :, None])[:, :, 0]  # P(the bins differ by i) for i = 0 .. _BINS, the last one 0
        falling = np.minimum.accumulate(overlap, axis=1)
        # Between i and i + 1 bins from 0 the density is at least that at i + 1, or further out if it dips: as layers,
        # one on (-i, i) bins for every i.
        i = np.arange(1, _BINS)
        return (falling[:, 1:-1] - falling[:, 2:]) * 2 * i, 2 * width * i


def _turn(angle: Array) -> NDArray[np.complex128]:
    """e^(i·angle) - 1, accurate relative to itself."""
    sine = np.sin(angle / 2)
    out = np.empty(angle.shape, dtype=np.complex128)
    out.real = -2 * sine * sine
    out.imag = 2 * sine * np.cos(angle / 2)
    return out
