"""Discrete Gaussian noise as rounded Gaussian noise: how it gets a privacy loss distribution.

Give a real number x to the channel that answers the whole number y with probability exp(-(y-x)²/(2s²)) / Θ_s(x), where
Θ_s(x) = Σ_y exp(-(y-x)²/(2s²)). By Poisson summation Θ_s(x) = s √(2π) (1 + 2 Σ_k>=1 exp(-2π²s²k²) cos(2πkx)), within a
factor 1 ± η of s √(2π), η = 2 Σ_k>=1 exp(-2π²s²k²). So if x is N(c, σ² - s²), c a whole number and σ >= s, the answer
is y with probability within [1/(1+η), 1/(1-η)] of the density of N(c, σ²) at y, whereas N_Z(c, σ²) gives it that
density divided by Θ_σ(0) / (σ √(2π)), which is in [1, 1+η]. Hence N_Z(c, σ²) and Gaussian noise of variance σ² - s²
followed by the channel give every outcome the same probability up to a factor in [e^-τ, e^τ], τ = log((1+η)/(1-η)).

That factor survives mixing (sampling), multiplies over the coordinates and, outcome by outcome, over adaptively chosen
steps. With τ the sum over all coordinates of all steps, an (ε, δ) of the Gaussian mechanisms, of which the channel is a
post-processing, is (ε + 2τ, e^τ δ) of the discrete ones: P(S) <= e^τ P~(S) <= e^τ (e^ε Q~(S) + δ) <= e^(ε+2τ) Q(S) +
e^τ δ.

Here s = 3 steps of the lattice, η < 2e-77. Rounding d coordinates is charged as lattice · √d in the clip norm, so
d <= (clip norm / lattice)², which is held to 10^30: with up to 10^13 steps τ < 10^-30. Vectors that are scaled have a
lattice of their own, at most as coarse beside their noise as the one recorded.
"""

from __future__ import annotations

import math

SLIP = 1e-12
"""More than 2τ, relative and absolute: what ε is raised and δ is lowered by."""

_S = 3
_COARSEST = -5  # the lattice is at most 2^-5 of the noise, so that smoothing costs at most 0.9 % of its variance
_FINEST = -12  # a finer one counts as this, so that clip norms that change from step to step make equal terms
_MOST_RATIO = 1e15


def smoothed_std(clip_norm: float, noise_std: float, lattice: float | None) -> float:
    """The Gaussian noise that stands for this noise; for discrete noise on a coarse lattice 0, as there is none."""
    if lattice is None:
        return noise_std
    fraction, power = math.frexp(lattice / noise_std)
    power = max(power - 1 if fraction == 0.5 else power, _FINEST)  # lattice / noise_std <= 2^power
    if power > _COARSEST or clip_norm / lattice > _MOST_RATIO:
        return 0.0
    return noise_std * math.sqrt(1 - _S * _S * 4.0**power) * (1 - 1e-15)
