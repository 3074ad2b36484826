"""The sparse vector technique: release the few large ones of many values (Shokri & Shmatikov 2015).

    query = SparseVectorQuery(group="upload", epsilon=10.0, releases=100, bound=0.001, threshold=0.0001)
    receipt = ledger.record(Step(Everyone(), (query.event(),)))
    chosen = query.release(receipt, delta, source)              # chosen.indices, chosen.values

The record is whatever the ledger's unit says: nothing is assumed about how far a neighbour can move the values, which
are bounded one by one, so the guarantee holds between *any* two data sets behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tacit.ledger.events import SparseVector
from tacit.mechanisms.groups import Spendable, positive
from tacit.mechanisms.noise import add_laplace_
from tacit.randomness import Floats, Integers, Source

_LOOKS = 24  # places that are compared with the threshold of each place for all at once
_DOUBLINGS = 4
_MARGIN = 2.0**-40  # covers the rounding of the noise scales in float64


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Released values in the order in which they were chosen: positions, all different, and their noisy values."""

    indices: Integers
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class SparseVectorQuery:
    """At most ``releases`` of many values, about those whose size reaches ``threshold``, within ±``bound``.

    Figure 12 of the paper, with its ε, c = ``releases``, γ = ``bound``, τ = ``threshold``, and ε₁ = 8/9 ε,
    ε₂ = 2/9 ε, Δf = 2γ, σ(x) = 2cΔf/x. Values are bounded to [-γ, γ]; one that is not finite counts as zero. In random
    order, each at most once, |value| + Lap(2σ(ε₁)) is compared with τ + Lap(σ(ε₁)); one that reaches it is released
    with noise Lap(σ(ε₂)), bounded again, and the noise of the threshold is renewed, then and only then; it ends after
    c releases. As printed the value is bounded only after its noise, which leaves no finite sensitivity.

    Formal guarantee: one invocation is (ε₁/2 + ε₂/2) = 5/9 ε-differentially private, and that is charged, however many
    are released; the ε of the paper is an upper bound.

    Proof. Take the order as fixed: it is drawn without looking at the values. What happens between two renewals is
    AboveThreshold. *Theorem* (Dwork & Roth 2014, Theorem 3.23; Lyu, Su & Li 2017, Theorem 4 with c = 1): if no query
    changes by more than Δ, the first j with q_j + Lap(2Δ/b) >= τ + Lap(Δ/a) is (a + b)-differentially private. Here
    the queries are |value| in [0, γ], so Δ = γ, half of Δf, and a = b = γ/σ(ε₁) = ε₁/4c. The value at j is in [-γ, γ],
    so releasing it is 2γ/σ(ε₂) = ε₂/2c-differentially private (the Laplace mechanism). The next search is over the
    values that come after j: a choice made from what was released. Adaptive composition (as in Theorem 3.27) of at
    most c searches and c releases gives c (ε₁/2c + ε₂/2c). Bounding a noisy value is post-processing.
    """

    group: str
    epsilon: float
    releases: int
    bound: float
    threshold: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("bound", self.bound)
        positive("threshold", self.threshold)
        self.event()

    @property
    def threshold_scale(self) -> float:
        """Scale of the Laplace noise on the threshold, σ(ε₁); the noise on what is compared with it has twice that."""
        return 2 * self.releases * (2 * self.bound) / (self.epsilon * 8 / 9)

    @property
    def release_scale(self) -> float:
        """Scale of the Laplace noise on a released value, σ(ε₂)."""
        return 2 * self.releases * (2 * self.bound) / (self.epsilon * 2 / 9)

    def event(self) -> SparseVector:
        """Return the event to record for a step, in which every record takes part."""
        return SparseVector(
            group=self.group,
            threshold_epsilon=self.epsilon * 4 / 9 * (1 + _MARGIN),
            release_epsilon=self.epsilon * 1 / 9 * (1 + _MARGIN),
            releases=self.releases,
        )

    def release(self, receipt: Spendable, values: torch.Tensor, source: Source) -> Chosen:
        """Return the chosen ones of ``values`` (one dimension), with the recorded noise."""
        if values.ndim != 1:
            raise ValueError(
                f"values have {values.ndim} dimensions; flatten them, in an order that is always the same."
            )
        query = receipt.spend(self.group)
        if query != self.event():
            raise ValueError(f"the ledger has {query} for group {self.group!r}, but this would release {self.event()}.")
        flat = values.detach().to("cpu")
        indices = self._search(flat, source)
        noisy = self._bounded(flat, indices)
        add_laplace_([(noisy, self.release_scale)], source)
        return Chosen(indices=indices, values=noisy.clamp_(-self.bound, self.bound))

    def _bounded(self, values: torch.Tensor, places: Integers) -> torch.Tensor:
        wanted = values.index_select(0, torch.from_numpy(places)).to(torch.float64)
        return wanted.nan_to_num_(0.0, 0.0, 0.0).clamp_(-self.bound, self.bound)

    def _search(self, values: torch.Tensor, source: Source) -> Integers:
        """Return the positions to release, in the order in which they were found.

        A threshold is drawn for every place, and the one in use is that of the place after the last release. Which
        place that is follows from noise before it, so its threshold is as fresh as one drawn then: those of the other
        places are never used.
        """
        order = _Order(values.numel(), source)
        found: list[Integers] = []
        left, kept = self.releases, None
        while left and order.left:
            # Noise is drawn for as many as are likely to be looked at, not for all.
            piece = order.take(2 * left + 1000)
            noisy = self._bounded(values, piece).abs_().numpy() + _laplace(piece.size, 2 * self.threshold_scale, source)
            reach = self.threshold + _laplace(piece.size, self.threshold_scale, source)
            if kept is not None:
                reach[0] = kept  # nothing was released since: no new one
            places, kept = _passing(noisy, reach)
            found.append(piece[places[:left]])
            left -= found[-1].size
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _passing(noisy: Floats, reach: Floats) -> tuple[Integers, float | None]:
    """All places that pass one after the other, and the threshold that is still in use at the end, if there is one.

    From the start, and again from the place after one that passed, every place is compared with ``reach`` of that
    place. So from each place on it is known which one is next; what is reached from the first is found by leaps of
    many at once.
    """
    size = noisy.size
    follows = _following(noisy, reach)
    powers = [follows]  # of two: where 1, 2, 4, ... releases lead from each place; the end and dead ends lead nowhere
    while len(powers) <= _DOUBLINGS:
        powers.append(powers[-1][powers[-1]])
    starts, at, kept = [], 0, None
    while at < size:
        starts.append(at)
        at = int(powers[-1][at])
        if at < size and follows[at] == at:
            starts.append(at)
            place = _first(noisy, reach, at)
            if place == size:
                kept = float(reach[at])
                break
            follows[at] = at = place + 1
    reached = np.array(starts, dtype=np.int64)
    for power in powers[-2::-1]:
        reached = np.concatenate([reached, power[reached]])
    seen = np.zeros(size + 1, dtype=np.bool_)
    seen[reached] = True
    reached = np.flatnonzero(seen)
    ends = follows[reached]
    return ends[ends > reached] - 1, kept


