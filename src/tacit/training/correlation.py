"""Refuse runs with correlated noise that have no proof, and fit the strategy to the others."""

from __future__ import annotations

from typing import Any

from tacit.accounting.draft import choose_groups
from tacit.ledger import AdaptiveBudget, Budget
from tacit.ledger.correlation import Correlation
from tacit.mechanisms import Adaptive, Correlated, Proportional, SparseInverse
from tacit.training.noise_calibration import CalibratedNoise
from tacit.training.population import Population


def check_correlated(
    noise: Any,
    *,
    sampling: str,
    clipping: Any,
    noise_multiplier: Any,
    lot_size: Any,
    budget: Any,
    processes: int,
    shards: bool,
) -> Correlation | None:
    """Return the strategy of correlated noise, if ``noise`` is one; refuse settings without a proof beside it."""
    if noise == "correlated":
        noise = SparseInverse()
    if not isinstance(noise, Correlation):
        if sampling == "cyclic":
            raise ValueError(
                "sampling is 'cyclic', which is for correlated noise; give noise='correlated' or a strategy "
                "of tacit.mechanisms, or use sampling='poisson'."
            )
        return None
    kind = type(noise).__name__
    if sampling != "cyclic":
        raise ValueError(
            f"noise is {kind} and sampling is {sampling!r}; the sensitivity of correlated noise is proved for records "
            "that come back after a fixed number of steps: use sampling='cyclic'."
        )
    if isinstance(clipping, Adaptive):
        raise ValueError(
            f"noise is {kind} and the clipping is adaptive; noise of past steps cannot follow a clip norm that "
            "changes. Use a fixed one, tacit.Flat(1.0) for example."
        )
    scheduled = {"clipping": clipping, "noise_multiplier": noise_multiplier, "lot_size": lot_size}
    for name, value in scheduled.items():
        if callable(value):
            raise ValueError(
                f"noise is {kind} and {name} is a function of the step; all steps must be alike: give one."
            )
    if isinstance(budget, AdaptiveBudget):
        raise ValueError(f"noise is {kind}; an AdaptiveBudget has no proof for correlated steps: use tacit.Budget.")
    if processes > 1 or shards:
        raise ValueError(f"noise is {kind}; correlated noise is drawn in one process: leave parallel= and shards out.")
    return noise


def grouped(
    noise: Correlation,
    population: Population,
    *,
    lot_size: int,
    steps: int,
    budget: Budget | AdaptiveBudget | None,
    noise_multiplier: Any,
) -> tuple[Correlation, int]:
    """Return the strategy with its number of groups; a run with a budget and no noise multiplier chooses the
    number."""
    if noise_multiplier is None and isinstance(budget, Budget):
        noise = choose_groups(
            noise,
            records=population.records,
            lot_size=lot_size,
            steps=steps,
            epsilon=budget.epsilon,
            delta=budget.delta,
            adjacency=population.adjacency,
        )
    groups = noise.choices(population.records, lot_size)[-1]
    return noise.with_groups(groups), groups


def fitted(noise: Correlation, population: Population, *, lot_size: int, steps: int, groups: int) -> Correlated:
    """Return the strategy fitted to the run, with a noise multiplier of 1."""
    rate = lot_size * groups / population.records
    return Correlated(Proportional(1.0), *noise.fitted(steps, groups, rate))


def calibrate_correlated(noise: Correlated, multiplier: float | None, solved: float | None) -> CalibratedNoise:
    """Return the noise of each step for the noise multiplier that was given, or else solved for."""

    def allocate(level: float) -> Correlated:
        return Correlated(Proportional(level), noise.strategy, noise.parameters)

    level = solved if multiplier is None else multiplier
    assert level is not None
    chosen = allocate(level)
    return CalibratedNoise(noise=lambda step: chosen, allocate=allocate, solved=solved)
