"""Discrete Gaussian noise in equal parts, each drawn by another participant of a sum (Kairouz, Liu & Steinke 2021).

Formal guarantee
----------------
*Record*: what one participant adds to the sum. Neighbouring sums have its vector, or zeros in its place. That it takes
part, and the noise it adds, are in both: who takes part in a masked sum is known to the server anyway.

*Sensitivity*: a participant clips its vector to L2 norm S and rounds every coordinate to the nearest multiple of the
lattice step h, a power of two. Rounding moves it by at most h/2 a coordinate, so with d coordinates it has norm at most
S + h √d / 2. The ledger gets S + h √d (`charged`).

*Theorem*: each adds h · N_Z(0, s²) to every coordinate, s² = σ² / (p h²), and at least p participants whose noise the
adversary does not know are in every sum that is opened: the threshold t of the round, less c who collude. More of them
add more noise, which is independent: a post-processing. The sum of p independent N_Z(0, s²) is not N_Z(0, p s²), but
nearly: for s² >= 1/2 the probabilities of every outcome differ by a factor within e^±τ, τ = 10 Σ_{k<p} exp(-2π² s²
k/(k+1)) (their Corollary 12), and the sum is ½ε²-concentrated differentially private with ε² = Δ²/(p s²) + τ d/2, Δ the
sensitivity in steps (their Theorem 1). Here s >= 32 is required, so τ < 10 p e^-10105, and the second half of what is
charged for rounding pays for it many times over: (S + h √d)² - (S + h √d/2)² >= h √d S >= 2^-15 S². So for every α > 1
the Rényi divergence is at most α (S + h √d)² / (2σ²): that of the recorded discrete Gaussian sum over everybody, of
which the rdp accountant uses nothing but this bound (`tacit.accounting.discrete`, 1.). The pld accountant lets a factor
e^±τ' pass for every outcome (`tacit.accounting.smoothing`): with 10^30 coordinates in 10^13 steps τ here adds less than
10^-4000 to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from tacit.ledger.events import GaussianSum
from tacit.mechanisms.discrete import LARGEST, draw
from tacit.mechanisms.groups import Spendable, positive, recorded_gaussian
from tacit.mechanisms.lattice import charged, gaussian_sum, usual_lattice
from tacit.mechanisms.sums import SumQuery
from tacit.randomness import Integers, Source

LEAST_STEPS = 32
"""The least standard deviation of one participant's noise, in steps of the lattice."""
MOST_PARTS = 1024


@dataclass(frozen=True, kw_only=True)
class SharedSum:
    """A sum of vectors of ``dimension`` coordinates, one of each participant, clipped to ``clip_norm`` by itself.

    ``parts`` participants' noise together has the noise multiplier ``noise_multiplier``, of the sensitivity after
    rounding: each adds 1/parts of its variance.

    >>> query = SharedSum(group="update", clip_norm=1.0, noise_multiplier=2.0, parts=4, dimension=100)
    >>> round(query.own_steps / query.event().noise_std * query.lattice, 6)
    0.5
    """

    group: str
    clip_norm: float
    noise_multiplier: float
    parts: int
    dimension: int

    def __post_init__(self) -> None:
        positive("clip norm", self.clip_norm)
        positive("noise multiplier", self.noise_multiplier)
        for name in ("parts", "dimension"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        if self.parts > MOST_PARTS:
            raise ValueError(f"parts is {self.parts}; noise is shared among at most {MOST_PARTS}.")
        if not LEAST_STEPS <= self.own_steps <= LARGEST / 2:
            raise ValueError(
                f"one of {self.parts} shares of the noise is {self.own_steps:.3g} steps of the lattice; it must be "
                f"from {LEAST_STEPS} to 2^43: choose another noise multiplier or fewer parts."
            )

    @property
    def lattice(self) -> float:
        """The lattice step h: public, as all it follows from."""
        return usual_lattice(self.clip_norm, self.dimension)

    @property
    def own_steps(self) -> float:
        """s, the standard deviation of one participant's noise in steps of the lattice, rounded up."""
        exact = self.event().noise_std / self.lattice / math.sqrt(self.parts)
        return exact * (1 + 2.0**-50)

    def event(self) -> GaussianSum:
        """Return the event to record, in everybody's ledger, before anything is sent."""
        return gaussian_sum(
            group=self.group,
            sensitivity=self.clip_norm,
            noise_std=self.noise_multiplier * charged(self.clip_norm, self.lattice, self.dimension),
            lattice=self.lattice,
            dimension=self.dimension,
        )

    def share(self, receipt: Spendable, vector: torch.Tensor, source: Source) -> Integers:
        """Return one participant's clipped vector in whole steps, with its share of the recorded noise.

        A vector that is not finite counts as zeros.
        """
        if vector.shape != (self.dimension,):
            raise ValueError(f"the vector has shape {tuple(vector.shape)}; it must have {self.dimension} coordinates.")
        query = recorded_gaussian(receipt, self.group, self.clip_norm, self.dimension, kinds=("discrete",))
        if query != self.event():
            raise ValueError(f"the ledger has {query} for group {self.group!r}; record the event of this sum.")
        plain = SumQuery(group=self.group, clip_norm=self.clip_norm, noise_std=query.noise_std)
        whole = (plain.clip(vector[None])[0] / self.lattice).round().to(torch.int64).numpy()
        return np.asarray(whole + draw(self.own_steps, self.dimension, source))

    def total(self, steps: Integers) -> torch.Tensor:
        """Return the sum of all shares, in whole steps, as numbers."""
        return torch.from_numpy(steps.astype(np.float64) * self.lattice)
