"""Sparse vector: ε by exact probabilities on small domains, and a mechanism that has those probabilities."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.accounting import Unproved, account
from tacit.ledger import Everyone, Ledger, Poisson, Step
from tacit.mechanisms import LaplaceQuery, SparseVectorQuery
from tacit.mechanisms.sparse_vector import _Order, _passing
from tacit.randomness import SecureSource

SOURCE = SecureSource()
FAILURE = 1e-9
Record = Callable[..., Any]


def query(**changes: Any) -> SparseVectorQuery:
    return SparseVectorQuery(**{"group": "u", "epsilon": 3.0, "releases": 2, "bound": 1.0, "threshold": 0.5, **changes})


# -- the oracle: probabilities of everything that can be chosen, by integration over the noise of the threshold --------

NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def below(x: Any, scale: float) -> Any:
    """The chance that Laplace noise is below x."""
    tail = np.exp(-np.abs(x) / scale) / 2
    return np.where(x < 0, tail, 1 - tail)


@cache
def integral(sizes: tuple[float, ...], stop: int | None, threshold: float, scale: float) -> float:
    """The chance that the sizes before ``stop`` fail and that at ``stop`` passes (all fail: None), one common noise."""
    kinks = sorted({threshold, *sizes})
    edges = np.unique(np.concatenate([np.linspace(kinks[0] - 45 * scale, kinks[-1] + 45 * scale, 200), kinks]))
    half = np.diff(edges)[:, None] / 2
    reach = edges[:-1, None] + half * (NODES + 1)
    density = np.exp(-np.abs(reach - threshold) / scale) / (2 * scale)
    for size in sizes[:stop]:
        density = density * below(reach - size, 2 * scale)
    if stop is not None:
        density = density * below(sizes[stop] - reach, 2 * scale)
    return float((half * WEIGHTS * density).sum())


def chances(sizes: Sequence[float], releases: int, threshold: float, scale: float) -> dict[tuple[int, ...], float]:
    """Every sequence of positions that can be chosen, in the order given, with its probability."""
    found: dict[tuple[int, ...], float] = {}

    def go(start: int, chosen: tuple[int, ...], chance: float) -> None:
        if len(chosen) == releases or start == len(sizes):
            found[chosen] = chance
            return
        rest = tuple(sizes[start:])
        found[chosen] = chance * integral(rest, None, threshold, scale)
        for stop in range(len(rest)):
            go(start + stop + 1, (*chosen, start + stop), chance * integral(rest, stop, threshold, scale))

    go(0, (), 1.0)
    return found


def worst(asked: SparseVectorQuery, count: int, *, noise: float = 1.0) -> float:
    """The largest privacy loss between any two vectors of so many values of a grid, with ``noise`` times the noise."""
    scale, spread = noise * asked.threshold_scale, noise * asked.release_scale
    grid = [-asked.bound, 0.0, asked.bound / 2, asked.bound]
    table = {
        vector: chances([abs(value) for value in vector], asked.releases, asked.threshold, scale)
        for vector in itertools.product(grid, repeat=count)
    }
    losses = [
        math.log(chance / table[other][chosen]) + sum(abs(vector[j] - other[j]) for j in chosen) / spread
        for vector, probabilities in table.items()
        for other in table
        for chosen, chance in probabilities.items()
    ]
    return max(losses)


@pytest.mark.parametrize("releases", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.3, 20.0])
@pytest.mark.parametrize("threshold", [0.05, 4.0])
def test_no_two_inputs_differ_by_more_than_is_charged(releases: int, epsilon: float, threshold: float) -> None:
    asked = query(releases=releases, epsilon=epsilon, threshold=threshold)
    event = asked.event()
    charged = event.threshold_epsilon + event.release_epsilon
    assert charged == pytest.approx(epsilon * 5 / 9, rel=1e-9)
    loss = worst(asked, 3)
    assert 0.1 * charged < loss <= charged
    assert worst(asked, 3, noise=0.15) > charged  # the check would see noise that is too small


def test_the_bound_is_nearly_attained() -> None:
    """Many values that fall together while one rises: half of the paper's ε, of the 5/9 that are charged."""
    asked = query(releases=1, epsilon=1.0, threshold=8.0)
    here, there = [1.0] * 40 + [0.0], [0.0] * 40 + [1.0]
    scale = asked.threshold_scale
    chance = {v: integral(tuple(v), 40, asked.threshold, scale) for v in (tuple(here), tuple(there))}
    loss = math.log(chance[tuple(there)] / chance[tuple(here)]) + 1.0 / asked.release_scale
    assert 0.3 < loss <= 0.5 + 1e-9


