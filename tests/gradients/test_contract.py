"""What the engine promises besides exactness: no trace, no leak, no silence."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from tacit import gradients

B = 4


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def test_detach_leaves_no_trace() -> None:
    model = net()
    before = {
        n: (id(m), set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()
    }
    keys, parameters = list(model.state_dict()), [id(p) for p in model.parameters()]
    engine = gradients.attach(model)
    assert list(model.state_dict()) == keys
    model(torch.randn(B, 5)).sum().backward()
    engine.detach()
    after = {
        n: (id(m), set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()
    }
    assert after == before
    assert [id(p) for p in model.parameters()] == parameters
    assert all(not p._backward_hooks and not p._post_accumulate_grad_hooks for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    out = model(torch.randn(B, 5))
    assert type(out) is Tensor
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


class Interrupted(nn.Module):
    """Mixes examples, or is stopped half-way, or calls itself, as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(5, 3), ""

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "stop":
            raise KeyboardInterrupt
        if self.how == "again":
            self.how = ""
            return self(x) + 1
        out: Tensor = self.linear(x - x.mean(0) if self.how == "mix" else x)
        return out


def test_after_an_interruption_a_model_is_followed_as_before(flat: Any) -> None:
    """No hook is called after Ctrl-C; whoever goes on with the loop must be refused what was refused before."""
    model, x = Interrupted(), torch.randn(B, 5)
    engine = gradients.attach(model)
    for how in ("", "again"):
        with torch.no_grad() if how else torch.enable_grad():
            model.how = "stop"
            with pytest.raises(KeyboardInterrupt):
                model(x)
        model.how = how
        model(engine.trace(x, B)).sum(1).mean().backward()
        assert len(engine.norms()) == B
        engine.clipped_sum(flat(1.0))
    model.how = "stop"
    with pytest.raises(KeyboardInterrupt):
        model(x)
    model.how = "mix"
    with pytest.raises(ValueError, match="example"):
        model(engine.trace(x, B))
    model.how = ""
    assert len(model(x)[0].tolist()) == 3, "values may be read outside the model"
    engine.detach()


def test_after_an_interruption_losses_can_be_read(flat: Any) -> None:
    model, x = Interrupted(), torch.randn(B, 5)
    engine = gradients.attach(model)
    loss = model(x).sum(1).mean()
    loss.backward()
    engine.clipped_sum(flat(1.0))
    model.how = "stop"
    with pytest.raises(KeyboardInterrupt):
        model(x)
    engine.discard()
    assert loss.item() == float(loss)
    engine.detach()


def test_no_mode_stays_behind() -> None:
    """Nor is one taken away that somebody else has left there."""

    class Other(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Moded(Interrupted):
        def forward(self, x: Tensor) -> Tensor:
            if self.how != "leave":
                return super().forward(x)
            other.__enter__()
            raise KeyboardInterrupt

    model, other = Moded(), Other()
    engine = gradients.attach(model)
    model(torch.randn(B, 5))
    assert _get_current_function_mode_stack() == []
    model.how = "mix"
    with pytest.raises(ValueError, match="example"):
        model(torch.randn(B, 5))
    assert _get_current_function_mode_stack() == []
    model.how = "leave"
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(B, 5))
    engine.discard()
    assert _get_current_function_mode_stack() == [other]
    other.__exit__(None, None, None)
    model.how = "stop"
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(B, 5))
    engine.detach()
    assert _get_current_function_mode_stack() == []


def test_an_interruption_keeps_no_tensor_alive() -> None:
    model, engine, kept = Interrupted(), None, []

    class Local:
        pass

    def loop() -> None:
        local = Local()
        kept.append(weakref.ref(local))
        model.how = "stop" if len(kept) == 2 else ""
        model(torch.randn(B, 5))

    engine = gradients.attach(model)
    loop()
    with pytest.raises(KeyboardInterrupt):
        loop()
    gc.collect()
    assert [local() for local in kept] == [None, None]
    copy.deepcopy(model)
    engine.detach()


