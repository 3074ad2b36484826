"""Modules that cannot be followed run one example at a time: exact, or refused because they mix examples."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 6
WIDTH = 4


class Times(torch.autograd.Function):
    """Adds up the gradient of its parameter over all examples itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] * w, (grads[0] * x).flatten(0, -2).sum(0)


def _branches(m: Net, h: Tensor) -> Tensor:
    return h * 2 if float(h.abs().max()) > 1e6 else h + m.own(h)


def _routed(m: Net, h: Tensor) -> Tensor:
    """Tokens go to one of two experts, and come back to their places."""
    rows, out = h.reshape(-1, WIDTH), torch.zeros_like(h).reshape(-1, WIDTH)
    chosen = m.own(rows).argmax(1) % 2
    for expert in chosen.unique().tolist():
        places = (chosen == expert).nonzero().flatten()
        out = out.index_add(0, places, (m.own, m.other)[expert](rows[places]))
    return out.view_as(h)


def _slope(m: Net, h: Tensor) -> Tensor:
    h = h if h.requires_grad else h.detach().requires_grad_()
    (slope,) = torch.autograd.grad(m.own(h).square().sum(), h, create_graph=True)
    return m.other(slope)


def _numpy(m: Net, h: Tensor) -> Tensor:
    return m.own(h) * float(h.detach().numpy().max() > -1e6)


def _sorted(m: Net, h: Tensor) -> Tensor:
    order = sorted(range(h.shape[-1]), key=lambda j: -j)
    return m.own(h[..., order]) if bool((h == h).all()) else h


def _vmapped(m: Net, h: Tensor) -> Tensor:
    return torch.vmap(m.own)(h)


def _jacobian(m: Net, h: Tensor) -> Tensor:
    rows = h.reshape(-1, WIDTH)
    return torch.vmap(torch.func.jacrev(lambda row: m.own(row).sin()))(rows).sum(-1).view_as(h)


UNKNOWN: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "an if": _branches,
    "experts": _routed,
    "a custom autograd function": lambda m, h: m.own(Times.apply(h, m.other.bias)),
    "a gradient inside": _slope,
    "numpy": _numpy,
    "a check of all values": _sorted,
    "vmap": _vmapped,
    "Jacobians": _jacobian,
    "a number read and multiplied by zero": lambda m, h: m.own(h) + 0 * h.flatten()[0].item(),
}


class Net(nn.Module):
    """A part that is followed, one that is not, and one that is followed again."""

    def __init__(self, unknown: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.own, self.other, self._unknown = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), unknown

    def forward(self, h: Tensor) -> Tensor:
        return self._unknown(self, h)


class Whole(nn.Module):
    def __init__(self, unknown: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, WIDTH), Net(unknown), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)).tanh())


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_operations_are_isolated_and_exact(agree: Callable[..., None], case: str) -> None:
    """In every strategy, type and rank that `agree` tries, against a loop over single examples."""
    agree(Whole(UNKNOWN[case]), torch.randn(B, 5, 3))


@pytest.mark.parametrize("case", UNKNOWN)
def test_only_the_module_around_the_unknown_operation_is_isolated(case: str) -> None:
    model = Whole(UNKNOWN[case])
    engine = gradients.attach(model)
    for _ in range(2):
        model(torch.randn(B, 5, 3)).square().mean().backward()
        assert engine.norms().isfinite().all()
        engine.discard()
    assert engine.isolated == ("middle",)
    engine.detach()
    assert "forward" not in vars(model.middle)


