"""Decisions are found again only if all that they depend on is the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._compiled import kernels
from tacit.gradients import Engine, attach, short_way
from tacit.gradients.guard import comparison
from tacit.gradients.passes import Familiar
from tacit.gradients.recorder import Recorder


class Flat:
    def partition(self, shapes: Any) -> list[tuple[str, ...]]:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (1 / norms).clamp(max=1.0)


class Changing(nn.Module):
    """A model whose code between two layers is exchanged between batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.between: Callable[[Tensor], Tensor] = lambda h: h

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self.first(x))
        out: Tensor = self.last(h)
        return out


def batch(model: nn.Module, size: int = 6) -> tuple[Tensor, Tensor]:
    dtype = next(model.parameters()).dtype
    return torch.randn(size, 6, dtype=dtype), torch.randint(0, 3, (size,))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return F.cross_entropy(out.flatten(1)[:, :3], y)


def expect_exact(engine: Engine, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The engine's sum on this batch is that of a loop over single examples."""
    loss(model, x, y).backward()
    found = engine.clipped_sum(Flat())
    engine.detach()
    wanted = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    for i in range(len(x)):
        loss(model, x[i : i + 1], y[i : i + 1]).backward()
        grads = {
            n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters() if n in wanted
        }
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads.values()))  # type: ignore[arg-type]
        for name, g in grads.items():
            wanted[name] += g * min(1.0, float(1 / norm))
        model.zero_grad()
    for name, want in wanted.items():
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-5)


def step(engine: Engine, model: nn.Module, size: int = 6) -> None:
    loss(model, *batch(model, size)).backward()
    engine.clipped_sum(Flat())


def trained(model: nn.Module, batches: int = 3) -> Engine:
    engine = attach(model)
    for _ in range(batches):
        step(engine, model)
    return engine


MIXING: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "an argument": (lambda h: h.transpose(0, 1).transpose(0, 1), lambda h: h.transpose(0, 1).transpose(1, 1)),
    "a shape": (lambda h: h.view(-1, 2, 3).flatten(1), lambda h: h.t().reshape(-1, 2, 3).flatten(1)),
    "a layout": (lambda h: h.softmax(1), lambda h: h.t().contiguous().softmax(1).t()),
    "the dimension of a sum": (lambda h: h + h.sum(1, keepdim=True), lambda h: h + h.sum(0, keepdim=True)),
    "a slice": (lambda h: h[:, :6], lambda h: h[:1].expand(6, 6)),
    "an index": (lambda h: h[:, None].squeeze(1), lambda h: h + h[torch.tensor([1, 2, 3, 4, 5, 0])]),
    "a constant that becomes batch data": (lambda h: h @ torch.eye(6), lambda h: h @ h),
    "the same tensor twice": (lambda h: (h[:, None] @ h[:, :, None]).expand(-1, 1, 6)[:, 0], lambda h: h @ h.t()),
    "an attention": (
        lambda h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None])[:, 0],
        lambda h: F.scaled_dot_product_attention(h, h, h),
    ),
    "the values of a constant index": (
        lambda h: h + h[torch.arange(len(h))],
        lambda h: h + h[torch.arange(len(h)).roll(1)],
    ),
    "the dimension of a mean": (lambda h: h + h.mean(1, keepdim=True), lambda h: h + h.mean(0, keepdim=True)),
    "the dimension of a running sum": (lambda h: h.cumsum(1), lambda h: h.cumsum(0)),
    "the dimension of a flip": (lambda h: h + h.flip(1), lambda h: h + h.flip(0)),
    "the dimension of chunks": (
        lambda h: torch.cat([*reversed(h.chunk(2, 1))], 1),
        lambda h: h + torch.cat([*reversed(h.chunk(2, 0))], 0),
    ),
    "the largest entries": (lambda h: h - h.amax(1, keepdim=True), lambda h: h - h.amax(0, keepdim=True)),
    "a constant that becomes another example": (
        lambda h: torch.where(h > 0, h, torch.zeros(len(h), 6)),
        lambda h: torch.where(h > 0, h, h.t()),
    ),
    "a transposition in place": (lambda h: h.clone() * 2, lambda h: h * h.clone().t_()),
    "a detached mean": (lambda h: h - h.detach().mean(1, keepdim=True), lambda h: h - h.detach().mean(0)),
    "a value that is read": (lambda h: h * 2, lambda h: h * float(h.detach().max())),
    "what is joined": (lambda h: torch.cat([h[:, :3], h[:, 3:]], 1), lambda h: torch.cat([h[3:], h[:3]], 0)),
    "a keyword": (lambda h: h.softmax(dim=1), lambda h: h.softmax(dim=0)),
    "another keyword": (lambda h: h.sum(dim=1, keepdim=True) + h, lambda h: h.sum(dim=0, keepdim=True) + h),
    "an alias for a constant": (lambda h: h @ torch.eye(6), lambda h: h @ h.view_as(h)),
    "an argument that is also a number of rows": (lambda h: h.roll(1, 1), lambda h: h.roll(1, 0)),
}


