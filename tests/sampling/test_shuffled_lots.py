"""One record more changes one shuffled lot: checked against the exact law of what a sampler does."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tacit.accounting import Unproved, guarantee, plan
from tacit.ledger import Adjacency, Everyone, GaussianSum, Header, Shuffled, Step
from tacit.sampling import ShuffledSampler

Record = Callable[..., Any]
Law = dict[tuple[float, ...], float]
"""The sums of the lots, before noise, and how likely they are."""

ONES, WITH_MINUS = [1.0] * 5, [*[1.0] * 5, -1.0]
CLAIM = 4.377178  # of one Gaussian sum with noise multiplier 1, at δ = 1e-5


class Enumerated:
    """A source of randomness that gives its ``number``-th outcome; ``outcomes`` says how many there are."""

    def __init__(self, number: int) -> None:
        self.number, self.outcomes = number, 0

    def integers(self, bound: int, size: int) -> Any:
        self.outcomes = bound**size
        return np.array([self.number // bound**place % bound for place in range(size)], dtype=np.int64)

    def permutation(self, size: int) -> Any:
        self.outcomes = math.factorial(size)
        return np.array(next(itertools.islice(itertools.permutations(range(size)), self.number, None)))


def lots_of(record: Record, records: int, number: int, lots: int) -> tuple[list[Any], int]:
    """The lots of one epoch when the source gives its ``number``-th outcome, and how many outcomes it has."""
    source = Enumerated(number)
    sampler = ShuffledSampler(records, lots, source=source)  # type: ignore[arg-type]
    return [sampler.draw(record(sampler.event())) for _ in range(lots)], source.outcomes


def law(record: Record, values: Sequence[float], lots: int = 2) -> Law:
    """The exact distribution of the sums of one epoch's lots, by every outcome of the sampler's coins."""
    sums: Counter[tuple[float, ...]] = Counter()
    number, outcomes = 0, 1
    while number < outcomes:
        drawn, outcomes = lots_of(record, len(values), number, lots)
        sums[tuple(float(sum(values[index] for index in lot)) for lot in drawn)] += 1
        number += 1
    return {place: count / outcomes for place, count in sums.items()}


def delta(first: Law, second: Law, epsilon: float) -> float:
    """δ(ε) of two mixtures of unit Gaussians in the plane: the larger of both directions, by the midpoint rule."""
    axis = np.arange(-11.0, 16.0, 0.02)

    def density(mixture: Law) -> Any:
        total = np.zeros((len(axis), len(axis)))
        for (x, y), weight in mixture.items():
            total += weight * np.outer(np.exp(-((axis - x) ** 2) / 2), np.exp(-((axis - y) ** 2) / 2))
        return total / (2 * math.pi)

    p, q = density(first), density(second)
    both = (np.maximum(a - math.exp(epsilon) * b, 0).sum() * 0.02**2 for a, b in ((p, q), (q, p)))
    return float(max(both))


def test_the_oracle_knows_that_lots_of_equal_size_cost_more_than_one_release() -> None:
    """Five records of +1, with or without one of -1, cut from a shuffled list into two lots; noise multiplier 1."""
    six = {(1.0, 3.0): 0.5, (3.0, 1.0): 0.5}
    five = {(2.0, 3.0): 1.0}
    assert delta(six, five, CLAIM) == pytest.approx(0.034, abs=5e-4)
    assert delta(six, five, 10.43) == pytest.approx(1e-5, rel=0.05)


def test_five_or_six_records_in_two_shuffled_lots_cost_no_more_than_is_claimed(record: Record) -> None:
    claimed = plan(records=6, lot_size=3, epochs=1, noise_multiplier=1.0, delta=1e-5, sampling="shuffled").guarantee
    assert claimed.adjacency == "add/remove" and claimed.epsilon == pytest.approx(CLAIM, rel=1e-6)
    with_record, without = law(record, WITH_MINUS), law(record, ONES)
    assert sum(with_record.values()) == pytest.approx(1) and len(without) > 1
    for epsilon, most in zip((0.5, 2.0, claimed.epsilon), claimed.curve([0.5, 2.0, claimed.epsilon]), strict=True):
        assert delta(with_record, without, epsilon) <= most * (1 + 1e-3)


def test_a_replaced_record_costs_no_more_than_is_claimed(record: Record) -> None:
    claimed = plan(
        records=5,
        lot_size=3,
        epochs=1,
        noise_multiplier=2.0,
        delta=1e-5,
        sampling="shuffled",
        adjacency="replace-one",
    ).guarantee
    scaled = [{(x / 2, y / 2): w for (x, y), w in law(record, v).items()} for v in (ONES, [*ONES[:4], -1.0])]
    assert delta(*scaled, claimed.epsilon) <= 1e-5 * (1 + 1e-3)


def test_one_record_more_leaves_every_other_record_in_its_lot(record: Record) -> None:
    """Coins number c of five records and c + 3^5 k of six agree on the first five."""
    for number in range(3**5):
        before, _ = lots_of(record, 5, number, 3)
        for coin in range(3):
            after, outcomes = lots_of(record, 6, number + 3**5 * coin, 3)
            assert outcomes == 3**6
            grown = [index for index in range(3) if len(after[index]) > len(before[index])]
            assert len(grown) == 1
            assert [lot[lot < 5].tolist() for lot in after] == [lot.tolist() for lot in before]


def test_lots_of_equal_size_have_no_guarantee_under_add_remove() -> None:
    step = Step(Shuffled(lots=2, epoch=0, records=6), (GaussianSum(group="sum", clip_norm=1.0, noise_std=1.0),))
    with pytest.raises(Unproved, match="2 shuffled lots of equal size have no proof here under add/remove"):
        guarantee([(step, 2)], Header(), delta=1e-5)
    replaced = Header(adjacency=Adjacency.REPLACE_ONE)
    whole = Step(Everyone(), step.queries)
    assert guarantee([(step, 2)], replaced, delta=1e-5).epsilon == guarantee([(whole, 1)], replaced, delta=1e-5).epsilon