class Reading(nn.Module):
    """Calls itself some times, lets another thread call it, then reads a value."""

    def __init__(self, calls: int, threads: int, twin: bool) -> None:
        super().__init__()
        self.linear, self.calls, self.threads, self.deep = nn.Linear(5, 3), calls, threads, False
        self.twin = twin

    def forward(self, x: Tensor) -> Tensor:
        if not self.deep:
            self.deep = True
            for _ in range(self.calls):
                (copy.copy(self) if self.twin else self)(x)
            for _ in range(self.threads):
                thread = threading.Thread(target=self.evaluate)
                thread.start()
                thread.join()
            self.deep = False
            float(x[0, 0])
        out: Tensor = self.linear(x)
        return out

    @torch.no_grad()
    def evaluate(self) -> None:
        self(torch.randn(3, 5))


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize(("calls", "threads"), [(0, 0), (1, 0), (2, 0), (0, 1), (2, 2)])
@pytest.mark.usefixtures("without_isolation")
def test_reading_is_refused_to_the_end_of_the_forward_pass(calls: int, threads: int, twin: bool) -> None:
    model = Reading(calls, threads, twin)
    engine = gradients.attach(model)
    with pytest.raises(RuntimeError, match="reads values"):
        model(torch.randn(B, 5))
    engine.detach()


def test_a_failed_forward_pass_leaves_no_problems_for_the_next_one() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.how = nn.Linear(5, 3), ""

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x - x.mean(0) if self.how else x)
            if self.how:
                raise KeyError(self.how)
            return out

    model = Failing()
    engine = gradients.attach(model)
    model.how = "bad batch"
    with pytest.raises(KeyError, match="bad batch"):
        model(torch.randn(B, 5))
    model.how = ""
    model(torch.randn(B, 5)).sum(1).mean().backward()
    assert len(engine.norms()) == B
    engine.detach()


def test_logging_before_the_model_is_no_problem_and_bags_are() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(7, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x)
            return out

    model = Bags()
    engine = gradients.attach(model)
    x = engine.trace(torch.randn(B, 5), B)
    model.head(x.mean(0))
    model(x).sum(1).mean().backward()
    assert len(engine.norms()) == B
    engine.discard()
    weights = engine.trace(torch.rand(B, B), B)
    index = engine.trace(torch.randint(0, 7, (B, B)), B)
    bags = F.embedding_bag(index, model.table, mode="sum", per_sample_weights=weights.T)
    with pytest.raises(ValueError, match="several examples into one bag"):
        model(bags)
    engine.detach()


def test_problems_found_before_the_models_call_are_still_reported() -> None:
    """A recurrent layer of somebody's own takes the examples for time."""
    model, layer = net(), nn.RNN(5, 5).requires_grad_(False)
    engine = gradients.attach(model)
    x = engine.trace(torch.randn(B, 3, 5), B)
    with pytest.raises(ValueError, match="batch_first"):
        model(layer(x)[0][:, -1])
    x = engine.trace(torch.randn(B, 3, 5), B)
    mixed = layer(x)[0][:, -1]
    engine._recorder.problems.forget()
    with pytest.raises(ValueError, match="batch_first"):
        model(mixed).sum().backward()
    engine.detach()


def test_an_ordinary_loop_over_several_batches(naive: Any, flat: Any) -> None:
    """Three physical batches of different size add up to the clipped sum of the whole lot, without aliasing."""
    model, engine = net(), None
    x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
    each = naive(model, lambda i: F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), 9)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    clip = float(norms.median())
    engine = gradients.attach(model)
    totals = {n: torch.zeros_like(p) for n, p in engine.parameters.items()}
    kept = []
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        F.cross_entropy(model(x[part]), y[part]).backward()
        assert engine.batch_size == len(x[part])
        kept.append(engine.norms())
        engine.clipped_sum(flat(clip), out=totals)
    engine.detach()
    torch.testing.assert_close(torch.cat(kept), norms, rtol=1e-5, atol=1e-6)
    for n, total in totals.items():
        wanted = torch.tensordot((clip / norms).clamp_max(1), each[n], 1)
        torch.testing.assert_close(total, wanted, rtol=1e-5, atol=1e-6)


def test_sums_gathered_in_one_flat_buffer(naive: Any, flat: Any) -> None:
    """Targets that are views into shared memory, and parameters used by slices and transposed."""

    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.matrix = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(6, 5))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.matrix[:3]) * F.linear(x, self.matrix[3:]) * self.first

    model = Sliced()
    x = torch.randn(B, 5)
    each = naive(model, lambda i: model(x[i : i + 1]).sum(), B)
    for transposed in (False, True):
        memory = torch.zeros(33 + 7)
        matrix = memory[3:33].view(5, 6).t() if transposed else memory[3:33].view(6, 5)
        engine = gradients.attach(model)
        model(x).sum(1).mean().backward()
        engine.clipped_sum(flat(1e9), out={"first": memory[:3], "matrix": matrix})
        engine.detach()
        torch.testing.assert_close(matrix, each["matrix"].sum(0))
        torch.testing.assert_close(memory[:3], each["first"].sum(0))
        assert bool((memory[33:] == 0).all())


