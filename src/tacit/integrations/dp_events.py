"""Ledgers as trees of dp-accounting's `DpEvent`, and back (``pip install dp-accounting``).

Both libraries mean the same by a noise multiplier: the noise on the sum over the largest norm of one record's
contribution, whatever the neighbouring relation. A tree does not say which relation, unit or number of records it is
about; a ledger does, so ask dp-accounting with the ledger's own. Events that
dp-accounting has no class for are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tacit.ledger.events import (
    Everyone,
    FixedSize,
    GaussianSum,
    LaplaceSum,
    OwnedPoisson,
    Poisson,
    Query,
    Sampling,
    Step,
    TruncatedPoisson,
)


def write_dp_event(entries: Iterable[tuple[Step, int]]) -> Any:
    """The steps of a ledger (``ledger.entries``), or of a plan, as one tree.

    Several Gaussian sums on one sample are written as the one they are together. Laplace sums of several coordinates
    are bounded by dp-accounting as one coordinate, for which there is no proof here: they are refused.
    """
    dp = _library()
    events = []
    for step, count in entries:
        event = _sampled(dp, step.sampling, _queries(dp, step))
        events.append(dp.SelfComposedDpEvent(event, count) if count > 1 else event)
    if not events:
        return dp.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def read_dp_event(event: Any, *, unit: str = "example") -> list[tuple[Step, int]]:
    """The steps that a tree stands for, for `tacit.accounting.guarantee` with the header that holds for it."""
    dp = _library()
    return [(step, count) for step, count in _read(dp, event, unit, 1) if step.queries]


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise ValueError("dp-accounting is not installed; write: pip install dp-accounting") from None
    return dp_accounting


def _queries(dp: Any, step: Step) -> Any:
    """Return what one step answers from its sample."""
    for query in step.queries:
        plain = isinstance(query, GaussianSum) and query.noise == "gaussian" and query.strategy is None
        if not plain and not (isinstance(query, LaplaceSum) and query.dimension == 1):
            kind = f"{type(query).__name__} {query.group!r}"
            raise ValueError(
                f"{kind} has no DpEvent that costs the same; only Gaussian sums and single Laplace sums do."
            )
    gaussian = tuple(query for query in step.queries if isinstance(query, GaussianSum))
    events = [dp.GaussianDpEvent(Step(step.sampling, gaussian).noise_multiplier)] if gaussian else []
    events += [
        dp.LaplaceDpEvent(query.scale / query.clip_norm) for query in step.queries if isinstance(query, LaplaceSum)
    ]
    if not events:
        return dp.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def _sampled(dp: Any, sampling: Sampling, event: Any) -> Any:
    if isinstance(sampling, Everyone):
        return event
    if isinstance(sampling, Poisson):
        return dp.PoissonSampledDpEvent(sampling.rate, event)
    if isinstance(sampling, FixedSize):
        return dp.SampledWithoutReplacementDpEvent(sampling.records, sampling.size, event)
    what = "its steps, which are charged together,"
    if isinstance(sampling, TruncatedPoisson | OwnedPoisson):
        what = "its slack" if isinstance(sampling, TruncatedPoisson) else "its bound on an owner's records"
    raise ValueError(f"{type(sampling).__name__} sampling has no DpEvent; {what} would be lost.")


def _read(dp: Any, event: Any, unit: str, times: int) -> list[tuple[Step, int]]:
    if isinstance(event, dp.NoOpDpEvent):
        return []
    if isinstance(event, dp.ComposedDpEvent):
        return [entry for part in event.events for entry in _read(dp, part, unit, times)]
    if isinstance(event, dp.SelfComposedDpEvent):
        return _read(dp, event.event, unit, times * _count(event.count)) if event.count else []
    if isinstance(event, dp.PoissonSampledDpEvent):
        if event.sampling_probability == 0:
            return []
        return [(Step(Poisson(rate=event.sampling_probability, unit=unit), _answers(dp, event.event)), times)]
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        sampling = FixedSize(size=event.sample_size, records=event.source_dataset_size, unit=unit)
        return [(Step(sampling, _answers(dp, event.event)), times)]
    return [(Step(Everyone(unit=unit), _answers(dp, event)), times)]


def _answers(dp: Any, event: Any) -> tuple[Query, ...]:
    """The queries that a tree without sampling makes on one sample; a number of equal Gaussian sums is one."""
    ratios: list[float] = []  # of one contribution to the noise, Gaussian sums
    laplace: list[float] = []

    def visit(part: Any, times: int) -> None:
        if isinstance(part, dp.NoOpDpEvent):
            return
        if isinstance(part, dp.ComposedDpEvent):
            for inner in part.events:
                visit(inner, times)
        elif isinstance(part, dp.SelfComposedDpEvent):
            if part.count:
                visit(part.event, times * _count(part.count))
        elif isinstance(part, dp.GaussianDpEvent):
            if not part.noise_multiplier > 0:
                raise ValueError(f"GaussianDpEvent has noise multiplier {part.noise_multiplier!r}; it must be above 0.")
            ratios.append(math.sqrt(times) / part.noise_multiplier)
        elif isinstance(part, dp.LaplaceDpEvent):
            if times > 1000:
                raise ValueError(f"{times} LaplaceDpEvents on one sample; at most 1000 are read.")
            laplace.extend([part.noise_multiplier] * times)
        else:
            raise ValueError(
                f"{type(part).__name__} has no event in a ledger; Gaussian, Laplace and samples of them do."
            )

    visit(event, 1)
    found: list[Query] = []
    if ratios:
        found.append(GaussianSum(group="gaussian", clip_norm=1.0, noise_std=1 / math.hypot(*ratios)))
    # A LaplaceDpEvent does not say how many coordinates it has, so assume several: that proof holds for any number.
    found += [
        LaplaceSum(group=f"laplace {number}", clip_norm=1.0, scale=scale, dimension=2)
        for number, scale in enumerate(laplace, start=1)
    ]
    return tuple(found)


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise ValueError(f"SelfComposedDpEvent has count {value!r}; it must be a whole number.")
    return int(value)
