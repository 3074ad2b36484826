"""The noise of a run, given or solved for, and the sums that it is added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tacit.gradients import Engine
from tacit.ledger import AdaptiveBudget, Budget, Ledger
from tacit.ledger.correlation import Correlation
from tacit.mechanisms import Discrete
from tacit.randomness import Source
from tacit.sampling import CyclicSampler, Sampler, UserSampler
from tacit.training.correlation import calibrate_correlated, fitted
from tacit.training.noise_calibration import CalibratedNoise, calibrate, least_noise
from tacit.training.population import Population
from tacit.training.run_settings import Schedule, by_step
from tacit.training.shards import ShardedSums, has_shards
from tacit.training.sums import CorrelatedSums, GradientSums
from tacit.training.team import Team


def noise_level(
    noise: Any,
    noise_multiplier: Schedule[float] | None,
    correlation: Correlation | None,
    *,
    budget: Budget | AdaptiveBudget | None,
    people: Population,
    lot_size: Schedule[int],
    steps: int,
    groups: int,
    accountant: str,
    book: Ledger,
    source: Source,
) -> CalibratedNoise:
    """Return the noise of each step: of the multiplier that is given, or else of the least that fits the budget."""

    def solve() -> float:
        return least_noise(
            budget,
            people,
            lot_size=lot_size,
            steps=steps,
            accountant=accountant,
            noise=correlation or ("discrete" if noise == "discrete" else "gaussian"),
            also=book.entries,
        )

    if correlation is not None:
        shape = fitted(correlation, people, lot_size=by_step(lot_size)(0), steps=steps, groups=groups)
        assert not callable(noise_multiplier)
        return calibrate_correlated(shape, noise_multiplier, solve() if noise_multiplier is None else None)
    level = calibrate(noise, noise_multiplier, solve)
    if isinstance(level.noise(0), Discrete) and source.share not in (0.0, 1.0):
        raise ValueError("discrete noise cannot be split among processes; use Parallel(noise='first').")
    return level


def sums_with_noise(
    engine: Engine,
    model: nn.Module,
    sampler: Sampler | UserSampler,
    team: Team,
    own_source: Callable[[], Source],
    *,
    correlated: bool,
) -> GradientSums:
    """Return the sums of a run: shard by shard for a sharded model, and with correlated noise where it is wanted."""
    if has_shards(model):
        return ShardedSums(engine.parameters, team.scatter, own_source())
    if correlated:
        base = sampler.base if isinstance(sampler, UserSampler) else sampler
        assert isinstance(base, CyclicSampler)
        return CorrelatedSums(engine.parameters, lambda: base.keys, lambda: base.position)
    return GradientSums(engine.parameters)
