"""Whatever argument of an operation data of the batch is put into: it is refused, or nobody else's gradient moves.

Each operation is run with each of its arguments being data (records first, last or second), a trained parameter or a
constant; all sizes are those of the batch, so that no shape gives anything away.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 5
VECTOR, MATRIX, CUBE = (B,), (B, B), (B, B, B)
Shapes = list[tuple[int, ...]]


def _index(t: Tensor) -> Tensor:
    return (t > 0).long() + 1


def _recurrent(kind: str, gates: int, batch_first: bool) -> Callable[..., Tensor]:
    def run(x: Tensor, h: Tensor, w: Tensor, v: Tensor, b: Tensor) -> Tensor:
        weights = [w.repeat(gates, 1), v.repeat(gates, 1), b.repeat(gates), b.repeat(gates)]
        state = h.unsqueeze(0)
        hx = (state, state) if kind == "lstm" else state
        out: Tensor = getattr(torch, kind)(x, hx, weights, True, 1, 0.0, False, False, batch_first)[0]
        return out

    return run


def _attention(q: Tensor, k: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    out = F.multi_head_attention_forward(
        q, k, k, B, 1, w.repeat(3, 1), None, None, None, False, 0.0, torch.eye(B), None, attn_mask=mask
    )[0]
    return out


OPERATIONS: dict[str, tuple[Callable[..., Tensor], Shapes]] = {
    "conv1d": (F.conv1d, [(B, B, 6), (B, B, 2), VECTOR]),
    "conv2d": (F.conv2d, [(B, B, 5, 5), (B, B, 2, 2), VECTOR]),
    "conv2d by name": (lambda x, w, b: torch.conv2d(bias=b, weight=w, input=x), [(B, B, 5, 5), (B, B, 2, 2), VECTOR]),
    "conv2d, groups": (lambda x, w, b: F.conv2d(x, w, b, groups=B), [(B, B, 5, 5), (B, 1, 2, 2), VECTOR]),
    "conv3d": (F.conv3d, [(B, B, 3, 3, 3), (B, B, 2, 2, 2), VECTOR]),
    "conv_transpose1d": (F.conv_transpose1d, [(B, B, 6), (B, B, 2), VECTOR]),
    "conv_transpose2d": (F.conv_transpose2d, [(B, B, 4, 4), (B, B, 2, 2), VECTOR]),
    "conv_transpose3d": (F.conv_transpose3d, [(B, B, 3, 3, 3), (B, B, 2, 2, 2), VECTOR]),
    "linear": (F.linear, [MATRIX, MATRIX, VECTOR]),
    "linear, positions": (F.linear, [CUBE, MATRIX, VECTOR]),
    "bilinear": (F.bilinear, [MATRIX, MATRIX, CUBE, VECTOR]),
    "addmm": (torch.addmm, [VECTOR, MATRIX, MATRIX]),
    "baddbmm": (torch.baddbmm, [CUBE, CUBE, CUBE]),
    "matmul": (torch.matmul, [CUBE, MATRIX]),
    "matmul by name": (lambda x, w: torch.matmul(other=w, input=x), [CUBE, MATRIX]),
    "addmm by name": (lambda b, x, w: torch.addmm(mat2=w, mat1=x, input=b), [VECTOR, MATRIX, MATRIX]),
    "baddbmm by name": (lambda b, x, w: torch.baddbmm(b, batch2=w, batch1=x), [CUBE, CUBE, CUBE]),
    "einsum": (lambda x, w, v: torch.einsum("ij,jk,ki->ik", x, w, v), [MATRIX, MATRIX, MATRIX]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 1, w, b), [CUBE, VECTOR, VECTOR]),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [CUBE, VECTOR, VECTOR]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, VECTOR, w, b), [CUBE, VECTOR, VECTOR]),
    "layer_norm, two": (lambda x, w, b: F.layer_norm(x, MATRIX, w, b), [CUBE, MATRIX, MATRIX]),
    "rms_norm": (lambda x, w: F.rms_norm(x, VECTOR, w), [CUBE, VECTOR]),
    "batch_norm": (lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), [CUBE, VECTOR, VECTOR, VECTOR, VECTOR]),
    "prelu": (F.prelu, [CUBE, VECTOR]),
    "embedding": (lambda x, w: F.embedding(_index(x), w), [MATRIX, MATRIX]),
    "embedding_bag": (
        lambda x, w, s: F.embedding_bag(_index(x), w, mode="sum", per_sample_weights=s),
        [MATRIX, MATRIX, MATRIX],
    ),
    "attention": (F.scaled_dot_product_attention, [CUBE, CUBE, CUBE, MATRIX]),
    "multi-head attention": (_attention, [CUBE, CUBE, MATRIX, MATRIX]),
    "lstm": (_recurrent("lstm", 4, False), [CUBE, MATRIX, MATRIX, MATRIX, VECTOR]),
    "lstm, records first": (_recurrent("lstm", 4, True), [CUBE, MATRIX, MATRIX, MATRIX, VECTOR]),
    "gru": (_recurrent("gru", 3, True), [CUBE, MATRIX, MATRIX, MATRIX, VECTOR]),
    "rnn": (_recurrent("rnn_tanh", 1, True), [CUBE, MATRIX, MATRIX, MATRIX, VECTOR]),
    "lstm cell": (lambda x, h, w: torch.lstm_cell(x, (h, h), w.repeat(4, 1), w.repeat(4, 1))[0], [MATRIX] * 3),
    "where": (lambda c, x, y: torch.where(c > 0, x, y), [MATRIX, MATRIX, VECTOR]),
    "lerp": (torch.lerp, [MATRIX, VECTOR, MATRIX]),
    "gather": (lambda x, i: x.gather(1, _index(i)), [MATRIX, MATRIX]),
    "gather records": (lambda x, i: x.gather(0, _index(i)), [MATRIX, MATRIX]),
    "index_select": (lambda x, i: x.index_select(1, _index(i)), [MATRIX, VECTOR]),
    "index": (lambda x, i: x[torch.arange(B), _index(i)], [MATRIX, VECTOR]),
    "cat": (lambda x, y: torch.cat([x, y], 1), [MATRIX, MATRIX]),
    "diff": (lambda x, y: torch.diff(x, dim=1, prepend=y), [MATRIX, MATRIX]),
    "repeat_interleave": (lambda x, r: x.repeat_interleave(_index(r), dim=1)[:, :B], [MATRIX, VECTOR]),
    "tensor_split": (lambda x, r: x.tensor_split(_index(r)[:1], dim=1)[0][:, :1], [MATRIX, VECTOR]),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), [(B, B, 4, 4), (B, B, B, 2)]),
    "cosine_similarity": (F.cosine_similarity, [MATRIX, MATRIX]),
    "mse": (lambda x, y: F.mse_loss(x, y, reduction="none"), [MATRIX, MATRIX]),
    "cross entropy": (lambda x, y: F.cross_entropy(x, _index(y), reduction="none"), [MATRIX, VECTOR]),
    "binary": (
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p, reduction="none"),
        [MATRIX, MATRIX, VECTOR, VECTOR],
    ),
}

FIRST, LAST, SECOND, TRAINED, CONSTANT = "first", "last", "second", "trained", "constant"
REFUSED = (ValueError, RuntimeError, NotImplementedError)


def _given(shape: tuple[int, ...], role: str) -> tuple[int, ...] | None:
    """The shape, records first, of data that is turned into an argument; nothing where there is none."""
    if role == FIRST:
        return shape if shape[0] == B else None
    if role == LAST:
        return (B, *shape[:-1]) if len(shape) > 1 and shape[-1] == B else None
    return (B, shape[0], *shape[2:]) if len(shape) > 2 and shape[1] == B else None


class Applied(nn.Module):
    def __init__(self, operation: Callable[..., Tensor], shapes: Shapes, roles: tuple[str, ...]) -> None:
        super().__init__()
        self.operation, self.roles = operation, roles
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        self.values = nn.ParameterList(nn.Parameter(v, requires_grad=r == TRAINED) for v, r in zip(values, roles))
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, *data: Tensor) -> Tensor:
        rest = iter(data)
        turned = {FIRST: lambda t: t, LAST: lambda t: t.movedim(0, -1), SECOND: lambda t: t.movedim(0, 1)}
        args = [turned[r](next(rest)) if r in turned else v for r, v in zip(self.roles, self.values)]
        return torch.sin(self.operation(*args) * self.scale)


def _norms(model: nn.Module, data: list[Tensor]) -> Tensor:
    """By what operations show alone: constants with a row for each example fit no other number of examples."""
    with gradients.record(model) as tape:
        model(*data).sum().backward()
    return tape.norms().clone()


def _ways(shapes: Shapes) -> Iterator[tuple[tuple[str, ...], Shapes]]:
    """Roles for all arguments, at most two of them data."""
    for roles in itertools.product((FIRST, LAST, SECOND, TRAINED, CONSTANT), repeat=len(shapes)):
        data = [(shape, role) for shape, role in zip(shapes, roles) if role not in (TRAINED, CONSTANT)]
        given = [_given(shape, role) for shape, role in data]
        if 1 <= len(given) <= 2:
            found = [shape for shape in given if shape is not None]
            if len(found) == len(given):
                yield roles, found


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("without_isolation")
def test_data_in_any_argument_is_refused_or_stays_its_own(name: str) -> None:
    operation, shapes = OPERATIONS[name]
    accepted = 0
    for roles, given in _ways(shapes):
        generator = torch.Generator().manual_seed(1)
        data = [torch.rand(shape, generator=generator) + 0.1 for shape in given]
        changed = [torch.cat([t[:-1], 1.5 - 2 * t[-1:]]) for t in data]
        try:
            before, after = (_norms(Applied(operation, shapes, roles), each) for each in (data, changed))
        except REFUSED:
            continue
        accepted += 1
        assert torch.allclose(before[:-1], after[:-1], rtol=1e-3, atol=1e-4), roles
    assert accepted, "an operation that is never accepted shows nothing"


def test_the_refusal_of_prelu_names_the_batch_data_in_its_weight() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(B, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(F.prelu(x, x[:, 0]))
            return out

    with (
        gradients.record(model := Own()),
        pytest.raises(ValueError, match="`prelu` has data of the batch for a weight"),
    ):
        model(torch.randn(MATRIX))


def test_an_argument_that_is_given_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Any:
            return F.conv2d(x, x) * self.scale

    with gradients.record(model := Twice()), pytest.raises(ValueError, match="example"):
        model(torch.randn(B, B, 3, 3)).sum().backward()