def test_modules_of_the_same_kind_are_isolated_together(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(*(Net(_branches) for _ in range(3)))
    engine = gradients.attach(model)
    model(torch.randn(B, WIDTH)).sum().backward()
    assert set(engine.isolated) == {"0", "1", "2"}
    assert "0 (Net) and 2 more like it run one example at a time: it reads values of the batch (`float`)" in caplog.text
    assert "slower there. To avoid that, keep values of the batch in tensors" in caplog.text
    engine.detach()


def test_a_followed_model_is_not_isolated() -> None:
    engine = gradients.attach(model := Whole(lambda m, h: m.own(h)))
    model(torch.randn(B, 5, 3)).sum().backward()
    assert engine.isolated == ()
    engine.detach()


@pytest.mark.parametrize("sizes", [(1, 5, 0, 3), (2, 0, 7), (9, 1)])
def test_batches_of_any_size(naive: Any, compare: Any, sizes: tuple[int, ...]) -> None:
    """Also where the plan is made with one example, and with nobody in a later batch."""
    model = Whole(_branches).double()
    twin = copy.deepcopy(model)
    engine = gradients.attach(model)
    for size in sizes:
        x = torch.randn(size, 5, 3, dtype=torch.float64)
        model(x).square().flatten(1).sum(1).sum().backward()
        if size:
            compare(engine, naive(twin, lambda i, x=x: twin(x[i : i + 1]).square().sum(), size))
        else:
            assert engine.norms().shape == (0,)
        engine.discard()
    engine.detach()


class TiedOver(nn.Module):
    """A weight that is used by a followed module and by an isolated one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(WIDTH, WIDTH), Net(_branches)
        self.middle.own.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(self.first(x))


def test_weights_that_are_tied_across_the_border(agree: Callable[..., None]) -> None:
    agree(TiedOver(), torch.randn(B, WIDTH))


class Twice(nn.Module):
    """An isolated module that is called twice, with the batch in other dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(WIDTH, WIDTH), Net(_branches)

    def forward(self, x: Tensor) -> Tensor:
        h = self.part(self.first(x))
        return self.part(h.transpose(0, 1)).transpose(0, 1)


def test_modules_that_are_called_twice_and_with_the_batch_in_another_dimension(agree: Callable[..., None]) -> None:
    agree(Twice(), torch.randn(B, 5, WIDTH))


class Interleaved(nn.Module):
    """Rows of all examples for the first position, then for the second, and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(WIDTH, WIDTH), Net(_branches)

    def forward(self, x: Tensor) -> Tensor:
        time_first = self.first(x).transpose(0, 1)
        return self.part(time_first.reshape(-1, WIDTH)).view(time_first.shape).transpose(0, 1)


def test_rows_of_examples_that_are_interleaved(agree: Callable[..., None]) -> None:
    agree(Interleaved(), torch.randn(B, 5, WIDTH))


class OwnLoss(nn.Module):
    """Returns its loss: a mean over the tokens that count, of which examples have different numbers."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.line, self.reads = nn.Linear(3, 5), reads

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        scores = self.line(x)
        if self.reads and bool((scores != scores).any()):
            scores = scores.nan_to_num()
        return {"loss": F.cross_entropy(scores.flatten(0, 1), y.flatten()) * 0.5, "scores": scores}


@pytest.mark.parametrize("reads", [False, True])
def test_a_token_mean_is_each_examples_own_mean(naive: Any, compare: Any, reads: bool) -> None:
    model = OwnLoss(reads).double()
    x, y = torch.randn(B, 4, 3, dtype=torch.float64), torch.randint(0, 5, (B, 4))
    y[0, 1:], y[2, 2:] = -100, -100
    each = naive(model, lambda i: model(x[i : i + 1], y[i : i + 1])["loss"], B)
    engine = gradients.attach(model)
    model(x, y)["loss"].backward()
    compare(engine, each)
    assert engine.isolated == (("",) if reads else ())
    engine.detach()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) if bool((x == x).all()) else x


def test_buffers_that_do_not_depend_on_the_examples_are_kept() -> None:
    """Every example begins with the same buffers, and what they all leave there stays, as after one pass."""
    model = Normed()
    twin = copy.deepcopy(model)
    x = torch.randn(B, 3)
    engine = gradients.attach(model, isolate=True)
    for _ in range(2):
        model(x).sum().backward()
        engine.discard()
    engine.detach()
    for _ in range(2):
        twin(x)
    for name, buffer in twin.named_buffers():
        assert torch.allclose(model.get_buffer(name), buffer), name


