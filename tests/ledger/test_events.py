"""Events survive the round trip through JSON, and nothing else is taken for an event."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.ledger import (
    Adjacency,
    Allocated,
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    Poisson,
    Selection,
    Shuffled,
    SparseVector,
    Step,
    from_json,
    to_json,
)

POSITIVE = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
COUNTS = st.integers(min_value=1, max_value=10**12)
WORDS = st.text(min_size=1, max_size=12)
UNITS = st.sampled_from(["example", "user", "Ünit\n"])
SAMPLINGS = st.one_of(
    st.builds(Everyone, unit=UNITS),
    st.builds(
        Poisson,
        rate=st.floats(min_value=0, max_value=1, exclude_min=True),
        records=st.none() | COUNTS,
        unit=UNITS,
    ),
    st.tuples(COUNTS, COUNTS, UNITS).map(lambda v: FixedSize(size=min(v[:2]), records=max(v[:2]), unit=v[2])),
    st.builds(
        Shuffled,
        lots=COUNTS,
        epoch=st.integers(0, 99),
        records=COUNTS,
        partition=WORDS,
        unit=UNITS,
        assignment=st.sampled_from(["equal", "independent"]),
    ),
)
SUMS = st.one_of(
    st.builds(GaussianSum, group=WORDS, clip_norm=POSITIVE, noise_std=POSITIVE, noise=WORDS),
    st.builds(LaplaceSum, group=WORDS, clip_norm=POSITIVE, scale=POSITIVE, dimension=COUNTS),
    st.builds(SparseVector, group=WORDS, threshold_epsilon=POSITIVE, release_epsilon=POSITIVE, releases=COUNTS),
)


def steps(queries: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, SAMPLINGS, st.lists(queries, max_size=3, unique_by=lambda q: q.group).map(tuple))


CANDIDATES = st.lists(st.tuples(steps(SUMS), COUNTS), min_size=1, max_size=2).map(tuple)
SELECTIONS = st.one_of(
    st.builds(
        Selection,
        group=WORDS,
        trials=st.just("truncated-negative-binomial"),
        candidate=CANDIDATES,
        eta=st.floats(min_value=-1, max_value=9, exclude_min=True),
        gamma=st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True),
    ),
    st.builds(Selection, group=WORDS, trials=st.just("poisson"), candidate=CANDIDATES, mean=POSITIVE),
)
HEADERS = st.builds(
    Header,
    adjacency=st.sampled_from(Adjacency),
    unit=UNITS,
    secure_randomness=st.booleans(),
    purpose=st.text(max_size=20),
    fingerprint=st.text(max_size=20),
    library=st.text(max_size=20),
)

STEP = Step(Everyone(), (GaussianSum(group="a", clip_norm=1.0, noise_std=2.0),))
EVENTS = [
    Header(),
    Everyone(),
    Poisson(rate=0.1),
    Poisson(rate=1, records=5, unit="user"),
    FixedSize(size=2, records=10),
    Shuffled(lots=5, epoch=0, records=100),
    Allocated(lots=5, epoch=0, records=100, participations=2),
    GaussianSum(group="a", clip_norm=1.0, noise_std=2.0, noise="discrete gaussian"),
    LaplaceSum(group="a", clip_norm=1.0, scale=2.0, dimension=1),
    SparseVector(group="a", threshold_epsilon=0.5, release_epsilon=1.0, releases=3),
    Selection(group="a", trials="poisson", mean=8.0, candidate=((STEP, 3),)),
    Selection(group="a", trials="truncated-negative-binomial", eta=0, gamma=0.1, candidate=((STEP, 3), (STEP, 1))),
    STEP,
    Step(Everyone(), ()),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_kind_survives_the_round_trip(event: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


@given(st.one_of(SAMPLINGS, SUMS, SELECTIONS, HEADERS, steps(SUMS | SELECTIONS)))
def test_any_event_survives_the_round_trip(event: Any) -> None:
    back = from_json(json.loads(json.dumps(to_json(event), allow_nan=False)))
    assert back == event
    assert hash(back) == hash(event)


GAUSSIAN = to_json(GaussianSum(group="a", clip_norm=1.0, noise_std=2.0))
SELECTION = to_json(Selection(group="a", trials="poisson", mean=8.0, candidate=((STEP, 3),)))
HEADER = to_json(Header())


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "everyone",
        {},
        {"kind": 3},
        {"kind": "gauss"},
        {"kind": "everyone", "rate": 1},
        {"kind": "everyone", "unit": ""},
        {"kind": "everyone", "unit": None},
        {"kind": "poisson"},
        {"kind": "poisson", "rate": "0.1"},
        {"kind": "poisson", "rate": True},
        {"kind": "poisson", "rate": math.nan},
        {"kind": "poisson", "rate": 0},
        {"kind": "poisson", "rate": 1.0000001},
        {"kind": "poisson", "rate": 10**400},
        {"kind": "poisson", "rate": 0.1, "records": 1.0},
        {"kind": "poisson", "rate": 0.1, "records": 0},
        {"kind": "fixed-size", "size": 11, "records": 10},
        {"kind": "fixed-size", "size": True, "records": 10},
        {"kind": "shuffled", "lots": 1, "epoch": -1, "records": 10},
        {"kind": "shuffled", "lots": 1, "epoch": 0, "records": 10, "assignment": "by age"},
        GAUSSIAN | {"clip_norm": math.inf},
        GAUSSIAN | {"clip_norm": 10**400},
        GAUSSIAN | {"noise_std": -1},
        GAUSSIAN | {"noise_std": None},
        GAUSSIAN | {"group": ["a"]},
        GAUSSIAN | {"candidate": []},
        SELECTION | {"mean": math.nan},
        SELECTION | {"eta": 1.0},
        SELECTION | {"trials": "fixed"},
        SELECTION | {"trials": ["poisson"]},
        SELECTION | {"candidate": []},
        SELECTION | {"candidate": [1]},
        SELECTION | {"candidate": [[to_json(STEP), 0]]},
        SELECTION | {"candidate": [[GAUSSIAN, 1]]},
        SELECTION | {"trials": "truncated-negative-binomial"},
        {"kind": "selection", "group": "a", "trials": "truncated-negative-binomial", "eta": "1", "gamma": 0.5}
        | {"candidate": SELECTION["candidate"]},
        HEADER | {"adjacency": "edit"},
        HEADER | {"adjacency": []},
        HEADER | {"format": 2},
        HEADER | {"format": True},
        HEADER | {"secure_randomness": 1},
        HEADER | {"purpose": None},
        HEADER | {"extra": 1},
        {"kind": "step", "sampling": {"kind": "everyone"}},
        {"kind": "step", "sampling": {"kind": "everyone"}, "queries": {}},
        {"kind": "step", "sampling": GAUSSIAN, "queries": []},
        {"kind": "step", "sampling": {"kind": "everyone"}, "queries": [{"kind": "everyone"}]},
        {"kind": "step", "sampling": {"kind": "everyone"}, "queries": [GAUSSIAN, GAUSSIAN]},
        {"kind": "step", "sampling": {"kind": "everyone"}, "queries": [], "count": 1},
    ],
    ids=lambda data: str(data)[:60],
)
def test_anything_else_is_refused_by_name(data: Any) -> None:
    with pytest.raises(ValueError):
        from_json(data)


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(WORDS, s))
)
def test_no_data_gives_another_error_than_value_error(data: Any) -> None:
    for wrapped in (data, {"kind": "poisson", "rate": data}, {"kind": "step", "sampling": data, "queries": [data]}):
        try:
            event = from_json(wrapped)
        except ValueError:
            continue
        assert from_json(to_json(event)) == event


def test_a_candidate_may_be_a_list_and_is_kept_as_a_tuple() -> None:
    selection = Selection(group="a", trials="poisson", mean=2.0, candidate=[[STEP, 2]])  # type: ignore[arg-type,list-item]
    assert selection.candidate == ((STEP, 2),)
    hash(selection)
    with pytest.raises(ValueError, match="pairs"):
        Selection(group="a", trials="poisson", mean=2.0, candidate=(STEP,))  # type: ignore[arg-type]


def test_an_event_of_a_kind_unknown_to_the_format_is_not_written() -> None:
    class Mine(Everyone):
        pass

    with pytest.raises(ValueError, match="Mine"):
        to_json(Mine())
