"""In which order participants come, and the lease."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

from tacit.collaboration import Lease, LeaseHeld, Protocol
from tacit.collaboration.exchange import Rota, turns
from tacit.randomness import SeededSource


def test_round_robin_is_a_fixed_order() -> None:
    source = SeededSource(1)
    for _ in range(2):
        order = list(turns(Protocol.ROUND_ROBIN, 5, source))
        assert [turn.participant for turn in order] == [0, 1, 2, 3, 4]
        assert not any(turn.stale for turn in order)


def test_random_order_is_a_new_order_each_epoch() -> None:
    source = SeededSource(1)
    orders = [[turn.participant for turn in turns(Protocol.RANDOM_ORDER, 30, source)] for _ in range(3)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert not any(turn.stale for turn in turns(Protocol.RANDOM_ORDER, 30, source))


def test_asynchronous_turns_are_stale_half_of_the_time() -> None:
    source = SeededSource(1)
    many = [turn for _ in range(50) for turn in turns(Protocol.ASYNCHRONOUS, 40, source)]
    assert 900 < sum(turn.stale for turn in many) < 1100  # 1000 expected, standard deviation 22
    assert {turn.participant for turn in many if turn.stale} == set(range(40))


def test_a_lease_is_held_by_one_until_given_back_or_expired() -> None:
    lease = Lease(10.0)
    ann = lease.acquire("ann", now=0.0)
    with pytest.raises(LeaseHeld, match="'ann' has the lease for another 6"):
        lease.acquire("bob", now=4.0)
    lease.check("ann", ann, now=9.9)
    with pytest.raises(LeaseHeld):
        lease.check("bob", ann, now=9.9)  # a number that was guessed or overheard
    lease.release(ann)
    bob = lease.acquire("bob", now=5.0)
    lease.release(ann)  # late news of a lease that has passed on
    with pytest.raises(LeaseHeld):
        lease.acquire("ann", now=6.0)
    carl = lease.acquire("carl", now=15.0)  # bob is slow or dead
    for name, token, now in (("bob", bob, 16.0), ("carl", carl, 25.0)):
        with pytest.raises(LeaseHeld, match="acquire it and download again"):
            lease.check(name, token, now=now)


def test_a_holder_that_was_restarted_gets_its_lease_again_but_no_more_time() -> None:
    lease = Lease(10.0, first=500)
    first = lease.acquire("ann", now=0.0)
    second = lease.acquire("ann", now=6.0)
    assert 500 < first < second
    with pytest.raises(LeaseHeld):
        lease.check("ann", first, now=6.0)
    lease.check("ann", second, now=9.0)
    with pytest.raises(LeaseHeld):
        lease.check("ann", second, now=10.0)


def test_asking_faster_does_not_win_more_leases() -> None:
    """eve and mallory are always there at the moment it becomes free; ann asks every half second."""
    lease, now, had = Lease(10.0, patience=5.0), 0.0, {"eve": 0, "mallory": 0, "ann": 0}
    while now < 300.0:
        for name in ("eve", "mallory", "ann"):
            before = lease._holder, lease._expires
            with suppress(LeaseHeld):
                lease.acquire(name, now=now)
            had[name] += (lease._holder, lease._expires) != before
        now += 0.5
    assert set(had.values()) == {10}


def test_a_waiter_that_stops_asking_loses_its_turn() -> None:
    lease = Lease(10.0, patience=5.0)
    eve = lease.acquire("eve", now=0.0)
    with pytest.raises(LeaseHeld):
        lease.acquire("ann", now=1.0)
    lease.release(eve)
    with pytest.raises(LeaseHeld, match="'ann' has waited since before the last turn of 'eve'"):
        lease.acquire("eve", now=2.0)
    lease.acquire("eve", now=6.0)


def test_while_one_waits_no_other_has_two_turns() -> None:
    """Everybody asks all the time, in any order, and gives back or keeps what it has; a free lease is taken at once."""
    dice, people = random.Random(5), "abcdef"
    lease, turns_of_others = Lease(3.0, patience=50.0), {name: Counter[str]() for name in people}
    waiting: set[str] = set()
    taken = 0
    for now in range(3000):
        free, start = lease.free(now), lease._turns
        for name in dice.sample(people, len(people)):
            before = lease._turns
            try:
                token = lease.acquire(name, now=now)
            except LeaseHeld:
                waiting.add(name)
                continue
            if lease._turns > before:
                taken += 1
                waiting.discard(name)
                turns_of_others[name].clear()
                for other in waiting:
                    turns_of_others[other][name] += 1
                    assert turns_of_others[other][name] == 1
            if dice.random() < 0.3:
                lease.release(token)
        assert lease._turns > start or not free
    assert taken > 1000


def test_the_turn_goes_round_and_past_those_who_do_not_come() -> None:
    rota = Rota(["ann", "bob", "carl"], 100.0, patience=5.0)

    def one(name: str, now: float) -> None:
        rota.release(rota.acquire(name, now=now))

    with pytest.raises(LeaseHeld, match="turn of 'ann'"):
        rota.acquire("bob", now=0.0)
    for name, now in (("ann", 1.0), ("bob", 2.0), ("carl", 3.0), ("ann", 4.0)):
        one(name, now)
    with pytest.raises(LeaseHeld, match="turn of 'bob'"):  # who has died
        rota.acquire("carl", now=5.0)
    with pytest.raises(LeaseHeld, match="turn of 'bob'"):
        rota.acquire("carl", now=9.9)
    one("carl", 10.0)
    one("ann", 11.0)
    one("carl", 12.0)  # bob is not waited for a second time
    with pytest.raises(LeaseHeld, match="turn of 'ann'"):
        rota.acquire("bob", now=13.0)  # and is back
    one("ann", 13.5)
    one("bob", 14.0)


def test_a_turn_that_was_taken_and_never_ended_expires() -> None:
    rota = Rota(["ann", "bob"], 100.0, patience=5.0)
    ann = rota.acquire("ann", now=0.0)
    with pytest.raises(LeaseHeld, match="'ann' has the lease"):
        rota.acquire("bob", now=99.0)
    bob = rota.acquire("bob", now=100.0)
    with pytest.raises(LeaseHeld):
        rota.check("ann", ann, now=101.0)
    rota.release(ann)
    rota.check("bob", bob, now=101.0)
    with pytest.raises(LeaseHeld):
        rota.acquire("ann", now=101.0)


@pytest.mark.parametrize("duration", [0.0, -1.0, float("inf"), float("nan")])
def test_a_lease_always_ends(duration: float) -> None:
    with pytest.raises(ValueError, match="duration is"):
        Lease(duration)
