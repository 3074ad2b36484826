"""Releases: the noise is the one in the ledger, on every coordinate, once. Statistics fail by chance once in 1e9."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.ledger import Everyone, GaussianSum, Step
from tacit.mechanisms import (
    Adaptive,
    Automatic,
    DimensionAdjusted,
    Explicit,
    Flat,
    Groups,
    Joint,
    Microbatches,
    PerLayer,
    Proportional,
    QuantileTracker,
    SumQuery,
    assign,
    lattice,
)
from tacit.mechanisms.noise import add_gaussian_, add_laplace_
from tacit.randomness import SecureSource, SeededSource

CHANCE = 1e-9
SOURCE = SecureSource()
SHAPES = {"conv.weight": torch.Size([100, 200]), "fc.weight": torch.Size([30, 1000]), "fc.bias": torch.Size([1000])}
Record = Callable[..., Any]


def assert_noise(values: torch.Tensor, std: float, checks: int = 10) -> None:
    """Mean zero and the given standard deviation, allowing for ``checks`` such checks in a test."""
    n, limit = values.numel(), stats.norm.isf(CHANCE / checks / 4)
    assert abs(values.double().sum().item()) < limit * std * math.sqrt(n)
    square = values.double().square().sum().item() / std**2
    assert stats.chi2.isf(1 - CHANCE / checks / 4, n) < square < stats.chi2.isf(CHANCE / checks / 4, n)


@pytest.mark.parametrize(
    "strategy",
    [
        Flat(2.0),
        PerLayer(total=3.0),
        Groups({"conv.*": 0.5, "fc.*": 4.0}),
        Joint({"conv.*": 1.0, "fc.*": 100.0}, 1.0),
        Microbatches(Flat(2.0)),
        Adaptive(initial=2.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("noise", [Proportional(0.7), DimensionAdjusted(0.7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_every_group_has_the_recorded_deviation(
    record: Record, strategy: Any, noise: Any, dtype: torch.dtype
) -> None:
    clipping = strategy.bind(SHAPES, lot_size=600.0)
    queries = {query.group: query for query in clipping.queries(noise)}
    groups = clipping.groups
    start = {name: torch.linspace(-3, 3, size.numel(), dtype=dtype).view(size) for name, size in SHAPES.items()}
    sums = {name: tensor.clone() for name, tensor in start.items()}
    clipping.release_(record(Everyone(), *queries.values()), sums, SOURCE)
    seen = []
    for group in groups:
        for vector in group.vectors:
            for name in vector.names:
                added = sums[name].double() - start[name].double()
                assert_noise(added, vector.scale * queries[group.name].noise_std)
                seen.append(added.flatten()[:1000] / added.std())
    for left in range(len(seen)):
        for right in range(left):
            assert abs(float(seen[left] @ seen[right])) < 7 * math.sqrt(1000)


def test_an_empty_lot_releases_noise(record: Record) -> None:
    """A historical bug: skipping the empty lot tells that it was empty."""
    clipping = Flat(1.0).bind(SHAPES)
    sums = {name: torch.zeros(size) for name, size in SHAPES.items()}
    clipping.release_(record(Everyone(), *clipping.queries(Proportional(2.0))), sums, SOURCE)
    for tensor in sums.values():
        assert_noise(tensor, 2.0)


def test_nothing_is_released_twice_nor_without_a_record(record: Record) -> None:
    clipping = Flat(1.0).bind(SHAPES)
    sums = {name: torch.zeros(size) for name, size in SHAPES.items()}
    receipt = record(Everyone(), *clipping.queries(Proportional(2.0)))
    clipping.release_(receipt, sums, SOURCE)
    before = sums["fc.bias"].clone()
    with pytest.raises(RuntimeError, match="already released"):
        clipping.release_(receipt, sums, SOURCE)
    with pytest.raises(ValueError, match="group is 'gradients'"):
        clipping.release_(record(Everyone()), sums, SOURCE)
    assert torch.equal(before, sums["fc.bias"])


def test_the_noise_is_that_of_the_ledger_and_a_wrong_bound_is_refused(record: Record) -> None:
    clipping = Flat(1.0).bind(SHAPES)
    sums = {name: torch.zeros(size) for name, size in SHAPES.items()}
    clipping.release_(record(Everyone(), GaussianSum(group="gradients", clip_norm=1.0, noise_std=9.0)), sums, SOURCE)
    assert_noise(sums["fc.weight"], 9.0)
    with pytest.raises(ValueError, match=r"one record can contribute 1\.0"):
        clipping.release_(
            record(Everyone(), GaussianSum(group="gradients", clip_norm=0.5, noise_std=9.0)), sums, SOURCE
        )
    other = GaussianSum(group="gradients", clip_norm=1.0, noise_std=9.0, noise="discrete gaussian")
    with pytest.raises(ValueError, match="this is a Gaussian sum"):
        clipping.release_(record(Everyone(), other), sums, SOURCE)
    with pytest.raises(ValueError, match="parameters differ"):
        clipping.release_(record(Everyone()), {"fc.bias": torch.zeros(1000)}, SOURCE)


def test_two_parameters_of_equal_shape_get_different_noise(record: Record) -> None:
    """A historical bug: one random key for every parameter."""
    shapes = {"a": torch.Size([500]), "b": torch.Size([500])}
    clipping, sums = Flat(1.0).bind(shapes), {"a": torch.zeros(500), "b": torch.zeros(500)}
    for _ in range(2):
        old = sums["a"].clone()
        clipping.release_(record(Everyone(), *clipping.queries(Proportional(1.0))), sums, SeededSource(0))
        assert abs(float(sums["a"] @ sums["b"])) < 0.5 * float(sums["a"].norm() * sums["b"].norm())
        assert not torch.equal(old, sums["a"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [3e-19, 0.37, 1.0, 5e7])
def test_released_values_lie_on_a_public_grid(dtype: torch.dtype, std: float) -> None:
    """Their low bits say nothing: the set of possible values does not depend on the sum."""
    for add in (add_gaussian_, add_laplace_):
        noisy = (torch.rand(2000, dtype=dtype) * std).view(40, 50).T
        add([(noisy, std)], SOURCE)
        noisy = noisy.double()
        grid = 2.0 ** (math.floor(math.log2(std)) - 14)
        assert torch.equal(noisy / grid, (noisy / grid).round())
        assert std * 2.0**-16 < grid <= std * 2.0**-14


def test_sums_released_together_lie_each_on_its_own_grid() -> None:
    pairs = [(torch.rand(500), std) for std in (1.0, 0.3, 1.0, 700.0)]
    add_gaussian_(pairs, SOURCE)
    for noisy, std in pairs:
        steps = noisy.double() / 2.0 ** (math.floor(math.log2(std)) - 14)
        assert torch.equal(steps, steps.round())
        assert_noise(noisy - 0.5, math.hypot(std, math.sqrt(1 / 12)))


def test_the_default_device_of_the_user_changes_nothing(record: Record) -> None:
    total = torch.zeros(30, 40).T
    tracker = QuantileTracker(group="q", initial=1.0, quantile=0.5, learning_rate=1.0, noise_std=1.0, lot_size=9.0)
    query = SumQuery(group="a", clip_norm=1.0, noise_std=1.0)
    with torch.device("meta"):
        SOURCE.normal_(total)
        add_gaussian_([(total, 1.0)], SOURCE)
        tracker.update(record(Everyone(), tracker.query()), SOURCE)
        assert query.total().release(record(Everyone(), query.event()), SOURCE).device.type == "cpu"
    assert (total != 0).any()


def test_noise_in_bad_units_or_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="the noise is 1e-30"):
        add_gaussian_([(torch.zeros(3), 1e-30)], SOURCE)
    with pytest.raises(ValueError, match=r"bfloat16; sums are accumulated"):
        add_gaussian_([(torch.zeros(3, dtype=torch.bfloat16), 1.0)], SOURCE)


def test_large_and_small_sums_of_any_layout_share_the_noise_without_repeating_it() -> None:
    sizes = (3, 0, 700_001, 1, 262_144, 50_000)
    sums = [torch.zeros(size) for size in sizes]
    table = torch.zeros(200, 300, dtype=torch.float64)
    pairs = [*zip(sums, (1.0, 1.0, 2.0, 1.0, 4.0, 8.0)), (table.T[:150], 3.0)]
    add_gaussian_(pairs, SOURCE)
    for total, std in pairs:
        if total.numel() > 3:
            assert_noise(total, std)
            assert_noise(total.flatten()[-10_000:], std)
    assert (table[:, 150:] == 0).all()
    values = torch.cat([sums[2] / 2, sums[4] / 4, sums[5] / 8])
    for lag in (1, 131_072, 262_144, 500_000):
        product = float(values[lag:].double() @ values[:-lag].double())
        assert abs(product) < 7 * math.sqrt(values.numel() - lag)


def run_adaptive(record: Record, norms: np.ndarray[Any, Any], steps: int, config: Adaptive) -> list[float]:
    clipping = config.bind({"w": torch.Size([3])}, lot_size=200.0)
    path = []
    rng = np.random.default_rng(0)
    for _ in range(steps):
        receipt = record(Everyone(), *clipping.queries(Proportional(1.0)))
        lot = torch.from_numpy(norms[rng.random(norms.size) < 200 / norms.size])
        for batch in lot.split(64):
            clipping.weights(batch[:, None])
        clipping.release_(receipt, {"w": torch.zeros(3)}, SOURCE)
        path.append(clipping.clip_norms["gradients"])
    return path


@pytest.mark.parametrize("wanted", [0.2, 0.5, 0.9])
def test_adaptive_clipping_finds_the_quantile(record: Record, wanted: float) -> None:
    norms = np.random.default_rng(1).lognormal(1.0, 0.7, size=5000)
    path = run_adaptive(record, norms, 300, Adaptive(initial=0.1, quantile=wanted, learning_rate=0.3))
    below = (norms <= np.exp(np.mean(np.log(path[150:])))).mean()
    assert below == pytest.approx(wanted, abs=0.05)


def test_adaptive_clipping_is_charged_in_the_same_step(record: Record) -> None:
    """A historical bug: the quantile query not charged, or charged with another sigma."""
    clipping = Adaptive(initial=1.0, count_noise_std=10.0).bind({"w": torch.Size([3])}, lot_size=200.0)
    gradient, count = clipping.queries(Proportional(1.0))
    assert (count.clip_norm, count.noise_std) == (0.5, 10.0)
    assert gradient.noise_std == pytest.approx((1 - (2 * 10.0) ** -2) ** -0.5)  # Andrew et al.: z_delta
    receipt = record(Everyone(), gradient, count)
    clipping.release_(receipt, {"w": torch.zeros(3)}, SOURCE)
    with pytest.raises(RuntimeError):
        receipt.spend("unclipped count")
    assert Adaptive().bind({"w": torch.Size([3])}, lot_size=200.0).queries(Proportional(1.0))[1].noise_std == 10.0
    with pytest.raises(ValueError, match="give them more noise"):
        clipping.queries(Proportional(20.0))
    explicit = clipping.queries(Explicit({"gradients": 3.0}))
    assert [query.noise_std for query in explicit] == [3.0, 10.0]


def test_the_clip_norm_moves_only_with_a_release_and_survives_a_checkpoint(record: Record) -> None:
    config = Adaptive(initial=1.0, count_noise_std=1.0)
    clipping = config.bind({"w": torch.Size([3])}, lot_size=10.0)
    clipping.weights(torch.full((10, 1), 5.0))
    assert clipping.clip_norms == {"gradients": 1.0}
    clipping.release_(record(Everyone(), *clipping.queries(Proportional(0.1))), {"w": torch.zeros(3)}, SOURCE)
    assert clipping.clip_norms != {"gradients": 1.0}
    again = config.bind({"w": torch.Size([3])}, lot_size=10.0)
    again.restore(clipping.state())
    assert again.clip_norms == clipping.clip_norms
    assert again.groups == clipping.groups
    with pytest.raises(ValueError, match="saved clip norm of gradients is nan"):
        again.restore({"clip_norms": {"gradients": math.nan}})


LAYERS = {"a.w": torch.Size([3]), "a.b": torch.Size([1]), "b.w": torch.Size([5])}


def test_every_group_finds_its_own_quantile(record: Record) -> None:
    """The norms of the second layer are thirty times those of the first; a record is large in one and small in both."""
    rng = np.random.default_rng(1)
    norms = np.stack([rng.lognormal(0.0, 0.7, 4000), 30 * rng.lognormal(0.0, 0.7, 4000)], axis=1)
    clipping = Adaptive(initial=PerLayer(each=1.0), learning_rate=0.3, quantile=0.7).bind(LAYERS, lot_size=200.0)
    path = []
    for _ in range(250):
        receipt = record(Everyone(), *clipping.queries(Proportional(1.0)))
        lot = torch.from_numpy(norms[rng.random(4000) < 200 / 4000])
        for batch in lot.split(64):
            weights = clipping.weights(batch)
            assert bool(
                (weights * batch <= torch.tensor(list(clipping.clip_norms.values()), dtype=torch.float64)).all()
            )
        clipping.release_(receipt, {name: torch.zeros(shape) for name, shape in LAYERS.items()}, SOURCE)
        path.append(list(clipping.clip_norms.values()))
    settled = np.exp(np.log(path[125:]).mean(axis=0))
    assert (norms <= settled).mean(axis=0) == pytest.approx([0.7, 0.7], abs=0.06)


def test_the_count_of_every_group_is_charged(record: Record) -> None:
    clipping = Adaptive(initial=PerLayer(each=1.0)).bind(LAYERS, lot_size=200.0)
    queries = {query.group: query for query in clipping.queries(Proportional(1.0))}
    assert list(queries) == ["gradients/a", "gradients/b", "unclipped count/a", "unclipped count/b"]
    for name in ("unclipped count/a", "unclipped count/b"):
        assert (queries[name].clip_norm, queries[name].noise_std) == (0.5, pytest.approx(10 * math.sqrt(2)))
    whole = Step(Everyone(), tuple(queries.values()))
    assert whole.noise_multiplier == pytest.approx(1.0)  # the counts are part of it, not on top
    flat = Adaptive(initial=1.0).bind(LAYERS, lot_size=200.0).queries(Proportional(1.0))
    counts = [
        Step(Everyone(), tuple(q for q in group if q.group.startswith("unclipped")))
        for group in (queries.values(), flat)
    ]
    assert counts[0].noise_multiplier == pytest.approx(counts[1].noise_multiplier)  # together they cost what one does
    repeated = clipping.repeated(3)
    assert [q.clip_norm for q in repeated.queries(Proportional(0.1))] == [3.0, 3.0, 1.5, 1.5]
    receipt = record(Everyone(), *queries.values())
    clipping.queries(Proportional(1.0))
    clipping.release_(receipt, {name: torch.zeros(shape) for name, shape in LAYERS.items()}, SOURCE)
    assert not receipt.unspent


def test_one_record_moves_every_count_by_a_half_at_most(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    seen: list[float] = []

    def counts(pairs: Any, source: Any) -> None:
        seen.extend(float(total) for total, _ in pairs if total.dtype == torch.float64)

    monkeypatch.setattr(lattice, "add_gaussian_", counts)
    rows = [[0.1, 50.0], [math.inf, 0.2], [math.nan, math.nan], [1e300, 1e-300]]
    for extra in ([], *([row] for row in rows)):
        clipping = Adaptive(initial=PerLayer(each=1.0)).bind(LAYERS, lot_size=10.0)
        receipt = record(Everyone(), *clipping.queries(Proportional(0.1)))
        clipping.weights(torch.tensor([[0.5, 0.5], [2.0, 0.5], *extra], dtype=torch.float64))
        clipping.release_(receipt, {name: torch.zeros(shape) for name, shape in LAYERS.items()}, SOURCE)
    without, *others = (seen[i : i + 2] for i in range(0, len(seen), 2))
    assert without == [0.0, 1.0]
    assert all(abs(a - b) == 0.5 for pair in others for a, b in zip(pair, without, strict=True))


def test_a_joint_group_follows_its_scaled_norm() -> None:
    clipping = Adaptive(initial=Joint({"a.*": 1.0, "b.*": 10.0}, 1.0)).bind(LAYERS, lot_size=10.0)
    joint = clipping.joint(torch.tensor([[3.0, 40.0]]))
    assert joint.tolist() == [[5.0]] and list(clipping.clip_norms) == ["gradients"]


@pytest.mark.parametrize("initial", [Automatic(), Adaptive(), Groups({"a.*": Automatic(), "b.*": 1.0})])
def test_there_must_be_clip_norms_to_begin_from(initial: Any) -> None:
    with pytest.raises(ValueError, match="must be a strategy with clip norms to begin from"):
        Adaptive(initial=initial).bind(LAYERS, lot_size=10.0)


def test_quantile_divides_by_the_public_lot_size(record: Record) -> None:
    """A historical bug: division by the realised sample size. Half a lot below the estimate moves it by a half."""
    for seen in (0, 50, 200):
        tracker = QuantileTracker(
            group="q", initial=1.0, quantile=0.5, learning_rate=1.0, noise_std=1e-9, lot_size=100.0
        )
        receipt = record(Everyone(), tracker.query())
        tracker.observe(torch.zeros(seen))
        tracker.update(receipt, SOURCE)
        assert math.log(tracker.value) == pytest.approx(-seen / 2 / 100, abs=1e-8)


def test_one_record_moves_the_count_by_half_whatever_it_holds(record: Record) -> None:
    for value, moved in ((0.0, -0.5), (2.0, 0.5), (math.nan, 0.5), (math.inf, 0.5)):
        tracker = QuantileTracker(group="q", initial=1.0, quantile=0.5, learning_rate=1.0, noise_std=1e-9, lot_size=1.0)
        tracker.observe(torch.zeros(1000))
        receipt = record(Everyone(), tracker.query())  # the step before was broken off: it leaves nothing behind
        tracker.observe(torch.tensor([value]))
        tracker.update(receipt, SOURCE)
        assert math.log(tracker.value) == pytest.approx(moved, abs=1e-6)


def test_one_example_changes_one_microbatch_and_the_sum_by_at_most_two_clip_norms() -> None:
    """With the microbatches of `assign`; consecutive pieces of the lot would all change."""
    clipping = Microbatches(Flat(1.0)).bind({"w": torch.Size([2])})
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for trial in range(300):
        gradients = torch.randn(12, 2, generator=generator) * 10
        gradients[0] = -100 * gradients[1:].sum(dim=0)
        chosen = torch.from_numpy(assign(12, 4, SeededSource(trial)))

        def clipped_sum(rows: torch.Tensor, gradients: Any = gradients, chosen: Any = chosen) -> torch.Tensor:
            means = torch.zeros(4, 2)
            for index in range(4):
                mine = gradients[rows][chosen[rows] == index]
                if len(mine):
                    means[index] = mine.mean(dim=0)
            return (clipping.weights(means.norm(dim=1, keepdim=True)) * means).sum(dim=0)

        everyone = torch.arange(12)
        worst = max(worst, (clipped_sum(everyone) - clipped_sum(everyone[1:])).norm().item())
    assert 1.5 < worst <= clipping.groups[0].sensitivity == 2.0


class Alone(SecureSource):
    """One process that goes through the motions of several."""

    def join_(self, noisy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return noisy


@pytest.mark.parametrize(("add_", "of_one"), [(add_gaussian_, 1.0), (add_laplace_, math.sqrt(2))])
def test_sums_of_several_processes_get_their_own_noise_each(add_: Any, of_one: float) -> None:
    """Small sums travel together, and each has a deviation of its own."""
    sums = [(torch.zeros(40_000), std) for std in (1.0, 7.0, 0.2)]
    add_(sums, Alone())
    for total, std in sums:
        assert total.std().item() == pytest.approx(std * of_one, rel=0.06)
