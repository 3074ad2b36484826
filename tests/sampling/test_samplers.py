"""Samplers draw what the ledger says, and nothing else. Statistics fail by chance less than once in 1e9."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.ledger import Everyone, FixedSize, Poisson
from tacit.randomness import SecureSource, SeededSource
from tacit.sampling import EveryoneSampler, FixedSizeSampler, PoissonSampler, ShuffledSampler

CHANCE = 1e-9
Record = Callable[..., Any]
SOURCE = SecureSource()


def samplers() -> list[Any]:
    return [
        EveryoneSampler(20),
        PoissonSampler(20, 0.25, source=SOURCE),
        FixedSizeSampler(20, 5, source=SOURCE),
        ShuffledSampler(20, 4, source=SOURCE),
    ]


def draws(sampler: Any, record: Record, count: int) -> np.ndarray[Any, Any]:
    """``count`` lots as rows of zeros and ones."""
    table = np.zeros((count, sampler.records))
    for row in table:
        row[sampler.draw(record(sampler.event()))] = 1
    return table


@pytest.mark.parametrize("index", range(4))
class TestEverySampler:
    def test_indices_are_distinct_sorted_records(self, record: Record, index: int) -> None:
        sampler = samplers()[index]
        for _ in range(50):
            lot = sampler.draw(record(sampler.event()))
            assert lot.dtype == np.int64
            assert (np.diff(lot) > 0).all()
            assert lot.size == 0 or (lot[0] >= 0 and lot[-1] < 20)

    def test_a_receipt_is_good_for_one_draw(self, record: Record, index: int) -> None:
        sampler = samplers()[index]
        receipt = record(sampler.event())
        sampler.draw(receipt)
        with pytest.raises(RuntimeError, match="already drawn"):
            sampler.draw(receipt)

    def test_a_record_of_something_else_is_refused(self, record: Record, index: int) -> None:
        sampler = samplers()[index]
        for event in (
            Everyone() if index else Poisson(rate=0.25, records=20),
            Poisson(rate=0.25, records=21),
            Poisson(rate=0.25, records=20, unit="user"),
            FixedSize(size=5, records=19),
            FixedSize(size=5, records=20, unit="user"),
        ):
            with pytest.raises(ValueError, match=r"record sampler\.event\(\) first"):
                sampler.draw(record(event))

    def test_average_lot_is_the_expected_one(self, record: Record, index: int) -> None:
        sampler = samplers()[index]
        sizes = draws(sampler, record, 2000).sum(axis=1)
        assert abs(sizes.mean() - sampler.expected) < 7 * math.sqrt(20 * 0.25 * 0.75 / 2000)

    def test_state_survives_json_and_has_no_key(self, record: Record, index: int) -> None:
        sampler, other = samplers()[index], samplers()[index]
        draws(sampler, record, 3)
        state = sampler.state()
        assert all(isinstance(value, str | int) for value in state.values())
        assert len(str(state)) < 100
        other.restore(state)
        assert other.state()["draws"] == 3
        with pytest.raises(ValueError, match="saved records is 19"):
            other.restore(state | {"records": 19})
        with pytest.raises(ValueError, match="saved draws is -1"):
            other.restore(state | {"draws": -1})


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_poisson_includes_each_record_with_the_rate_and_independently(record: Record, rate: float) -> None:
    records, count = 12, 20_000
    table = draws(PoissonSampler(records, rate, source=SOURCE), record, count)
    each = table.sum(axis=0)
    assert min(stats.binomtest(int(n), count, rate).pvalue for n in each) > CHANCE / records
    centred = (table - rate) / math.sqrt(rate * (1 - rate))
    both = (table.T @ table)[np.triu_indices(records, 1)]
    assert min(stats.binomtest(int(n), count, rate**2).pvalue for n in both) > CHANCE / both.size
    steps = (centred[1:] * centred[:-1]).sum() / math.sqrt(records * (count - 1))
    assert abs(steps) < stats.norm.isf(CHANCE / 2)
    sizes = np.bincount(table.sum(axis=1).astype(int), minlength=records + 1)
    expected = count * stats.binom.pmf(np.arange(records + 1), records, rate)
    some = expected > 10
    found = np.append(sizes[some], sizes[~some].sum())
    wanted = np.append(expected[some], expected[~some].sum())
    keep = wanted > 10
    assert ((found - wanted)[keep] ** 2 / wanted[keep]).sum() < stats.chi2.isf(CHANCE, keep.sum())
    assert set(np.unique(table)) <= {0, 1}


def test_poisson_lot_size_on_many_records_is_binomial(record: Record) -> None:
    sampler = PoissonSampler(1_000_000, 0.0005, source=SOURCE)
    sizes = [sampler.draw(record(sampler.event())).size for _ in range(2000)]
    spread = math.sqrt(500 * 0.9995)
    assert abs(np.mean(sizes) - 500) < 6.2 * spread / math.sqrt(2000)
    assert abs(np.var(sizes) / spread**2 - 1) < 7 * math.sqrt(2 / 2000)


def test_poisson_reaches_the_first_and_the_last_record(record: Record) -> None:
    sampler = PoissonSampler(100_000_000, 1e-5, source=SOURCE)
    lots = np.concatenate([sampler.draw(record(sampler.event())) for _ in range(100)])
    assert stats.kstest(lots / 1e8, "uniform").pvalue > CHANCE


def test_poisson_draw_from_a_hundred_million_records_is_quick(record: Record) -> None:
    sampler = PoissonSampler(100_000_000, 1e-5, source=SOURCE)
    spent = []
    for _ in range(9):
        start = time.process_time()
        sampler.draw(record(sampler.event()))
        spent.append(time.process_time() - start)
    assert np.median(spent) < 0.05


def test_poisson_rate_one_takes_all_records_and_a_tiny_rate_none(record: Record) -> None:
    assert PoissonSampler(7, 1.0, source=SOURCE).draw(record(Poisson(rate=1.0, records=7))).tolist() == list(range(7))
    assert PoissonSampler(7, 1e-300, source=SOURCE).draw(record(Poisson(rate=1e-300, records=7))).size == 0


def test_the_recorded_rate_is_the_one_drawn_so_schedules_are_honest(record: Record) -> None:
    sampler = PoissonSampler(10_000, 0.5, source=SOURCE)
    assert sampler.draw(record(sampler.at(0.001))).size < 100
    assert sampler.draw(record(Poisson(rate=1.0))).size == 10_000  # the number of records may be kept secret
    fixed = FixedSizeSampler(100, 5, source=SOURCE)
    assert fixed.draw(record(fixed.at(17))).size == 17


def test_fixed_size_sets_are_uniform(record: Record) -> None:
    sampler = FixedSizeSampler(5, 2, source=SOURCE)
    table = draws(sampler, record, 20_000)
    assert (table.sum(axis=1) == 2).all()
    counts = np.unique(table, axis=0, return_counts=True)[1]
    assert counts.size == 10
    assert stats.chisquare(counts).pvalue > CHANCE


def test_fixed_size_of_a_hundred_million(record: Record) -> None:
    sampler = FixedSizeSampler(100_000_000, 1000, source=SOURCE)
    start = time.process_time()
    assert sampler.draw(record(sampler.event())).size == 1000
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize(("records", "lots"), [(20, 4), (23, 5), (6, 6), (6, 1)])
def test_shuffled_lots_are_a_partition_each_epoch(record: Record, records: int, lots: int) -> None:
    sampler = ShuffledSampler(records, lots, source=SOURCE)
    for epoch in range(3):
        taken = []
        for _ in range(lots):
            event = sampler.event()
            assert (event.epoch, event.lots, event.records) == (epoch, lots, records)
            taken.append(sampler.draw(record(event)))
        assert sorted(np.concatenate(taken)) == list(range(records))


def test_each_record_chooses_its_shuffled_lot_uniformly_and_by_itself(record: Record) -> None:
    sampler = ShuffledSampler(4, 2, source=SOURCE)
    table = draws(sampler, record, 20_000)[::2]
    counts = np.unique(table, axis=0, return_counts=True)[1]
    assert counts.size == 16
    assert stats.chisquare(counts).pvalue > CHANCE


def test_a_resumed_partition_never_shares_its_name_with_another(record: Record) -> None:
    """Otherwise a record could be in two lots of what the ledger calls one epoch."""
    sampler = ShuffledSampler(20, 4, source=SeededSource(1))
    draws(sampler, record, 5)
    saved = sampler.state()
    seen = {(sampler.event().partition, epoch) for epoch in range(10)}
    draws(sampler, record, 9)
    resumed = ShuffledSampler(20, 4, source=SeededSource(1))
    fresh = resumed.event()
    resumed.restore(saved)
    assert resumed.event().epoch == 2
    assert (resumed.event().partition, resumed.event().epoch) not in seen
    assert resumed.event().partition != fresh.partition
    twin = ShuffledSampler(20, 4, source=SeededSource(1))
    twin.restore(saved)
    assert twin.event().partition != resumed.event().partition
    assert sorted(np.flatnonzero(draws(resumed, record, 4).sum(axis=0) == 1)) == list(range(20))


def test_a_shuffled_lot_cannot_be_recorded_as_poisson(record: Record) -> None:
    sampler = ShuffledSampler(20, 4, source=SOURCE)
    with pytest.raises(ValueError, match="ledger has Poisson"):
        sampler.draw(record(Poisson(rate=0.25, records=20)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampler(10, 1.5, source=SOURCE),
        lambda: PoissonSampler(0, 0.5, source=SOURCE),
        lambda: FixedSizeSampler(10, 11, source=SOURCE),
        lambda: ShuffledSampler(10, 11, source=SOURCE),
        lambda: EveryoneSampler(0),
    ],
)
def test_impossible_samplers_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()
