"""Sums on a lattice: what rounding adds is charged, noise is whole steps, and the ledger says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.ledger import Everyone, GaussianSum, Step, from_json, to_json
from tacit.mechanisms import (
    Adaptive,
    DimensionAdjusted,
    Discrete,
    Explicit,
    Flat,
    Groups,
    Joint,
    Microbatches,
    PerLayer,
    Proportional,
    QuantileTracker,
    SumQuery,
    WeightedMean,
    lattice,
)
from tacit.mechanisms.lattice import add_noise_, charged, usual_lattice
from tacit.randomness import SecureSource

CHANCE = 1e-9
SOURCE = SecureSource()
SHAPES = {"conv.weight": torch.Size([100, 200]), "fc.weight": torch.Size([30, 1000]), "fc.bias": torch.Size([1000])}
Record = Callable[..., Any]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases without noise, to see the rounding alone."""
    monkeypatch.setattr(lattice, "draw", lambda sigma, size, source: np.zeros(size, dtype=np.int64))


def discrete_sum(*, clip_norm: float, noise_std: float, step: float, dimension: int) -> GaussianSum:
    bound = charged(clip_norm, step, dimension)
    return GaussianSum(group="sum", clip_norm=bound, noise_std=noise_std, noise="discrete", lattice=step)


def rounded(total: torch.Tensor, query: GaussianSum, scale: float = 1.0) -> torch.Tensor:
    out = total.clone()
    add_noise_([(out, query, scale)], SOURCE)
    return out


