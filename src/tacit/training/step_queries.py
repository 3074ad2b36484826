"""All queries of a step: the gradient groups, the declared metrics, the normalisation statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.gradients.precision import MARGIN, check_clip_norm
from tacit.ledger import Sampling, Step
from tacit.mechanisms import AdaptiveClipping, Allocation, Clipping, Discrete, Strategy
from tacit.mechanisms.groups import Shapes
from tacit.sampling import FixedSizeSampler, PoissonSampler, Sampler, UserSampler
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.run_settings import RunSettings
from tacit.training.tally import Metric, Tally


@dataclass(frozen=True, kw_only=True)
class StepQueries:
    """The queries of one step, and the mechanisms that will answer them."""

    step: Step
    clipping: Clipping
    tallies: dict[str, Tally]
    lot_size: float
    """The expected lot size, which is public: the divisor of every mean."""


class StepQueryMaker:
    """Makes the `StepQueries` of each step, for one model and sampler."""

    def __init__(
        self,
        *,
        shapes: Shapes,
        sampler: Sampler | UserSampler,
        metrics: Mapping[str, Metric],
        layers: Mapping[str, PrivateBatchNorm],
        adaptive: bool = False,
    ) -> None:
        """``adaptive``: a filter bounds the run, so a step's parameters may depend on earlier releases."""
        self._shapes, self._sampler, self._adaptive = shapes, sampler, adaptive
        self._fixed: Allocation | None = None
        self._metrics, self._layers = dict(metrics), dict(layers)
        self._bound: tuple[Strategy, Clipping] | None = None

    @property
    def contributions(self) -> int:
        """The largest number of examples that a record can bring to a lot."""
        return self._sampler.most if isinstance(self._sampler, UserSampler) else 1

    def at(self, number: int, settings: RunSettings) -> StepQueries:
        """The queries of step ``number``."""
        sampling, lot_size = self._sampling(number, settings)
        noise, clipping = settings.noise(number), self.clipping(number, settings)
        tallies = self._tallies(noise)
        others = [tally.event() for tally in tallies.values()]
        if isinstance(clipping, AdaptiveClipping) and not self._adaptive and noise != self._fixed:
            _check_ratio(clipping, noise)
            self._fixed = noise
        gradients = clipping.queries(noise.after(others) if others else noise)
        return StepQueries(
            step=Step(sampling, (*gradients, *others)), clipping=clipping, tallies=tallies, lot_size=lot_size
        )

    def clipping(self, number: int, settings: RunSettings) -> Clipping:
        """The clipping of step ``number``; an adaptive one goes on from step to step."""
        strategy = settings.clipping(number)
        if self._bound is None or self._bound[0] != strategy:
            bound = strategy.bind(self._shapes, lot_size=settings.lot_size(number)).widened(MARGIN)
            for group in bound.groups:
                check_clip_norm(group.clip_norm * min(vector.scale for vector in group.vectors))
            self._bound = (strategy, bound.repeated(self.contributions) if self.contributions > 1 else bound)
            self._fixed = None
        clipping = self._bound[1]
        if isinstance(clipping, AdaptiveClipping):
            clipping.expect(settings.lot_size(number))
        return clipping

    def _tallies(self, noise: Allocation) -> dict[str, Tally]:
        share, discrete = getattr(noise, "noise_multiplier", None), isinstance(noise, Discrete)
        tallies = {
            f"metrics/{name}": Tally(
                f"metrics/{name}",
                bound=metric.bound,
                noise_multiplier=metric.noise_multiplier,
                step_noise=share,
                contributions=self.contributions,
                discrete=discrete,
            )
            for name, metric in self._metrics.items()
        }
        return tallies | {
            name: layer.tally(name, share, self.contributions, discrete=discrete)
            for name, layer in self._layers.items()
        }

    def _sampling(self, number: int, settings: RunSettings) -> tuple[Sampling, float]:
        """The sampling event and the expected lot size."""
        size, first = settings.lot_size(number), settings.lot_size(0)
        if size == first:
            return self._sampler.event(), self._sampler.expected
        base = self._sampler.base if isinstance(self._sampler, UserSampler) else self._sampler
        if isinstance(base, PoissonSampler):
            return base.at(size / base.records), float(size)
        if isinstance(base, FixedSizeSampler):
            return base.at(size), float(size)
        raise ValueError("the lot size can change from step to step with Poisson or fixed-size sampling only.")


def _check_ratio(clipping: AdaptiveClipping, noise: Allocation) -> None:
    if not clipping.fixes_ratio(noise):
        raise ValueError(
            f"noise is {noise} and the clipping is adaptive: the clip norms follow what was released, and so would the "
            "noise multiplier, which must be fixed beforehand; give noise_multiplier, and the noise follows the clip "
            "norms, or budget=tacit.AdaptiveBudget(epsilon, delta)."
        )
