"""Clipping strategies: the bound that the ledger is told holds for every record, in float32, exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.ledger import Everyone, Step
from tacit.mechanisms import (
    Adaptive,
    Automatic,
    Clipping,
    DimensionWeighted,
    Flat,
    Groups,
    Joint,
    Microbatches,
    PerLayer,
    Proportional,
    Repeated,
)

SHAPES = {
    "conv1.weight": torch.Size([4, 1, 3, 3]),
    "conv1.bias": torch.Size([4]),
    "conv2.weight": torch.Size([2, 4]),
    "fc.weight": torch.Size([10, 5]),
    "fc.bias": torch.Size([10]),
}
STRATEGIES: list[Any] = [
    Flat(1.0),
    PerLayer(each=0.3),
    PerLayer(total=2.0),
    DimensionWeighted(3.0),
    Joint({"conv*": 0.1, "fc.*": 100.0}, 1.3),
    Automatic(),
    Groups({"conv*": 0.5, "fc.*": Joint({"fc.weight": 2.0, "fc.bias": 0.01}, 1.0)}),
    Groups({"conv*": PerLayer(total=1.0), "fc.*": Automatic(0.1)}),
    Adaptive(initial=0.7),
]
HUGE = torch.finfo(torch.float32).max
norm_values = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-38, 0.3, 1.0, HUGE]),
    st.floats(0, HUGE, width=32),
    st.floats(1 - 2**-13, 1 + 2**-13, width=32),
)


def bound(strategy: Any) -> Clipping:
    clipping: Clipping = strategy.bind(SHAPES, lot_size=10.0)
    return clipping


def contributions(clipping: Clipping, norms: torch.Tensor) -> list[tuple[Fraction, Fraction]]:
    """For each record and group, the exact squares of the clipped norm and of its bound."""
    weights, pairs = clipping.weights(norms), []
    for row, weight in zip(norms.tolist(), weights.tolist()):
        column = 0
        for group in clipping.groups:
            square = Fraction(0)
            for vector in group.vectors:
                square += (Fraction(row[column]) * Fraction(weight[column]) / Fraction(vector.scale)) ** 2
                column += 1
            pairs.append((square, Fraction(group.clip_norm) ** 2))
    return pairs


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
class TestEveryStrategy:
    @given(st.data())
    @settings(max_examples=60)
    def test_clipped_norm_is_at_most_the_bound_in_exact_arithmetic(self, strategy: Any, data: st.DataObject) -> None:
        clipping = bound(strategy)
        columns = len(clipping.partition(SHAPES))
        rows = data.draw(st.lists(st.lists(norm_values, min_size=columns, max_size=columns), min_size=1, max_size=4))
        for square, most in contributions(clipping, torch.tensor(rows, dtype=torch.float32)):
            assert square <= most

    def test_partition_covers_every_parameter_once(self, strategy: Any) -> None:
        names = [name for part in bound(strategy).partition(SHAPES) for name in part]
        assert sorted(names) == sorted(SHAPES)
        with pytest.raises(ValueError, match=r"differ.*'extra'"):
            bound(strategy).partition(SHAPES | {"extra": torch.Size([1])})

    def test_real_float32_vectors_stay_inside(self, strategy: Any) -> None:
        """Norms and products in float32, as an engine computes them; checked in float64."""
        clipping = bound(strategy)
        sizes = [sum(SHAPES[name].numel() for name in part) for part in clipping.partition(SHAPES)]
        generator = torch.Generator().manual_seed(0)
        for scale in (1e-3, 1.0, 1e6):
            vectors = [torch.randn(200, 50 * size, generator=generator) * scale for size in sizes]
            norms = torch.stack([torch.linalg.vector_norm(vector, dim=1) for vector in vectors], dim=1)
            weights, column = clipping.weights(norms), 0
            for group in clipping.groups:
                square = torch.zeros(200, dtype=torch.float64)
                for vector in group.vectors:
                    clipped = (vectors[column] * weights[:, column, None]).double() / vector.scale
                    square += clipped.square().sum(dim=1)
                    column += 1
                assert square.sqrt().max() <= group.clip_norm
                assert scale < 1 or square.sqrt().min() > 0.98 * min(group.clip_norm, scale * 1e3) * (scale > 1)

    def test_a_record_that_is_not_finite_has_no_weight_anywhere(self, strategy: Any) -> None:
        clipping = bound(strategy)
        columns = len(clipping.partition(SHAPES))
        for bad in (math.nan, math.inf):
            norms = torch.ones(3, columns)
            norms[1, columns - 1] = bad
            weights = clipping.weights(norms)
            assert (weights[1] == 0).all()
            assert torch.equal(weights[0], weights[2])
            assert (weights[0] > 0).all()

    def test_an_empty_batch_has_empty_weights(self, strategy: Any) -> None:
        columns = len(bound(strategy).partition(SHAPES))
        assert bound(strategy).weights(torch.empty(0, columns)).shape == (0, columns)

    def test_the_step_has_the_noise_multiplier_asked_for(self, strategy: Any) -> None:
        step = Step(Everyone(), bound(strategy).queries(Proportional(0.9)))
        assert step.noise_multiplier == pytest.approx(0.9, rel=1e-12)

    def test_half_precision_norms_give_float32_weights(self, strategy: Any) -> None:
        columns = len(bound(strategy).partition(SHAPES))
        assert bound(strategy).weights(torch.ones(2, columns, dtype=torch.float16)).dtype == torch.float32


def test_flat_is_algorithm_1() -> None:
    norms = torch.tensor([[0.5], [4.0], [8.0], [0.0]])
    assert torch.allclose(bound(Flat(4.0)).weights(norms), torch.tensor([[1.0], [1.0], [0.5], [1.0]]), rtol=2e-6)


def test_layers_are_modules() -> None:
    clipping = bound(PerLayer(each=1.0))
    assert clipping.partition(SHAPES) == (
        ("conv1.weight", "conv1.bias"),
        ("conv2.weight",),
        ("fc.weight", "fc.bias"),
    )
    assert [group.name for group in clipping.groups] == ["gradients/conv1", "gradients/conv2", "gradients/fc"]
    assert PerLayer(each=1.0).bind({"weight": torch.Size([3])}).groups[0].name == "gradients/(root)"


@pytest.mark.parametrize("strategy", [Flat(2.0), PerLayer(total=2.0), DimensionWeighted(2.0)], ids=str)
def test_total_bounds_add_up(strategy: Any) -> None:
    """Also for the dimension-weighted one, which as printed in the paper (dividing) would not."""
    assert math.hypot(*[group.clip_norm for group in bound(strategy).groups]) == pytest.approx(2.0)


def test_dimension_weighted_is_the_same_bound_per_coordinate() -> None:
    ratios = [group.clip_norm / math.sqrt(group.dimension) for group in bound(DimensionWeighted(2.0)).groups]
    assert np.ptp(ratios) < 1e-12


def test_each_and_total_are_different_things() -> None:
    each, total = bound(PerLayer(each=4.0)), bound(PerLayer(total=4.0))
    assert [group.clip_norm for group in each.groups] == [4.0] * 3
    assert [group.clip_norm for group in total.groups] == pytest.approx([4.0 / math.sqrt(3)] * 3)


def test_joint_example_of_the_paper() -> None:
    """Section 2: |v1| <= 1, |v2| <= 100, one of them zero; alpha = (1, 100), S_g = 1: nothing is clipped."""
    joint = Joint({"v1": 1.0, "v2": 100.0}, 1.0).bind({"v1": torch.Size([3]), "v2": torch.Size([5])})
    norms = torch.tensor([[1.0, 0.0], [0.0, 100.0], [0.5, 0.0], [1.0, 100.0], [3.0, 0.0]])
    weights = joint.weights(norms)
    assert torch.allclose(weights[:, 0], torch.tensor([1.0, 1.0, 1.0, 1 / math.sqrt(2), 1 / 3]), rtol=2e-6)
    assert torch.equal(weights[:, 0], weights[:, 1])
    (query,) = joint.queries(Proportional(0.01))
    assert (query.clip_norm, query.noise_std) == (1.0, 0.01)


@given(st.floats(1e-6, 1e6), st.lists(norm_values, min_size=1, max_size=5))
def test_with_one_vector_all_strategies_are_flat(norm: float, rows: list[float]) -> None:
    shapes, norms = {"fc.weight": torch.Size([7])}, torch.tensor(rows)[:, None]
    flat = Flat(norm).bind(shapes).weights(norms)
    for other in (
        PerLayer(each=norm),
        PerLayer(total=norm),
        DimensionWeighted(norm),
        Joint({"fc.*": 1.0}, norm),
        Groups({"fc*": norm}),
    ):
        assert torch.equal(other.bind(shapes).weights(norms), flat)


@given(st.floats(1e-3, 1e3), norm_values)
def test_joint_scaling_of_one_vector_is_flat_clipping_at_alpha_s(alpha: float, norm: float) -> None:
    shapes, norms = {"w": torch.Size([7])}, torch.tensor([[norm]])
    joint = Joint({"w": alpha}, 2.0).bind(shapes).weights(norms)
    assert torch.allclose(joint, Flat(2.0 * alpha).bind(shapes).weights(norms), rtol=1e-5)


def test_automatic_normalises() -> None:
    weights = bound(Automatic(0.01)).weights(torch.tensor([[0.0], [0.99], [1e6]]))
    assert torch.allclose(weights, torch.tensor([[100.0], [1.0], [1e-6]]), rtol=2e-6)
    assert bound(Automatic(0.01)).groups[0].sensitivity == 1.0


def test_groups_take_strategies_and_name_their_queries() -> None:
    clipping = bound(Groups({"conv*": PerLayer(each=1.0), "fc.*": 2}))
    assert [(g.name, g.clip_norm) for g in clipping.groups] == [
        ("gradients/conv*/conv1", 1.0),
        ("gradients/conv*/conv2", 1.0),
        ("gradients/fc.*", 2),
    ]


def test_microbatch_averages_are_charged_twice_the_clip_norm() -> None:
    """A historical bug: under add/remove the sensitivity of clipped averages is 2 S, not S."""
    clipping = bound(Microbatches(PerLayer(each=1.5)))
    plain = bound(PerLayer(each=1.5))
    norms = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(clipping.weights(norms), plain.weights(norms))
    assert [query.clip_norm for query in clipping.queries(Proportional(1.0))] == [3.0] * 3
    assert bound(Microbatches(Adaptive(initial=2.0))).queries(Proportional(0.1))[0].clip_norm == 4.0
    assert bound(Microbatches(Adaptive(initial=2.0))).queries(Proportional(0.1))[1].clip_norm == 1.0


@pytest.mark.parametrize("initial", [1.0, PerLayer(each=1.0)])
def test_default_counts_leave_most_of_a_small_lots_noise_to_the_gradients(initial: Any) -> None:
    clipping = Adaptive(initial=initial).bind(SHAPES, lot_size=4)
    queries = clipping.queries(Proportional(2.0))
    sums = [query for query in queries if query.clip_norm == 1.0]
    assert Step(Everyone(), queries).noise_multiplier == pytest.approx(2.0)
    assert 2.0 < Step(Everyone(), tuple(sums)).noise_multiplier < 2.0 * 1.07


def test_a_record_with_several_examples_is_charged_for_each() -> None:
    (query,) = bound(Repeated(clipping=Flat(1.5), most=4)).queries(Proportional(2.0))
    assert (query.clip_norm, query.noise_std) == (6.0, 12.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flat(0.0), "clip norm is 0.0"),
        (lambda: Flat(math.inf), "clip norm is inf"),
        (lambda: PerLayer(), "give one of the two"),
        (lambda: PerLayer(each=1.0, total=1.0), "give one of the two"),
        (lambda: PerLayer(total=-1.0), "clip norm is -1.0"),
        (lambda: Automatic(0.0), "stability is 0.0"),
        (lambda: Joint({"a": -1.0}, 1.0), "scale of 'a' is -1.0"),
        (lambda: Groups({"a": 0.0}), "clip norm of 'a' is 0.0"),
        (lambda: bound(Groups({"conv*": 1.0})), "fc.weight matches nothing"),
        (lambda: bound(Groups({"*": 1.0, "fc.*": 1.0})), r"fc.bias matches \['\*', 'fc"),
        (lambda: bound(Groups({"*": 1.0, "other": 1.0})), "'other' matches no parameter"),
        (lambda: bound(Groups({"*": Adaptive()})), "must be fixed"),
        (lambda: Flat(1.0).bind({}), "no parameters"),
        (lambda: PerLayer(each=1.0).bind({}), "no parameters"),
        (lambda: Adaptive().bind(SHAPES), "lot_size is missing"),
        (lambda: Adaptive(quantile=1.0), "quantile is 1.0"),
        (lambda: Repeated(clipping=Flat(1.0), most=0), "most is 0"),
        (lambda: bound(Flat(1.0)).weights(torch.ones(3, 2)), "must have 1 columns"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_factor_of_a_record_does_not_depend_on_the_others_of_its_batch() -> None:
    """A record of 2^101 times the clip norm sends itself the careful way, and nobody else."""
    for strategy in STRATEGIES:
        clipping = strategy.bind(SHAPES, lot_size=10.0)
        columns = len(clipping.partition(SHAPES))
        ordinary = 10.0 ** (6 * torch.rand(3000, columns, generator=torch.Generator().manual_seed(1)) - 3)
        alone = clipping.weights(ordinary)
        for extra in (2.0**101, math.inf, math.nan, 1.0):
            together = clipping.weights(torch.cat([ordinary, torch.full((1, columns), extra)]))
            assert torch.equal(together[:-1], alone), (strategy, extra)
