"""Sums, squares and digests, compiled and not: as precise as the margin in S counts on, alike in every place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients.factors import contribution as contributions
from tacit.gradients.factors.contribution import Dense, row_rounding, row_squares
from tacit.gradients.factors.outer import Outer
from tacit.gradients.factors.parameter_uses import Part, Region
from tacit.gradients.factors.uses import Uses
from tacit.gradients.kernels import loops as narrow
from tacit.gradients.kernels.loops import outer_squares, roots
from tacit.gradients.precision import UNIT, call_error, chain_error
from tacit.training import digests as digests_module
from tacit.training.snapshot import Snapshot

COMPILED = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)
"""There is nothing to test of arrays."""

SHAPES = [(1, 64), (2, 65), (3, 100), (5, 127), (6, 128), (7, 200), (8, 1000), (9, 129), (10, 1000), (16, 333)]


@COMPILED
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize(("records", "call"), [(0, 192), (1, 192), (7, 4), (192, 192), (193, 192), (600, 192), (40, 1)])
def test_outer_sums(rows: int, columns: int, records: int, call: int) -> None:
    few, many = torch.randn(records, rows), torch.randn(records, columns)
    out = torch.full((rows, columns), torch.nan)
    assert narrow.added_up(few, many, out, call)
    exact = few.double().t() @ many.double()
    sizes = few.double().abs().t() @ many.double().abs()
    steps = 2 + min(call, records) + -(-records // call)
    assert ((out - exact).abs() <= steps * UNIT * sizes * (1 + 1e-3)).all()


@COMPILED
def test_an_outer_sum_adds_call_by_call() -> None:
    """Within a call terms of 2^-24 add up before they meet 1, which would swallow each of them."""
    few, many = torch.full((384, 3), 2.0**-24), torch.ones(384, 70)
    few[:192] = 0.0
    few[0] = 1.0
    out = torch.empty(3, 70)
    assert narrow.added_up(few, many, out, 192)
    assert (out == 1 + 192 * 2.0**-24).all()
    assert narrow.added_up(few, many, out, 1)
    assert (out == 1).all()


WIDE = pytest.mark.parametrize("arithmetic", ["avx2", "avx512"], indirect=True)
PRODUCTS = [(17, 17), (20, 33), (32, 32), (33, 64), (100, 61), (104, 31), (1, 5), (250, 70)]


@WIDE
@pytest.mark.parametrize(("rows", "columns"), PRODUCTS)
@pytest.mark.parametrize(("records", "call"), [(0, 192), (1, 192), (7, 4), (192, 192), (193, 192), (700, 192), (40, 1)])
def test_weighted_sums(rows: int, columns: int, records: int, call: int) -> None:
    left, right, weights = torch.randn(records, rows), torch.randn(records, columns), torch.rand(records)
    out = torch.full((rows, columns), torch.nan)
    assert narrow.weighted_sum(left, right, weights, out, call)
    exact = left.double().t() @ (weights.double().unsqueeze(1) * right)
    sizes = left.double().abs().t() @ (weights.double().unsqueeze(1) * right.abs())
    steps = 2 + min(call, records) + -(-records // call)
    assert ((out - exact).abs() <= steps * UNIT * sizes * (1 + 1e-3)).all()


@WIDE
def test_a_weighted_sum_of_which_only_a_part_is_copied_at_a_time() -> None:
    """More than four megabytes of the right factor."""
    left, right, weights = torch.randn(2100, 20), torch.randn(2100, 700), torch.rand(2100)
    out = torch.full((20, 700), torch.nan)
    assert narrow.weighted_sum(left, right, weights, out, 192)
    exact = left.double().t() @ (weights.double().unsqueeze(1) * right)
    assert torch.allclose(out.double(), exact, atol=1e-3)


@WIDE
def test_a_weighted_sum_adds_call_by_call() -> None:
    left, right, weights = torch.full((384, 20), 2.0**-24), torch.ones(384, 70), torch.ones(384)
    left[:192] = 0.0
    left[0] = 1.0
    out = torch.empty(20, 70)
    assert narrow.weighted_sum(left, right, weights, out, 192)
    assert (out == 1 + 192 * 2.0**-24).all()
    assert narrow.weighted_sum(left, right, weights, out, 1)
    assert (out == 1).all()


@WIDE
def test_an_adversarial_weighted_call_stays_within_the_lemma() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        left = torch.rand(192, 40, generator=generator) * 10.0 ** torch.randint(-3, 1, (192, 1), generator=generator)
        right = torch.rand(192, 100, generator=generator)
        weights = 1 / (left.norm(dim=1) * right.norm(dim=1))  # every record's outer product has norm 1
        out = torch.empty(40, 100)
        assert narrow.weighted_sum(left, right, weights, out, 192)
        exact = left.double().t() @ (weights.double().unsqueeze(1) * right)
        assert (out - exact).norm() <= UNIT * (call_error(192, 1) + chain_error(192, 192))


@WIDE
def test_an_entry_of_a_weighted_sum_is_alike_whatever_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: in every place, with any threads, and with one record more that is zero."""
    left, right, weights = torch.randn(500, 130), torch.randn(500, 90), torch.rand(500)
    whole = torch.empty(130, 90)
    assert narrow.weighted_sum(left, right, weights, whole, 192)
    for threads, top, first in ((1, 0, 0), (2, 3, 1), (3, 7, 33), (64, 100, 71)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        part = torch.full((130 - top, 90 - first), torch.nan)
        given = left[:, top:].contiguous(), right[:, first:].contiguous()
        assert narrow.weighted_sum(*given, weights, part, 192)
        assert torch.equal(part, whole[top:, first:])
    more = [torch.cat([t, torch.zeros_like(t[:1])]) for t in (left, right, weights)]
    again = torch.empty(130, 90)
    assert narrow.weighted_sum(*more, again, 192)
    assert torch.equal(again, whole)


@WIDE
@pytest.mark.parametrize("records", [191, 192, 193, 384, 385, 1024, 2047, 2048])
def test_a_weighted_sum_is_that_of_its_whole_calls_and_the_last(records: int) -> None:
    left, right, weights = torch.randn(records, 20), torch.randn(records, 40), torch.rand(records)
    total = torch.zeros(20, 40)
    for lo in range(0, records, 192):
        part = torch.empty(20, 40)
        assert narrow.weighted_sum(left[lo : lo + 192], right[lo : lo + 192], weights[lo : lo + 192], part, 192)
        total += part
    whole = torch.empty(20, 40)
    assert narrow.weighted_sum(left, right, weights, whole, 192)
    assert torch.equal(whole, total)


def test_tensors_with_the_negative_bit_are_measured_and_summed() -> None:
    x = torch.randn(5, 300)
    turned = torch._neg_view(-x)
    assert turned.is_neg()
    assert torch.allclose(row_squares(turned), row_squares(x))
    for rows in (3, 20):
        totals = [torch.empty(rows, 300) for _ in range(2)]
        factor = torch.randn(5, 1, 1, rows)
        for total, own in zip(totals, (x, turned)):
            Outer(own.view(5, 1, 1, 300), factor, (rows, 300)).assign(total, torch.ones(5), 1)
        assert torch.allclose(*totals, atol=1e-5)


def test_assign_raises_the_version_of_the_tensor_it_writes() -> None:
    for rows in (3, 20):
        out = torch.empty(rows, 300)
        before = out._version
        Outer(torch.randn(5, 1, 1, 300), torch.randn(5, 1, 1, rows), (rows, 300)).assign(out, torch.ones(5), 1)
        assert out._version > before


@WIDE
def test_a_record_that_is_not_finite_is_not_in_the_entries_of_others() -> None:
    left, right, weights = torch.randn(9, 40), torch.randn(9, 50), torch.rand(9)
    left[4, 7] = torch.inf
    out = torch.empty(40, 50)
    assert narrow.weighted_sum(left, right, weights, out, 192)
    assert out.isfinite().all(1).tolist() == [i != 7 for i in range(40)]


@WIDE
def test_factors_of_weighted_sums_that_do_not_fit_are_refused() -> None:
    kernels = narrow.kernels
    assert kernels is not None

    def array(*shape: int) -> Any:
        return np.ones(shape, dtype=np.float32)

    right = array(3, 5), array(3, 6), array(3), array(5, 6), 192, 1
    kernels.product_sum(*right)
    arrays = (0, array(4, 5)), (1, array(4, 6)), (2, array(4)), (2, array(0)), (3, array(5, 7)), (3, array(4, 6))
    for i, wrong in (*arrays, (4, 193), (4, 0), (5, 0), (5, 2**40)):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.product_sum(*right[:i], wrong, *right[i + 1 :])
    with pytest.raises(TypeError, match="6 arguments"):
        kernels.product_sum(*right[:5])  # type: ignore[call-arg]


@COMPILED
def test_an_adversarial_call_stays_within_the_lemma() -> None:
    """Lemma 2 of docs/finite-precision.md bounds one call for any order of its additions."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        few = torch.rand(192, 4, generator=generator) * 10.0 ** torch.randint(-3, 1, (192, 1), generator=generator)
        many = torch.rand(192, 100, generator=generator)
        scale = 1 / (few.norm(dim=1) * many.norm(dim=1))  # every record's outer product has norm 1
        weighted, out = few * scale.unsqueeze(1), torch.empty(4, 100)
        assert narrow.added_up(weighted, many, out, 192)
        exact = (few.double() * scale.double().unsqueeze(1)).t() @ many.double()
        assert (out - exact).norm() <= UNIT * (call_error(192, 1) + chain_error(192, 192))


@pytest.mark.parametrize(("rows", "columns"), [(17, 100), (4, 63)])
def test_other_shapes_are_left_to_the_library(rows: int, columns: int) -> None:
    out = torch.full((rows, columns), 5.0)
    assert not narrow.added_up(torch.ones(4, rows), torch.ones(4, columns), out, 192)
    assert (out == 5).all()


def test_other_types_and_layouts_are_left_to_the_library() -> None:
    few, many, out = torch.ones(4, 2), torch.ones(4, 128), torch.full((2, 128), 5.0)
    for given in (
        (few.double(), many.double(), out.double()),
        (few, many[:, ::2], out[:, :64].contiguous()),
        (few, many, torch.full((128, 2), 5.0).t()),
    ):
        assert not narrow.added_up(*given, 192)
        assert (given[2] == 5).all()


@COMPILED
@pytest.mark.parametrize("threads", [1, 4])
def test_which_one_sums_does_not_depend_on_the_records(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    sizes = 1, 2, 100, 192, 193, 401, 2048, 3000
    for shape in ((10, 1000), (16, 4000), (4, 63), (17, 100)):
        out, few, many = torch.empty(shape), torch.ones(3000, shape[0]), torch.ones(3000, shape[1])
        assert len({narrow.added_up(few[:n], many[:n], out, 192) for n in sizes}) == 1
        assert len({narrow.weighted_sum(few[:n], many[:n], torch.ones(n), out, 192) for n in sizes}) == 1
    for width in (60, 255, 256, 1025, 100_000):
        assert len({contributions._compiled(torch.empty(1, width).expand(n, width)) for n in sizes}) == 1


@COMPILED
@pytest.mark.parametrize(("rows", "columns"), [*SHAPES, (10, 64 * 7), (3, 64 * 7 + 1)])
def test_any_number_of_threads_gives_the_same(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = torch.randn(300, rows), torch.randn(300, columns)
    results = []
    for threads in (1, 2, 3, 7, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        out = torch.full((rows, columns), torch.nan)
        assert narrow.added_up(few, many, out, 192)
        results.append(torch.cat([out.flatten(), row_squares(many), row_squares(many[:3])]))
    assert all(torch.equal(result, results[0]) for result in results)


@COMPILED
def test_kernels_refuse_what_does_not_fit() -> None:
    kernels = narrow.kernels
    assert kernels is not None

    def array(*shape: int) -> Any:
        return np.ones(shape, dtype=np.float32)

    for few, many, out, rows, call in (
        (array(3, 2), array(3, 64), array(2, 65), 2, 192),
        (array(3, 2), array(4, 64), array(2, 64), 2, 192),
        (array(3, 2), array(3, 63), array(2, 63), 2, 192),
        (array(3, 2), array(3, 64), array(2, 64), 2, 193),
        (array(3, 2), array(3, 64), array(2, 64), 2, 0),
        (array(3, 2), array(3, 64), array(2, 64), 0, 192),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.outer_sum(few, many, out, rows, call, 1)
    with pytest.raises(OverflowError):
        kernels.outer_sum(array(3, 2), array(3, 64), array(2, 64), -2, 192, 1)
    with pytest.raises(ValueError, match="do not make 4 rows"):
        kernels.squares(array(3, 3), array(4), 1)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        kernels.squares(array(4, 6)[:, ::2], array(4), 1)
    for threads in (0, 2**40):
        with pytest.raises(ValueError, match="do not"):
            kernels.squares(array(4, 6), array(4), threads)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.outer_sum(array(3, 2), array(3, 64), array(2, 64), 2, 192, threads)


@pytest.mark.parametrize("width", [1, 60, 255, 256, 257, 784, 1000, 4095, 4097, 9000, 20_000])
def test_squares(width: int) -> None:
    x = torch.randn(9, width) * 10.0 ** torch.randint(-6, 7, (9, 1))
    exact = x.double().square().sum(1)
    assert ((row_squares(x) - exact).abs() <= row_rounding(width) * UNIT * exact).all()
    x[3, width // 2], x[5, width - 1] = torch.inf, torch.nan
    found = row_squares(x)
    assert found.isfinite().tolist() == [i not in (3, 5) for i in range(9)]


WIDTHS = (1, 3, 17, 63, 64, 65, 200, 4097)


@COMPILED
@pytest.mark.parametrize("threads", [1, 3])
def test_several_tensors_are_measured_and_summed_as_each_alone(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: which others are measured with a parameter changes nothing for it."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    several = [torch.randn(300, width) for width in WIDTHS]
    weights = torch.rand(300)
    found = narrow.squares_each(several)
    assert found is not None
    out = [torch.full((width,), torch.nan) for width in WIDTHS]
    narrow.add_rows_up(several, weights, out, 192)
    for rows, squares, total in zip(several, found, out):
        assert torch.equal(squares, row_squares(rows))
        alone = torch.empty_like(total)
        narrow.add_rows_up([rows], weights, [alone], 192)
        assert torch.equal(total, alone)
        if len(total) >= 64:
            assert narrow.rows_added_up(rows, weights, alone, 192)
            assert torch.equal(total, alone)
        exact = (rows.double() * weights.double().unsqueeze(1)).sum(0)
        sizes = (rows.double() * weights.double().unsqueeze(1)).abs().sum(0)
        assert ((total - exact).abs() <= (2 + 192 + 2) * UNIT * sizes * (1 + 1e-3)).all()


@COMPILED
def test_sums_of_several_tensors_check_their_sizes() -> None:
    assert narrow.kernels is not None
    with pytest.raises(ValueError, match="do not make"):
        narrow.kernels.squares_each(torch.empty(2, 3), 1, torch.ones(3, 4), torch.ones(4, 4)[:, :1].contiguous())
    for rows, out, call in ((torch.ones(4, 5), torch.ones(5), 192), (torch.ones(3, 5), torch.ones(4), 192),
                            (torch.ones(3, 5), torch.ones(5), 193)):  # fmt: skip
        with pytest.raises(ValueError, match="not as many"):
            narrow.kernels.row_sums(torch.ones(3), call, 1, rows, out)
    with pytest.raises(BufferError):
        narrow.kernels.row_sums(torch.ones(3), 192, 1, torch.ones(5, 3).t(), torch.ones(5))


@pytest.mark.parametrize("width", [1, 7, 60, 256, 300, 784, 1000, 5001])
def test_squares_are_alike_in_every_place(width: int) -> None:
    """To the last bit, wherever in memory a row begins and whatever is beside it."""
    row = torch.randn(width)
    found = set()
    for offset in range(20):
        memory = torch.randn(offset + 7 * width)
        rows = memory[offset:].view(7, width)
        rows[offset % 7] = row
        found.add(row_squares(rows)[offset % 7].item())
    assert len(found) == 1


@COMPILED
@pytest.mark.parametrize("widths", [(60, 1000), (1, 10), (1000, 10), (4097, 1), (0, 3)])
def test_squares_of_outer_products(widths: tuple[int, int]) -> None:
    """As precise as `Outer.rounding` says, those of the right factor besides; by any threads, in every place."""
    left, right = (torch.randn(9, width) * 10.0 ** torch.randint(-6, 7, (9, 1)) for width in widths)
    found = outer_squares(left, right)
    assert found is not None
    exact = [t.double().square().sum(1) for t in (left, right)]
    errors = [row_rounding(width) * UNIT for width in widths]
    assert ((found[1] - exact[1]).abs() <= errors[1] * exact[1]).all()
    product = exact[0] * exact[1]
    assert ((found[0] - product).abs() <= (sum(errors) + UNIT) * product + 1e-30).all()
    assert (found[0] > 0).all() or 0 in widths
    for rows in (slice(3, 4), slice(2, 9)):
        there = outer_squares(left[rows].contiguous(), right[rows].clone())
        assert there is not None
        assert all(torch.equal(a, b[rows]) for a, b in zip(there, found))
    kernels = digests_module.kernels
    assert kernels is not None
    out, of_right = torch.empty(9), torch.empty(9)
    kernels.outer_squares(left, right, out, of_right, 4)
    assert torch.equal(out, found[0]) and torch.equal(of_right, found[1])


@COMPILED
def test_squares_of_outer_products_bound_those_that_float32_loses() -> None:
    """The other factor may be large enough to make up for squares that are too small for the type."""
    left, right = torch.full((3, 60), 1e-25), torch.full((3, 1000), 1e15)
    found = outer_squares(left, right)
    exact = left.double().square().sum(1) * right.double().square().sum(1)
    assert found is not None and (found[0].double() >= exact * (1 - 2000 * UNIT)).all()
    left[1, 3], right[2, 0] = torch.nan, torch.inf
    found = outer_squares(left, right)
    assert found is not None and found[0].isfinite().tolist() == [True, False, False]
    assert outer_squares(left.double(), right.double()) is None and outer_squares(left.t(), right) is None


@COMPILED
def test_squares_of_outer_products_check_their_sizes() -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    right = torch.zeros(4, 3)
    for left, out, of_right, threads in (
        (torch.zeros(3, 3), torch.zeros(4), torch.zeros(4), 1),
        (torch.zeros(4, 3), torch.zeros(4), torch.zeros(5), 1),
        (torch.zeros(4, 3), torch.zeros(0), torch.zeros(0), 1),
        (torch.zeros(4, 3), torch.zeros(4), torch.zeros(4), 0),
    ):
        with pytest.raises(ValueError, match="do not make"):
            kernels.outer_squares(left, right, out, of_right, threads)
    with pytest.raises(BufferError, match="contiguous"):
        kernels.outer_squares(torch.zeros(4, 6)[:, ::2], right, torch.zeros(4), torch.zeros(4), 1)


@COMPILED
@pytest.mark.parametrize("count", [1, 2, 9])
def test_roots_are_rounded_once_by_each_operation(count: int) -> None:
    squares = [torch.rand(37) * 10.0 ** torch.randint(-30, 30, (37,)) for _ in range(count)]
    out = torch.full((37, 1), torch.nan)
    assert roots(squares, 1e-12, 1.0 + 2**-19, out) is True
    total = squares[0].numpy().copy()
    for each in squares[1:]:
        total += each.numpy()
    assert np.array_equal(out[:, 0].numpy(), (np.sqrt(total) + np.float32(1e-12)) * np.float32(1.0 + 2**-19))


@COMPILED
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1.0])
@pytest.mark.parametrize("place", [0, 36])
def test_roots_say_whether_they_are_finite(bad: float, place: int) -> None:
    squares, out = torch.ones(37), torch.empty(37, 1)
    squares[place] = bad
    assert roots([torch.ones(37), squares], -0.0, 1.0, out) is (bad == -1.0)
    assert roots([squares], 0.0, 1.0, out) is False
    assert out.isfinite().sum() == 36
    assert roots([torch.ones(37)], 0.0, torch.finfo(torch.float32).max * 1.5, out) is False


@COMPILED
def test_roots_check_their_sizes() -> None:
    assert digests_module.kernels is not None
    for squares, out in (
        (torch.ones(3), torch.ones(4)),
        (torch.ones(4), torch.ones(3)),
        (torch.ones(0), torch.ones(1)),
    ):
        with pytest.raises(ValueError, match="not as many"):
            digests_module.kernels.roots(0.0, 1.0, out, squares)
    assert roots([torch.ones(0)], 0.0, 1.0, torch.ones(0, 1)) is True
    assert roots([torch.ones(3).double()], 0.0, 1.0, torch.ones(3, 1)) is None


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 100_003, 1_500_000])
def test_any_changed_bit_is_seen(size: int, copied: bool) -> None:
    values = torch.randn(size)
    values[0] = torch.nan
    held = Snapshot(values, copied=copied)
    assert held.same(values)
    words = values.view(torch.int32)
    for place in (0, size // 2, size - 1):
        for bit in (0, 31):
            words[place] ^= -(2**31) if bit else 1
            assert not held.same(values)
            words[place] ^= -(2**31) if bit else 1
    assert held.same(values)
    if copied:
        words[size - 1] += 1
        held.put_back()
        assert held.same(values)


@pytest.mark.parametrize("apart", [1, 8, 16, 1024, 4096])
def test_values_that_change_places_are_seen(apart: int) -> None:
    """As the sum of the bits does not."""
    values = torch.randn(10_000)
    held = Snapshot(values, copied=False)
    values[[100, 100 + apart]] = values[[100 + apart, 100]]
    assert not held.same(values)


def test_every_part_of_a_large_tensor_is_looked_at() -> None:
    values = torch.zeros(5_000_000)
    held = Snapshot(values, copied=False)
    for place in (10, 4_194_303, 4_194_304, 4_999_999):
        values[place] = 1.0
        assert not held.same(values)
        values[place] = 0.0
    assert held.same(values)


def test_signs_of_float64_are_seen() -> None:
    values = torch.randn(2000, dtype=torch.float64)
    held = Snapshot(values, copied=False)
    for places in ([3, 8], [0, 1, 2, 3], slice(None)):
        values[places] = -values[places]
        assert not held.same(values)
        values[places] = -values[places]
    assert held.same(values)


def test_rows_in_the_order_of_thue_and_morse_are_seen() -> None:
    """A polynomial with such coefficients vanishes modulo 2^64 at every odd point."""
    order = [bin(i).count("1") % 2 for i in range(1024)]
    rows = torch.randn(2, 1024)
    values = rows[order]
    for copied in (True, False):
        held = Snapshot(values, copied=copied)
        values.copy_(rows[[1 - each for each in order]])
        assert not held.same(values)
        values.copy_(rows[order])
        assert held.same(values)
    signs = torch.tensor(order[:128]).mul_(2).sub_(1).float().unsqueeze(1).expand(128, 1024).contiguous()
    held = Snapshot(signs, copied=False)
    signs.data.neg_()
    assert not held.same(signs)


def test_another_order_in_memory_is_no_change() -> None:
    values = torch.randn(2, 3, 4, 5)
    for copied in (True, False):
        held = Snapshot(values, copied=copied)
        values.data = values.to(memory_format=torch.channels_last)
        assert held.same(values)
        values.data = values.contiguous()


@COMPILED
def test_threads_do_not_disturb_each_other() -> None:
    """The interpreter's lock is not held while a kernel runs."""
    rows, few = torch.randn(2000, 1000), torch.randn(2000, 10)
    squares, total = row_squares(rows), torch.empty(10, 1000)
    assert narrow.added_up(few, rows, total, 192)

    def again(_: int) -> bool:
        out = torch.empty(10, 1000)
        return (
            narrow.added_up(few, rows, out, 192) and torch.equal(out, total) and torch.equal(row_squares(rows), squares)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, range(40)))


