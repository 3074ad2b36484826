"""Mean, sum or neither: known for certain, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 6


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


X, Y = torch.randn(B, 5, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 1, 2, 0, 1, 2])

LOSSES: dict[str, Any] = {
    "cross entropy": lambda o, y, r: F.cross_entropy(o, y, reduction=r),
    "smoothed": lambda o, y, r: F.cross_entropy(o, y, reduction=r, label_smoothing=0.1),
    "soft targets": lambda o, y, r: F.cross_entropy(o, F.one_hot(y, 3).to(o.dtype), reduction=r),
    "nll": lambda o, y, r: F.nll_loss(o.log_softmax(1), y, reduction=r),
    "mse of scalars": lambda o, y, r: F.mse_loss(o[:, 0], y.to(o.dtype), reduction=r),
    "l1 of scalars": lambda o, y, r: F.l1_loss(o[:, 0], y.to(o.dtype), reduction=r),
    "huber": lambda o, y, r: F.huber_loss(o.sum(1), y.to(o.dtype), reduction=r),
    "smooth l1": lambda o, y, r: F.smooth_l1_loss(o.sum(1), y.to(o.dtype), reduction=r),
    "bce": lambda o, y, r: F.binary_cross_entropy(o[:, 0].sigmoid(), (y > 0).to(o.dtype), reduction=r),
    "bce with logits": lambda o, y, r: F.binary_cross_entropy_with_logits(o[:, 0], (y > 0).to(o.dtype), reduction=r),
    "poisson": lambda o, y, r: F.poisson_nll_loss(o[:, 0], y.to(o.dtype), reduction=r),
    "gaussian": lambda o, y, r: F.gaussian_nll_loss(o[:, 0], y.to(o.dtype), o[:, 1].exp(), reduction=r),
    "hinge": lambda o, y, r: F.hinge_embedding_loss(o[:, 0], (y - 1).sign() * 2 - 1, reduction=r),
    "margin": lambda o, y, r: F.multi_margin_loss(o, y, reduction=r),
    "soft margin": lambda o, y, r: F.soft_margin_loss(o[:, 0], (y > 0).to(o.dtype) * 2 - 1, reduction=r),
    "cosine": lambda o, y, r: F.cosine_embedding_loss(o, o.roll(1, 1), (y > 0).to(o.dtype) * 2 - 1, reduction=r),
    "triplet": lambda o, y, r: F.triplet_margin_loss(o, 2 * o, 1 - o, margin=5.0, reduction=r),
    "written out": lambda o, y, r: getattr(o.logsumexp(1) - o[torch.arange(len(o)), y], r)(),
}


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("declared", [False, True])
def test_detected_and_declared_reductions_agree_with_the_oracle(
    name: str, declared: bool, model: nn.Module, naive: Any, compare: Any
) -> None:
    loss = LOSSES[name]
    each = naive(model, lambda i: loss(model(X[i : i + 1]), Y[i : i + 1], "sum"), B)
    for reduction in ("mean", "sum"):
        with gradients.record(model, reduction=reduction if declared else None) as tape:
            loss(model(X), Y, reduction).backward()
        compare(tape, each)


def test_a_mean_over_elements_is_a_mean_of_each_examples_mean(model: nn.Module, naive: Any, compare: Any) -> None:
    target = torch.randn(B, 3)
    each = naive(model, lambda i: F.mse_loss(model(X[i : i + 1]), target[i : i + 1]), B)
    with gradients.record(model) as tape:
        F.mse_loss(model(X), target).backward()
    compare(tape, each)


def test_kl_batchmean_is_a_mean(model: nn.Module, naive: Any, compare: Any) -> None:
    target = torch.randn(B, 3).softmax(1)

    def loss(o: Tensor, t: Tensor) -> Tensor:
        return F.kl_div(o.log_softmax(1), t, reduction="batchmean")

    each = naive(model, lambda i: loss(model(X[i : i + 1]), target[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss(model(X), target).backward()
    compare(tape, each)


def test_two_terms_of_the_same_kind(model: nn.Module, naive: Any, compare: Any) -> None:
    def each_loss(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(o, y) + 0.1 * o.square().mean()

    each = naive(model, lambda i: each_loss(model(X[i : i + 1]), Y[i : i + 1]), B)
    with gradients.record(model) as tape:
        each_loss(model(X), Y).backward()
    compare(tape, each)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: F.cross_entropy(o, y, reduction="sum") / 4,
        lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(o) ** 2,
        lambda o, y: F.cross_entropy(o, y) / 4,
        lambda o, y: F.cross_entropy(o, y) * 1024.0,
        lambda o, y: F.cross_entropy(o, y) + o.square().sum(),
    ],
)
def test_an_ambiguous_loss_reduction_must_be_declared(model: nn.Module, loss: Any) -> None:
    with gradients.record(model) as tape:
        loss(model(X), Y).backward()
    with pytest.raises(ValueError, match="Declare it"):
        tape.norms()


def test_declared_reductions_allow_any_scale(model: nn.Module, naive: Any, compare: Any) -> None:
    each = naive(model, lambda i: F.cross_entropy(model(X[i : i + 1]), Y[i : i + 1]), B)
    with gradients.record(model, reduction="mean") as tape:
        (F.cross_entropy(model(X), Y, reduction="sum") / B).backward()
    compare(tape, each)
    with gradients.record(model, reduction="mean") as tape:
        (F.cross_entropy(model(X), Y) / 4).backward()
    compare(tape, {n: g / 4 for n, g in each.items()})


@pytest.mark.parametrize(("declared", "actual"), [("mean", "sum"), ("sum", "mean"), ("none", "mean")])
def test_a_contradicted_declaration_is_refused(model: nn.Module, declared: Any, actual: str) -> None:
    with gradients.record(model, reduction=declared) as tape:
        F.cross_entropy(model(X), Y, reduction=actual).backward()
    with pytest.raises(ValueError, match="was declared"):
        tape.norms()


def test_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="'median'"):
        gradients.record(nn.Linear(1, 1), reduction="median")  # type: ignore[arg-type]


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).cumsum(1).tanh())


@pytest.mark.parametrize("order", ["tokens last", "classes second"])
def test_mean_over_tokens_with_ignored_ones(order: str, naive: Any, compare: Any) -> None:
    """PyTorch divides by the number of tokens that count in the whole batch: other examples would set the scale."""
    model = Tokens()
    x, y = torch.randint(0, 7, (B, 4)), torch.randint(0, 7, (B, 4))
    y[0, 1:] = -100
    y[2] = -100

    def loss(o: Tensor, t: Tensor, **options: Any) -> Tensor:
        if order == "tokens last":
            return F.cross_entropy(o.reshape(-1, 7), t.reshape(-1), **options)
        return F.cross_entropy(o.transpose(1, 2), t, **options)

    with gradients.record(model) as tape:
        loss(model(x), y, reduction="sum").backward()
    compare(tape, naive(model, lambda i: loss(model(x[i : i + 1]), y[i : i + 1], reduction="sum"), B))

    def own_mean(i: int) -> Tensor:
        value = loss(model(x[i : i + 1]), y[i : i + 1])
        return value if bool((y[i] != -100).any()) else 0 * model(x[i : i + 1]).sum()

    for declared in (None, "mean"):  # undeclared it is read in the same way, in every batch
        with gradients.record(model, reduction=declared) as tape:
            loss(model(x), y).backward()
        compare(tape, naive(model, own_mean, B))
    full = y.clamp_min(0)
    with gradients.record(model) as tape:
        loss(model(x), full).backward()
    compare(tape, naive(model, lambda i: loss(model(x[i : i + 1]), full[i : i + 1]), B))


PICKED: dict[str, Any] = {
    "mean": lambda o, y, kept: (o.sum(-1) - y)[kept].square().mean(),
    "mean of rows": lambda o, y, kept: o[kept].sin().mean(0).sum(),
    "loss of the library": lambda o, y, kept: F.mse_loss(o.sum(-1)[kept], y[kept]),
    "binary cross-entropy": lambda o, y, kept: F.binary_cross_entropy_with_logits(o[kept][:, 0], y[kept]),
    "divided by the count": lambda o, y, kept: (o.sum(-1) - y)[kept].square().sum() / kept.sum(),
    "mean over the mean": lambda o, y, kept: (o.sum(-1).square() * kept).mean() / kept.to(o.dtype).mean(),
}  # fmt: skip
"""Losses of the rows that a mask has picked."""


@pytest.mark.parametrize("name", PICKED)
def test_a_mean_over_picked_rows_is_the_mean_of_the_examples_own_means(name: str, naive: Any, compare: Any) -> None:
    model, x, loss = nn.Linear(5, 3).double(), torch.randn(B, 4, 5, dtype=torch.float64), PICKED[name]
    y, kept = torch.rand(B, 4, dtype=torch.float64), torch.rand(B, 4) < 0.5
    kept[0], kept[1] = True, False

    def own_mean(i: int) -> Tensor:
        one = slice(i, i + 1)
        return loss(model(x[one]), y[one], kept[one]) if kept[i].any() else 0 * model(x[one]).sum()

    each = naive(model, own_mean, B)
    engine = gradients.attach(model)
    given = engine.trace((x, y, kept), B)
    loss(model(given[0]), *given[1:]).backward()
    compare(engine, each)
    engine.detach()
    engine = gradients.attach(model, reduction="sum")
    given = engine.trace((x, y, kept), B)
    with pytest.raises(ValueError, match="no per-example gradients"):
        loss(model(given[0]), *given[1:]).backward()
    engine.detach()


MIXING_PICKED: dict[str, Any] = {
    "centred": lambda o, y, kept: (o[kept] - o[kept].mean(0)).square().mean(),
    "root of the mean": lambda o, y, kept: o[kept].square().mean().sqrt(),
    "weighted": lambda o, y, kept: (o.sum(-1) * y)[kept].sum() / y[kept].sum(),
    "counted with others": lambda o, y, kept: o[:, 0, 0].square().sum() / kept[:, 0].sum().clamp(min=1),
    "weighted by numbers": lambda o, y, kept: (o.sum((1, 2)) * kept.sum(1)).sum() / (3 * kept[:, 0].long()).sum(),
}


@pytest.mark.parametrize("name", MIXING_PICKED)
def test_a_mean_over_picked_rows_that_goes_on_to_mix_is_refused(name: str) -> None:
    engine = gradients.attach(model := nn.Linear(5, 3))
    x, y, kept = engine.trace((torch.randn(B, 4, 5), torch.rand(B, 4), torch.rand(B, 4) < 0.5), B)
    with pytest.raises(ValueError, match="no per-example gradients"):
        MIXING_PICKED[name](model(x), y, kept).backward()
    engine.detach()


def test_mean_with_class_weights(model: nn.Module, naive: Any, compare: Any) -> None:
    weight = torch.tensor([1.0, 2.0, 5.0])
    with pytest.raises(ValueError, match="number \\(or weight\\)"), gradients.record(model):
        F.cross_entropy(model(X), Y, weight).backward()
    with gradients.record(model, reduction="mean") as tape:
        F.cross_entropy(model(X), Y, weight).backward()
    compare(tape, naive(model, lambda i: F.cross_entropy(model(X[i : i + 1]), Y[i : i + 1], weight), B))


def test_dividing_by_a_count_of_the_batch_is_refused_where_a_sum_was_declared() -> None:
    """Undeclared it is the mean of the examples' own means (test_model_patterns)."""
    model = Tokens()
    x = torch.randint(0, 7, (B, 4))
    with gradients.record(model, reduction="sum"):
        out = model(x)
        mask = (out.argmax(-1) > 2).float()
        loss = (out.square().sum(-1) * mask).sum() / mask.sum()
        with pytest.raises(ValueError, match="whole batch"):
            loss.backward()


