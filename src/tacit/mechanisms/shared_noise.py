"""Discrete Gaussian noise in equal parts, each drawn by another participant of a sum (Kairouz, Liu & Steinke 2021).

Formal guarantee
----------------
*Record*: what one participant adds to the sum. Neighbouring sums have its vector, or zeros in its place. That it takes
part, and the noise it adds, are in both: who takes part in a masked sum is known to the server anyway.

*Sensitivity*: a participant clips its vector to L2 norm S and rounds every coordinate to the nearest multiple of the
lattice step h, a power of two. Rounding moves it by at most h/2 a coordinate, so with d coordinates it has norm at most
S + h √d / 2. The ledger gets S + h √d (`charged`).

*Theorem*: each adds h · N_Z(0, s²) to every coordinate, s² >= σ² / (p h²), and at least p participants whose noise the
adversary does not know are in every sum that is opened: the threshold t of the round, less c who collude. Then for
every α > 1 the Rényi divergence is at most α (S + h √d)² / (2σ²): that of the recorded discrete Gaussian sum over
everybody, of which the rdp accountant uses nothing but this bound (`tacit.accounting.discrete`, 1.).

*Proof.* Noise beyond that of p participants is independent: a post-processing. So let there be p.

1. *The sum of p draws of N_Z(0, s²) is nearly N_Z(0, p s²).* Let v_k = s² k/(k+1) and η_k = 2 Σ_j>=1 exp(-2π² v_k j²).
   N_Z(0, k s²) plus N_Z(0, s²) is y with probability proportional to Σ_x exp(-x²/(2k s²) - (y-x)²/(2s²)) =
   exp(-y²/(2(k+1) s²)) Σ_x exp(-(x - yk/(k+1))²/(2v_k)), and by Poisson summation the last sum is within a factor 1 ±
   η_k of √(2π v_k), whatever y is. The first factor is proportional to N_Z(0, (k+1) s²). Both sum to one, so every
   probability is that of N_Z(0, (k+1) s²) up to a factor in [e^-τ_k, e^τ_k], τ_k = log((1+η_k)/(1-η_k)). Adding a
   further independent draw to both sides keeps a factor that holds for every outcome; so after p draws it is within
   e^±T, T = τ_1 + … + τ_(p-1). (Kairouz, Liu & Steinke 2021 have a bound of the same form.) Here s >= 32 and p <= 1024
   are required: v_k >= 512, η_k < 3 e^-10106, T < e^-10090.
2. *Moments.* For d coordinates the factor is e^±dT, once for each of P and Q: E_Q[(P/Q)^α] is at most e^(dT(2α-1))
   times that of discrete Gaussians, so with c = (S + h √d/2)² / (2σ²) D_α <= α c + dT (2 + 1/(α-1)).
3. *What was charged beyond c pays for T.* u = h √d / S is from 2^-15 to 2^-14, so C = (S + h √d)² / (2σ²) >= (1 +
   2^-16) c. S/h >= 2^14 √d, s <= 2^43 and p <= 1024 make c >= 2^-70 d, so that dT (2 + 2^17) < 2^-18 c. For α >= 1 +
   2^-17 then D_α <= α c + 2^-18 c <= α C. For smaller α, D_α is at most that at 1 + 2^-17: (1 + 2^-17 + 2^-18) c <= C
   <= α C.

The pld accountant lets a factor e^±τ' pass for every outcome (`tacit.accounting.smoothing`): with 10^30 coordinates in
10^13 steps T adds less than 10^-4000 to it.
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