# -- sensitivity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.3, 7.7])
def test_rounded_sums_of_neighbours_are_no_further_apart_than_charged(
    silent: None, dtype: torch.dtype, scale: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    for step, dimension in ((2.0**-3, 50), (2.0**-10, 1000), (1.0, 3)):
        query = discrete_sum(clip_norm=1.0, noise_std=4.0, step=step, dimension=dimension)
        for spread in (0.01, 1.0, 1000.0):
            total = spread * torch.randn(dimension, generator=generator, dtype=torch.float64).to(dtype)
            move = torch.randn(dimension, generator=generator, dtype=torch.float64)
            other = (total.double() + 0.999 * scale * move / move.norm()).to(dtype)
            apart = (other.double() - total.double()).norm().item() / scale
            moved = rounded(total, query, scale).double() - rounded(other, query, scale).double()
            assert moved.norm().item() / scale <= charged(apart, step, dimension) * (1 + 1e-6)  # float32 of the result


def test_the_charge_is_needed(silent: None) -> None:
    """Every coordinate crosses one boundary more than it moves steps: S alone would be too little by far."""
    dimension, step, size = 10_000, 2.0**-4, 1 / 100
    total = torch.full((dimension,), step / 2 - size / 2, dtype=torch.float64)
    query = discrete_sum(clip_norm=1.0, noise_std=4.0, step=step, dimension=dimension)
    moved = rounded(total + size, query) - rounded(total, query)
    assert size * math.sqrt(dimension) == pytest.approx(1.0)
    assert moved.norm().item() == pytest.approx(step * math.sqrt(dimension))
    assert moved.norm().item() > 6
    whole = rounded(torch.full((4,), 3.5 * step + 1e-9).double(), query) - rounded(
        torch.full((4,), 0.5 * step - 1e-9).double(), query
    )
    assert whole.norm().item() == pytest.approx(charged(3 * step * 2, step, 4), rel=1e-6)  # attained


@pytest.mark.parametrize(("sensitivity", "dimension"), [(1.0, 1), (0.37, 12_345), (1e-6, 10**9), (8.0, 3)])
def test_the_usual_lattice_adds_less_than_a_ten_thousandth(sensitivity: float, dimension: int) -> None:
    step = usual_lattice(sensitivity, dimension)
    assert math.frexp(step)[0] == 0.5
    added = charged(sensitivity, step, dimension) / sensitivity - 1
    assert 2.0**-15.01 < added < 2.0**-13.99
    assert added < 1e-4


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        Flat(2.0),
        PerLayer(total=3.0),
        Groups({"conv.*": 0.5, "fc.*": 4.0}),
        Joint({"conv.*": 0.3, "fc.*": 100.0}, 1.0),
        Microbatches(Flat(2.0)),
        Adaptive(initial=2.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("share", [Proportional(0.7), DimensionAdjusted(0.7)], ids=str)
def test_every_group_is_on_its_lattice_with_the_recorded_noise(record: Record, strategy: Any, share: Any) -> None:
    clipping = strategy.bind(SHAPES, lot_size=600.0)
    queries = {query.group: query for query in clipping.queries(Discrete(share))}
    assert Step(Everyone(), tuple(queries.values())).noise_multiplier == pytest.approx(0.7, rel=1e-12)
    groups = clipping.groups
    start = {name: torch.linspace(-3, 3, size.numel(), dtype=torch.float64).view(size) for name, size in SHAPES.items()}
    sums = {name: tensor.clone() for name, tensor in start.items()}
    clipping.release_(record(Everyone(), *queries.values()), sums, SOURCE)
    for group in groups:
        query = queries[group.name]
        assert query.noise == "discrete"
        assert query.lattice is not None
        assert query.clip_norm >= group.sensitivity + query.lattice * math.sqrt(group.dimension)
        for vector in group.vectors:
            step = query.lattice * 2.0 ** math.floor(math.log2(vector.scale))
            for name in vector.names:
                assert torch.equal(torch.round(sums[name] / step), sums[name] / step)
                noise = (sums[name] - start[name]).numpy().ravel() / (vector.scale * query.noise_std)
                limit = stats.norm.isf(CHANCE / 40)
                assert abs(noise.sum()) < limit * math.sqrt(noise.size)
                assert abs((noise**2 - 1).sum()) < limit * math.sqrt(2 * noise.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strides_pieces_and_nothing_at_all(dtype: torch.dtype) -> None:
    query = discrete_sum(clip_norm=1.0, noise_std=4.0, step=2.0**-6, dimension=1)
    table = torch.zeros(700, 800, dtype=dtype)
    add_noise_([(table.T[1:], query, 1.0)], SOURCE)
    assert (table[:, 0] == 0).all()
    noise = table[:, 1:].double().numpy().ravel() / 4
    assert abs((noise**2 - 1).sum()) < stats.norm.isf(CHANCE) * math.sqrt(2 * noise.size)
    add_noise_([(torch.zeros(0, dtype=dtype), query, 1.0)], SOURCE)
    with pytest.raises(ValueError, match="float16"):
        add_noise_([(torch.zeros(3, dtype=torch.float16), query, 1.0)], SOURCE)


def test_discrete_noise_clamps_huge_values_and_reads_nan_as_zero() -> None:
    query = discrete_sum(clip_norm=1.0, noise_std=4.0, step=2.0**-6, dimension=6)
    wild = torch.tensor([math.nan, math.inf, -math.inf, 1e300, -1e300, 2.0**60], dtype=torch.float64)
    add_noise_([(wild, query, 1.0)], SOURCE)
    assert torch.isfinite(wild).all()
    assert abs(wild[0]) < 100
    assert (wild[[1, 3, 5]] - 2.0**45).abs().max() < 100
    assert (wild[[2, 4]] + 2.0**45).abs().max() < 100


@pytest.mark.parametrize("step", [None, 2.0**-4])
def test_a_sum_query_with_discrete_noise(record: Record, step: float | None) -> None:
    shape = (3, 5)
    query = SumQuery(group="sum", clip_norm=2.0, noise_std=8.0, noise="discrete", lattice=step, dimension=15)
    event = query.event()
    assert event.lattice == (step or usual_lattice(2.0, 15))
    assert event.clip_norm >= 2.0 + event.lattice * math.sqrt(15)
    total = query.total(shape)
    seen = []
    for _ in range(400):
        total.add(torch.ones(10, *shape))
        seen.append(total.release(record(Everyone(), event), SOURCE))
    values = torch.stack(seen)
    assert torch.equal(torch.round(values / event.lattice), values / event.lattice)
    noise = (values.numpy().ravel() - 10 * 2 / math.sqrt(15)) / 8
    limit = stats.norm.isf(CHANCE / 4)
    assert abs((noise**2 - 1).sum()) < limit * math.sqrt(2 * noise.size)
    assert abs(noise.sum()) < limit * math.sqrt(noise.size)


def test_a_weighted_mean_with_discrete_noise(record: Record) -> None:
    query = WeightedMean(
        values=SumQuery(group="values", clip_norm=1.0, noise_std=1.0, noise="discrete", dimension=2),
        weights=SumQuery(group="weights", clip_norm=1.0, noise_std=1.0, noise="discrete"),
        least=1.0,
    )
    total = query.total((2,))
    total.add(torch.full((1000, 2), 0.5), torch.ones(1000))
    mean = total.release(record(Everyone(), *query.events()), SOURCE)
    assert (mean - 0.5).abs().max() < 0.02


def test_a_quantile_follows_a_discrete_count(record: Record) -> None:
    tracker = QuantileTracker(group="q", initial=1.0, quantile=0.5, learning_rate=0.3, noise_std=2.0, lot_size=200.0)
    values = torch.linspace(0, 10, 200)
    for _ in range(60):
        receipt = record(Everyone(), tracker.query(discrete=True))
        tracker.observe(values)
        tracker.update(receipt, SOURCE)
    assert 4 < tracker.value < 6


def test_explicit_noise_can_be_discrete() -> None:
    clipping = Groups({"conv.*": 0.5, "fc.*": 4.0}).bind(SHAPES)
    noise = Discrete(Explicit({"gradients/conv.*": 3.0, "gradients/fc.*": 5.0}), lattice=2.0**-12)
    queries = clipping.queries(noise)
    assert [(query.noise_std, query.lattice) for query in queries] == [(3.0, 2.0**-12), (5.0, 2.0**-12)]
    assert noise.noise_multiplier is None


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_release_must_be_the_recorded_one(record: Record) -> None:
    query = SumQuery(group="sum", clip_norm=2.0, noise_std=8.0, noise="discrete", dimension=3)
    plain = GaussianSum(
        group="sum", clip_norm=2.0, noise_std=8.0, noise="discrete", lattice=0.5
    )  # rounding not charged
    other = SumQuery(group="sum", clip_norm=2.0, noise_std=8.0, noise="discrete", dimension=2).event()
    for event in (plain, other):
        with pytest.raises(ValueError, match="the ledger has"):
            query.release(record(Everyone(), event), torch.zeros(3, dtype=torch.float64), SOURCE)
    with pytest.raises(ValueError, match=r"shape is \(2,\)"):
        query.total((2,))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lattice": 0.3}, "such as 0.25"),
        ({"lattice": 0.0}, "power of two"),
        ({"lattice": math.nan}, "power of two"),
        ({"lattice": 16.0}, "lattice step of 'sum' is 16"),
        ({"lattice": 2.0**-60}, "at least 2\\^-43"),
        ({"noise": "uniform"}, "noise is 'uniform'"),
        ({"noise": "gaussian", "lattice": 0.5}, "it is for noise='discrete'"),
        ({"dimension": 0}, "dimension is 0"),
        ({"clip_norm": -1.0}, "clip norm is -1"),
        ({"noise_std": -1.0}, "noise standard deviation is -1"),
    ],
)
def test_invalid_lattice_settings_are_refused(change: dict[str, Any], text: str) -> None:
    settings: dict[str, Any] = {"group": "sum", "clip_norm": 2.0, "noise_std": 8.0, "noise": "discrete"}
    with pytest.raises(ValueError, match=text):
        SumQuery(**settings | change)
    if set(change) == {"lattice"} and text == "power of two":
        with pytest.raises(ValueError, match=text):
            Discrete(Proportional(1.0), **change)


def test_the_ledger_tells_the_lattice_and_old_lines_stay_as_they_were() -> None:
    event = discrete_sum(clip_norm=1.0, noise_std=4.0, step=2.0**-6, dimension=3)
    assert to_json(event)["lattice"] == 2.0**-6
    assert from_json(to_json(event)) == event
    assert "lattice" not in to_json(GaussianSum(group="a", clip_norm=1.0, noise_std=1.0))
    with pytest.raises(ValueError, match="lattice step is nan"):
        GaussianSum(group="a", clip_norm=1.0, noise_std=1.0, noise="discrete")
    with pytest.raises(ValueError, match="only discrete noise lies on a lattice"):
        GaussianSum(group="a", clip_norm=1.0, noise_std=1.0, lattice=0.5)
