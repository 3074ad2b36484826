"""Linear maps, forwards and backwards: what float64 says, and each row the same to the last bit beside any others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from tacit._threads import threads
from tacit.gradients.kernels import batch_invariant_matmul as alike

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 65, 191, 192, 193, 400]))


def close(found: Tensor, exact: Tensor, size: Tensor) -> bool:
    """Up to the rounding of so many terms, measured by the sum of their absolute values."""
    return bool(((found.double() - exact).abs() <= 400 * 2.0**-24 * size).all())


@given(rows=SIZES, inputs=SIZES, outputs=SIZES, bias=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
@torch.no_grad()
def test_it_is_the_product(rows: int, inputs: int, outputs: int, bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, w, g = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (rows, outputs)))
    b = torch.randn(outputs, generator=generator) if bias else None
    exact = F.linear(x.double(), w.double(), None if b is None else b.double())
    assert close(alike.linear(x, w, b), exact, F.linear(x.abs(), w.abs(), None if b is None else b.abs()))
    assert close(alike.linear_backward(g, w), g.double() @ w.double(), g.abs() @ w.abs())


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 40), (40, 3), (16, 16), (17, 33), (200, 10), (10, 200)])
@torch.no_grad()
def test_a_row_is_the_same_in_every_place_beside_any_others(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, w, b, g = torch.randn(70, inputs), torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(70, outputs)
    out, back = alike.linear(x, w, b), alike.linear_backward(g, w)
    for rows in (*range(1, 20), 33, 69):
        for first in (0, 1, 70 - rows):
            here = slice(first, first + rows)
            assert torch.equal(alike.linear(x[here], w, b), out[here]), (rows, first)
            assert torch.equal(alike.linear_backward(g[here], w), back[here]), (rows, first)


@torch.no_grad()
def test_it_does_not_matter_how_the_factors_lie_in_memory() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(6, 5, 20), torch.randn(30, 20), torch.randn(30)
    out = alike.linear(x, w, b)
    assert out.shape == (6, 5, 30)
    others = x.mT.contiguous().mT, torch.cat([x, x], dim=-1)[..., :20], x.transpose(0, 1).contiguous().transpose(0, 1)
    for other in others:
        assert torch.equal(alike.linear(other, w, b), out)
    assert torch.equal(alike.linear(x, w.t().contiguous().t(), torch.stack([b, b], 1)[:, 0]), out)


@torch.no_grad()
def test_weights_of_which_only_a_part_is_copied_at_a_time() -> None:
    """More than four megabytes."""
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(*s, generator=generator) for s in ((11, 1050), (1100, 1050), (11, 1100)))
    b = torch.randn(1100, generator=generator)
    out, back = alike.linear(x, w, b), alike.linear_backward(g, w)
    assert torch.allclose(out.double(), F.linear(x.double(), w.double(), b.double()), atol=1e-3)
    assert torch.allclose(back.double(), g.double() @ w.double(), atol=1e-3)
    assert torch.equal(alike.linear(x[3:4], w, b), out[3:4])


@torch.no_grad()
def test_linear_falls_back_to_pytorch_for_inputs_the_kernel_cannot_read() -> None:
    x, w = torch.randn(9, 30), torch.randn(18, 30)
    assert torch.allclose(alike.linear(torch._neg_view(x), w, None), -F.linear(x, w), atol=1e-5)
    pair = alike.linear(x, TwoTensor(w, w.clone()), None)
    assert isinstance(pair, TwoTensor)
    assert torch.allclose(pair.a, F.linear(x, w), atol=1e-5)
    assert alike.linear(x[:0], w, None).shape == (0, 18)
    with pytest.raises(RuntimeError, match="9x29 and 30x18"):
        alike.linear(x[:, :29], w, None)


@torch.no_grad()
def test_several_threads_find_the_same() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(301, 67), torch.randn(45, 67), torch.randn(45)
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert threads() == count
            found.append(alike.linear(x, w, b))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.no_grad()
def test_a_row_that_is_not_finite_stays_by_itself() -> None:
    x, w = torch.randn(21, 30), torch.randn(18, 30)
    x[20, 3], x[7, 1] = torch.nan, torch.inf
    bad = [i in (7, 20) for i in range(21)]
    assert alike.linear(x, w, None).isfinite().all(1).logical_not().tolist() == bad
    assert alike.linear_backward(x, w.t().contiguous()).isfinite().all(1).logical_not().tolist() == bad


def test_linear_falls_back_to_pytorch_under_autograd_autocast_and_float64() -> None:
    x, w = torch.randn(9, 30, requires_grad=True), torch.randn(18, 30)
    alike.linear(x, w, None).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, w.sum(0).expand(9, 30), atol=1e-5)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert alike.linear(x[:, :4], w[:, :4], None).dtype == torch.bfloat16
    with torch.no_grad():
        assert alike.linear(x.double(), w.double(), None).dtype == torch.float64


@pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)
def test_sizes_that_do_not_fit_are_refused() -> None:
    assert alike.kernels is not None

    def array(*shape: int) -> Any:
        return np.ones(shape, dtype=np.float32)

    right = array(4, 3), array(5, 3), array(5), array(4, 5), 3, 1, 1
    alike.kernels.linear(*right)
    assert (right[3] == 4).all()
    arrays = (0, array(4, 4)), (0, array(0)), (1, array(5, 4)), (1, array(0)), (2, array(4)), (3, array(5, 5))
    for i, wrong in (*arrays, (4, 0), (4, 5), (6, 0), (6, 2**40)):
        with pytest.raises(ValueError, match="do not fit"):
            alike.kernels.linear(*right[:i], wrong, *right[i + 1 :])
    with pytest.raises(TypeError, match="7 arguments"):
        alike.kernels.linear(*right[:6])  # type: ignore[call-arg]
