"""Failures seen in other libraries, each by name: here they are right, or they are errors."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 4


class Run(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(self, *x)


@pytest.mark.parametrize("length", [B, 3])
def test_positions_looked_up_without_a_batch_axis(agree: Any, length: int) -> None:
    """In particular when there are as many positions as examples."""
    model = Run(
        lambda m, x: m.mix(m.words(x) + m.places(torch.arange(x.shape[1]))),
        words=nn.Embedding(9, 4), places=nn.Embedding(B, 4), mix=nn.Linear(4, 4),
    )  # fmt: skip
    agree(model, torch.randint(0, 9, (B, length)))


def test_positions_kept_in_a_plain_attribute(agree: Any) -> None:
    places = torch.arange(B)
    model = Run(lambda m, x: m.words(x) * m.places(places), words=nn.Embedding(9, 4), places=nn.Embedding(B, 4))
    agree(model, torch.randint(0, 9, (B, B)))


def test_a_learned_matrix_of_the_batchs_own_size(agree: Any) -> None:
    """[examples, d] + a parameter [examples, d] of the same shape that belongs to positions."""

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.randn(B, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.places

    agree(Sized(), torch.randn(B, B, 3))


MIXING: dict[str, tuple[Callable[..., Any], str]] = {
    "minus the batch mean": (lambda m, x: m.a(x - x.mean(0)), "whole batch"),
    "minus the batch mean, after a layer": (lambda m, x: (lambda h: h - h.mean(0))(m.a(x)), "whole batch"),
    "detached statistics": (lambda m, x: (lambda h: h / h.detach().std(0))(m.a(x)), "std"),
    "softmax over examples": (lambda m, x: m.b(m.a(x).softmax(0)), "softmax"),
    "attention between examples": (lambda m, x: (lambda h: (h @ h.t()).softmax(1) @ h)(m.a(x)), "different examples"),
    "similarity of all pairs": (lambda m, x: torch.cdist(m.a(x), m.a(x)), "cdist"),
    "pairwise differences": (lambda m, x: (m.a(x).unsqueeze(0) - m.a(x).unsqueeze(1)).sum(1), "different examples"),
    "shifted examples": (lambda m, x: m.b(m.a(x) + m.a(x).roll(1, 0)), "roll"),
    "flipped examples": (lambda m, x: m.b(m.a(x) + m.a(x).flip(0)), "flip"),
    "next example": (lambda m, x: (lambda h: h + torch.cat([h[1:], h[:1]]))(m.a(x)), "index"),
    "first example as reference": (lambda m, x: m.a(x) - m.a(x)[0], "different examples"),
    "sum over examples as context": (lambda m, x: m.b(m.a(x)) * m.a(x).sum(0), "whole batch"),
    "maximum over examples": (lambda m, x: m.a(x) - m.a(x).amax(0), "amax"),
    "cumulative sum over examples": (lambda m, x: m.a(x).cumsum(0), "cumsum"),
    "sorted over examples": (lambda m, x: m.a(x).sort(0).values, "sort"),
    "batch norm by hand": (lambda m, x: F.batch_norm(m.a(x), None, None, training=True), "BatchNorm"),
    "a mean fed to a layer": (lambda m, x: m.b(m.a(x).mean(0, keepdim=True)) + m.a(x), "mean or sum over examples"),
    "transposed into features": (
        lambda m, x: F.linear(m.a(x).t(), torch.ones(2, x.shape[0])).t() + 0 * m.a(x)[:, :1].sum(),
        ".",
    ),
    "reshaped across examples": (lambda m, x: m.a(x).reshape(-1, 8).repeat_interleave(2, 0), "merges|different"),
}


@pytest.mark.parametrize("name", list(MIXING))
def test_operations_that_mix_examples_are_refused(name: str) -> None:
    function, message = MIXING[name]
    model = Run(function, a=nn.Linear(4, 4), b=nn.Linear(4, 4))

    def step() -> None:
        with gradients.record(model):
            model(torch.randn(B, 4)).square().flatten(1).sum(1).mean().backward()

    with pytest.raises((ValueError, RuntimeError), match=message):
        step()


def test_batch_norm_and_friends_are_found_before_the_first_step_all_at_once() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True),
        nn.Flatten(), nn.Linear(8, 2), nn.BatchNorm1d(2, track_running_stats=False),
    )  # fmt: skip
    model.add_module("words", nn.Embedding(4, 2, max_norm=1.0))
    with pytest.raises(ValueError) as error:
        gradients.attach(model)
    text = str(error.value)
    assert all(f"- {name} (" in text for name in ("1", "2", "3", "6", "words"))
    assert "GroupNorm" in text
    assert all(not m._forward_pre_hooks for m in model.modules())


def test_a_problem_is_named_once_with_the_first_module_that_has_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x - x.mean(0))

    class Norm(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.flip(0))

    model = nn.Sequential(Block(), Block(), Norm())
    with pytest.raises(ValueError) as error, gradients.record(model):
        model(torch.randn(B, 4))
    assert "0.linear" in str(error.value)
    assert "1.linear" not in str(error.value)


def test_batch_statistics_for_logging_are_no_problem(agree: Any) -> None:
    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.seen: Any = None

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            self.seen = out.detach().mean() + out.std(0).max()
            out[0].sum()
            return out

    model = Logs()
    agree(model, torch.randn(B, 4))
    assert isinstance(float(model.seen), float)


def test_eval_mode_models_can_be_trained(agree: Any) -> None:
    agree(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).eval(), torch.randn(B, 4))


def test_buffers_in_a_trainable_module(agree: Any) -> None:
    model = nn.Linear(4, 3)
    model.register_buffer("table", torch.randn(3))
    agree(model, torch.randn(B, 4))


def test_dropout_of_every_kind_is_per_example() -> None:
    for dropout, shape in (
        (nn.Dropout(0.5), (6,)),
        (nn.Dropout1d(0.5), (6, 3)),
        (nn.Dropout2d(0.5), (6, 3, 3)),
        (nn.AlphaDropout(0.5), (6,)),
    ):
        model = nn.Sequential(
            nn.Conv2d(6, 6, 1) if len(shape) == 3 else nn.Conv1d(6, 6, 1) if len(shape) == 2 else nn.Linear(6, 6),
            dropout,
        )
        with gradients.record(model) as tape:
            model(torch.randn(B, *shape)).square().flatten(1).sum(1).mean().backward()
        assert tape.norms().shape == (B,)


def test_a_lookup_scaled_by_frequency_is_refused() -> None:
    with pytest.raises(ValueError, match="scale_grad_by_freq"):
        gradients.attach(nn.Embedding(4, 2, scale_grad_by_freq=True))


def test_large_embeddings_do_not_become_one_gradient_per_example() -> None:
    """8 examples × 2 million rows would be half a gigabyte per copy; the rows that were read are a few kilobytes."""
    model = nn.Embedding(2_000_000, 8)
    with gradients.record(model) as tape:
        model(torch.randint(0, 2_000_000, (8, 5))).square().sum((1, 2)).mean().backward()
    part = tape._recorder.parts["weight"][0].contribution
    assert part.grads.numel() <= 8 * 5 * 8  # type: ignore[attr-defined]
    assert tape.norms().shape == (8,)


def test_an_input_overwritten_after_use_is_refused() -> None:
    def overwrite(m: nn.Module, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        out = m.b(h)
        h.mul_(0)
        return out

    model = Run(overwrite, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="modified"), gradients.record(model):
        model(torch.randn(B, 4)).sum().backward()


def test_per_example_gradients_are_never_all_alive() -> None:
    """A wide layer over a long sequence: the tape keeps inputs and output gradients, not batch × parameters."""
    model = nn.Linear(256, 512)
    with gradients.record(model) as tape:
        model(torch.randn(16, 8, 256)).square().sum((1, 2)).mean().backward()
    kept = tape._recorder.parts["weight"][0].contribution
    held = sum(t.numel() for t in vars(kept).values() if isinstance(t, Tensor))
    assert held < 16 * 256 * 512 / 10


def test_data_written_into_a_buffer_is_refused() -> None:
    """A running statistic would leave the training run without noise."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.linear(x)

    model = Running()
    with pytest.raises(ValueError, match="buffer 'mean'"), gradients.record(model):
        model(torch.randn(B, 4))
    assert type(model.mean) is Tensor