def test_probabilities_add_up_to_one() -> None:
    for sizes in ([0.0, 0.3, 1.0], [1.0, 1.0, 0.2, 0.7]):
        assert sum(chances(sizes, 2, 0.5, 1.3).values()) == pytest.approx(1.0, abs=1e-9)


# -- the mechanism is the one whose probabilities were computed --------------------------------------------------------


def kept(sizes: Sequence[float], releases: int, threshold: float, scale: float) -> dict[tuple[int, ...], float]:
    """What the chances would be if the noise of the threshold were not renewed: a mistake made elsewhere."""
    found: dict[tuple[int, ...], float] = {}
    reach = np.linspace(threshold - 40 * scale, threshold + 40 * scale, 4001)
    density = stats.laplace.pdf(reach, threshold, scale) * (reach[1] - reach[0])
    for passed in itertools.product([False, True], repeat=len(sizes)):
        chosen = tuple(j for j, yes in enumerate(passed) if yes)[:releases]
        parts = [below(s - reach if yes else reach - s, 2 * scale) for s, yes in zip(sizes, passed)]
        found[chosen] = found.get(chosen, 0.0) + float((density * np.prod(parts, axis=0)).sum())
    return found


def over_orders(
    model: Callable[..., dict[tuple[int, ...], float]], asked: SparseVectorQuery, sizes: list[float]
) -> Any:
    expected: Counter[tuple[int, ...]] = Counter()
    orders = list(itertools.permutations(range(len(sizes))))
    for order in orders:
        part = model([sizes[j] for j in order], asked.releases, asked.threshold, asked.threshold_scale)
        for chosen, chance in part.items():
            expected[tuple(order[j] for j in chosen)] += chance / len(orders)
    return expected


def test_released_indices_follow_the_exact_probabilities(record: Record) -> None:
    asked = query(epsilon=25.0, threshold=1.0, releases=3)
    values, draws = [0.9, -0.8, 0.7, 0.6], 6_000
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        chosen = asked.release(record(Everyone(), asked.event()), torch.tensor(values), SOURCE)
        seen[tuple(chosen.indices.tolist())] += 1
    sizes = [abs(value) for value in values]
    pvalues = {}
    for model in (chances, kept):
        expected = over_orders(model, asked, sizes)
        assert set(seen) <= set(expected)
        counts = [seen[outcome] for outcome in expected]
        wanted = np.array([expected[outcome] for outcome in expected])
        pvalues[model] = stats.chisquare(counts, wanted / wanted.sum() * draws).pvalue
    assert pvalues[chances] > FAILURE
    assert pvalues[kept] < 1e-4  # so the test can tell (it misses once in a million times)


def test_released_values_have_the_recorded_noise(record: Record) -> None:
    count = 20_000
    asked = query(releases=count, epsilon=500.0 * count, threshold=0.01)
    chosen = asked.release(record(Everyone(), asked.event()), torch.full((count,), 0.25), SOURCE)
    assert len(chosen.indices) > 0.9 * count
    noise = chosen.values.numpy() - 0.25
    assert asked.release_scale == pytest.approx(18 / 500)
    assert stats.kstest(noise, stats.laplace(scale=18 / 500).cdf).pvalue > FAILURE


def test_the_scales_of_the_paper() -> None:
    asked = query(epsilon=9.0, releases=5, bound=0.001, threshold=0.0001)
    assert asked.threshold_scale == pytest.approx(2 * 5 * 0.002 / 8)
    assert asked.release_scale == pytest.approx(2 * 5 * 0.002 / 2)


def one_by_one(noisy: np.ndarray, reach: np.ndarray) -> tuple[list[int], float | None]:
    """The search as the paper has it, with the threshold of the place after the last release."""
    places, used = [], 0
    for place, value in enumerate(noisy):
        if value >= reach[used]:
            places.append(place)
            used = place + 1
    return places, float(reach[used]) if used < len(noisy) else None


@pytest.mark.parametrize("lift", [-30.0, -6.0, -2.0, 0.0, 2.0, 30.0])  # from almost none that pass to all
@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 300, 3000])
def test_the_search_at_once_is_the_search_one_by_one(lift: float, size: int) -> None:
    rng = np.random.default_rng([size, int(lift + 30)])
    for _ in range(20):
        noisy, reach = rng.laplace(lift, 2.0, size), rng.laplace(0.0, 1.0, size)
        places, kept = _passing(noisy, reach)
        assert (places.tolist(), kept) == one_by_one(noisy, reach)