def test_a_bias_is_summed_in_calls() -> None:
    """192 small terms add up before they meet a large one, which would swallow each of them."""
    grads = torch.full((384, 100), 2.0**-25)
    grads[0] = 1.0
    total = torch.empty(100)
    Dense(grads).assign(total, torch.ones(384), 1)
    assert (total > 1).all()


def test_parts_of_a_parameter_with_more_terms_elsewhere_are_summed_in_blocks() -> None:
    """Calls of one record, which the other uses ask for, are chained up to 128 only, and these chains again."""
    few, many = torch.ones(1000, 1, 1, 2), torch.full((1000, 1, 1, 100), 2.0**-14)
    many[0] = 1024.0
    total = torch.empty(2, 100)
    Outer(many, few, (2, 100)).assign(total, torch.ones(1000), 191)
    assert (total > 1024 + 800 * 2.0**-14).all()
    whole = torch.zeros(5, 100)
    parts = [
        Part(Outer(many, few, (2, 100)), Region(0, (2, 100), (100, 1))),
        Part(
            Outer(torch.ones(1000, 1, 191, 100), torch.zeros(1000, 1, 191, 3), (3, 100)),
            Region(200, (3, 100), (100, 1)),
        ),
    ]
    Uses(parts, torch.Size((5, 100))).assign(whole, torch.ones(1000))
    assert (whole[:2] > 1024 + 800 * 2.0**-14).all()