@pytest.mark.parametrize("premise", MIXING)
def test_a_model_that_begins_to_mix_is_refused(premise: str) -> None:
    torch.manual_seed(0)
    model = Changing()
    before, after = MIXING[premise]
    model.between = before
    engine = trained(model)
    model.between = after
    with pytest.raises((ValueError, RuntimeError)):
        step(engine, model)


def test_a_list_of_arguments_that_is_written_to_is_another_premise() -> None:
    torch.manual_seed(0)
    model, dims = Changing(), [1]
    model.between = lambda h: h - h.sum(dims, keepdim=True)
    engine = trained(model)
    dims[0] = 0
    with pytest.raises((ValueError, RuntimeError)):
        step(engine, model)


def test_a_decision_is_not_used_inside_a_transform() -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h.softmax(1) * 2
    engine = trained(model)
    model.between = lambda h: torch.func.vmap(lambda row: row.softmax(0) * 2)(h)
    with pytest.raises((ValueError, RuntimeError)):
        step(engine, model)


def test_a_hook_that_mixes_and_is_added_later_is_refused() -> None:
    model = Changing()
    engine = trained(model)
    model.first.register_forward_hook(lambda module, args, out: out - out.mean(0))
    with pytest.raises(ValueError, match="combines a quantity of the whole batch"):
        step(engine, model)