class Counted(nn.Module):
    """Keeps a mean of the examples in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == x).all()):
            self.mean.copy_(x.detach().mean(0))
        return self.line(x)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.last = nn.Linear(3, 3), torch.zeros(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == x).all()):
            x = x + self.last
        self.last = x.detach()[:1]
        return self.line(x)


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.line(x)
        assert bool((h == h).all())
        return F.cross_entropy(h @ h.T, torch.arange(len(h)))


class Centred(Contrast):
    def forward(self, x: Tensor) -> Tensor:
        h = self.line(x)
        return h - h.mean(0) if bool((h == h).all()) else h


class Normalised(Contrast):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.line(x), None, None, training=True)


class Worst(Contrast):
    """The loss of the worst example."""

    def forward(self, x: Tensor) -> Tensor:
        losses = self.line(x).square().sum(1)
        return losses.max() if bool((losses >= 0).all()) else losses.sum()


@pytest.mark.parametrize("kind", [Counted, Remembers, Contrast, Centred, Normalised, Worst])
@pytest.mark.parametrize("isolate", [None, True])
def test_mixing_is_refused_with_isolation_too(kind: type[nn.Module], isolate: bool | None) -> None:
    model = kind()
    engine = gradients.attach(model, isolate=isolate)

    def train() -> None:
        for _ in range(2):
            out = model(torch.randn(B, 3))
            (out if out.ndim == 0 else out.square().mean()).backward()
            engine.norms()
            engine.discard()

    with pytest.raises((ValueError, RuntimeError)):
        train()
    engine.detach()


class Peeks(nn.Module):
    """An inner module that reads the whole batch by way of an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.line = Net(_branches), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.line(x)
        self.inner._unknown = lambda m, own: own + h.mean() if bool((own == own).all()) else own
        return self.inner(h)


def test_an_isolated_module_does_not_read_the_batch_by_other_ways() -> None:
    engine = gradients.attach(model := Peeks())
    with pytest.raises((ValueError, RuntimeError)):
        model(torch.randn(B, WIDTH)).sum().backward()
    engine.detach()


def test_a_copy_and_a_file_of_a_model_with_isolated_modules_are_ordinary_models(flat: Any) -> None:
    engine = gradients.attach(model := Whole(UNKNOWN["an if"]))
    x = torch.randn(B, 5, 3)
    model(x).sum().backward()
    assert engine.isolated
    engine.discard()
    twin = copy.deepcopy(model.middle)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    h = torch.randn(2, WIDTH)
    assert torch.equal(twin(h), h) and not torch.equal(model.middle(h), h)
    torch.save(model.state_dict(), io.BytesIO())
    engine.detach()


def test_evaluation_between_batches_runs_the_whole_batch_at_once() -> None:
    sizes: list[int] = []

    def noted(m: Net, h: Tensor) -> Tensor:
        sizes.append(len(h))
        return _branches(m, h)

    engine = gradients.attach(model := Whole(noted))
    x = torch.randn(B, 5, 3)
    model(x).sum().backward()
    engine.discard()
    sizes.clear()
    with torch.no_grad():
        model(x)
    assert sizes == [B]
    model(x).sum().backward()
    assert sizes == [B, *[1] * B]
    engine.detach()


