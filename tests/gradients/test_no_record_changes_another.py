"""One example's data in another's gradient: each case changes one record and looks at the others' norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 6
X = torch.randn(B, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 0, 1, 2, 1, 0])
P = torch.tensor([5, 0, 1, 2, 3, 4])
REFUSED = (ValueError, RuntimeError)

Body = Callable[[nn.Sequential, Tensor, Tensor], Any]


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def _others_move(body: Body) -> bool:
    """Whether the norms of the others change with the last record."""
    norms = []
    for changed in (False, True):
        x, y = X.clone(), Y.clone()
        if changed:
            x[-1], y[-1] = 3 - 7 * x[-1], 1
        model = _net()
        engine = gradients.attach(model)
        try:
            x, y = engine.trace((x, y), B)
            body(model, x, y)
            norms.append(engine.norms().clone())
        finally:
            engine.detach()
    return not torch.allclose(norms[0][:-1], norms[1][:-1], rtol=1e-4)


REASONS = "no per-example gradients|computed from an earlier batch|refer to a single memory location"
"""Ours, and PyTorch's own where memory is written to that is read."""


def _refused(body: Body, match: str = REASONS) -> None:
    with pytest.raises(REFUSED, match=match):
        assert not _others_move(body), "one record moved the norms of others"


LOSSES: dict[str, Callable[[Tensor, Tensor, str], Tensor]] = {
    "mse": lambda a, b, r: F.mse_loss(a, b, reduction=r),
    "l1": lambda a, b, r: F.l1_loss(a, b, reduction=r),
    "smooth l1": lambda a, b, r: F.smooth_l1_loss(a, b, reduction=r),
    "huber": lambda a, b, r: F.huber_loss(a, b, reduction=r),
    "binary": lambda a, b, r: F.binary_cross_entropy(a.sigmoid(), b.sigmoid(), reduction=r),
    "binary logits": lambda a, b, r: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction=r),
    "kl": lambda a, b, r: F.kl_div(a.log_softmax(1), b.softmax(1), reduction=r),
    "poisson": lambda a, b, r: F.poisson_nll_loss(a, b.exp(), reduction=r),
    "soft margin": lambda a, b, r: F.soft_margin_loss(a, b.tanh(), reduction=r),
    "hinge": lambda a, b, r: F.hinge_embedding_loss(a, b.sign(), reduction=r),
    "cosine": lambda a, b, r: F.cosine_embedding_loss(a, b, torch.ones(len(a)), reduction=r),
    "cosine target": lambda a, b, r: F.cosine_embedding_loss(a, a * a, b[:, 0].sign(), reduction=r),
    "ranking": lambda a, b, r: F.margin_ranking_loss(a[:, 0], b[:, 0], torch.ones(len(a)), 9.0, reduction=r),
    "triplet": lambda a, b, r: F.triplet_margin_loss(a, a * 0.9, b, margin=5.0, reduction=r),
    "multi margin": lambda a, b, r: F.multi_margin_loss(a, b.argmax(1), reduction=r),
    "multilabel": lambda a, b, r: F.multilabel_margin_loss(a, b.argsort(1), reduction=r),
    "cross entropy": lambda a, b, r: F.cross_entropy(a, b.argmax(1), reduction=r),
    "probabilities": lambda a, b, r: F.cross_entropy(a, b.softmax(1), reduction=r),
    "nll": lambda a, b, r: F.nll_loss(a.log_softmax(1), b.argmax(1), reduction=r),
    "ctc": lambda a, b, r: F.ctc_loss(
        a.log_softmax(1).unsqueeze(0), b.argmax(1, keepdim=True).clamp_min(1), (1,) * len(a), (1,) * len(a), reduction=r
    ),
}


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_argument_of_a_loss_belongs_to_the_same_examples(name: str, reduction: str) -> None:
    def apart(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out = model(x)
        LOSSES[name](out, out[P].detach(), reduction).sum().backward()

    def together(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out = model(x)
        LOSSES[name](out[P], (2 * out)[P].detach(), reduction).sum().backward()

    _refused(apart, "no per-example gradients")
    assert not _others_move(together)


def _declared_mean_of_counted(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x)[P], y, weight=torch.ones(3)).backward()


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x, y: F.cross_entropy(m(x)[P], y, reduction="sum").backward(),
        lambda m, x, y: F.cross_entropy(torch.stack([*m(x)][::-1]), y, reduction="none").sum().backward(),
        lambda m, x, y: F.cross_entropy(m(x).T, torch.zeros(3, dtype=torch.long), reduction="sum").backward(),
        lambda m, x, y: F.cross_entropy(m(x)[:, 0], torch.tensor(2), reduction="sum").backward(),
        lambda m, x, y: F.triplet_margin_loss(m(x).T, m(x).T * 0.9, m(x).T * 2, reduction="sum").backward(),
        _declared_mean_of_counted,
    ],
)
def test_examples_in_the_wrong_place_of_a_loss(body: Body) -> None:
    _refused(body, "no per-example gradients")


