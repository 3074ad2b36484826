"""Error texts name module, line and remedy, and not how many records a batch has: that number is private."""

import inspect
import re

import pytest
import torch
from torch import Tensor, nn
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
        texts.append(re.sub(r"line \d+", "", str(found.value)))
    assert texts[0] == texts[1]
    assert "37" not in texts[0]


class Centred(nn.Module):
    """Subtracts the mean of the batch between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = hidden - hidden.mean(0)  # the line of the message
        return self.second(hidden)


def test_a_refusal_names_the_module_and_the_line_where_examples_first_meet() -> None:
    line = inspect.getsourcelines(Centred.forward)[1] + 2
    model = Centred()
    gradients.attach(model)
    with pytest.raises(ValueError, match=rf"Centred \(Centred\): `sub` .*\(test_texts.py, line {line}\)"):
        model(torch.randn(5, 4)).sum().backward()


def test_losses_of_some_examples_added_up_get_the_remedy() -> None:
    model = nn.Linear(4, 2)
    engine = gradients.attach(model)
    x = engine.trace(torch.randn(5, 4), 5)
    with pytest.raises(ValueError, match=r"torch\.stack\(losses\)\.mean\(\)"):
        sum(out.square().mean() for out in list(model(x))[1:]).backward()