@COMPILED
def test_a_digest_is_that_of_its_definition() -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    for size in (0, 1, 17, 1024, 2500, 65_536, 140_001):
        words = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
        expected = _digest(words.tolist(), digests_module._KEY.tolist())
        assert {kernels.digests(digests_module._KEY, threads, words) for threads in (1, 2, 3)} == {(expected,)}
    largest = np.full(1026, 2**32 - 1, dtype=np.uint32)  # as large as products and points can be
    for word in (0, 2**32 - 1):
        words = np.full(3000, word, dtype=np.uint32)
        assert kernels.digests(largest, 1, words, words[1:]) == (
            _digest(words.tolist(), largest.tolist()),
            _digest(words[1:].tolist(), largest.tolist()),
        )
    with pytest.raises(ValueError, match="a key of 1026"):
        kernels.digests(digests_module._KEY[1:], 1, np.zeros(4, dtype=np.uint32))
    with pytest.raises(ValueError, match="whole words"):
        kernels.digests(digests_module._KEY, 1, np.zeros(4, dtype=np.uint8), np.zeros(5, dtype=np.uint8))
    with pytest.raises(ValueError, match="wanted"):
        kernels.digests(digests_module._KEY, 0, np.zeros(4, dtype=np.uint32))


def _digest(words: list[int], key: list[int]) -> int:
    prime = 2**61 - 1
    point, total, size = (key[1024] << 32 | key[1025]) % prime, [0] * 8, len(words)
    words = words + [0] * (-size % 1024)
    for strip in range(0, len(words), 65_536):
        value = [0] * 8
        for first in range(strip, min(strip + 65_536, len(words)), 1024):
            part = [(w + k) % 2**32 for w, k in zip(words[first : first + 1024], key)]
            for lane in range(8):
                found = sum(part[j + lane] * part[j + lane + 8] for j in range(0, 1024, 16))
                value[lane] = (value[lane] * point + found % 2**64) % prime
        total = [(each * pow(point, 64, prime) + more) % prime for each, more in zip(total, value)]
    for each in total:
        size = (size * point + each) % prime
    return size


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(40, 2)[:, 0],
        torch.zeros(5, dtype=torch.bool),
        torch.zeros(9, dtype=torch.uint8)[1:],
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3).to_sparse(),
        torch.zeros(0),
    ],
)
@pytest.mark.parametrize("copied", [True, False])
def test_tensors_of_any_kind_are_held(tensor: torch.Tensor, copied: bool) -> None:
    tensor = tensor.clone() if tensor.layout is torch.strided and tensor.is_contiguous() else tensor
    held = Snapshot(tensor, copied=copied)
    assert held.same(tensor)
    assert not held.same(tensor.clone())
    if tensor.layout is torch.strided and tensor.numel():
        tensor.fill_(1)
        assert not held.same(tensor)
        tensor.zero_()