def test_a_nonlinear_function_of_the_mean_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="non-linear"), gradients.record(model):
        F.mse_loss(model(X), torch.zeros(B, 3)).sqrt().backward()


def test_a_batch_of_one_squeezed_to_a_scalar(naive: Any, compare: Any) -> None:
    model, x = nn.Linear(5, 1), torch.randn(1, 5)
    target = torch.tensor(0.3)
    each = naive(model, lambda i: F.mse_loss(model(x).squeeze(), target), 1)
    with gradients.record(model) as tape:
        F.mse_loss(model(x).squeeze(), target).backward()
    compare(tape, each)


def test_a_batch_of_one(model: nn.Module, naive: Any, compare: Any) -> None:
    each = naive(model, lambda i: F.cross_entropy(model(X[:1]), Y[:1]), 1)
    for reduction in ("mean", "sum"):
        with gradients.record(model) as tape:
            F.cross_entropy(model(X[:1]), Y[:1], reduction=reduction).backward()
        compare(tape, each)


@pytest.mark.parametrize("declared", ["mean", "sum"])
def test_a_part_of_the_loss_that_contradicts_what_was_declared(declared: Any) -> None:
    """Its share of every example's loss would have the number of examples as a factor."""
    model = nn.Linear(4, 3)
    with gradients.record(model, reduction=declared) as tape:
        out = model(torch.randn(6, 4))
        (out.sin().mean() + out.cos().sum()).backward()
    with pytest.raises(ValueError, match="was declared"):
        tape.norms()


def test_a_sum_over_the_number_of_examples_is_a_mean_in_every_batch_or_in_none() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    engine = gradients.attach(model)
    for size in (4, 1, 6):
        x = torch.randn(size, 3)
        wanted = torch.cat([x, torch.ones(size, 1)], 1).norm(dim=1) * 2**0.5
        (model(x).sum() / size).backward()
        torch.testing.assert_close(engine.norms(), wanted, rtol=1e-5, atol=1e-6)
        engine.discard()
    (model(torch.randn(6, 3)).sum() / 4).backward()  # the size of the first batch, as a constant
    with pytest.raises(ValueError, match="reduction cannot be told"):
        engine.norms()


def test_a_sum_that_was_not_divided_at_first_may_not_be_divided_later() -> None:
    model = nn.Linear(3, 2)
    engine = gradients.attach(model)
    model(torch.randn(5, 3)).sum().backward()
    engine.norms()
    engine.discard()
    (model(torch.randn(4, 3)).sum() / 4).backward()
    with pytest.raises(ValueError, match="reduction cannot be told"):
        engine.norms()
