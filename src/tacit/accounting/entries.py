"""Ledger entries read as a composition.

This is the one place that reads events. What has no proof is refused here, by name, so that no accountant can
silently treat it as something else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tacit.accounting.composition import (
    Base,
    Best,
    Composition,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Policy,
    Pure,
    Term,
    Unproved,
)
from tacit.accounting.correlated import cost_of_block
from tacit.accounting.rounding import inverse, rounded_down
from tacit.accounting.smoothing import smoothed_std
from tacit.accounting.truncation import overflow
from tacit.ledger import events as ev
from tacit.ledger.events import Adjacency


def compose(entries: Iterable[tuple[ev.Step, int]], adjacency: Adjacency, *, group: int = 1) -> Composition:
    """Read ledger entries (step, count) as one composition; its slack is for data sets ``group`` records apart."""
    counts: Counter[Term] = Counter()
    slack = 0.0
    epochs: dict[ev.Shuffled | ev.Allocated, tuple[int, list[Sequence[Term]]]] = {}
    blocks: dict[str, Counter[ev.Step]] = {}
    for step, count in entries:
        if isinstance(step.sampling, ev.CyclicPoisson):
            blocks.setdefault(step.sampling.block, Counter())[step] += count
            continue
        terms = _terms(step, adjacency)
        slack += count * _slack(step, adjacency, group)
        sampling = step.sampling
        if isinstance(sampling, ev.Shuffled | ev.Allocated):
            done, seen = epochs.get(sampling, (0, []))
            epochs[sampling] = (done + count, [*seen, terms])
            continue
        for term in terms:
            counts[term] += count
    unattained = False
    for epoch, (done, seen) in epochs.items():
        if done > epoch.lots:
            raise Unproved(
                f"epoch {epoch.epoch} of partition {epoch.partition!r} has {done} lots in the ledger but was cut into "
                f"{epoch.lots}; a record may have taken part more than once. Give every new partition a new epoch "
                "number."
            )
        if isinstance(epoch, ev.Shuffled):
            made, loose = [(term, 1) for term in _worst(seen)], epoch.lots > 1
        else:
            made, loose = _allocated(epoch, done, seen)
        unattained = unattained or loose
        for term, count in made:
            counts[term] += count
    for block, steps in blocks.items():
        step, done = _one_kind(block, steps)
        rounds, ratio, rate = cost_of_block(step, done)
        base = Gaussian(rounded_down(inverse(ratio)))
        counts[Term(base, Policy.POISSON, rate) if rate < 1 else Term(base)] += rounds
    loose = unattained or bool(blocks)
    return Composition(Adjacency(adjacency), tuple(sorted(counts.items(), key=repr)), min(slack, 1.0), loose)


def _terms(step: ev.Step, adjacency: Adjacency) -> list[Term]:
    """The terms of one step; several Gaussian sums on one sample are one Gaussian sum (paper 4, Equation 1).

    Discrete ones among them make it a discrete one: what is proved of those (`tacit.accounting.renyi`) is proved for
    independent noise of both kinds, coordinate by coordinate.
    """
    policy, rate = _policy(step.sampling, adjacency)
    queries = [query.shared if isinstance(query, ev.ThresholdedCounts) else query for query in step.queries]
    gaussian = tuple(query for query in queries if isinstance(query, ev.GaussianSum))
    for item in gaussian:
        if item.noise == "correlated":
            raise Unproved(
                f"group {item.group!r} has correlated noise on a {type(step.sampling).__name__} sample; a proof "
                "of its sensitivity over several steps exists here for cyclic sampling only (sampling='cyclic')."
            )
        if item.noise not in ("gaussian", "discrete"):
            raise Unproved(
                f"group {item.group!r} has noise {item.noise!r}; only 'gaussian' and 'discrete' have a proof here."
            )
    bases: list[Base] = []
    if gaussian:
        bases.append(_gaussian(gaussian))
    for query in step.queries:
        if isinstance(query, ev.LaplaceSum):
            bases.append(Laplace(query.scale / query.clip_norm, query.dimension))
        elif isinstance(query, ev.SparseVector):
            bases.append(Pure(query.threshold_epsilon + query.release_epsilon))
        elif isinstance(query, ev.Selection):
            candidate = compose(query.candidate, adjacency)
            if candidate.slack:
                raise Unproved("a selection among runs that discover values has no proof here; discover them first.")
            bases.append(Best(query, candidate))
    if policy is not Policy.ALWAYS or isinstance(step.sampling, ev.Shuffled | ev.Allocated):
        names = sorted({type(base).__name__ for base in bases})
        if len(bases) > 1:
            raise Unproved(
                f"one sample answered {' and '.join(names)} queries together; there is no proof here for their joint "
                "amplification. Draw a sample for each kind of query."
            )
        if bases and isinstance(bases[0], Pure | Best):
            raise Unproved(f"a {names[0]} query on a {policy} sample has no proof here; use all records (Everyone).")
    members = step.sampling.most if isinstance(step.sampling, ev.OwnedPoisson) else 1
    return [Term(base, policy, rate, members=members) for base in bases]


def _one_kind(block: str, steps: Counter[ev.Step]) -> tuple[ev.Step, int]:
    """The one step that a block consists of, and how often it was taken."""
    if len(steps) > 1:
        raise Unproved(
            f"the steps of block {block!r} differ from each other; correlated noise has a proof here for equal steps: "
            "begin a new block where something changes."
        )
    ((step, done),) = steps.items()
    for query in step.queries:
        if not isinstance(query, ev.GaussianSum) or query.noise not in ("gaussian", "correlated"):
            kind = query.noise if isinstance(query, ev.GaussianSum) else type(query).__name__
            raise Unproved(
                f"group {query.group!r} ({kind}) was answered from a cyclic sample; there is a proof here for sums "
                "with Gaussian noise, correlated or not. Use Poisson sampling for it."
            )
    return step, done


def _gaussian(queries: Sequence[ev.GaussianSum]) -> Gaussian | DiscreteGaussian:
    """The one sum that several are."""
    z = rounded_down(inverse(math.hypot(*(query.clip_norm / query.noise_std for query in queries))))
    if not any(query.noise == "discrete" for query in queries):
        return Gaussian(z)
    stds = [smoothed_std(query.clip_norm, query.noise_std, query.lattice) for query in queries]
    if 0.0 in stds:
        return DiscreteGaussian(z, 0.0)
    ratios = [query.clip_norm / std for query, std in zip(queries, stds, strict=True)]
    return DiscreteGaussian(z, rounded_down(inverse(math.hypot(*ratios))))


def _slack(step: ev.Step, adjacency: Adjacency, group: int) -> float:
    """Return what a step adds to δ for values that were not listed beforehand, or records dropped from its lot.

    For the latter see `tacit.accounting.truncation`. Of values:
    Let D' have one record more than D, with a value v that D lacks. Given that v's noisy count, which is independent
    of all else, stays below the threshold (probability 1 - s), both release the same kind of thing: without v the rest
    is the Gaussian sum, with P[M(D') in S, no v] = (1 - s) P~ and P~, P[M(D) in S] bounded by each other with (ε, δ).
    Hence P[M(D') in S] <= e^ε P[M(D) in S] + δ + s, and P[M(D) in S] <= e^ε P[M(D') in S] + δ + s: the loss is
    e^ε P~ s, which is at most s where e^ε P~ <= 1, and where it is more, 1 <= e^ε P~ (1 - s) + s covers it. For k
    releases 1 - s is a product, at least 1 - k s. Under replace-one there are two such records.
    """
    counts = [query for query in step.queries if isinstance(query, ev.ThresholdedCounts)]
    if counts and not isinstance(step.sampling, ev.Everyone):
        raise Unproved("discovering values on a sample has no proof here; use all records (Everyone).")
    dropped = overflow(step.sampling, group) if isinstance(step.sampling, ev.TruncatedPoisson) else 0.0
    return dropped + sum(query.slack for query in counts) * (2 if adjacency is Adjacency.REPLACE_ONE else 1)


def _policy(sampling: ev.Sampling, adjacency: Adjacency) -> tuple[Policy, float]:
    if isinstance(sampling, ev.Everyone):
        return Policy.ALWAYS, 1.0
    if isinstance(sampling, ev.Allocated):
        return Policy.ALWAYS, 1.0  # on its lot; `_allocated` puts the epoch together
    if isinstance(sampling, ev.Shuffled):
        if sampling.assignment == "equal" and sampling.lots > 1 and adjacency is not Adjacency.REPLACE_ONE:
            raise Unproved(
                f"{sampling.lots} shuffled lots of equal size have no proof here under add/remove (with a record fewer "
                "the other lots are cut elsewhere); use replace-one adjacency, or let each record's own coin choose "
                "its lot, as sampling='shuffled' does."
            )
        return Policy.ALWAYS, 1.0
    if isinstance(sampling, ev.Poisson | ev.TruncatedPoisson | ev.OwnedPoisson):
        return (Policy.POISSON, sampling.rate) if sampling.rate < 1 else (Policy.ALWAYS, 1.0)
    if isinstance(sampling, ev.FixedSize):
        if sampling.size == sampling.records:
            return Policy.ALWAYS, 1.0
        if adjacency is not Adjacency.REPLACE_ONE:
            raise Unproved(
                "fixed-size sampling has no proof here under add/remove (with a record fewer the rest of the lot "
                "changes too); use replace-one adjacency, or Poisson sampling."
            )
        return Policy.FIXED_SIZE, sampling.rate
    raise Unproved(f"sampling policy {type(sampling).__name__} is not known to the accountants.")


def _worst(lots: Sequence[Sequence[Term]]) -> list[Term]:
    """Return the cost of one epoch of disjoint lots: a record is in one lot only, at worst the one with least noise.

    Parallel composition. *Independent assignment*, add/remove: let D' be D and one record x more. Draw the coins of
    D's records, the same for both, and then x's. Given all coins the lots of D and D' are the same sets but for one,
    which has x more; the other lots' answers have the same distribution, and this one is a Gaussian (Laplace) pair of
    one record's shift. The coins of D's records are as likely under D as under D', so the two laws are mixtures over
    the coins with the same weights, and the mixtures diverge at most as the worst of their pairs (joint convexity).
    *Replace-one*, either assignment: the coins or the shuffled list are independent of the records' values, so given
    them the record that changes is in one lot, and that lot's answer alone changes, by the replacement's shift.
    *Equal assignment* under add/remove is refused in `_policy`: no coupling leaves all other lots as they are.
    An epoch of adaptive answers is no worse: which lot has x is fixed by the coins, and the answers of the other lots
    are the same functions of what was released before.
    """
    bases = [term.base for lot in lots for term in lot]
    gaussian = [base for base in bases if isinstance(base, Gaussian | DiscreteGaussian)]
    laplace = [base for base in bases if isinstance(base, Laplace)]
    if gaussian and laplace:
        raise Unproved("the lots of one epoch answered different kinds of queries; there is no proof here for that.")
    if gaussian:
        least = min(base.noise_multiplier for base in gaussian)
        smoothed = [base.smoothed if isinstance(base, DiscreteGaussian) else base.noise_multiplier for base in gaussian]
        discrete = any(isinstance(base, DiscreteGaussian) for base in gaussian)
        return [Term(DiscreteGaussian(least, min(smoothed)) if discrete else Gaussian(least))]
    if laplace:
        least = min(base.noise_multiplier for base in laplace)
        return [Term(Laplace(least, max(base.dimension for base in laplace)))]
    return []


def _allocated(epoch: ev.Allocated, done: int, lots: Sequence[Sequence[Term]]) -> tuple[list[tuple[Term, int]], bool]:
    """Return the terms of an epoch of random allocation with their counts, and whether no neighbours attain them.

    *Once an epoch*: the pair of `tacit.accounting.allocation`, for the ``done`` lots that were released. Where the lots
    differ in noise they are charged as the one with the least: more noise is post-processing.
    *k times an epoch*: draw a partition of the t lots into k blocks of nearly equal size, uniformly, and then one lot
    of each block. By symmetry all sets of k lots are equally likely, so this is how a record's lots may be drawn. Given
    the partition, which is alike for both data sets, the blocks are k independent allocations, once each; what the
    lots' answers depend on may come from all of them, since `tacit.accounting.allocation` makes every answer from its
    own lot's variable. Mixing over partitions keeps the bound (joint convexity). Feldman & Shenfeld (arXiv 2502.08202)
    reduce k to 1 in the same way. An epoch that was broken off is charged in full: less is released of it.
    """
    bases = [term.base for lot in lots for term in lot]
    if not bases:
        return [], False
    noises = []
    for base in bases:
        if not isinstance(base, Gaussian):
            raise Unproved(
                f"a {type(base).__name__} query on lots of random allocation has no proof here; use Gaussian noise, or "
                "Poisson sampling."
            )
        noises.append(base.noise_multiplier)
    least, k = Gaussian(min(noises)), epoch.participations
    if k == 1:
        return [(_block(least, epoch.lots, done), 1)], max(noises) > min(noises)
    size, more = divmod(epoch.lots, k)
    blocks = [(size, k - more), (size + 1, more)]
    return [(_block(least, each, each), count) for each, count in blocks if count], k < epoch.lots or done < epoch.lots


def _block(base: Gaussian, lots: int, taken: int) -> Term:
    """One lot of ``lots``, of which ``taken`` were released."""
    return Term(base) if lots == 1 else Term(base, Policy.ALLOCATED, 1 / lots, lots, taken)