def test_results_do_not_change_when_the_next_batch_arrives(flat: Any) -> None:
    model = net()
    engine = gradients.attach(model)
    model(torch.randn(B, 5)).sum().backward()
    first = engine.clipped_sum(flat(1.0))
    copy = {n: t.clone() for n, t in first.items()}
    model(torch.randn(B, 5)).sum().backward()
    engine.clipped_sum(flat(1.0))
    assert all(torch.equal(first[n], copy[n]) for n in copy)


def test_evaluation_is_not_recorded() -> None:
    model = net()
    engine = gradients.attach(model)
    with torch.no_grad():
        assert type(model(torch.randn(7, 5))) is Tensor
    with pytest.raises(RuntimeError, match="no batch was seen"):
        engine.norms()


def test_a_forward_pass_that_raises_or_is_abandoned_does_no_harm(flat: Any) -> None:
    model = net()
    engine = gradients.attach(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 99))
    model(torch.randn(6, 5))
    model(torch.randn(B, 5)).sum().backward()
    assert engine.norms().shape == (B,)


def test_empty_batch_gives_a_zero_sum(flat: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    for reduce in (torch.mean, torch.sum):
        engine = gradients.attach(model)
        out = model(torch.randn(0, 1, 4, 4))
        reduce(F.cross_entropy(out, torch.zeros(0, dtype=torch.long), reduction="none")).backward()
        assert engine.batch_size == 0
        assert engine.norms().shape == (0,)
        total = engine.clipped_sum(flat(1.0))
        assert set(total) == {n for n, _ in model.named_parameters()}
        assert all(bool((t == 0).all()) for t in total.values())
        engine.detach()
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("layer", ["linear", "sequence", "convolution", "embedding"])
def test_one_broken_example_counts_as_zero_and_touches_no_other(
    value: float, layer: str, flat: Any, per_layer: Any
) -> None:
    models = {
        "linear": (net(), torch.randn(B, 5)),
        "sequence": (nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)), torch.randn(B, 6, 5)),
        "convolution": (nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.PReLU()), torch.randn(B, 2, 5, 5)),
        "embedding": (nn.Embedding(4, 3), torch.tensor([[0, 1], [2, 1], [3, 3], [1, 0]])),
    }
    model, x = models[layer]
    scale = torch.ones(B)
    scale[2] = value
    good = [0, 1, 3]

    def run(rows: Any, factor: Tensor) -> gradients.Tape:
        with gradients.record(model) as tape:
            out = model(rows).flatten(1)
            (out * factor.unsqueeze(1)).square().sum(1).sum().backward()
        return tape

    broken, clean = run(x, scale), run(x[good], scale[good])
    assert not torch.isfinite(broken.norms()[2])
    torch.testing.assert_close(broken.norms()[good], clean.norms())
    for strategy in (flat, per_layer):
        wanted, found = clean.clipped_sum(strategy(0.5)), broken.clipped_sum(strategy(0.5))
        for n in wanted:
            torch.testing.assert_close(found[n], wanted[n])


def test_frozen_parameters_cost_nothing_and_a_frozen_prefix_has_no_graph() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    model[3].bias.requires_grad_(False)
    seen: dict[str, bool] = {}
    for i in (0, 1, 2):
        model[i].register_forward_hook(lambda m, a, o, i=i: seen.__setitem__(str(i), o.requires_grad))
    with gradients.record(model) as tape:
        model(torch.randn(B, 5)).sum().backward()
    assert seen == {"0": False, "1": False, "2": True}
    assert set(tape.shapes) == {"2.weight", "2.bias", "3.weight"}


def test_an_unused_parameter_contributes_zero(flat: Any) -> None:
    model = net()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    with gradients.record(model) as tape:
        model(torch.randn(B, 5)).sum().backward()
    assert torch.equal(tape.clipped_sum(flat(1.0))["spare"], torch.zeros(2))