def _following(noisy: Floats, reach: Floats) -> Integers:
    """Return for each place the place after the first that passes; the place itself if none of the nearest passes."""
    size = noisy.size
    waits = np.ones(size, dtype=np.uint8)
    waiting = np.ones(size, dtype=np.bool_)
    for ahead in range(min(_LOOKS, size)):
        waiting[: size - ahead] &= noisy[ahead:] < reach[: size - ahead]
        waits += waiting
    waits[waiting] = 0
    follows = np.arange(size + 1)
    follows[:-1] += waits
    return follows


def _first(noisy: Floats, reach: Floats, start: int) -> int:
    """Return the first place from ``start`` on that passes, if none of the nearest does, or one beyond the end."""
    place, length = start + _LOOKS, 256
    while place < noisy.size:
        passing = noisy[place : place + length] >= reach[start]
        nearest = int(passing.argmax())
        if passing[nearest]:
            return place + nearest
        place, length = place + length, 2 * length
    return int(noisy.size)


class _Order:
    """A random order of the positions: random words with the position in their low bits, sorted as far as is needed.

    Much faster than sorting the positions by the words. Two words that agree in all other bits leave their positions
    as they are; that is very rare, and the proof only needs an order that does not depend on the values.
    """

    def __init__(self, size: int, source: Source) -> None:
        low = np.uint64(size.bit_length())
        self._mask = (np.uint64(1) << low) - np.uint64(1)
        self._keys = (source.words(size) << low) | np.arange(size, dtype=np.uint64)

    @property
    def left(self) -> int:
        return self._keys.size

    def take(self, count: int) -> Integers:
        """The next ``count`` positions, or all that are left."""
        if count < self._keys.size:
            self._keys.partition(count)
        piece, self._keys = np.sort(self._keys[:count]), self._keys[count:]
        return (piece & self._mask).astype(np.int64)


def _laplace(size: int, scale: float, source: Source) -> Floats:
    """Laplace noise from one random word each: a sign, and the logarithm of the other 63 bits.

    The source's own takes two exponentials, precise also next to zero; here the noise is only added and compared, in
    float64, so an absolute error of 2^-53 of the scale is lost in the sum. The tail reaches 44 scales.
    """
    words = source.words(size).view(np.int64)
    logs = torch.from_numpy(((words & np.int64(2**63 - 1)) + 0.5) * (2.0**-63)).log_().mul_(scale)
    noise: Floats = torch.where(torch.from_numpy(words) < 0, logs, -logs).numpy()
    return noise
