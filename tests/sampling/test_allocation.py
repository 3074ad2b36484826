"""Random allocation: each record's own coins choose exactly so many lots of an epoch."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from tacit.accounting import account
from tacit.ledger import Allocated, GaussianSum, Ledger, Step
from tacit.randomness import SecureSource, SeededSource
from tacit.sampling import AllocationSampler, ShuffledSampler

SOURCE = SecureSource()
QUERY = GaussianSum(group="sum", clip_norm=1.0, noise_std=1.0)


def epoch(sampler: AllocationSampler, lots: int) -> list[np.ndarray]:
    ledger = Ledger()
    return [sampler.draw(ledger.record(Step(sampler.event(), (QUERY,)))) for _ in range(lots)]


@pytest.mark.parametrize(("records", "lots", "participations"), [(20, 4, 1), (20, 4, 3), (5, 5, 5), (7, 12, 2)])
def test_each_record_is_in_exactly_so_many_lots_of_every_epoch(records: int, lots: int, participations: int) -> None:
    sampler = AllocationSampler(records, lots, participations=participations, source=SOURCE)
    assert sampler.expected == records * participations / lots
    for number in range(3):
        assert sampler.event().epoch == number
        dealt = epoch(sampler, lots)
        assert all((np.diff(lot) > 0).all() for lot in dealt)
        assert Counter(np.concatenate(dealt).tolist()) == dict.fromkeys(range(records), participations)


def test_every_set_of_lots_is_equally_likely_and_records_choose_by_themselves() -> None:
    sampler = AllocationSampler(2, 4, participations=2, source=SOURCE)
    seen: Counter[tuple[tuple[int, ...], ...]] = Counter()
    epochs = 3600
    for _ in range(epochs):
        dealt = epoch(sampler, 4)
        seen[tuple(tuple(lot for lot in range(4) if record in dealt[lot]) for record in range(2))] += 1
    pairs = list(combinations(range(4), 2))
    counts = np.array([seen[one, other] for one in pairs for other in pairs])
    assert counts.sum() == epochs
    assert float(((counts - epochs / 36) ** 2 / (epochs / 36)).sum()) < 90  # chi-square with 35 degrees: p < 1e-6


def test_a_restored_sampler_begins_a_new_partition() -> None:
    sampler = AllocationSampler(20, 4, participations=2, source=SeededSource(1))
    epoch(sampler, 6)
    resumed = AllocationSampler(20, 4, participations=2, source=SeededSource(1))
    resumed.restore(sampler.state())
    assert resumed.event().epoch == 2
    assert resumed.event().partition != sampler.event().partition
    other = ShuffledSampler(20, 4, source=SOURCE)
    with pytest.raises(ValueError, match="'allocation' but this sampler has"):
        other.restore(sampler.state())


def test_the_event_says_how_often_a_record_takes_part() -> None:
    event = AllocationSampler(20, 4, participations=2, source=SOURCE).event()
    assert isinstance(event, Allocated)
    assert (event.lots, event.participations, event.records) == (4, 2, 20)
    with pytest.raises(ValueError, match="participations is 5; it must be at most the number of lots, 4"):
        AllocationSampler(20, 4, participations=5, source=SOURCE)


def test_an_interrupted_draw_is_charged_as_the_lot_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch with more draws than lots would have no proof."""
    for lots in (1, 3):
        sampler, ledger = AllocationSampler(6, lots, source=SOURCE), Ledger()
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "_assign", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                sampler.draw(ledger.record(Step(sampler.event(), (QUERY,))))
        left = [sampler.draw(ledger.record(Step(sampler.event(), (QUERY,)))) for _ in range(lots - 1)]
        assert sampler.event().epoch == 1
        seen = Counter(record for lot in left for record in lot.tolist())
        assert max(seen.values(), default=0) <= 1
        assert account(ledger, delta=1e-5).epsilon > 0
