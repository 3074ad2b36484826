"""The events of a ledger as rows for people: similar events in sequence are one row, with ranges."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tacit.accounting.selection import in_words
from tacit.ledger import (
    Allocated,
    CyclicPoisson,
    Everyone,
    FixedSize,
    GaussianSum,
    LaplaceSum,
    OwnedPoisson,
    Poisson,
    Query,
    Sampling,
    Selection,
    Shuffled,
    SparseVector,
    Step,
    ThresholdedCounts,
    TruncatedPoisson,
)
from tacit.reports.said import clean

MOST = 120


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of release: its count, sample, name, bound and noise."""

    steps: str
    count: int
    sampling: str
    released: str
    clip_norm: str
    noise: str
    multiplier: str
    together: str


@dataclass
class _Phase:
    """Steps alike but for their numbers."""

    begin: int
    end: int
    count: int
    samples: list[Step] = field(default_factory=list)


def rows(entries: Sequence[tuple[Step, int]], *, most: int = MOST) -> tuple[list[Row], int]:
    """The rows, and how many did not fit. Steps alike are one row even if apart, when there would be too many rows."""
    phases = _phases(entries, adjacent=True)
    if sum(len(phase.samples[0].queries) for phase in phases) > most:
        phases = _phases(entries, adjacent=False)
    found = [row for phase in phases for row in _rows(phase)]
    return found[:most], max(len(found) - most, 0)


def _phases(entries: Sequence[tuple[Step, int]], *, adjacent: bool) -> list[_Phase]:
    phases: list[_Phase] = []
    known: dict[Hashable, _Phase] = {}
    at = 0
    for step, count in entries:
        key = _key(step)
        phase = known.get(key)
        if phase is None or (adjacent and phase is not phases[-1]):
            phase = known[key] = _Phase(begin=at + 1, end=at, count=0)
            phases.append(phase)
        phase.samples.append(step)
        phase.count, phase.end = phase.count + count, at + count
        at += count
    return phases


def _key(step: Step) -> Hashable:
    queries = tuple((type(query), query.group, _ratio(query)) for query in step.queries)
    sampling = step.sampling
    if isinstance(sampling, Shuffled):
        return Shuffled, sampling.lots, sampling.records, sampling.partition, sampling.assignment, queries
    if isinstance(sampling, Allocated):
        return Allocated, sampling.lots, sampling.records, sampling.partition, sampling.participations, queries
    return sampling, queries


def _ratio(query: Query) -> Hashable:
    """Return a key that tells two queries of one group apart: noise multiplier to six figures, or the whole event."""
    if isinstance(query, GaussianSum):
        return query.noise, f"{query.noise_std / query.clip_norm:.6g}"
    if isinstance(query, LaplaceSum):
        return query.dimension, f"{query.scale / query.clip_norm:.6g}"
    return query


def _rows(phase: _Phase) -> list[Row]:
    step = phase.samples[0]
    steps = f"{phase.begin}" if phase.begin == phase.end else f"{phase.begin}–{phase.end}"
    if phase.count < phase.end - phase.begin + 1:
        steps += ", not all"
    sums = [query.shared if isinstance(query, ThresholdedCounts) else query for query in step.queries]
    gaussian = tuple(query for query in sums if isinstance(query, GaussianSum))
    together = f"{Step(step.sampling, gaussian).noise_multiplier:.4g}" if gaussian else "–"
    found = []
    for index, query in enumerate(step.queries):
        released, norm, noise, multiplier = _query(query, [sample.queries[index] for sample in phase.samples])
        found.append(
            Row(
                steps=steps,
                count=phase.count,
                sampling=sampling(step.sampling),
                released=released,
                clip_norm=norm,
                noise=noise,
                multiplier=multiplier,
                together=together if query in gaussian else "–",
            )
        )
        if isinstance(query, Selection):
            each, _ = rows(query.candidate)
            found += [replace(row, steps=f"in each run: {row.steps}") for row in each]
    return found


def _query(query: Query, alike: Sequence[Query]) -> tuple[str, str, str, str]:
    """Return in words what was released, its S, its noise and its z."""
    group = clean(query.group)
    if isinstance(query, GaussianSum):
        sums = [one for one in alike if isinstance(one, GaussianSum)]
        kind = "" if query.noise == "gaussian" else f" ({clean(query.noise)})"
        if query.lattice is not None:
            kind = f" (discrete, lattice step {span([one.lattice for one in sums if one.lattice is not None])})"
        ratio = f"{query.noise_std / query.clip_norm:.4g}"
        return group, span([one.clip_norm for one in sums]), f"σ {span([one.noise_std for one in sums])}{kind}", ratio
    if isinstance(query, LaplaceSum):
        others = [one for one in alike if isinstance(one, LaplaceSum)]
        norm, scale = span([one.clip_norm for one in others]), span([one.scale for one in others])
        return group, f"{norm} (L1)", f"Laplace, scale {scale}", f"{query.scale / query.clip_norm:.4g}"
    if isinstance(query, SparseVector):
        noise = f"sparse vector: ε {query.threshold_epsilon:.4g} threshold + {query.release_epsilon:.4g} answers"
        return f"{group}, at most {query.releases}", "–", noise, "–"
    if isinstance(query, ThresholdedCounts):
        noise = f"σ {query.noise_std:.4g}, released above {query.threshold:.4g}"
        return f"{group}: values found", "1", noise, f"{query.noise_std:.4g}"
    return group, "–", in_words(query), "–"


def inside(entries: Iterable[tuple[Step, int]]) -> Iterator[tuple[Step, int]]:
    """The steps that touched records: of a selection those of one of its runs."""
    for step, count in entries:
        chosen = [query for query in step.queries if isinstance(query, Selection)]
        for query in chosen:
            yield from inside(query.candidate)
        if len(chosen) < max(len(step.queries), 1):
            yield step, count


def sampling(event: Sampling) -> str:
    """A sampling event in words."""
    if isinstance(event, Everyone):
        return "everyone"
    if isinstance(event, Poisson):
        return f"Poisson, q = {event.rate:.6g}" + (f" of {event.records}" if event.records else "")
    if isinstance(event, TruncatedPoisson):
        return f"Poisson, q = {event.rate:.6g} of {event.records}, at most {event.most} records"
    if isinstance(event, OwnedPoisson):
        return f"Poisson, q = {event.rate:.6g} of {event.records}, at most {event.most} records of an owner"
    if isinstance(event, FixedSize):
        return f"{event.size} of {event.records} without replacement"
    if isinstance(event, Allocated):
        return f"random allocation, {event.participations} of {event.lots} lots of {event.records}"
    if isinstance(event, CyclicPoisson):
        return f"cyclic, {event.groups} groups in turn, each record with q = {event.rate:.6g} in its turn"
    return f"shuffled, 1 of {event.lots} lots of {event.records}"


def span(values: Sequence[float]) -> str:
    """A value, or the range of several."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