class Hidden(torch.autograd.Function):
    """A custom function that takes the parameter where the engine cannot see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


@pytest.mark.usefixtures("without_isolation")
def test_a_parameter_used_out_of_sight_is_an_error_not_a_silence() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return Hidden.apply(self.linear(x), self.scale)

    model = Custom()
    with pytest.raises(ValueError, match="custom autograd function 'Hidden'"), gradients.record(model):
        model(torch.randn(B, 5)).sum().backward()
    assert model.scale.grad is None


def _penalty(model: nn.Module) -> torch.Tensor:
    return 0.1 * sum(p.square().sum() for p in model.parameters()) - 0.2 * model[0].weight.norm()


def test_a_penalty_on_the_parameters_beside_a_mean_is_a_term_of_each_examples_loss(
    naive: Any, compare: Any, flat: Any
) -> None:
    model, x = net(), torch.randn(B, 5)
    each = naive(model, lambda i: model(x[i : i + 1]).sum(1).mean() + _penalty(model), B)
    for losses in (
        lambda: model(x).sum(1).mean() + _penalty(model),
        lambda: _penalty(model) + model(x).sum(1).mean(),
        lambda: model(x).sum(1).mean() - (-_penalty(model)),
    ):
        with gradients.record(model) as tape:
            losses().backward()
        compare(tape, each)
    with gradients.record(model) as tape:
        (model(x[:0]).sum(1).mean() + _penalty(model)).backward()
    assert not any(total.any() for total in tape.clipped_sum(flat(1.0)).values())


def test_a_penalty_on_the_parameters_beside_a_sum_is_refused() -> None:
    """Beside a sum over examples it would count once, beside each example's own loss as often as there are examples."""
    model = net()
    with gradients.record(model):
        loss = model(torch.randn(B, 5)).sum() + _penalty(model)
        with pytest.raises(RuntimeError, match="weight_decay"):
            loss.backward()


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_a_penalty_that_is_divided_by_the_batch_is_refused_by_the_model_that_adds_it(size: float) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).sum(1).mean() + size * _penalty(self.net) / len(x)

    engine = gradients.attach(model := Own())
    with pytest.raises(ValueError):
        model(torch.randn(B, 5)).backward()
    engine.detach()


def test_calling_a_part_of_the_model_instead_of_the_model_is_refused() -> None:
    model = net()
    with pytest.raises(RuntimeError, match="outside the engine's sight"), gradients.record(model):
        model[0](torch.randn(B, 5)).sum().backward()


def test_norms_before_backward() -> None:
    model = net()
    with gradients.record(model) as tape:
        model(torch.randn(B, 5))
        with pytest.raises(RuntimeError, match="backward was not run"):
            tape.norms()


def test_inputs_that_disagree_about_the_batch() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return self.linear(x) @ table

    model = Two()
    with pytest.raises(ValueError, match="batch_dim"), gradients.record(model):
        model(torch.randn(B, 5), torch.randn(3, 2))
    with gradients.record(model, batch_dim={"table": None, 1: None}) as tape:
        model(torch.randn(B, 5), torch.randn(3, 2)).sum().backward()
    assert tape.norms().shape == (B,)


def test_two_engines_on_one_model() -> None:
    model = net()
    gradients.attach(model)
    with pytest.raises(RuntimeError, match="already"):
        gradients.attach(model)


def test_a_partition_must_cover_every_parameter_once(flat: Any) -> None:
    model = net()
    with gradients.record(model) as tape:
        model(torch.randn(B, 5)).sum().backward()
    names = list(tape.shapes)
    for wrong in ([tuple(names[1:])], [tuple(names), (names[0],)], [(*names, "ghost")]):
        with pytest.raises(ValueError, match="exactly once"):
            tape.norms(wrong)
    assert tape.norms([(n,) for n in names]).shape == (B, len(names))


