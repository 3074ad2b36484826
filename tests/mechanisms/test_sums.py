"""Sums of anything: bounded, noised as recorded, divided by public numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.ledger import Everyone, GaussianSum, LaplaceSum, Poisson
from tacit.mechanisms import LaplaceQuery, SumQuery, WeightedMean
from tacit.randomness import SecureSource

SOURCE = SecureSource()
QUIET = 1e-9
Record = Callable[..., Any]
any_float = st.floats(allow_nan=True, allow_infinity=True)


def quiet(group: str, clip_norm: float) -> SumQuery:
    return SumQuery(group=group, clip_norm=clip_norm, noise_std=QUIET)


@given(st.lists(any_float, min_size=1, max_size=6), st.floats(1e-6, 1e6))
def test_clipped_rows_are_bounded_in_exact_arithmetic(row: list[float], bound: float) -> None:
    values = torch.tensor([row], dtype=torch.float64)
    two = SumQuery(group="a", clip_norm=bound, noise_std=1.0).clip(values)[0].tolist()
    assert sum(Fraction(value) ** 2 for value in two) <= Fraction(bound) ** 2
    one = LaplaceQuery(group="a", clip_norm=bound, scale=1.0).clip(values)[0].tolist()
    assert sum(abs(Fraction(value)) for value in one) <= Fraction(bound)


@given(st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_clipping_keeps_the_direction_and_what_is_inside(row: list[float], bound: float) -> None:
    values = torch.tensor([row], dtype=torch.float64)
    clipped = SumQuery(group="a", clip_norm=bound, noise_std=1.0).clip(values)
    norm = values.norm().item()
    expected = values * min(1.0, bound / norm) if norm else values
    assert torch.allclose(clipped, expected, rtol=1e-12, atol=1e-300)


def test_records_that_are_not_finite_count_as_zero_and_the_others_stay(record: Record) -> None:
    query = quiet("mean", 10.0)
    total = query.total((2,))
    total.add(torch.tensor([[1.0, 2.0], [math.nan, 1.0], [3.0, math.inf], [-math.inf, 0.0], [0.5, 0.5]]))
    assert torch.allclose(total.release(record(Everyone(), query.event()), SOURCE), torch.tensor([1.5, 2.5]).double())


def test_batches_add_up_and_a_release_empties_the_total(record: Record) -> None:
    query, values = quiet("loss", 2.0), torch.rand(100) * 4
    whole, parts = query.total(), query.total()
    whole.add(values)
    for part in torch.split(values, 7):
        parts.add(part)
    first = whole.release(record(Everyone(), query.event()), SOURCE)
    assert first.item() == pytest.approx(values.clamp(max=2.0).sum().item(), rel=1e-6)
    assert parts.release(record(Everyone(), query.event()), SOURCE).item() == pytest.approx(first.item(), abs=1e-7)
    assert whole.release(record(Everyone(), query.event()), SOURCE).item() == pytest.approx(0.0, abs=1e-7)


def test_counts_are_exact_and_large_sums_of_half_precision_values_too(record: Record) -> None:
    query = quiet("correct", 1.0)
    total = query.total()
    total.add(torch.ones(100_000, dtype=torch.float16))
    total.add(torch.ones(1, dtype=torch.bool))
    assert total.release(record(Everyone(), query.event()), SOURCE).item() == pytest.approx(100_001, abs=1e-6)


def test_the_mean_is_divided_by_the_public_number(record: Record) -> None:
    """A historical bug: dividing by the realised lot size. Here three records or none, the divisor is the same."""
    query = quiet("loss", 5.0)
    for rows, expected in ((3, 0.3), (0, 0.0)):
        total = query.total()
        total.add(torch.ones(rows))
        receipt = record(Poisson(rate=0.1, records=100), query.event())
        assert total.mean(receipt, SOURCE, lot_size=10.0).item() == pytest.approx(expected, abs=1e-7)
    with pytest.raises(ValueError, match="expected lot size is 0"):
        total.mean(receipt, SOURCE, lot_size=0.0)


@pytest.mark.parametrize("rows", [0, 5])
def test_gaussian_noise_is_the_recorded_one(record: Record, rows: int) -> None:
    query = SumQuery(group="a", clip_norm=1.0, noise_std=3.0)
    total = query.total((40_000,))
    total.add(torch.zeros(rows, 40_000))
    noise = total.release(record(Everyone(), query.event()), SOURCE)
    assert noise.square().mean().item() / 9 == pytest.approx(1.0, abs=6.5 * math.sqrt(2 / 40_000))
    louder = GaussianSum(group="a", clip_norm=1.0, noise_std=300.0)
    noise = total.release(record(Everyone(), louder), SOURCE)
    assert noise.square().mean().item() / 9e4 == pytest.approx(1.0, abs=6.5 * math.sqrt(2 / 40_000))


def test_laplace_noise_is_the_recorded_one(record: Record) -> None:
    query = LaplaceQuery(group="a", clip_norm=1.0, scale=3.0, dimension=40_000)
    noise = query.total((40_000,)).release(record(Everyone(), query.event()), SOURCE)
    assert noise.abs().mean().item() / 3 == pytest.approx(1.0, abs=6.5 / math.sqrt(40_000))


def test_a_release_needs_the_right_record(record: Record) -> None:
    gauss, laplace = quiet("a", 1.0), LaplaceQuery(group="a", clip_norm=1.0, scale=1.0)
    for query, wrong in (
        (gauss, laplace.event()),
        (laplace, gauss.event()),
        (gauss, GaussianSum(group="a", clip_norm=0.9, noise_std=1.0)),
        (laplace, LaplaceSum(group="a", clip_norm=0.9, scale=1.0, dimension=1)),
    ):
        with pytest.raises(ValueError, match=r"one record can contribute 1\.0"):
            query.total().release(record(Everyone(), wrong), SOURCE)
    receipt = record(Everyone(), gauss.event())
    gauss.total().release(receipt, SOURCE)
    with pytest.raises(RuntimeError):
        gauss.total().release(receipt, SOURCE)


def test_weighted_mean(record: Record) -> None:
    query = WeightedMean(values=quiet("sum", 10.0), weights=quiet("weight", 2.0), least=0.5)
    total = query.total((2,))
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.nan, 1.0], [1.0, 1.0], [5.0, 5.0]])
    total.add(values, torch.tensor([1.0, 2.0, 1.0, -3.0, math.inf]))
    result = total.release(record(Everyone(), *query.events()), SOURCE)
    assert torch.allclose(result, torch.tensor([1 / 3, 2 / 3]).double(), atol=1e-6)
    empty = query.total((2,)).release(record(Everyone(), *query.events()), SOURCE)
    assert empty.abs().max() < 1e-6
    with pytest.raises(ValueError, match="both groups are 'sum'"):
        WeightedMean(values=quiet("sum", 1.0), weights=quiet("sum", 1.0), least=1.0)
    with pytest.raises(ValueError, match="one weight for each record"):
        total.add(values, torch.ones(4))


def test_feature_moments_class_counts_and_metrics_from_one_sample(record: Record) -> None:
    """What a step can release beside gradients, all charged to it: batch-normalisation statistics among them."""
    x, y = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * 0.5 + 1, torch.arange(500) % 4
    first, second, classes = quiet("mean", 20.0), quiet("square", 400.0), quiet("classes", 1.0)
    receipt = record(Everyone(), first.event(), second.event(), classes.event())
    totals = first.total((3,)), second.total((3,)), classes.total((4,))
    for rows in torch.split(torch.arange(500), 128):
        for total, values in zip(totals, (x[rows], x[rows].square(), torch.nn.functional.one_hot(y[rows], 4))):
            total.add(values)
    mean, square = (total.mean(receipt, SOURCE, lot_size=500.0) for total in totals[:2])
    assert torch.allclose(mean, x.double().mean(dim=0), atol=1e-6)
    assert torch.allclose(square - mean**2, x.double().var(dim=0, correction=0), atol=1e-5)
    assert totals[2].release(receipt, SOURCE).round().tolist() == [125] * 4


def test_a_sum_bounded_by_the_caller(record: Record) -> None:
    query = quiet("gram", 1.0)
    total = query.total((2, 2))
    rows = torch.nn.functional.normalize(torch.randn(10, 2), dim=1) * 0.99
    total.add_bounded(rows.T @ rows)
    assert torch.allclose(total.release(record(Everyone(), query.event()), SOURCE), (rows.T @ rows).double())
    with pytest.raises(ValueError, match=r"has shape \(3,\)"):
        total.add_bounded(torch.zeros(3))
    with pytest.raises(ValueError, match=r"rows have shape \(\)"):
        total.add(torch.zeros(3))


def test_impossible_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="clip norm is 0"):
        SumQuery(group="a", clip_norm=0.0, noise_std=1.0)
    with pytest.raises(ValueError, match="Laplace scale is -1"):
        LaplaceQuery(group="a", clip_norm=1.0, scale=-1.0)
