"""How strong the noise of each step is: as given, or the least that fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.accounting import plan
from tacit.ledger import AdaptiveBudget, Budget, Step
from tacit.mechanisms import Allocation, DimensionAdjusted, Proportional
from tacit.training.population import Population
from tacit.training.recipe import Schedule, by_step

_ALLOCATIONS: dict[str, Callable[[float], Allocation]] = {
    "proportional": Proportional,
    "dimension-adjusted": DimensionAdjusted,
}


@dataclass(frozen=True, kw_only=True)
class Strength:
    """The noise of each step, and the noise multiplier if it was solved for."""

    noise: Callable[[int], Allocation]
    solved: float | None = None


def strength(
    noise: str | Schedule[Allocation],
    multiplier: Schedule[float] | None,
    solve: Callable[[], float],
) -> Strength:
    """From the arguments of `make_private`; ``solve`` finds the noise multiplier where none is given."""
    if not isinstance(noise, str):
        if multiplier is not None:
            raise ValueError("noise is an allocation and has its noise multiplier in it; leave noise_multiplier out.")
        return Strength(noise=by_step(noise))
    if noise not in _ALLOCATIONS:
        raise ValueError(f"noise is {noise!r}; choose {', '.join(map(repr, _ALLOCATIONS))}, or give an allocation.")
    solved = solve() if multiplier is None else None
    allocate, levels = _ALLOCATIONS[noise], by_step(solved if multiplier is None else multiplier)
    return Strength(noise=lambda step: allocate(levels(step)), solved=solved)


def least_noise(
    budget: Budget | AdaptiveBudget | None,
    population: Population,
    *,
    lot_size: Schedule[int],
    steps: int,
    accountant: str,
    also: Sequence[tuple[Step, int]],
) -> float:
    """The noise multiplier with which all steps, and what the ledger already holds, fit the budget."""
    if budget is None:
        raise ValueError("give a budget, from which the noise is solved, or a noise_multiplier.")
    if isinstance(budget, AdaptiveBudget):
        raise ValueError("an AdaptiveBudget only says when to stop; give noise_multiplier too.")
    sizes = by_step(lot_size)
    if len({sizes(step) for step in range(steps)} if callable(lot_size) else {lot_size}) > 1:
        raise ValueError("with a changing lot size the noise is not solved for; give noise_multiplier too.")
    return plan(
        records=population.records,
        lot_size=sizes(0),
        steps=steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
        sampling=population.sampling,
        adjacency=population.adjacency.value,
        accountant=accountant,
        also=also,
    ).noise_multiplier
