"""The parameter server: what it adds up, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.collaboration import ParameterServer, Reason, Refused, Rules

SIZE = 12
RULES = Rules(bound=0.5, upload=0.5, decay=0.8, decay_every=3)


def server() -> ParameterServer:
    return ParameterServer(np.arange(SIZE, dtype=np.float32) / 8 - 1, RULES, ["ann", "bob"])


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def state(one: ParameterServer) -> tuple[bytes, bytes, str]:
    arrays, facts = one.snapshot()
    return arrays["parameters"].tobytes(), arrays["stat"].tobytes(), json.dumps(facts, sort_keys=True)


def test_an_upload_is_added() -> None:
    one = server()
    before = one.parameters
    one.push("ann", 0, ints(3, 1), floats(0.25, -0.5))
    change = one.parameters - before
    assert change[3] == np.float32(0.25) and change[1] == np.float32(-0.5)
    assert np.count_nonzero(change) == 2
    assert one.stat.tolist() == [0, 1, 0, 1] + [0] * 8
    assert one.participants == {"ann": 1, "bob": 0}


REFUSALS: list[tuple[Reason, tuple[Any, ...]]] = [
    (Reason.UNKNOWN, ("eve", 0, ints(0), floats(0.1))),
    (Reason.UNKNOWN, (7, 0, ints(0), floats(0.1))),
    (Reason.REPLAYED, ("ann", 0, ints(0), floats(0.1))),
    (Reason.REPLAYED, ("ann", -1, ints(0), floats(0.1))),
    (Reason.REORDERED, ("ann", 2, ints(0), floats(0.1))),
    (Reason.TYPE, ("ann", True, ints(0), floats(0.1))),
    (Reason.TYPE, ("ann", "1", ints(0), floats(0.1))),
    (Reason.TYPE, ("ann", 1, [0], floats(0.1))),
    (Reason.TYPE, ("ann", 1, np.array([0.0]), floats(0.1))),
    (Reason.TYPE, ("ann", 1, np.array([True]), floats(0.1))),
    (Reason.TYPE, ("ann", 1, ints(0), np.array([0.1]))),
    (Reason.TYPE, ("ann", 1, ints(0), np.array([1], dtype=np.int32))),
    (Reason.SHAPE, ("ann", 1, ints(0)[:, None], floats(0.1))),
    (Reason.SHAPE, ("ann", 1, ints(0, 1), floats(0.1))),
    (Reason.SHAPE, ("ann", 1, np.array(0), floats(0.1))),
    (Reason.TOO_MANY, ("ann", 1, np.arange(7), np.zeros(7, dtype=np.float32))),
    (Reason.RANGE, ("ann", 1, ints(SIZE), floats(0.1))),
    (Reason.RANGE, ("ann", 1, ints(-1, 2), floats(0.1, 0.1))),
    (Reason.RANGE, ("ann", 1, ints(5, -1), floats(0.1, 0.1))),
    (Reason.RANGE, ("ann", 1, np.array([2**64 - 1], dtype=np.uint64), floats(0.1))),
    (Reason.DUPLICATE, ("ann", 1, ints(4, 4), floats(0.1, 0.1))),
    (Reason.DUPLICATE, ("ann", 1, ints(4, 2, 4), floats(0.1, 0.1, 0.1))),
    (Reason.NOT_FINITE, ("ann", 1, ints(0), floats(np.nan))),
    (Reason.NOT_FINITE, ("ann", 1, ints(0, 1), floats(0.1, -np.inf))),
    (Reason.BOUND, ("ann", 1, ints(0), floats(np.nextafter(np.float32(0.5), np.float32(1))))),
    (Reason.BOUND, ("ann", 1, ints(0, 3), floats(0.1, -0.6))),
]


@pytest.mark.parametrize(("reason", "upload"), REFUSALS, ids=[f"{r.name}-{i}" for i, (r, _) in enumerate(REFUSALS)])
def test_a_bad_upload_is_refused_and_changes_nothing(reason: Reason, upload: tuple[Any, ...]) -> None:
    one = server()
    one.push("ann", 0, ints(0, 5), floats(0.5, -0.5))
    before = state(one)
    with pytest.raises(Refused) as error:
        one.push(*upload)
    assert error.value.reason is reason
    assert str(error.value).endswith(".")
    assert state(one) == before
    one.push("ann", 1, ints(11, 0), floats(0.5, 0.5))  # and the sender can go on


def test_the_revoked_are_refused() -> None:
    one = server()
    one.push("ann", 0, ints(0), floats(0.1))
    one.revoke("ann")
    before = state(one)
    with pytest.raises(Refused) as error:
        one.push("ann", 1, ints(0), floats(0.1))
    assert error.value.reason is Reason.REVOKED
    assert state(one) == before
    one.push("bob", 0, ints(0), floats(0.1))


def test_parameters_stay_finite() -> None:
    top = float(np.finfo(np.float32).max)
    one = ParameterServer(floats(top, 0.0), Rules(bound=top), ["ann"])
    before = state(one)
    with pytest.raises(Refused) as error:
        one.push("ann", 0, ints(0, 1), floats(top, 1.0))
    assert error.value.reason is Reason.OVERFLOW
    assert state(one) == before


@given(st.lists(st.sampled_from([-1.0, -0.75, 0.3, 1.0]), max_size=40), st.integers(min_value=0, max_value=60))
def test_there_is_headroom_only_where_nothing_can_overflow(signs: list[float], exponent: int) -> None:
    """Whatever was added, and however it was rounded, no parameter is larger than the server takes it to be."""
    start = float(2**exponent)
    bound = start * 2**-23  # about as large as a unit in the last place, where rounding adds most
    one = ParameterServer(floats(start, -start / 3), Rules(bound=bound), ["a"])
    for sequence, sign in enumerate(signs):
        one.push("a", sequence, ints(0, 1), np.full(2, sign * bound, dtype=np.float32))
    assert one._reach >= float(np.abs(one.parameters).max())
    assert one.headroom(1000)


def test_headroom_ends_before_the_largest_number_and_comes_back() -> None:
    largest = float(np.finfo(np.float32).max)
    one = ParameterServer(floats(0.25 * largest), Rules(bound=0.1 * largest), ["a"])
    assert one.headroom(1) and not one.headroom(2)
    for sequence in range(3):
        one.push("a", sequence, ints(0), floats(-0.08 * largest))
    assert one.headroom(2)  # the largest is looked up again: it has become smaller


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.uint64])
def test_positions_of_any_width(kind: type) -> None:
    one = server()
    before = one.parameters
    one.push("ann", 0, np.array([7, 2], dtype=kind), floats(0.1, 0.2))
    assert np.flatnonzero(one.parameters - before).tolist() == [2, 7]


places = st.integers(0, SIZE - 1)
numbers = st.floats(-0.5, 0.5, width=32)
good_pairs = st.dictionaries(places, numbers, max_size=6).map(lambda pairs: list(pairs.items()))
any_pairs = st.lists(st.tuples(places | st.sampled_from([-1, SIZE]), numbers | st.sampled_from([0.625, np.nan])))
uploads = st.tuples(
    st.sampled_from(["ann", "bob", "ann", "bob", "eve"]),
    st.sampled_from([0, 0, 0, 0, 0, 1, -1]),  # how far the sequence number is from the one that is due
    good_pairs | any_pairs,
)


@given(st.lists(uploads, max_size=25))
def test_any_sequence_of_uploads_leaves_the_sum_of_the_accepted(pushed: list[tuple[Any, ...]]) -> None:
    """The reference knows nothing of slices, fast paths or lazy decay."""
    one = server()
    expected, stat = one.parameters, np.zeros(SIZE)
    accepted = {"ann": 0, "bob": 0}
    for name, offset, pairs in pushed:
        indices, added = ints(*(place for place, _ in pairs)), floats(*(value for _, value in pairs))
        sequence = accepted.get(name, 0) + offset
        good = (
            name in accepted
            and sequence == accepted[name]
            and len(indices) == len(added) <= 6
            and len(set(indices.tolist())) == len(indices)
            and all(0 <= index < SIZE for index in indices.tolist())
            and all(abs(value) <= 0.5 for value in added.tolist())
        )
        before = state(one)
        if not good:
            with pytest.raises(Refused):
                one.push(name, sequence, indices, added)
            assert state(one) == before
            continue
        one.push(name, sequence, indices, added)
        for index, value in zip(indices.tolist(), added, strict=True):
            expected[index] = expected[index] + value
            stat[index] += 1
        accepted[name] += 1
        if sum(accepted.values()) % 3 == 0:
            stat *= 0.8
    assert one.parameters.tobytes() == expected.tobytes()
    assert one.stat == pytest.approx(stat, rel=1e-5)
    assert one.participants == accepted


def test_lazy_decay_is_eager_decay_over_a_long_time() -> None:
    """Far beyond where the unit would leave float32 (0.8^-400), and still to five figures."""
    rng = np.random.default_rng(3)
    one = ParameterServer(np.zeros(30, dtype=np.float32), Rules(bound=1.0), ["ann"])
    stat = np.zeros(30)
    for sequence in range(4000):
        indices = np.flatnonzero(rng.random(30) < 0.2)
        one.push("ann", sequence, indices, np.zeros(indices.size, dtype=np.float32))
        stat[indices] += 1
        stat *= 0.8
        if sequence % 500 == 499:
            assert one.stat == pytest.approx(stat, rel=1e-5)
            assert set(one.pull(0.3).indices.tolist()) == set(np.argsort(-stat, kind="stable")[:9].tolist())


def test_a_download_has_what_was_updated_most() -> None:
    one = server()
    for sequence, places in enumerate([ints(4, 7, 9), ints(4, 9), ints(4)]):
        one.push("ann", sequence, places, np.full(places.size, 0.25, dtype=np.float32))
    for fraction, wanted in [(1 / 12, [4]), (2 / 12, [4, 9]), (3 / 12, [4, 7, 9])]:
        download = one.pull(fraction)
        assert download.indices is not None
        assert download.indices.tolist() == wanted
        assert download.values.tolist() == one.parameters[wanted].tolist()
        assert download.size == 8 * len(wanted)
    everything = one.pull(1.0)
    assert everything.indices is None and everything.size == 4 * SIZE
    everything.values[:] = 0  # a copy: what is handed out is nobody's business but the receiver's
    assert one.parameters.any()


def test_a_snapshot_goes_on_bit_for_bit() -> None:
    def play(one: ParameterServer, first: int, last: int) -> None:
        for sequence in range(first, last):
            places = ints(sequence % SIZE, (5 * sequence + 1) % SIZE)
            if places[0] != places[1]:
                one.push("ann", one.next_sequence("ann"), places, floats(0.1 * (sequence % 3), -0.01))

    straight, broken = server(), server()
    play(straight, 0, 40)
    play(broken, 0, 17)
    broken.revoke("bob")
    arrays, facts = broken.snapshot()
    again = ParameterServer.restore(arrays, json.loads(json.dumps(facts)), RULES)
    play(again, 17, 40)
    straight.revoke("bob")
    assert state(again) == state(straight)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rules(bound=0.0),
        lambda: Rules(bound=float("inf")),
        lambda: Rules(bound=1.0, upload=0.0),
        lambda: Rules(bound=1.0, decay=1.5),
        lambda: Rules(bound=1.0, decay_every=0),
        lambda: ParameterServer(floats(np.nan), RULES),
        lambda: ParameterServer(np.zeros((2, 2), dtype=np.float32), RULES),
        lambda: ParameterServer(floats(1.0), RULES, ["ann", "ann"]),
        lambda: server().pull(0.0),
        lambda: server().revoke("eve"),
    ],
)
def test_configuration_is_checked(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        make()