def test_a_gradient_penalty_in_the_loop(naive: Any, compare: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    data = torch.randn(B, 3, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (out.square().squeeze(1) + (slope.norm(dim=1) - 1).square()).mean()

    each = naive(model, lambda i: loss(data[i : i + 1].clone()), B)
    engine = gradients.attach(model, isolate=True)
    loss(engine.trace(data.clone(), B)).backward()
    compare(engine, each)
    engine.detach()


def test_a_gradient_penalty_in_the_loop_names_the_remedy() -> None:
    engine = gradients.attach(model := nn.Linear(3, 1))
    x = engine.trace(torch.randn(B, 3), B).requires_grad_()
    with pytest.raises(ValueError, match="isolate=True"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    engine.detach()


@pytest.mark.parametrize("validate", [True, False])
def test_distributions_may_validate_their_arguments(naive: Any, compare: Any, validate: bool) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            normal = torch.distributions.Normal(self.line(x), 1.0, validate_args=validate)
            return -normal.log_prob(torch.zeros(2)).sum(1).mean()

    model = Mean()
    x = torch.randn(B, 3)
    each = naive(model, lambda i: model(x[i : i + 1]), B)
    engine = gradients.attach(model)
    model(x).backward()
    compare(engine, each)
    assert engine.isolated == ()
    engine.detach()


class Queue(nn.Module):
    """Keeps features of examples, and subtracts their mean once there are enough of them."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.queue = nn.Linear(3, 3), []

    def forward(self, x: Tensor) -> Tensor:
        h = self.line(x)
        assert bool((h == h).all())
        if len(self.queue) >= 16:
            h = h - torch.stack(self.queue).mean(0)
        self.queue += list(h.detach())
        return h


class Cached(nn.Module):
    """Computes its weight anew only where the parameter was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.randn(3, 3)), (-1, torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kept[0] != self.weight._version:
            self.kept = self.weight._version, F.normalize(self.weight, dim=1)
        return x @ self.kept[1] if bool((x == x).all()) else x


class Initialised(nn.Module):
    """Takes a scale from the first values that it sees."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)
        if buffer:
            self.register_buffer("scale", None)
        else:
            self.scale = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = x.detach().abs().max()
        return self.line(x) / self.scale


class Counting(nn.Module):
    """Returns a number beside its output that is the same for most examples."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return self.line(x), float((x.abs() > 50).sum())


def _own_norms(model: nn.Module, x: Tensor) -> Tensor:
    """Every example's gradient norm, alone and with the model as it is before."""
    norms = []
    for i in range(len(x)):
        twin = copy.deepcopy(model)
        out = twin(x[i : i + 1])
        out = out[0] if isinstance(out, tuple) else out
        grads = torch.autograd.grad(out.square().sum(), list(twin.parameters()))
        norms.append(torch.sqrt(sum((g.square().sum() for g in grads), torch.zeros(()))))
    return torch.stack(norms)


@pytest.mark.parametrize("build", [Queue, Cached, lambda: Initialised(False), lambda: Initialised(True)])
@pytest.mark.parametrize("isolate", [None, True])
def test_state_of_an_isolated_module_does_not_reach_other_examples(
    build: Callable[[], nn.Module], isolate: bool | None
) -> None:
    """Refused, or every example begins with the state as it was: in later batches too."""
    model = build()
    fresh = copy.deepcopy(model)
    engine = gradients.attach(model, isolate=isolate, reduction="sum")
    with contextlib.suppress(ValueError, RuntimeError):  # refused
        for _ in range(3):
            x = torch.randn(12, 3)
            model(x).square().sum().backward()
            torch.testing.assert_close(engine.norms(), _own_norms(fresh, x), rtol=1e-4, atol=1e-5)
            engine.discard()
    engine.detach()


def test_an_output_that_was_the_same_for_all_examples_is_compared_in_every_batch() -> None:
    engine = gradients.attach(model := Counting(), reduction="sum")
    out, count = model(torch.randn(B, 3))
    (out.square().sum(1) * (1 + count)).sum().backward()
    engine.discard()
    x = torch.randn(B, 3)
    x[0] = 100.0
    with pytest.raises(RuntimeError, match="differs between them"):
        model(x)
    engine.detach()


@pytest.mark.parametrize("sizes", [(1, 6), (2, 6), (1, 1)])
def test_a_batch_of_one_leaves_nothing_in_buffers(sizes: tuple[int, ...]) -> None:
    model = Counted()
    engine = gradients.attach(model, reduction="sum")

    def train() -> None:
        for size in sizes:
            model(torch.randn(size, 3)).square().sum().backward()
            engine.discard()

    if max(sizes) > 1:
        with pytest.raises((ValueError, RuntimeError)):
            train()
    else:
        train()
    engine.detach()
    assert not model.mean.any()


class Scaled(nn.Module):
    """Its own loss has a scale that depends on the number of examples, from sixteen on."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).square().sum() / max(len(x), 16)


@pytest.mark.parametrize("sizes", [(12, 12, 20), (20,)])
def test_a_scale_inside_the_model_is_that_of_the_plan_in_every_batch(sizes: tuple[int, ...]) -> None:
    engine = gradients.attach(model := Scaled())

    def train() -> None:
        for size in sizes:
            model(torch.randn(size, 3)).backward()
            engine.norms()
            engine.discard()

    with pytest.raises(ValueError, match="reduction cannot be told"):
        train()
    engine.detach()


class Doubled(nn.Module):
    """An isolated module that is called twice, and one of whose weights is used outside it too."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first, self.middle, self.tied = nn.Linear(3, WIDTH), Net(_branches), tied

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.first(x))
        return self.middle(h) + F.linear(h, self.middle.own.weight) if self.tied else h


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_computed_again_are_those_that_would_be_kept(
    naive: Any, compare: Any, monkeypatch: pytest.MonkeyPatch, tied: bool, passes: int
) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", 0)
    model, x = Doubled(tied).double(), torch.randn(B, 3, dtype=torch.float64)
    each = naive(model, lambda i: passes * model(x[i : i + 1]).sin().sum(), B)
    engine = gradients.attach(model, isolate=["middle"])
    loss = model(x).sin().sum()
    for left in reversed(range(passes)):
        loss.backward(retain_graph=left > 0)
    held = [p.grad for call in engine._recorder.aliases for own in call.aliases for p in own.values()]
    assert held and all(grad is None for grad in held)
    compare(engine, each)
    engine.detach()


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        return h, self.second(h)


def test_gradients_computed_again_count_a_backward_pass_for_each_output(
    naive: Any, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", 0)
    model, x = nn.Sequential(TwoOutputs()).double(), torch.randn(B, 3, dtype=torch.float64)

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = model(x)
        return 3 * first.sin().sum(), second.cos().sum()

    each = naive(model, lambda i: sum(losses(x[i : i + 1])), B)
    engine = gradients.attach(model, isolate=["0"])
    first, second = losses(x)
    first.backward(retain_graph=True)
    second.backward()
    compare(engine, each)
    engine.detach()


@pytest.mark.parametrize("large", [0, 1 << 20])
def test_a_backward_pass_before_a_gradient_penalty_counts(
    naive: Any, compare: Any, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", large)
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).double()
    x = torch.randn(B, 3, dtype=torch.float64, requires_grad=True)

    def penalty(x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().sum()

    def both(x: Tensor) -> Tensor:
        return model(x).sin().sum() + penalty(x)

    each = naive(model, lambda i: both(x[i : i + 1].detach().requires_grad_()), B)
    engine = gradients.attach(model, isolate=True)
    model(x).sin().sum().backward()
    penalty(x).backward()
    compare(engine, each)
    engine.detach()


def test_parameters_stay_as_they_are_until_gradients_computed_again_are_added_up(
    flat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", 0)
    model = nn.Sequential(nn.Linear(3, 2))
    engine = gradients.attach(model, isolate=True)
    model(torch.randn(B, 3)).square().sum().backward()
    assert engine.norms().isfinite().all() and engine.coarsest_dtype == torch.float32
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified in place after the norms were taken"):
        engine.clipped_sum(flat(1.0))
    engine.detach()


class RandomBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * (1 + torch.rand(()))


def test_gradients_that_are_random_are_not_computed_again(flat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", 0)
    model = nn.Sequential(Net(lambda m, h: RandomBackward.apply(m.own(h))), nn.Linear(WIDTH, 2))
    engine = gradients.attach(model, isolate=["0"])
    model(torch.randn(B, WIDTH)).square().sum().backward()
    with pytest.raises(RuntimeError, match=r"backward pass of a module .* is random"):
        engine.clipped_sum(flat(1.0))
    engine.detach()


def test_a_gradient_that_is_not_finite_is_left_out_when_gradients_are_computed_again(
    flat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.gradients.isolation.isolate.LARGE", 0)
    model, x = Doubled(False), torch.randn(B, 3)
    engine = gradients.attach(model, isolate=["middle"])
    x[1] = torch.nan
    model(x).square().sum().backward()
    found = engine.clipped_sum(flat(1.0))
    model(torch.cat([x[:1], x[2:]])).square().sum().backward()
    others = engine.clipped_sum(flat(1.0))
    assert all(torch.allclose(found[name], others[name], atol=1e-6) for name in found)
    engine.detach()
