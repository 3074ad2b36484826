"""Calls of matrix products, and how they are added up: what the theorem of docs/finite-precision.md counts on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.gradients.factors import matrix_sums
from tacit.gradients.factors.outer import Outer
from tacit.gradients.kernels import loops as narrow
from tacit.gradients.precision import BLOCKS, CALLS, LARGEST_BATCH, adds_once, gather, one_by_one, per_call

SHAPES = [
    (64, 50, 1, 601),
    (50, 64, 1, 385),
    (64, 64, 1, 1025),
    (64, 64, 1, 193),
    (64, 64, 1, 190),
    (40, 6, 1, 601),
    (8, 50, 1, 2047),
    (64, 50, 3, 300),
    (64, 50, 2, 1100),
    (48, 48, 41, 70),
    (600, 1500, 1, 400),
    (200, 60, 1, 601),
    (260, 128, 3, 300),
    (96, 20, 5, 300),
    (64, 50, 1, 2047),
    (64, 50, 1, 2048),
    (33, 40, 1, 2049),
]
"""Width out, width in, positions, examples."""

LIBRARY = pytest.mark.parametrize("compiled", [False], indirect=True)
"""For products that a compiled sum would take over."""


@pytest.fixture(params=[True, False], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(narrow, "kernels", None)


@pytest.mark.parametrize("start", [2.0**30, 0.0])
@pytest.mark.parametrize(("width_out", "width_in", "positions", "examples"), SHAPES)
def test_every_call_reaches_the_sum_in_one_addition(
    width_out: int, width_in: int, positions: int, examples: int, start: float
) -> None:
    """Whole numbers, so that each call is exact and only the additions round: in one other place, or by one term more,
    to another result. Without 2^30 in the first call nothing rounds at all, and anything foreign shows.
    """
    generator = torch.Generator().manual_seed(0)
    records = per_call(positions)
    a = torch.randint(1, 23, (examples, 1, positions, width_in), generator=generator).float()
    g = torch.randint(1, 23, (examples, 1, positions, width_out), generator=generator).float()
    weights = 2.0 ** -torch.randint(0, 4, (examples,), generator=generator).float()
    a[:records] = 0
    g[0, 0, 0], a[0, 0, 0], weights[0] = start / 2**15, 2.0**15, 1
    before = a.clone(), g.clone()

    def call(lo: int, hi: int) -> Tensor:
        factors = weights[lo:hi].double(), g[lo:hi, 0].double(), a[lo:hi, 0].double()
        return torch.einsum("n,nto,nti->oi", *factors).float()

    expected, found = torch.empty(width_out, width_in), torch.full((width_out, width_in), torch.nan)
    gather(expected, 0, examples, records, one_by_one(call, records))
    Outer(a, g, (width_out, width_in)).assign(found, weights, positions)
    assert torch.equal(found, expected)
    assert torch.equal(a, before[0]) and torch.equal(g, before[1])


@LIBRARY
def test_a_last_call_that_would_be_added_term_by_term_is_added_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    if not adds_once(64, 50, 192, torch.float32, torch.device("cpu"), torch.get_num_threads()):
        pytest.skip("matrix products of this library add term by term")
    asked, sizes = [], []
    real = Tensor.addmm_

    def addmm_(self: Tensor, left: Tensor, right: Tensor, **options: Any) -> Tensor:
        sizes.append(left.shape[1])
        return real(self, left, right, **options)

    def only_full(width_out: int, width_in: int, terms: int, *rest: Any) -> bool:
        asked.append(terms)
        return terms == CALLS[0]

    monkeypatch.setattr(Tensor, "addmm_", addmm_)
    monkeypatch.setattr(matrix_sums, "adds_once", only_full)
    a, g, weights = torch.randn(421, 1, 1, 50), torch.randn(421, 1, 1, 64), torch.rand(421)
    found = torch.empty(64, 50)
    Outer(a, g, (64, 50)).assign(found, weights, 1)
    assert sizes == [192] and asked == [192, 48]  # 192, 192 and 37, which zeros make 48
    torch.testing.assert_close(found, torch.einsum("n,no,ni->oi", weights, g[:, 0, 0], a[:, 0, 0]))


@pytest.mark.parametrize("records", CALLS)
def test_chains_are_as_long_as_the_margin_counts(records: int) -> None:
    ranges: list[tuple[int, int]] = []

    def chain(out: Tensor, lo: int, hi: int) -> None:
        ranges.append((lo, hi))
        out.fill_(hi - lo)

    out = torch.empty(1)
    gather(out, 0, LARGEST_BATCH, records, chain)
    assert float(out) == LARGEST_BATCH
    longest = LARGEST_BATCH if records == CALLS[0] else BLOCKS[0]
    assert {hi - lo for lo, hi in ranges} == {longest}


def test_no_examples_add_up_to_zero() -> None:
    found = torch.full((64, 50), torch.nan)
    Outer(torch.empty(0, 1, 1, 50), torch.empty(0, 1, 1, 64), (64, 50)).assign(found, torch.empty(0), 1)
    assert not found.any()


@LIBRARY
@pytest.mark.parametrize(
    ("width_out", "width_in", "turned"), [(200, 60, True), (60, 200, False), (96, 20, True), (300, 129, False)]
)
def test_whether_a_product_adds_once_is_asked_of_the_product_that_is_computed(
    width_out: int, width_in: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow ones are computed transposed."""
    asked: set[tuple[int, int]] = set()
    added: set[tuple[int, int]] = set()
    addmm_ = Tensor.addmm_

    def ask(outputs: int, inputs: int, *others: Any) -> bool:
        asked.add((outputs, inputs))
        return True

    def add(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
        added.add((total.shape[0], total.shape[1]))
        return addmm_(total, left, right)

    monkeypatch.setattr(matrix_sums, "adds_once", ask)
    monkeypatch.setattr(Tensor, "addmm_", add)
    torch.manual_seed(0)
    a, g = torch.randn(500, 1, 1, width_in), torch.randn(500, 1, 1, width_out)
    total = torch.empty(width_out, width_in)
    Outer(a, g, total.shape).assign(total, torch.ones(500), 1)
    assert asked == added == {(width_in, width_out) if turned else (width_out, width_in)}
    torch.testing.assert_close(total, torch.einsum("bxyi,bxyo->oi", a, g), rtol=1e-4, atol=1e-3)
