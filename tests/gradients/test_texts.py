"""Error texts do not tell how many records a batch has: under Poisson sampling that number is private."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacit import gradients


class Model(nn.Module):
    def __init__(self, use=lambda model, x: model.linear(x)):
        super().__init__()
        self.linear, self.use = nn.Linear(14, 3), use
        self.kept = [torch.zeros(0)]

    def forward(self, x, *others):
        return self.use(self, x)


class Transposed:
    def partition(self, shapes):
        return [tuple(shapes)]

    def weights(self, norms):
        return norms.t()


class Flat(Transposed):
    def weights(self, norms):
        return (1 / norms).clamp(max=1)


def reshaping(n):
    with gradients.record(model := Model(lambda model, x: model.linear(x.t().reshape(-1, 14)))):
        model(torch.randn(n, 14)).sum().backward()


def disagreeing_inputs(n):
    with gradients.record(model := Model()):
        model(torch.randn(n, 14), torch.randn(14, n))


def rows_that_do_not_divide(n):
    with gradients.record(model := Model(), rows_per_record=2):
        model(torch.randn(n, 14))


def another_batch_too_soon(n):
    with gradients.record(model := Model()):
        model(torch.randn(n, 14)).sum().backward()
        model(torch.randn(n + 1, 14))


def computed_unseen(n):
    with gradients.record(model := Model()):
        out = model(torch.randn(n, 14))
        (out * out.as_subclass(torch.Tensor)).sum().backward()


def written_to(n):
    with gradients.record(model := Model()):
        x = torch.randn(n, 14)
        loss = model(x).sum()
        x.add_(1)
        loss.backward()


def weights_of_another_shape(n):
    with gradients.record(model := Model()) as tape:
        model(torch.randn(n, 14)).sum().backward()
    tape.clipped_sum(Transposed())


def foreign_parameter(n):
    shift = torch.zeros(n, 3, requires_grad=True)
    with gradients.record(model := Model(lambda model, x: model.linear(x) + shift)):
        model(torch.randn(n, 14)).sum().backward()


def slots_in_an_order_of_data(n):
    def use(model, x):
        slots = model.linear.weight[0, :1].repeat(n) * torch.arange(n)
        return model.linear(x[x[:, 0].argsort()]).sum(1) * slots

    with gradients.record(model := Model(use)):
        model(torch.randn(n, 14)).sum().backward()


def a_factor_of_no_simple_fraction(n):
    with gradients.record(model := Model(), reduction="mean") as tape:
        (F.mse_loss(model(torch.randn(n, 14)), torch.zeros(n, 3), reduction="sum") * (1.000123 / n)).backward()
    tape.norms()


PROVOKED = [
    reshaping,
    disagreeing_inputs,
    rows_that_do_not_divide,
    another_batch_too_soon,
    computed_unseen,
    written_to,
    weights_of_another_shape,
    foreign_parameter,
    slots_in_an_order_of_data,
    a_factor_of_no_simple_fraction,
]


@pytest.mark.parametrize("provoke", PROVOKED, ids=lambda f: f.__name__)
def test_error_texts_do_not_depend_on_the_size_of_the_batch(provoke):
    texts = []
    for size in (37, 41):
        with pytest.raises((ValueError, RuntimeError)) as found:
            provoke(size)
        texts.append(str(found.value))
    assert texts[0] == texts[1]
    assert "37" not in texts[0]
