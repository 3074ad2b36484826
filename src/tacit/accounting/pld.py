"""Privacy loss distributions: the default accountant, with a certified upper and lower bound on ε.

Each direction of the neighbouring relation (`tacit.accounting.sides`) is computed in the best way there is for it:
Gaussian sums over everyone in closed form; sampled Gaussian sums by Fourier inversion (`tacit.accounting.inversion`),
exact to many digits and quick; everything else, and what that cannot reach, on a lattice
(`tacit.accounting.discretised`), once rounded up and once merged, added up by FFT. The lattice is as fine
as ``tolerance`` needs, and then as fine as it takes to certify the upper bound within a millionth (`_CLOSE`), as far as
the effort allowed goes. Where it is used the Rényi bound is taken instead if it is lower: for Poisson samples under
replace-one and far out in the tail it can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.accounting import composition as comp
from tacit.accounting import direct, discretised, gaussian, groups, inversion, single
from tacit.accounting.allocation import Allocated
from tacit.accounting.characteristic import SampledGaussians
from tacit.accounting.composition import Composition, Interval, Unproved
from tacit.accounting.effort import QUERY, SEARCH, OutOfReach, limited
from tacit.accounting.losses import Added, GaussianLoss, Removed, Replaced
from tacit.accounting.rdp import Rdp
from tacit.accounting.rounding import COARSE
from tacit.accounting.sides import Side, basic, sides, unsampled_epsilon
from tacit.accounting.smoothing import SLIP
from tacit.accounting.tail import LEAST_NOISE, check_delta, check_epsilon, finite

# Beyond this many steps the rounding of the transform is not bounded by what is charged for it.
_MOST_STEPS = 10**13
# Bounds from an inversion are this close, relatively, or are looked at once more: an upper bound within this part of a
# certified lower one falls by no more than that when the truth rises.
_CLOSE = 1e-6


@dataclass(frozen=True)
class Pld:
    """The default accountant: ε within ``tolerance`` (relative) of the truth wherever the pairs are tight."""

    tolerance: float = 2e-4
    name: str = "pld"

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        """Bounds on the smallest ε at which the composition is (ε, δ)-DP."""
        delta = check_delta(delta)
        _check_counts(composition)
        if _next_to_no_noise(composition):
            finite(math.inf, self.name)
        dominating, concrete = sides(composition), sides(composition, concrete=True)
        found, rounded = self._worst(dominating, delta=delta)
        upper = min(found.upper, basic(composition))
        if math.isinf(upper):
            upper = max(unsampled_epsilon(side, delta) for side in dominating)
        if rounded:
            upper = min(upper, _renyi_epsilon(composition, delta))
        if dominating != concrete:
            found, _ = self._worst(concrete, delta=delta, fine=False)
        return Interval(upper, min(found.lower or 0.0, upper))

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        """Bounds on the smallest δ at which the composition is (ε, δ)-DP."""
        epsilon = check_epsilon(epsilon)
        if (known := _plain_delta(composition, epsilon)) is not None:
            return Interval(known, 0.0)
        dominating, concrete = sides(composition), sides(composition, concrete=True)
        found, rounded = self._worst(dominating, epsilon=epsilon)
        upper = min(found.upper, _renyi_delta(composition, epsilon)) if rounded else found.upper
        if dominating != concrete:
            found, _ = self._worst(concrete, epsilon=epsilon, fine=False)
        return Interval(upper, min(found.lower or 0.0, upper))

    def deltas(self, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε, for little more than the cost of one of them."""
        epsilons = [check_epsilon(epsilon) for epsilon in epsilons]
        found = [_plain_delta(composition, epsilon) for epsilon in epsilons]
        rest = [epsilon for epsilon, known in zip(epsilons, found, strict=True) if known is None]
        uppers = [0.0] * len(rest)
        for side in sides(composition) if rest else ():
            uppers = [max(pair) for pair in zip(uppers, self._uppers(side, composition, rest), strict=True)]
        left = iter(uppers)
        return [next(left) if known is None else known for known in found]

    def group(
        self, composition: Composition, size: int, *, delta: float | None = None, epsilon: float | None = None
    ) -> Interval | None:
        """Bounds for ``size`` records together by a pair of their own, or None where there is none."""
        _check_counts(composition)
        both = groups.sides(composition, size)
        if both is None:
            return None
        if epsilon is not None:
            both = [side for side in both if epsilon < groups.largest_loss(side)]
        found, _ = self._worst(both, delta=delta, epsilon=epsilon)
        if delta is not None and math.isinf(found.upper):
            return Interval(max(unsampled_epsilon(side, delta) for side in both), found.lower)
        return found

    def _uppers(self, side: Side, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ in one direction at each ε."""
        if not side.pairs:
            return [_closed_form(side, None, epsilon).upper for epsilon in epsilons]
        if (epoch := _one_epoch(side)) is not None:
            return [epoch.delta(epsilon) for epsilon in epsilons]
        losses = _sampled_gaussians(side)
        if losses is not None and losses.single:
            return [single.delta(losses, epsilon).upper for epsilon in epsilons]
        with limited(SEARCH):
            found = [None] * len(epsilons) if losses is None else inversion.deltas(losses, epsilons)
            rest = [epsilon for epsilon, known in zip(epsilons, found, strict=True) if known is None]
            rounded = zip(discretised.uppers(side, self.tolerance, rest) if rest else (), rest, strict=True)
        left = iter([min(upper, _renyi_delta(composition, epsilon)) for upper, epsilon in rounded])
        return [next(left) if known is None else known for known in found]

    def _worst(
        self, both: Sequence[Side], *, delta: float | None = None, epsilon: float | None = None, fine: bool = True
    ) -> tuple[Interval, bool]:
        """The larger of the directions, and whether the lattice was needed; ``fine`` where the upper bound counts.

        The lower bound comes from the direction that decides the upper one.
        """
        upper = lower = step = 0.0
        rounded = False
        for effort, side in zip((QUERY, QUERY / 2), both, strict=False):
            with limited(effort):
                found = _directly(side, delta, epsilon, upper if fine else math.inf)
                if found is None:
                    rounded = True
                    found, step = discretised.bounds(
                        side, self.tolerance, delta, epsilon, floor=upper, coarse=step, fine=fine
                    )
            if math.isnan(found.upper):
                raise ArithmeticError(f"the pld accountant computed no number for {side}; use accountant 'rdp'.")
            upper, lower = max(upper, found.upper), max(lower, found.lower or 0.0)
        return Interval(upper, lower), rounded


@dataclass(frozen=True)
class Smoothed:
    """The pld accountant where some noise is discrete: it sees the Gaussian noise that stands for it.

    What the two differ by (`tacit.accounting.smoothing`) is added. A lower bound is not claimed.
    """

    method: Pld
    name: str = "pld"

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        return Interval(self.method.epsilon(_smooth(composition), check_delta(delta) * (1 - SLIP)).upper + SLIP)

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        return Interval(self.deltas(composition, [epsilon])[0])

    def deltas(self, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε. Below SLIP, (ε + 2τ, δ) implies (ε, δ + e^ε (e^2τ - 1))."""
        lower = [max(check_epsilon(epsilon) - SLIP, 0.0) for epsilon in epsilons]
        return [min(upper * (1 + SLIP) + SLIP**2, 1.0) for upper in self.method.deltas(_smooth(composition), lower)]


def _smooth(composition: Composition) -> Composition:
    found = composition.smooth
    if found is None:
        raise Unproved(
            "the lattice is too coarse for the pld accountant; use 'rdp', or a lattice of 1/32 of the noise."
        )
    return found


def _plain_delta(composition: Composition, epsilon: float) -> float | None:
    """δ where it is 1 or 0 for want of noise or of losses as large as ε."""
    _check_counts(composition)
    if _next_to_no_noise(composition):
        return 1.0
    return 0.0 if epsilon >= basic(composition) * (1 + 1e-12) else None  # the sum of the losses is rounded


def _renyi_epsilon(composition: Composition, delta: float) -> float:
    try:
        return Rdp().epsilon(composition, delta).upper
    except ValueError:  # no finite bound, or none that is proved
        return math.inf


def _renyi_delta(composition: Composition, epsilon: float) -> float:
    try:
        return Rdp().delta(composition, epsilon).upper
    except Unproved:
        return 1.0


def _directly(side: Side, delta: float | None, epsilon: float | None, floor: float) -> Interval | None:
    """Bounds without a lattice, where there are any."""
    if (epoch := _one_epoch(side)) is not None:
        value = epoch.delta(epsilon or 0.0) if delta is None else epoch.epsilon(delta)
        return Interval(value, value)  # both of the law at hand, which is a bound itself from one side
    return _inverted(side, delta, epsilon, floor) if side.pairs else _closed_form(side, delta, epsilon)


def _one_epoch(side: Side) -> Allocated | None:
    """The epoch of random allocation that the side is, if it is one and nothing else."""
    if side.shift or side.certain or len(side.pairs) != 1:
        return None
    pair, count = side.pairs[0]
    return pair if isinstance(pair, Allocated) and count == 1 else None


def _closed_form(side: Side, delta: float | None, epsilon: float | None) -> Interval:
    """Bounds for Gaussian sums over everyone and losses that are certain."""
    least = side.shift * (1 - COARSE)
    if delta is not None:
        value = side.certain + (gaussian.epsilon(side.shift, delta) if side.shift else 0.0)
        low = side.certain + (gaussian.epsilon(least, delta, -1) if least else 0.0)
        return Interval(value, low * (1 - 1e-9))
    assert epsilon is not None
    if not side.shift:
        return Interval(1.0 if epsilon < side.certain else 0.0, 0.0)
    rest = epsilon - side.certain
    value, low = gaussian.delta(side.shift, rest), gaussian.delta(least, rest, -1)
    return Interval(min(value * (1 + 1e-9), 1.0), low * (1 - 1e-9))


def _inverted(side: Side, delta: float | None, epsilon: float | None, floor: float) -> Interval | None:
    """By Fourier inversion, or None where that is not to be had, or not quickly."""
    losses = _sampled_gaussians(side)
    if losses is None:
        return None
    if losses.single:
        return single.epsilon(losses, delta) if delta is not None else single.delta(losses, epsilon or 0.0)
    try:
        if delta is not None:
            found = inversion.epsilon(losses, delta)
        else:
            assert epsilon is not None
            found = inversion.delta(losses, epsilon)
    except OutOfReach:
        return None
    if found.upper - (found.lower or 0.0) <= _CLOSE * found.upper or found.upper <= floor or not side.fine:
        return found
    # The tilted law has two humps, and little of it near ε.
    try:
        if delta is not None:
            upper = direct.epsilon_above(side.lattice_pairs, delta, found.upper)
        else:
            assert epsilon is not None
            upper = direct.delta_above(side.lattice_pairs, epsilon, found.upper)
    except OutOfReach:
        return found
    return Interval(max(min(found.upper, upper), found.lower or 0.0), found.lower)


def _sampled_gaussians(side: Side) -> SampledGaussians | None:
    """The side as Gaussian sums, sampled and not, if it is nothing else."""
    kinds = {type(pair) for pair, _ in side.pairs}
    if side.certain or len(kinds) > 1 or not kinds <= {Removed, Added, Replaced}:
        return None
    terms = []
    for pair, count in side.pairs:
        if not isinstance(pair, Removed | Added | Replaced) or not isinstance(pair.base, GaussianLoss):
            return None
        terms.append((pair.rate, 1 / pair.base.shift, float(count)))
    rates, noises, counts = np.array(terms).T
    return SampledGaussians(rates, noises, counts, side.shift, kinds == {Added}, replaced=kinds == {Replaced})


def _check_counts(composition: Composition) -> None:
    total = sum(count for _, count in composition.terms)
    if total > _MOST_STEPS:
        shown = total if total < 10**30 else f"about 10^{math.floor(math.log10(total))}"
        raise ValueError(f"the number of steps is {shown}; the pld accountant takes at most {_MOST_STEPS}.")


def _next_to_no_noise(composition: Composition) -> bool:
    """Return True if some release is as good as exact, so that nothing is claimed."""
    bases = [term.base for term, _ in composition.parts]
    return any(isinstance(base, comp.Gaussian | comp.Laplace) and base.noise_multiplier < LEAST_NOISE for base in bases)