def test_straight_through_estimators_keep_their_examples(agree: Any) -> None:
    def straight(x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()

    agree(Run(lambda m, x: m.b(straight(m.a(x) * 9)), a=nn.Linear(4, 4), b=nn.Linear(4, 2)), torch.randn(B, 4))


def test_a_batch_in_an_object_of_its_own() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 2)

        def forward(self, given: Any) -> Tensor:
            return self.line(given.x)  # type: ignore[no-any-return]

    with pytest.raises(RuntimeError, match="no tuple, list or dict"), gradients.record(model := Reader()):
        model(SimpleNamespace(x=torch.randn(4, 3))).sum().backward()


BY_NAME: dict[str, Callable[..., Tensor]] = {
    "matmul": lambda m, x: torch.matmul(other=m.line.weight, input=x),
    "mm": lambda m, x: torch.mm(mat2=m.line.weight, input=x),
    "bmm": lambda m, x: torch.bmm(mat2=m.line(x).unsqueeze(2), input=x.unsqueeze(1)).flatten(1),
    "mv": lambda m, x: torch.mv(vec=m.line.bias, input=x).unsqueeze(1),
    "addmm": lambda m, x: torch.addmm(mat2=m.line.weight, mat1=x, input=m.line.bias, alpha=2),
    "addmv": lambda m, x: torch.addmv(torch.ones(1), vec=m.line.bias, mat=x, beta=3).unsqueeze(1),
    "frozen": lambda m, x: m.line(torch.addmm(mat2=torch.eye(3), mat1=x, input=torch.ones(3))),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_products_by_name(name: str, agree: Any) -> None:
    model = Run(BY_NAME[name], line=nn.Linear(3, 3))
    agree(model, torch.randn(B, 3), dtypes=(torch.float32,))


def test_a_loss_divided_by_name() -> None:
    with gradients.record(model := nn.Linear(3, 2), reduction="sum") as tape:
        torch.div(other=2, input=model(torch.randn(B, 3)).sum()).backward()
    assert len(tape.norms()) == B