def test_a_declared_mean_of_targets_in_another_order() -> None:
    model = _net()
    with gradients.record(model, reduction="mean") as tape:
        x, y = tape.trace((X, Y), B)
        loss = F.cross_entropy(model(x)[P], y, weight=torch.ones(3))
        with pytest.raises(ValueError, match="no per-example"):
            loss.backward()


def _foreach(h: Tensor) -> None:
    torch._foreach_add_([h[0]], [h[1].detach()])


def _kept_view(h: Tensor) -> None:
    view = h[:, :4]
    view.sub_(view.mean(0))


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "statistics through a slice": _kept_view,
    "statistics, unnamed": lambda h: h[:, :4].sub_(h[:, :4].mean(0)),
    "augmented": lambda h: h[:, :4].__isub__(h[:, :4].mean(0)),
    "row": lambda h: h[0].add_(h[-1]),
    "select": lambda h: h.select(0, 0).add_(h.select(0, B - 1)),
    "rows": lambda h: h[0:1].mul_(h[B - 1 :]),
    "several rows": lambda h: h[0:2].copy_(h[B - 2 :].detach()),
    "copied": lambda h: h[0].copy_(h[-1].detach()),
    "out": lambda h: torch.add(h[0].detach(), h[-1].detach(), out=h.detach()[0]),
    "transposed": lambda h: h.T[:, 0].add_(h.T[:, -1].detach()),
    "detached": lambda h: h.detach()[0].add_(h.detach()[-1]),
    "data": lambda h: h.data[0].add_(h.data[-1]),
    "all of the data": lambda h: h.data.copy_(h.data.flip(0)),
    "flat": lambda h: h.view(-1)[:8].add_(h.view(-1)[-8:].detach()),
    "narrow": lambda h: h.narrow(0, 0, 1).add_(h.narrow(0, B - 1, 1).detach()),
    "foreach": _foreach,
    "diagonal": lambda h: h.diagonal().copy_(h.detach()[-1, :B]),
    "assigned": lambda h: h[:, :2].__setitem__((slice(None), 0), h.detach().mean()),
    "scattered": lambda h: h.scatter_(0, P[:, None].expand(B, 8), h.detach() * 2),
    "index_add": lambda h: h.index_add_(0, P, h.detach()),
    "turned": lambda h: h.transpose_(0, 1),
}


