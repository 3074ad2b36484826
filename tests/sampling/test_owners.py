"""Several owners of one record: which records take part, what an owner can have in a lot, and who is a neighbour."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest

from tacit.ledger import Header, Ledger, OwnedPoisson, Poisson, Step
from tacit.randomness import SecureSource
from tacit.sampling import OwnerSampler, bounded_by_owner
from tacit.sampling.owners import within_bound

CHAIN = [(i, i + 1) for i in range(100)]
HEADER = Header(unit="owner")


def random_owners(seed: int, people: int = 40, records: int = 300) -> list[set[int]]:
    rng = np.random.default_rng(seed)
    return [set(rng.integers(0, people, size=rng.integers(1, 4)).tolist()) for _ in range(records)]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_owner_has_more_than_so_many_and_no_record_could_be_added(most: int) -> None:
    owners = random_owners(most)
    chosen = bounded_by_owner(owners, most=most)
    counts = Counter(person for number in chosen for person in owners[number])
    assert max(counts.values()) == most
    left = set(range(300)) - set(chosen.tolist())
    assert all(any(counts[person] >= most for person in owners[number]) for number in left)


def test_the_choice_depends_on_the_owners_alone_whatever_their_names() -> None:
    owners = random_owners(7)
    named = [[f"person {each}" for each in people] for people in owners]
    assert bounded_by_owner(owners, most=2).tolist() == bounded_by_owner(named, most=2).tolist()


def test_the_choice_is_not_stable_when_an_owner_leaves_which_is_why_ownership_must_be_public() -> None:
    """Without owner 0, and the one record that is theirs, every other choice along the chain is another one."""
    before = {CHAIN[number] for number in bounded_by_owner(CHAIN, most=1)}
    after = {CHAIN[1:][number] for number in bounded_by_owner(CHAIN[1:], most=1)}
    assert len(before) == 50 and not before & after


@pytest.mark.parametrize("gone", range(0, 40, 5))
def test_with_private_ownership_only_the_records_of_the_owner_who_leaves_are_missing(gone: int) -> None:
    owners = random_owners(3)
    most = max(Counter(person for people in owners for person in people).values())
    whole = within_bound(owners, most)
    kept = [people for people in owners if gone not in people]
    assert len(whole) == 300 and len(within_bound(kept, most)) == len(kept)
    assert 300 - len(kept) <= most


def test_with_private_ownership_an_owner_of_too_many_records_is_refused_and_none_is_left_out() -> None:
    with pytest.raises(ValueError, match=r"^some owners have more than 1 records; with"):
        within_bound([("ann", "bob"), ("ann",), ("bob", "cy")], 1)


@pytest.mark.parametrize("ownership", ["public", "private"])
def test_lots_hold_chosen_records_each_by_its_own_coin_of_the_recorded_rate(
    ownership: Literal["public", "private"],
) -> None:
    owners = random_owners(1, people=400, records=200)
    most = 3 if ownership == "public" else 8
    sampler = OwnerSampler(owners, 0.3, most=most, source=SecureSource(), ownership=ownership)
    able = bounded_by_owner(owners, most) if ownership == "public" else np.arange(200)
    ledger, draws = Ledger(HEADER), 2000
    counts, together = np.zeros(200), 0
    for _ in range(draws):
        lot = sampler.draw(ledger.record(Step(sampler.event(), ())))
        counts[lot] += 1
        together += int(able[0] in lot and able[1] in lot)
        assert max(Counter(p for i in lot for p in owners[i]).values(), default=0) <= most
    assert sampler.records == len(able) and sampler.expected == pytest.approx(0.3 * len(able))
    assert set(np.flatnonzero(counts)) == set(able.tolist())
    spread = 5 * np.sqrt(0.21 / draws)
    assert np.all(np.abs(counts[able] / draws - 0.3) < spread)
    assert abs(together / draws - 0.09) < spread


def test_a_sampler_draws_for_its_own_event_only() -> None:
    sampler = OwnerSampler(CHAIN, 0.5, most=1, source=SecureSource())
    for event in (Poisson(rate=0.5, records=50, unit="owner"), OwnedPoisson(rate=0.5, records=50, most=2)):
        with pytest.raises(ValueError, match="the ledger has"):
            sampler.draw(Ledger(HEADER).record(Step(event, ())))
    assert len(sampler.draw(Ledger(HEADER).record(Step(sampler.at(1.0), ())))) == 50
    other = OwnerSampler(CHAIN, 0.5, most=1, source=SecureSource())
    other.restore(sampler.state())
    assert other.state() == sampler.state()


@pytest.mark.parametrize(
    ("owners", "most", "message"),
    [([(0,)], 0, "most is 0"), ([(0,)], True, "most is True"), ([(0,), ()], 1, "record 1 has no owner")],
)
def test_bad_input_is_one_sentence(owners: Any, most: int, message: str) -> None:
    for choose in (bounded_by_owner, within_bound):
        with pytest.raises(ValueError, match=message):
            choose(owners, most)