class Flat:
    def partition(self, shapes: Any) -> Any:
        return [tuple(shapes)]

    def weights(self, norms: torch.Tensor) -> torch.Tensor:
        return (0.3 / norms).clamp(max=1.0)


@pytest.mark.parametrize("sizes", [(60, 1000, 10), (8, 300, 1), (300, 16, 300), (784, 17, 3), (40, 200, 90)])
@pytest.mark.parametrize("bad", [False, True])
def test_clipped_sums_equal_the_loop(sizes: tuple[int, int, int], bad: bool) -> None:
    """With calls that are full and not, narrow inputs, narrow outputs, and an example that is not finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))
    x, y = torch.randn(200, sizes[0]), torch.randn(200, sizes[2])
    if bad:
        y[17] = torch.nan
    with gradients.record(model, isolate=False) as tape:
        F.mse_loss(model(x), y, reduction="none").sum(1).sum().backward()
    found = tape.clipped_sum(Flat())
    expected = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in model.named_parameters()}
    for i in range(200):
        if bad and i == 17:
            continue
        loss = F.mse_loss(model(x[i : i + 1]), y[i : i + 1], reduction="sum")
        own = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([g.double().norm() for g in own]).norm()
        for total, g in zip(expected.values(), own):
            total += g.double() * min(1.0, 0.3 / norm)
    for name, total in expected.items():
        assert torch.allclose(found[name].double(), total, rtol=1e-4, atol=1e-5 * total.abs().max())


@COMPILED
def test_tensors_are_read_where_they_are_and_refused_where_that_cannot_be() -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    rows, out = torch.randn(4, 6, requires_grad=True), torch.empty(4)
    kernels.squares(rows, out, 1)
    assert torch.allclose(out, rows.square().sum(1))
    assert rows.untyped_storage().resizable()  # as after `Tensor.numpy` it would not be
    for wrong in (rows.t(), rows.detach()[:, 1:], rows.detach().to("meta")):
        with pytest.raises((BufferError, ValueError, RuntimeError)):
            kernels.squares(wrong, out, 1)
    with pytest.raises(AttributeError, match="data_ptr"):
        kernels.squares([1.0, 2.0], out, 1)  # type: ignore[arg-type]


@COMPILED
def test_all_threads_are_asked_whether_they_flush() -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    assert [kernels.flushes(threads) for threads in (1, 2)] in ([False, False], [False, None])
    if torch.set_flush_denormal(True):
        assert kernels.flushes(1) is True
        torch.set_flush_denormal(False)
    with pytest.raises(ValueError, match="0 threads"):
        kernels.flushes(0)


@COMPILED
def test_quotients_are_what_single_operations_give() -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    norms, out = torch.rand(1001, 1) * 10.0 ** torch.randint(-30, 30, (1001, 1)), torch.empty(1001, 1)
    assert kernels.quotients(0.7, norms, out) == float(norms.max())
    assert torch.equal(out, (torch.tensor(0.7) / norms).clamp_(max=1.0))
    for place in (0, 500, 1000):
        broken = norms.clone()
        broken[place] = torch.nan
        assert np.isnan(kernels.quotients(0.7, broken, out))
    with pytest.raises(ValueError, match="not as many"):
        kernels.quotients(0.7, norms, torch.empty(1000))


@COMPILED
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_division_is_that_of_single_entries(threads: int) -> None:
    kernels = digests_module.kernels
    assert kernels is not None
    values = [torch.randn(n) for n in (0, 1, 7, 32_768, 100_003)]
    expected = [v / 600.0 for v in values]
    kernels.divide(600.0, threads, *values)
    assert all(torch.equal(a, b) for a, b in zip(values, expected))
    with pytest.raises(BufferError, match="contiguous"):
        kernels.divide(2.0, threads, torch.ones(4, 4).t()[:2])
    with pytest.raises(ValueError, match="threads"):
        kernels.divide(2.0, 0, values[1])
