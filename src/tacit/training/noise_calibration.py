"""Determine the noise of each step: the given noise, or the least noise that fits a budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tacit.accounting import Unproved, compose, plan
from tacit.accounting.accountants import find
from tacit.accounting.draft import gradients
from tacit.ledger import AdaptiveBudget, Budget, FixedSize, OwnedPoisson, Poisson, Step, TruncatedPoisson
from tacit.ledger.correlation import Correlation
from tacit.mechanisms import Allocation, DimensionAdjusted, Discrete, Proportional
from tacit.training.population import Population
from tacit.training.run_settings import Schedule, by_step

_ALLOCATIONS: dict[str, Callable[[float], Allocation]] = {
    "proportional": Proportional,
    "dimension-adjusted": DimensionAdjusted,
    "discrete": lambda noise_multiplier: Discrete(Proportional(noise_multiplier)),
}

_LEVELS = 40  # different lot sizes that the noise is solved for; each takes an accountant some milliseconds


@dataclass(frozen=True, kw_only=True)
class CalibratedNoise:
    """The noise of each step, and the noise multiplier if the run solved for it."""

    noise: Callable[[int], Allocation]
    allocate: Callable[[float], Allocation] | None = None
    solved: float | None = None


def calibrate(
    noise: str | Schedule[Allocation],
    multiplier: Schedule[float] | None,
    solve: Callable[[], float],
) -> CalibratedNoise:
    """Build the schedule from the arguments of `make_private`; ``solve`` finds a noise multiplier that is not given."""
    if not isinstance(noise, str):
        if multiplier is not None:
            raise ValueError("noise is an allocation and has its noise multiplier in it; leave noise_multiplier out.")
        return CalibratedNoise(noise=by_step(noise))
    if noise not in _ALLOCATIONS:
        raise ValueError(f"noise is {noise!r}; choose {', '.join(map(repr, _ALLOCATIONS))}, or give an allocation.")
    solved = solve() if multiplier is None else None
    allocate, levels = _ALLOCATIONS[noise], by_step(solved if multiplier is None else multiplier)
    return CalibratedNoise(noise=lambda step: allocate(levels(step)), allocate=allocate, solved=solved)


def least_noise(
    budget: Budget | AdaptiveBudget | None,
    population: Population,
    *,
    lot_size: Schedule[int],
    steps: int,
    accountant: str,
    noise: str | Correlation,
    also: Sequence[tuple[Step, int]],
) -> float:
    """Return the noise multiplier with which all steps, with those already in the ledger, fit the budget.

    ``noise`` is "gaussian", "discrete" or a strategy for correlated noise.
    """
    if budget is None:
        raise ValueError("give a budget, from which the noise is solved, or a noise_multiplier.")
    if isinstance(budget, AdaptiveBudget):
        raise ValueError("an AdaptiveBudget only decides when to stop; give noise_multiplier too.")
    sizes = Counter(lot_size(step) for step in range(steps)) if callable(lot_size) else Counter({lot_size: steps})
    if len(sizes) == 1:
        return plan(
            records=population.records,
            lot_size=next(iter(sizes)),
            steps=steps,
            epsilon=budget.epsilon,
            delta=budget.delta,
            sampling=population.sampling,
            participations=population.participations,
            max_lot_size=population.max_lot_size,
            records_per_owner=None if population.owned is None else population.owned.most,
            adjacency=population.adjacency.value,
            accountant=accountant,
            noise=noise,
            also=also,
        ).noise_multiplier
    assert isinstance(noise, str)
    counts = _coarse(sizes)

    def fits(method: str) -> Callable[[float], bool]:
        def within(noise_multiplier: float) -> bool:
            query = gradients(noise_multiplier, noise)
            lots = [(Step(_sampling(population, size), (query,)), count) for size, count in counts.items()]
            composition = compose([*also, *lots], population.adjacency)
            return find(method).epsilon(composition, budget.delta).upper <= budget.epsilon

        return within

    guess = 1.0
    if accountant != "rdp":
        with suppress(Unproved):
            guess = _least(fits("rdp"), 1.0)  # quick, and near
    return _least(fits(accountant), guess)


def _coarse(sizes: Counter[int]) -> Counter[int]:
    """Return the lot sizes rounded up to at most `_LEVELS` different ones: more records cost more, never less."""
    if len(sizes) <= _LEVELS:
        return sizes
    ordered = sorted(sizes)
    levels = [ordered[len(ordered) * number // _LEVELS - 1] for number in range(1, _LEVELS + 1)]
    coarse: Counter[int] = Counter()
    for size, count in sizes.items():
        coarse[levels[bisect_left(levels, size)]] += count
    return coarse


def _sampling(population: Population, size: int) -> Poisson | TruncatedPoisson | OwnedPoisson | FixedSize:
    if population.sampling == "fixed-size":
        return FixedSize(size=size, records=population.records, unit=population.unit)
    if population.owned is not None:
        rate, most = size / population.records, population.owned.most
        return OwnedPoisson(rate=rate, records=population.records, most=most)
    if population.max_lot_size is not None:
        rate, most = size / population.records, population.max_lot_size
        return TruncatedPoisson(rate=rate, records=population.records, most=most, unit=population.unit)
    return Poisson(rate=size / population.records, records=population.records, unit=population.unit)


def _least(fits: Callable[[float], bool], guess: float) -> float:
    """Return the least noise that fits, to within 0.1 % and from above; ``fits`` is false below it and true above."""
    high, factor = guess, 1.25
    while not fits(high):
        high, factor = high * factor, factor**2
        if high > 1e9:
            raise ValueError(
                "no noise fits the budget, because the steps already in the ledger leave too little of it; raise the "
                "budget."
            )
    low, factor = high / 1.25, 1.25
    while low > 1e-4 and fits(low):
        high, low, factor = low, low / factor**2, factor**2
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
