"""Noise allocation: the composed noise multiplier is the one asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.ledger import Everyone, GaussianSum, LaplaceSum, Step
from tacit.mechanisms import DimensionAdjusted, Explicit, Flat, Groups, Proportional, remaining

groups = st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 10**6)), min_size=1, max_size=8)


def step(stds: tuple[float, ...], bounds: list[float]) -> Step:
    pairs = enumerate(zip(stds, bounds, strict=True))
    return Step(Everyone(), tuple(GaussianSum(group=str(i), clip_norm=s, noise_std=std) for i, (std, s) in pairs))


@pytest.mark.parametrize("kind", [Proportional, DimensionAdjusted])
@given(z=st.floats(0.1, 100), parts=groups)
def test_composed_noise_multiplier_is_the_target(kind: Any, z: float, parts: list[tuple[float, int]]) -> None:
    stds = kind(z).stds([(str(index), bound, size) for index, (bound, size) in enumerate(parts)])
    assert step(stds, [bound for bound, _ in parts]).noise_multiplier == pytest.approx(z, rel=1e-12)


def test_the_formulas_of_the_paper() -> None:
    three = [("a", 1.0, 10), ("b", 2.0, 30), ("c", 4.0, 60)]
    root = math.sqrt(3)
    assert Proportional(2.0).stds(three) == pytest.approx((2 * root, 4 * root, 8 * root))
    assert DimensionAdjusted(2.0).stds(three) == pytest.approx(
        (2 * math.sqrt(10), 4 * math.sqrt(100 / 30), 8 * math.sqrt(100 / 60))
    )


def test_one_group_gets_z_times_s_exactly() -> None:
    for kind in (Proportional, DimensionAdjusted):
        assert kind(1.1).stds([("a", 4.0, 1000)]) == (1.1 * 4.0,)


def test_explicit_noise_by_group_name() -> None:
    clipping = Groups({"a": 1.0, "b": 2.0}).bind({"a": torch.Size([2]), "b": torch.Size([3])})
    queries = clipping.queries(Explicit({"gradients/b": 5.0, "gradients/a": 3.0}))
    assert [(q.clip_norm, q.noise_std) for q in queries] == [(1.0, 3.0), (2.0, 5.0)]
    with pytest.raises(ValueError, match=r"noise is given for \['gradients/a'\]"):
        clipping.queries(Explicit({"gradients/a": 3.0}))


@given(z=st.floats(0.1, 10), extra=st.floats(1.01, 1000))
def test_metrics_of_the_same_sample_take_their_share(z: float, extra: float) -> None:
    metric = GaussianSum(group="loss", clip_norm=3.0, noise_std=3.0 * z * extra)
    for kind in (Proportional, DimensionAdjusted):
        (query,) = Flat(1.0).bind({"w": torch.Size([4])}).queries(kind(z).after([metric]))
        assert Step(Everyone(), (query, metric)).noise_multiplier == pytest.approx(z, rel=1e-9)
    assert Explicit({"a": 1.0}).after([metric]) == Explicit({"a": 1.0})


def test_a_noise_multiplier_that_the_other_queries_use_up_is_refused() -> None:
    loud = GaussianSum(group="loss", clip_norm=1.0, noise_std=0.5)
    with pytest.raises(ValueError, match=r"noise multiplier is 1, but the noise of 'loss' allows no more than 0\.5"):
        remaining(1.0, [loud])
    with pytest.raises(ValueError, match="z is defined for Gaussian sums"):
        remaining(1.0, [LaplaceSum(group="loss", clip_norm=1.0, scale=5.0, dimension=1)])
    with pytest.raises(ValueError, match=r"noise multiplier is 0\.0"):
        Proportional(0.0)
    assert remaining(1.5, []) == 1.5
