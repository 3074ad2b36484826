"""User-level sampling: the user is the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.ledger import Poisson
from tacit.randomness import SecureSource
from tacit.sampling import PoissonSampler, UserSampler

SOURCE = SecureSource()
OWNERS = np.array([2, 0, 2, 2, 0, 2, 4])  # user 1 and user 3 have no examples
Record = Callable[..., Any]


def sampler(most: int, rate: float = 1.0) -> UserSampler:
    return UserSampler(OWNERS, PoissonSampler(5, rate, source=SOURCE, unit="user"), most=most, source=SOURCE)


def test_each_user_brings_its_own_examples_and_no_more_than_allowed(record: Record) -> None:
    users = sampler(most=2)
    lot = users.draw(record(users.event()))
    assert lot.users.tolist() == [0, 1, 2, 3, 4]
    assert [len(examples) for examples in lot.examples] == [2, 0, 2, 0, 1]
    assert (OWNERS[lot.indices] == lot.users[lot.owners]).all()
    everything = sampler(most=100).draw(record(users.event()))
    assert sorted(everything.indices) == list(range(7))


def test_the_choice_among_a_users_examples_is_uniform(record: Record) -> None:
    users, counts = sampler(most=2), np.zeros(7)
    for _ in range(4000):
        counts[users.draw(record(users.event())).examples[2]] += 1
    assert stats.chisquare(counts[[0, 2, 3, 5]]).pvalue > 1e-9


def test_the_event_counts_users(record: Record) -> None:
    users = sampler(most=2, rate=0.5)
    assert users.event() == Poisson(rate=0.5, records=5, unit="user")
    assert (users.records, users.expected, users.most) == (5, 2.5, 2)
    users.draw(record(users.event()))
    again = sampler(most=2, rate=0.5)
    again.restore(users.state())
    assert again.state()["draws"] == 1


def test_a_lot_may_contain_no_users(record: Record) -> None:
    lot = sampler(most=2, rate=1e-300).draw(record(Poisson(rate=1e-300, records=5, unit="user")))
    assert lot.indices.shape == lot.owners.shape == (0,)
    assert lot.indices.dtype == np.int64


@pytest.mark.parametrize(
    ("owners", "records", "unit", "most", "message"),
    [
        (OWNERS, 4, "user", 1, "has user 4"),
        (OWNERS, 5, "example", 1, "unit='user'"),
        (OWNERS, 5, "user", 0, "most is 0"),
        (OWNERS - 1, 5, "user", 1, "list of user numbers"),
        (OWNERS / 2, 5, "user", 1, "list of user numbers"),
    ],
)
def test_mistakes_are_named(owners: Any, records: int, unit: str, most: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UserSampler(owners, PoissonSampler(records, 0.5, source=SOURCE, unit=unit), most=most, source=SOURCE)
