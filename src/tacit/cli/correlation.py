"""Strategies for correlated noise by their names on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.ledger import Step
    from tacit.ledger.correlation import Correlation

STRATEGIES = ("banded-toeplitz", "banded-inverse", "sparse-inverse", "buffered-toeplitz", "square-root", "tree")
NAMES = ("correlated", *STRATEGIES)
NOISE_HELP = f"gaussian, discrete, correlated between steps, or a strategy for that: {', '.join(STRATEGIES)}."
BANDS_HELP = "Bands (or buffers) of correlated noise; 8 (or 4) if left out."
GROUPS_HELP = "Groups of records that take turns, for correlated noise; chosen for the budget, or the lots of an epoch."


def correlation(noise: str, bands: int | None, groups: int | None) -> Correlation | None:
    """Return the strategy that ``--noise`` names; None if it names noise that is independent between steps."""
    if noise not in NAMES:
        given = {"--bands": bands, "--groups": groups}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is {value}; it is for correlated noise: --noise {', '.join(NAMES)}.")
        return None
    from tacit import mechanisms

    if noise in ("correlated", "sparse-inverse"):
        if bands is not None:
            raise ValueError(f"--bands is {bands}; {noise} noise has no bands: leave it out.")
        return mechanisms.SparseInverse(groups=groups)
    if noise == "banded-toeplitz":
        return mechanisms.BandedToeplitz(bands=bands or 8, groups=groups)
    if noise == "banded-inverse":
        return mechanisms.BandedInverse(bands=bands or 8, groups=groups)
    if noise == "buffered-toeplitz":
        return mechanisms.BufferedToeplitz(buffers=bands or 4, groups=groups)
    if bands is not None:
        raise ValueError(f"--bands is {bands}; {noise} noise has no bands: leave it out.")
    return mechanisms.SquareRoot(groups=groups) if noise == "square-root" else mechanisms.TreeAggregation(groups=groups)


def planned_block(strategy: Correlation, *, sampling_rate: float, noise_multiplier: float, steps: int) -> Step:
    """Return the step of a planned block in which each record takes part at this rate on average."""
    from tacit.accounting.draft import correlated_gradients
    from tacit.ledger import CyclicPoisson, Step

    if not 0 < sampling_rate <= 1:
        raise ValueError(f"--sampling-rate is {sampling_rate!r}; it must be in (0, 1].")
    fine = 2**40  # as many records as make the rate exact enough to divide them into lots
    groups = strategy.choices(fine, max(int(sampling_rate * fine), 1))[-1]
    rate = min(sampling_rate * groups, 1.0)
    event = CyclicPoisson(groups=groups, rate=rate, block="planned")
    return Step(event, (correlated_gradients(noise_multiplier, strategy.fitted(steps, groups, rate)),))