def test_a_threshold_is_kept_from_one_piece_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one or two places, against the exact probabilities, which know of no pieces."""
    asked, draws = query(epsilon=25.0, threshold=1.0, releases=3), 6_000
    take = _Order.take
    monkeypatch.setattr(_Order, "take", lambda order, count: take(order, 1 + order.left % 2))
    values = [0.9, -0.8, 0.7, 0.6]
    seen = Counter(tuple(asked._search(torch.tensor(values), SOURCE).tolist()) for _ in range(draws))
    expected = over_orders(chances, asked, [abs(value) for value in values])
    counts, wanted = [seen[outcome] for outcome in expected], np.array(list(expected.values()))
    assert set(seen) <= set(expected)
    assert stats.chisquare(counts, wanted / wanted.sum() * draws).pvalue > FAILURE


# -- what is promised about the outcome --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 10.0, 1e6])
def test_positions_are_different_values_bounded_and_not_too_many(record: Record, epsilon: float) -> None:
    values = torch.cat([torch.randn(500), torch.tensor([math.nan, math.inf, -math.inf, 1e300, -1e300])]).double()
    asked = query(releases=40, epsilon=epsilon)
    chosen = asked.release(record(Everyone(), asked.event()), values, SOURCE)
    assert len(set(chosen.indices.tolist())) == len(chosen.indices) == len(chosen.values) <= 40
    assert chosen.values.abs().max() <= 1.0 and bool(torch.isfinite(chosen.values).all())
    assert set(chosen.indices.tolist()) <= set(range(505))


def test_with_little_noise_the_large_ones_are_chosen(record: Record) -> None:
    values = torch.zeros(100_000)
    large = torch.randperm(100_000)[:50]
    values[large] = 0.9
    asked = query(releases=50, epsilon=1e9, threshold=0.5)
    chosen = asked.release(record(Everyone(), asked.event()), values, SOURCE)
    assert sorted(chosen.indices.tolist()) == sorted(large.tolist())
    torch.testing.assert_close(chosen.values, torch.full((50,), 0.9, dtype=torch.float64), atol=1e-4, rtol=0)
    assert chosen.indices.tolist() != sorted(chosen.indices.tolist())


def test_every_position_is_as_likely_as_the_others(record: Record) -> None:
    asked, draws = query(releases=1, epsilon=1e9, threshold=0.5), 4_000
    counts = Counter(
        int(asked.release(record(Everyone(), asked.event()), torch.ones(7), SOURCE).indices[0]) for _ in range(draws)
    )
    assert stats.chisquare([counts[j] for j in range(7)]).pvalue > FAILURE


@pytest.mark.parametrize("count", [0, 1])
def test_few_values(record: Record, count: int) -> None:
    asked = query(releases=5)
    chosen = asked.release(record(Everyone(), asked.event()), torch.ones(count), SOURCE)
    assert len(chosen.indices) == len(chosen.values) <= count


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_an_invocation_is_charged_whole_and_before() -> None:
    ledger, asked = Ledger(), query(epsilon=1.8)
    receipt = ledger.record(Step(Everyone(), (asked.event(),)))
    asked.release(receipt, torch.zeros(3), SOURCE)
    assert account(ledger, delta=1e-9).epsilon == pytest.approx(1.0, rel=1e-4)
    with pytest.raises(RuntimeError, match="already released"):
        asked.release(receipt, torch.zeros(3), SOURCE)


def test_a_release_the_ledger_did_not_record_is_refused(record: Record) -> None:
    asked = query()
    for other in (query(epsilon=2.9).event(), query(releases=1).event()):
        with pytest.raises(ValueError, match=r"the ledger has .* but this would release"):
            asked.release(record(Everyone(), other), torch.zeros(3), SOURCE)
    laplace = LaplaceQuery(group="u", clip_norm=1.0, scale=1.0).event()
    with pytest.raises(ValueError, match="the ledger has LaplaceSum"):
        asked.release(record(Everyone(), laplace), torch.zeros(3), SOURCE)


def test_there_is_no_amplification_by_sampling() -> None:
    ledger = Ledger()
    ledger.record(Step(Poisson(rate=0.1), (query().event(),)))
    with pytest.raises(Unproved, match="use all records"):
        account(ledger, delta=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"bound": math.inf}, "bound is inf"),
        ({"threshold": -1.0}, "threshold is -1.0"),
        ({"releases": 0}, "releases is 0; it must be a whole number, at least 1"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        query(**changes)


def test_values_have_one_dimension(record: Record) -> None:
    asked = query()
    with pytest.raises(ValueError, match="values have 2 dimensions; flatten them"):
        asked.release(record(Everyone(), asked.event()), torch.zeros(3, 2), SOURCE)
