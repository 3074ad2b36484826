"""In-place changes, views and parameters used in several ways at once: nothing may be lost on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 4


class Model(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv1d(3, 3, 2, padding=1)
        self.w, self.k = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 1))
        self.words = nn.Embedding(5, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def view_overwritten(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, :, :2] *= 2
    h[:, 0] = h[:, 1] + 1
    return m.b(h)


def sum_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h += m.b(x)
    h.relu_()
    return h * m.w.diag()


def slice_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, :2].mul_(3.0).sigmoid_()
    return m.b(h)


def output_zeroed_in_part(m: Any, x: Tensor) -> Tensor:
    h = m.b(m.a(x))
    h[:, :1].zero_()
    return h.sin()


def residual_in_place(m: Any, x: Tensor) -> Tensor:
    """The output of a linear map of sequences is a view; adding to it in place goes around the view's own node."""
    h = m.a(x)
    y = m.b(h)
    y += h
    return y


def convolution_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.c(m.a(x))
    h += 1
    h[:, :, :2].tanh_()
    return h


def lookup_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.words((x[:, :, 0] > 0).long())
    h += m.b(m.a(x))
    return h.mul_(m.w[0])


def product_in_place(m: Any, x: Tensor) -> Tensor:
    h = (m.a(x) @ m.w).mul_(2)
    out = torch.einsum("bti,oi->bot", m.b(x), m.w).transpose(1, 2)
    out += h
    return out.mul_(3).sin_()


def filled_through_views(m: Any, x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 2, 3, 4)
    out[:, 0] = m.a(x)
    out[:, 1].copy_(m.b(x))
    return out


def recurrent_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).transpose(0, 1)
    h += 1
    return m.b(h.transpose(0, 1))


USES: dict[str, Callable[..., Tensor]] = {
    "view overwritten": view_overwritten,
    "sum in place": sum_in_place,
    "slice in place": slice_in_place,
    "output zeroed in part": output_zeroed_in_part,
    "residual in place": residual_in_place,
    "convolution in place": convolution_in_place,
    "lookup in place": lookup_in_place,
    "product in place": product_in_place,
    "filled through views": filled_through_views,
    "transposed in place": recurrent_in_place,
    "matrix, its column sums and a row": lambda m, x: F.linear(x, m.w) + x * m.w.sum(0) + m.w[1],
    "parameter of higher rank": lambda m, x: (x.sum((1, 2)) * m.k).t(),
    "parameter in a leading dimension": lambda m, x: (x.unsqueeze(0) * m.k[:, :, None, None]).transpose(0, 1),
    "data repeated in a leading dimension": lambda m, x: m.a(x.expand(5, -1, -1, -1)).transpose(0, 1),
    "rows and slices": lambda m, x: x * m.w[0] + x.sin() * m.w[1] + F.linear(x, m.w[1:3]).sum(-1, keepdim=True),
    "powers of a matrix": lambda m, x: x @ m.w @ m.w.T @ m.w,
    "convolution twice": lambda m, x: m.c(m.c(x)[:, :, :4].tanh()),
    "one branch detached": lambda m, x: m.a(x).detach() * m.b(x),
    "one use detached": lambda m, x: F.linear(x, m.w.detach()) * F.linear(x, m.w),
    "cast": lambda m, x: F.linear(x, m.w.double().to(x.dtype)),
    "computed and dropped": lambda m, x: (m.a(x), m.b(x))[1],
    "cloned": lambda m, x: F.linear(x, m.w.clone()),
    "stacked": lambda m, x: torch.einsum("btd,kde->bkte", x, torch.stack([m.w, m.a.weight])),
    "joined": lambda m, x: F.linear(x, torch.cat([m.w, m.a.weight]), torch.cat([m.a.bias, m.b.bias])),
    "product of parameters": lambda m, x: x + torch.outer(m.w[0], m.a.bias).sum(0),
    "indexed by constants": lambda m, x: x * m.w[[0, 2, 3]],
    "matrix from the left": lambda m, x: torch.matmul(m.w[:3, :3], x),
    "memory network": lambda m, x: (x @ m.w.t()).softmax(-1) @ m.w,
    "maximum": lambda m, x: torch.max(x, m.w[0]),
    "clamped": lambda m, x: torch.clamp(x, min=m.w[0] - 3, max=m.w[1] + 3),
    "interpolated": lambda m, x: torch.lerp(x, m.w[:3], m.w[1].sigmoid()),
    "log-sum": lambda m, x: torch.logaddexp(x, m.w[0]),
    "bilinear form": lambda m, x: F.bilinear(x, x, m.w.unsqueeze(0).repeat(2, 1, 1)),
    "windows of a parameter": lambda m, x: F.linear(x, m.w.unfold(0, 2, 2).transpose(1, 2).reshape(4, 4)),
    "added at an index": lambda m, x: m.a(x).index_add(1, torch.tensor([0, 2]), m.b(x)[:, :2]),
}


@pytest.mark.parametrize("name", list(USES))
def test_nothing_is_lost(agree: Any, name: str) -> None:
    agree(Model(USES[name]), torch.randn(B, 3, 4), dtypes=(torch.float64,), reductions=("mean",))


def test_inputs_that_need_a_gradient_themselves(naive: Any, compare: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(B, 4, requires_grad=True)
    each = naive(model, lambda i: model(x[i : i + 1]).sum(), B)
    with gradients.record(model) as tape:
        model(x).sum(1).mean().backward()
    compare(tape, each)
    assert x.grad is not None


def test_gradients_shared_between_branches_are_not_changed(naive: Any, compare: Any) -> None:
    """Two layers that receive the very same gradient tensor: scaling one must not scale the other."""
    model = Model(lambda m, x: m.a(x) + m.b(x))
    x = torch.randn(B, 4)
    each = naive(model, lambda i: model(x[i : i + 1]).square().sum(), B)
    with gradients.record(model) as tape:
        out = model(x)
        out.retain_grad()
        out.square().sum(1).mean().backward()
    before = out.grad.clone()
    compare(tape, each)
    compare(tape, each)
    assert torch.equal(out.grad, before)