@pytest.mark.usefixtures("without_isolation")
def test_slow_operations_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = nn.Parameter(torch.randn(6, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(x, self.points)

    model = Prototypes()
    engine = gradients.attach(model)
    with caplog.at_level(logging.WARNING, "tacit.gradients"):
        for _ in range(3):
            model(torch.randn(B, 5)).sum().backward()
            engine.discard()
    assert len(caplog.records) == 1
    assert "Prototypes" in caplog.text
    assert engine.slow_operations


def test_outputs_behave_as_tensors() -> None:
    import copy
    import io

    model = net()
    with gradients.record(model):
        out = model(torch.randn(B, 5))
        assert isinstance(out, Tensor)
        assert (out.argmax(1) == torch.zeros(B)).float().mean().item() >= 0
        assert out.detach().numpy().shape == (B, 3)
        assert "tensor" in repr(out)
        buffer = io.BytesIO()
        torch.save(out.detach(), buffer)
        buffer.seek(0)
        assert type(torch.load(buffer)) is Tensor
        assert copy.deepcopy(out.detach()).shape == (B, 3)
        assert float(out.sum()) == pytest.approx(out.tolist() and sum(map(sum, out.tolist())), rel=1e-5)
        out.retain_grad()
        out.sum().backward()
        assert out.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_and_sums_are_float32_under_mixed_precision(dtype: torch.dtype, flat: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(B, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    if dtype == torch.bfloat16:
        with gradients.record(model) as tape, torch.autocast("cpu", dtype):
            F.cross_entropy(model(x), y).backward()
    else:
        model = model.to(dtype)
        with gradients.record(model) as tape:
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
    assert tape.norms().dtype == torch.float32
    total = tape.clipped_sum(flat(0.1))
    assert all(t.dtype == torch.float32 for t in total.values())
    with gradients.record(model.float()) as exact:
        F.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(tape.norms(), exact.norms(), rtol=0.05, atol=0.05)


def test_sums_over_positions_are_taken_in_float32() -> None:
    """4,097 ones: half precision would lose the last."""
    model = nn.Sequential(nn.Linear(1, 2), nn.LayerNorm(2)).to(torch.bfloat16)
    with gradients.record(model) as tape:
        model(torch.randn(2, 4097, 1).bfloat16()).float().sum((1, 2)).sum().backward()
    found = tape._recorder.parts["1.bias"][0].contribution.instantiate(0, 2)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.full((2, 2), 4097.0))


def test_one_model_feeding_another_each_with_its_own_engine() -> None:
    first, second = net(), nn.Linear(3, 2)
    with gradients.record(first, reduction="sum") as a, gradients.record(second) as b:
        second(first(torch.randn(B, 5))).sum(1).sum().backward()
    assert a.norms().shape == b.norms().shape == (B,)
    assert float(b.norms().min()) > 0


def test_the_clipped_norm_never_exceeds_the_bound_even_when_gradients_cancel(flat: Any) -> None:
    """Large opposite contributions at different positions: a Gram-matrix norm alone would be all rounding."""
    torch.manual_seed(3)
    model = nn.Linear(60, 50, bias=False)
    a = torch.randn(B, 4, 60)
    x = torch.stack([a, a * (1 + 1e-4)], 2).flatten(1, 2)
    g = torch.randn(B, 4, 50)
    signs = torch.stack([g, -g], 2).flatten(1, 2)
    with gradients.record(model) as tape:
        (model(x) * signs).sum().backward()
    for i in range(B):
        exact = (signs[i].double().t() @ x[i].double()).norm()
        with gradients.record(model) as single:
            (model(x[i : i + 1]) * signs[i : i + 1]).sum().backward()
        clip = float(exact) / 2
        found = single.clipped_sum(flat(clip))["weight"].double().norm()
        # The sum itself is rounded in float32 where it cancels, so the bound holds to that rounding.
        assert float(found) <= clip * (1 + 1e-3)
        assert float(tape.norms()[i]) >= float(exact) * (1 - 1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_clipped_norm_never_exceeds_the_bound(seed: int, flat: Any) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    x = torch.randn(1, 7, 20) * 10**seed
    for clip in (1e-6, 0.37, 1e4):
        with gradients.record(model) as tape:
            model(x).square().sum().backward()
        total = tape.clipped_sum(flat(clip))
        assert float(torch.stack([t.double().norm() for t in total.values()]).norm()) <= clip


def test_example_in_the_documentation() -> None:
    import doctest

    assert doctest.testmod(gradients).failed == 0


def test_a_replaced_buffer_leaves_its_identity_to_no_other_tensor() -> None:
    """A tensor of the batch at its address would be taken for the buffer."""
    model = net()
    model.register_buffer("count", torch.zeros(3))
    first = weakref.ref(model.count)
    engine = gradients.attach(model)
    model.count = model.count + 1
    assert first() is not None
    engine.detach()


def test_after_a_failure_norms_are_taken_again() -> None:
    """What a gradient is made of may have been written to in between."""
    model = nn.Linear(300, 100)

    class Limit:
        fails = True

        def partition(self, shapes: Any) -> Any:
            return [tuple(shapes)]

        def weights(self, norms: Tensor) -> Tensor:
            if self.fails:
                raise ArithmeticError("once")
            return (1.0 / norms).clamp(max=1.0)

    engine, limit = gradients.attach(model), Limit()
    (model(torch.randn(8, 300)) * torch.randn(8, 100)).sum().backward()
    with pytest.raises(ArithmeticError):
        engine.clipped_sum(limit)
    for part in engine._recorder.parts["bias"]:
        part.contribution.grads.mul_(1000)  # type: ignore[attr-defined]
    limit.fails = False
    total = engine.clipped_sum(limit)
    assert torch.stack([each.norm() for each in total.values()]).norm() <= 8.01
    engine.detach()