class Ruled(Changing):
    """A model with parameters between its layers, whose gradient rules are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)


RULED: dict[str, tuple[Callable[[Ruled, Tensor], Tensor], Callable[[Ruled, Tensor], Tensor]]] = {
    "the dimension of the examples": (lambda m, h: m.middle(h), lambda m, h: m.middle(h.t()).t()),
    "a weight that becomes data": (lambda m, h: m.middle(h), lambda m, h: F.linear(h, h, m.middle.bias)),
    "a bias that becomes data": (lambda m, h: m.middle(h), lambda m, h: F.linear(h, m.middle.weight, h.sum(0))),
    "what is normalised": (lambda m, h: m.norm(h), lambda m, h: m.norm(h.t()).t()),
    "the shape that is normalised": (
        lambda m, h: F.layer_norm(h, (6,), m.norm.weight),
        lambda m, h: F.layer_norm(h, (6, 6), m.middle.weight),
    ),
    "a product": (lambda m, h: torch.addmm(m.middle.bias, h, m.middle.weight), lambda m, h: h.t() @ m.middle.weight),
    "a bias of a product that becomes data": (
        lambda m, h: torch.addmm(m.middle.bias, h, m.middle.weight),
        lambda m, h: torch.addmm(h.sum(0), h, m.middle.weight),
    ),
    "a scale for each feature": (lambda m, h: h * m.norm.weight, lambda m, h: (h.t() * m.norm.weight).t()),
    "a shift that becomes data": (lambda m, h: h + m.norm.bias, lambda m, h: h + h[0]),
    "a row of parameters beside data": (lambda m, h: h * m.norm.weight, lambda m, h: (h.t() * m.norm.weight) @ h),
}


@pytest.mark.parametrize("premise", RULED)
def test_a_gradient_rule_of_another_premise_is_not_used(premise: str) -> None:
    torch.manual_seed(0)
    model = Ruled()
    before, after = RULED[premise]
    model.between = lambda h: before(model, h)
    engine = trained(model)
    model.between = lambda h: after(model, h)
    with pytest.raises((ValueError, RuntimeError)):
        step(engine, model)


def test_a_scale_that_was_computed_from_the_batch_out_of_sight_is_refused() -> None:
    torch.manual_seed(0)
    model = Ruled()
    model.between = lambda h: h * (1 + model.norm.weight)
    engine = trained(model)
    model.between = lambda h: h * (1 + torch.Tensor.as_subclass(h, Tensor).mean(0))
    with pytest.raises(RuntimeError, match="where the engine could not see it"):
        step(engine, model)


def test_a_tensor_of_an_earlier_batch_finds_no_gradient_rule() -> None:
    torch.manual_seed(0)
    model = Ruled()
    model.between = lambda h: m_norm(model, h)
    engine = trained(model)
    kept: list[Tensor] = []

    def keeping(h: Tensor) -> Tensor:
        kept.append(h)
        return h + model.middle(kept[0]) if len(kept) > 1 else h

    model.between = keeping
    step(engine, model)
    with pytest.raises((ValueError, RuntimeError), match="earlier batch"):
        step(engine, model)


RULED_HONEST: dict[str, Callable[[Ruled, Tensor], Tensor]] = {
    "without gradients": lambda m, h: h + torch.no_grad()(m.middle)(h),
    "a constant weight": lambda m, h: F.linear(h, torch.eye(6), m.middle.bias),
    "a computed weight": lambda m, h: F.linear(h, m.middle.weight * 2, m.middle.bias),
    "no bias": lambda m, h: F.linear(h, m.middle.weight),
    "a scale": lambda m, h: h * m.norm.weight - m.norm.bias + m.norm.bias * h,
    "a computed scale": lambda m, h: h * (1 + m.norm.weight) + m.norm.bias.view(1, 6),
    "a scale in another place": lambda m, h: m.norm.weight * h.view(-1, 1, 6).flatten(1) / (2 + m.norm.bias),
    "a frozen scale": lambda m, h: h * m.norm.weight.detach() + m.norm.bias,
    "a scale without gradients": lambda m, h: h + torch.no_grad()(torch.mul)(h, m.norm.weight),
    "a shift with a factor": lambda m, h: torch.add(h, m.norm.bias, alpha=3),
    "a product with inputs first": lambda m, h: torch.addmm(m.middle.bias, h, m.middle.weight),
    "three dimensions": lambda m, h: m.middle(h.view(-1, 1, 6)).flatten(1),
    "positions": lambda m, h: m.middle(torch.stack([h, h.sin(), h.cos()], 1)).sum(1),
    "positions before the examples": lambda m, h: m.middle(torch.stack([h, h.sin()])).sum(0),
    "half of it frozen": lambda m, h: F.linear(h, m.middle.weight, m.middle.bias.detach()),
    "another type": lambda m, h: F.linear(h.double(), m.middle.weight.double(), m.middle.bias.double()).float(),
    "a norm of more dimensions": lambda m, h: F.layer_norm(h.view(-1, 1, 6), (1, 6)).flatten(1) * m.norm.weight,
}


@pytest.mark.parametrize("change", RULED_HONEST)
def test_gradients_are_exact_where_a_gradient_rule_has_another_premise(change: str) -> None:
    torch.manual_seed(0)
    model = Ruled()
    model.between = lambda h: m_norm(model, h) * model.norm.weight + model.norm.bias
    engine = trained(model)
    model.between = lambda h: RULED_HONEST[change](model, h) + 0 * m_norm(model, h)
    expect_exact(engine, model, *batch(model))


def m_norm(model: Ruled, h: Tensor) -> Tensor:
    out: Tensor = model.norm(model.middle(h))
    return out


@pytest.mark.skipif(kernels is None, reason="the short way is compiled")
def test_familiar_operations_do_not_reach_the_recorder() -> None:
    """Else all of these claims would be about the long way."""
    torch.manual_seed(0)
    model = Ruled()
    model.between = lambda h: (
        m_norm(model, h.view(-1, 2, 3).transpose(1, 2).flatten(1) * 2 + h[:, :6]) * model.norm.weight
    )
    engine = trained(model)
    names: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Recorder.handle.__code__:
            names.append(frame.f_locals["func"].__name__)

    sys.setprofile(note)
    step(engine, model)
    sys.setprofile(None)
    assert {"linear", "layer_norm", "view", "transpose", "mul", "add", "__getitem__"}.isdisjoint(names)


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "targets in another order": (lambda h, t: F.mse_loss(h, t), lambda h, t: F.mse_loss(h, t.flip(0))),
    "examples for targets": (lambda h, t: F.mse_loss(h, t), lambda h, t: F.mse_loss(h, h.roll(1, 0))),
    "weights from the batch": (
        lambda h, t: F.binary_cross_entropy_with_logits(h, t, weight=torch.ones(6)),
        lambda h, t: F.binary_cross_entropy_with_logits(h, t, weight=t.sum(0)),
    ),
    "classes along the examples": (
        lambda h, t: F.cross_entropy(h, t.softmax(1), reduction="none").mean(),
        lambda h, t: F.cross_entropy(h.t(), t.softmax(1).t(), reduction="none").mean(),
    ),
    "a loss of one example": (
        lambda h, t: F.l1_loss(h, t, reduction="none").mean(),
        lambda h, t: F.l1_loss(h, t, reduction="none")[0].mean(),
    ),
}


@pytest.mark.parametrize("change", LOSSES)
def test_a_loss_of_another_premise_is_refused(change: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    engine = attach(model)

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        x, targets = engine.trace((torch.randn(6, 6), torch.rand(6, 6)), 6)
        loss(model(x), targets).backward()
        engine.clipped_sum(Flat())

    for _ in range(3):
        step(LOSSES[change][0])
    with pytest.raises((ValueError, RuntimeError)):
        step(LOSSES[change][1])


@pytest.mark.parametrize("change", ["thawed", "replaced"])
def test_parameters_that_become_trainable_after_the_first_batch_are_refused(change: str) -> None:
    model = Changing()
    model.first.requires_grad_(False)
    engine = trained(model)
    if change == "thawed":
        model.first.requires_grad_(True)
    else:
        model.first = nn.Linear(6, 6)
    with pytest.raises(RuntimeError, match="not a parameter of the recorded model"):
        step(engine, model)


def test_a_slice_that_was_the_whole_batch_is_refused_in_a_larger_one() -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: torch.cat([h[:6], h[6:]])
    engine = trained(model)
    model.between = lambda h: h[:6]
    with pytest.raises((ValueError, RuntimeError)):
        F.cross_entropy(model(torch.randn(12, 6)), torch.randint(0, 3, (6,))).backward()
    engine.detach()


def test_a_reshape_to_fixed_sizes_is_decided_anew_for_another_batch_size() -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h.view(6, -1).view(-1, 6)
    engine = trained(model)
    with pytest.raises((ValueError, RuntimeError)):
        step(engine, model, 9)  # rows of 9 examples in 6 rows of 9 entries


def test_a_tensor_kept_from_an_earlier_batch_is_refused_though_it_looks_the_same() -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h[:, :6].transpose(0, 1).transpose(0, 1)
    engine = trained(model)
    kept: list[Tensor] = []

    def keeping(h: Tensor) -> Tensor:
        kept.append(h)
        return (h + kept[0][:, :6].detach()) if len(kept) > 1 else h

    model.between = keeping
    step(engine, model)
    with pytest.raises((ValueError, RuntimeError), match="earlier batch"):
        step(engine, model)


HONEST: dict[str, Callable[[Changing], None]] = {
    "a parameter is frozen": lambda model: setattr(model.first.weight, "requires_grad", False),
    "the training flag": lambda model: setattr(model, "training", False),
    "an in-place write": lambda model: setattr(model, "between", lambda h: h.clone().mul_(2)[:, :6]),
    "a shape": lambda model: setattr(model, "between", lambda h: h.view(-1, 3, 2).transpose(1, 2).flatten(1)),
    "two dimensions more": lambda model: setattr(model, "between", lambda h: h[:, None, None].flatten(1)),
    "an activation in place": lambda model: setattr(
        model, "between", lambda h: F.relu(F.relu(h.view(-1, 2, 3).flatten(1)) + 1, inplace=True)
    ),
    "a dropout in place": lambda model: setattr(
        model, "between", lambda h: F.dropout(F.dropout(h * 1, 0.5, False), 0.5, False, inplace=True)
    ),
    "no gradients for a part": lambda model: setattr(
        model, "between", lambda h: h + torch.no_grad()(torch.Tensor.softmax)(h.view(-1, 6), 1)
    ),
    "a constant tensor for a number": lambda model: setattr(model, "between", lambda h: h * torch.full((6,), 2.0)),
}


@pytest.mark.parametrize("change", HONEST)
def test_gradients_are_exact_after_a_change_between_batches(change: str) -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h.view(-1, 2, 3).transpose(1, 2).flatten(1)
    engine = trained(model)
    HONEST[change](model)
    expect_exact(engine, model, *batch(model))


UNSEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a hidden read": lambda h: h.sin() * torch.tensor(h[:, 0].sum()),
    "a length of the longest": lambda h: h + torch.arange((h > 0).sum(1).max()).sum(),
    "the number of examples": lambda h: h / len(h),
    "a size": lambda h: h * h.shape[0],
    "a place in the batch": lambda h: h * torch.arange(6.0)[: len(h), None],
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("begun", UNSEEN)
def test_mixing_that_no_operation_shows_is_refused_in_the_batch_in_which_it_begins(begun: str) -> None:
    """A pass whose operations are others is compared with its parts, as the first one was."""
    torch.manual_seed(0)
    model = Changing()
    engine = trained(model)
    model.between = UNSEEN[begun]
    with pytest.raises(ValueError, match=r"changes with the other examples|by themselves"):
        step(engine, model)


BRANCHES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "a size": (lambda h: h * h.shape[1], lambda h: h * h.shape[0]),
    "a hidden read": (lambda h: h - 1.0, lambda h: h - torch.tensor(h).mean(0)),
    "a place in the batch": (lambda h: h * torch.ones(len(h), 1), lambda h: h * torch.arange(float(len(h)))[:, None]),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("begun", BRANCHES)
def test_a_branch_that_mixes_is_refused_though_its_operations_are_the_same(begun: str) -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between, mixing = BRANCHES[begun]
    engine = trained(model)
    model.between = mixing
    with pytest.raises(ValueError, match=r"changes with the other examples"):
        step(engine, model)


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("begun", BRANCHES)
def test_branches_are_distinguished_under_modes_of_other_libraries(begun: str) -> None:
    with torch.device("cpu"), torch.device("cpu"):
        test_a_branch_that_mixes_is_refused_though_its_operations_are_the_same(begun)


def test_passes_have_the_same_operations_however_warm_the_code_is() -> None:
    """The interpreter carries calls out by other instructions after a few, and while a profiler looks on."""
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: torch.relu(F.relu(h).view(-1, 6)) + h.sin().cos()
    engine = attach(model)
    trails = []
    for turn in range(24):
        if turn == 20:
            sys.setprofile(lambda *_: None)
        loss(model, *batch(model)).backward()
        sys.setprofile(None)
        trails.append(tuple(engine._recorder.trail))
        engine.clipped_sum(Flat())
    assert len(set(trails)) == 1


def test_batches_are_compared_again_only_if_their_operations_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    compared: list[int] = []

    def compare(recorder: Any, *_: Any) -> bool:
        compared.append(recorder.batch)
        return False

    monkeypatch.setattr(comparison, "is_influenced", compare)
    model = Changing()
    model.between = lambda h: F.softmax(h, 1)
    engine = attach(model)
    for size in (6, 6, 8, 1, 2, 6, 9):
        step(engine, model, size)
    assert compared == [6]
    model.between = lambda h: F.softmax(h, 1).sin()
    for size in (3, 7, 6):
        step(engine, model, size)
    assert compared == [6, 7]


def test_a_hook_that_is_set_in_a_later_batch_is_refused() -> None:
    model = Changing()
    engine = trained(model)
    model.last.register_full_backward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="backward hook"):
        step(engine, model)


def test_passes_are_watched_until_an_unfamiliar_one_was_seen() -> None:
    familiar = Familiar()
    assert familiar.watches
    for trail, watches in (("a", False), ("b", True), ("a", True), ("b", False), ("a", False), ("b", False)):
        familiar.note(trail)
        assert familiar.watches is watches


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_gradients_are_exact_for_another_batch_size(size: int) -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: (h.view(-1, 2, 3).transpose(1, 2).flatten(1) + h[:, :6]).unsqueeze(1).squeeze(1)
    engine = trained(model)
    expect_exact(engine, model, *batch(model, size))


def test_a_decision_about_another_dtype_is_not_used() -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h.view(-1, 2, 3).flatten(1)
    engine = trained(model)
    keys = set(engine._recorder.decisions.found)
    model.between = lambda h: h.double().view(-1, 2, 3).flatten(1).float()
    step(engine, model)
    assert set(engine._recorder.decisions.found) > keys


def test_the_second_batch_asks_no_rule_for_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Changing()
    model.between = lambda h: h.view(-1, 2, 3).transpose(1, 2).flatten(1)
    engine = trained(model)
    asked: list[str] = []
    tag = engine._recorder.guard.tag
    monkeypatch.setattr(engine._recorder.guard, "tag", lambda call: asked.append(call.name) or tag(call))
    loss(model, *batch(model)).backward()
    assert not {"view", "transpose", "flatten", "getitem"} & set(asked)


def test_no_more_decisions_are_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.gradients.remembered.MOST", 5)
    model = Changing()
    model.between = lambda h: h.view(-1, 2, 3).transpose(1, 2).flatten(1)
    engine = attach(model)
    for size in range(4, 12):
        step(engine, model, size)
        assert len(engine._recorder.decisions.found) <= 5


@pytest.mark.skipif(kernels is None, reason="the short way is compiled")
def test_an_interrupt_while_premises_are_listed_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, where = Changing(), torch.arange(6)
    model.between = lambda h: h[:, where]
    engine = trained(model)

    def interrupted(index: Tensor) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(short_way, "entries", interrupted)
        short_way.take()
        try:
            with pytest.raises(KeyboardInterrupt):
                step(engine, model)
        finally:
            patched.undo()
            short_way.take()
    engine.discard()
    step(engine, model)