class Written(nn.Module):
    def __init__(self, write: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.write = write

    def forward(self, h: Tensor) -> Tensor:
        h = h * 1
        self.write(h)
        return torch.sin(3 * h)


@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views(name: str) -> None:
    def inside(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        model[1] = Written(WRITES[name])
        F.cross_entropy(model(x), y, reduction="sum").backward()

    def before(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        WRITES[name](x)
        F.cross_entropy(model(x), y, reduction="sum").backward()

    _refused(inside)
    _refused(before)


def _buffer(h: Tensor) -> None:
    kept = torch.zeros(B, 8)
    view = kept.T
    kept.copy_(h.detach() - h.detach().mean(0))
    h.add_(view.T)


def test_writes_into_a_constant_that_has_another_name() -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        model[1] = Written(_buffer)
        F.cross_entropy(model(x), y, reduction="sum").backward()

    _refused(body)


OWN_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "relu": lambda h: h.relu_(),
    "column": lambda h: h[:, 0].mul_(2),
    "own mean": lambda h: h[:, :4].sub_(h[:, :4].mean(1, keepdim=True)),
    "noise": lambda h: h.add_(torch.ones(len(h), 8)),
    "assigned": lambda h: h.__setitem__((slice(None), 0), h[:, 1].detach()),
    "one-hot": lambda h: h.mul_(torch.zeros(len(h), 8).scatter_(1, h.detach().argmax(1, keepdim=True), 1.0)),
    "dropout": lambda h: F.dropout(h, 0.0, inplace=True),
}


@pytest.mark.parametrize("name", OWN_WRITES)
def test_writes_within_each_example(name: str) -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        model[1] = Written(OWN_WRITES[name])
        F.cross_entropy(model(x), y, reduction="sum").backward()

    assert not _others_move(body)


BY_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "row": lambda h: h[0].mul_(2),
    "rows": lambda h: h[0:2].mul_(2),
    "own row": lambda h: h[0].sub_(h[0].detach().mean()),
}


@pytest.mark.parametrize("name", BY_PLACE)
def test_writes_at_fixed_places_of_the_batch_are_refused(name: str) -> None:
    """Nobody else's data enters, but who is first depends on who else was drawn."""

    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        model[1] = Written(BY_PLACE[name])
        F.cross_entropy(model(x), y, reduction="sum").backward()

    _refused(body, "changes with the other examples")


def test_sums_for_logging_are_gathered_in_place(flat: Any) -> None:
    model, total, table = _net(), torch.zeros(()), torch.zeros(3)
    engine = gradients.attach(model)
    for _ in range(3):
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        total += loss.detach()
        table[0] += loss.detach()
        engine.clipped_sum(flat(1.0))
    assert float(total) == float(table[0]) == pytest.approx(3 * float(loss))
    engine.detach()


def test_data_of_the_batch_in_parameters_is_refused() -> None:
    def written(model: Any, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            model[0].bias.add_(x.mean(0))

    for body in (written, lambda m, x, y: m[0].bias.data.add_(x.mean(0))):
        _refused(body, "no per-example gradients")


def test_gradients_left_in_tensors_of_the_batch() -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        x = x.clone().requires_grad_(True)
        model(x).square().sum().backward()
        assert x.grad is not None and float(x.grad.abs().sum()) > 0  # to look at is fine
        F.cross_entropy(model((x + x.grad / x.grad.norm()).detach()), y, reduction="sum").backward()

    _refused(body, "`.grad` of a tensor of the batch")


@pytest.mark.parametrize("loss", [lambda o, y: F.cross_entropy(o, y), lambda o, y: o.square().mean() + o.sum()])
def test_input_gradients_of_a_mean_depend_on_the_number_of_examples(loss: Any) -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(loss(model(x), y), x)
        F.cross_entropy(model((x + 20 * slope).detach()), y).backward()

    _refused(body, "use a sum")


def test_input_gradients_of_a_sum_are_each_examples_own() -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), x)
        F.cross_entropy(model((x + 20 * slope).detach()), y).backward()

    assert not _others_move(body)


class Mixing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad - grad.mean(0)


def test_mixing_in_the_backward_pass() -> None:
    def tensor_hook(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out = model(x)
        out.register_hook(lambda g: g / g.norm())
        F.cross_entropy(out, y, reduction="sum").backward()

    def module_hook(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        model[1].register_full_backward_hook(lambda m, i, o: (i[0] / i[0].norm(),))
        F.cross_entropy(model(x), y, reduction="sum").backward()

    def function(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(Mixing.apply(model(x)), y, reduction="sum").backward()

    def in_place(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out = model(x)
        out.register_hook(lambda g: (g.div_(2), None)[1])
        F.cross_entropy(out, y, reduction="sum").backward()

    def remembered(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out, kept = model(x), []
        out.register_hook(lambda g: kept.append(g.norm()))
        F.cross_entropy(out, y, reduction="sum").backward(retain_graph=True)
        (out * kept[0]).sum().backward()

    _refused(in_place, "gradient hook")
    _refused(remembered, "gradient hook")
    _refused(tensor_hook, "gradient hook")
    _refused(module_hook, "backward hook")
    _refused(function, "custom autograd function 'Mixing'")


def test_hooks_may_look_on() -> None:
    seen: list[int] = []

    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        out = model(x)
        out.register_hook(lambda g: seen.append(g.ndim))
        F.cross_entropy(out, y, reduction="sum").backward()

    assert not _others_move(body)
    assert seen == [2, 2]


@pytest.mark.parametrize("use", [lambda z: z, lambda z: z * 1, lambda z: z.detach(), lambda z: z.data])
def test_another_call_of_the_model_does_not_make_mixed_data_acceptable(use: Any) -> None:
    def body(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        mixed = x - x.mean(0)
        model(torch.randn(3, 8))
        F.cross_entropy(model(use(mixed)), Y, reduction="sum").backward()

    _refused(body)


def test_memory_shared_with_numpy_is_not_surely_the_same_examples() -> None:
    array = X.numpy().copy()
    shared, model = torch.from_numpy(array), _net()
    engine = gradients.attach(model)
    F.cross_entropy(model(shared), Y).backward()
    array[:] = np.flip(array, 0).copy()
    loss = F.cross_entropy(model(shared), Y)
    with pytest.raises(RuntimeError, match="another batch"):
        loss.backward()
    engine.detach()
