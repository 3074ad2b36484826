"""The first batch is compared with parts of itself: what no operation shows is found where it changes an output."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from tacit import gradients

B = 10
INFLUENCE = "changes with the other examples"


class Net(nn.Module):
    """A small model with much that a forward pass may use or change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.register_buffer("table", torch.randn(64, 4))
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(3)
        self.kept: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.seen: set[int] = set()
        self.steps = 0

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def data() -> Tensor:
    return torch.randn(B, 4, generator=torch.Generator().manual_seed(1))


def once(model: nn.Module, x: Tensor, **settings: Any) -> None:
    """One batch of a training loop."""
    engine = gradients.attach(model, **settings)
    try:
        found = model(x)
        out = found[0] if isinstance(found, tuple) else found["out"] if isinstance(found, dict) else found
        out.square().sum().backward()
        engine.norms()
    finally:
        engine.detach()


@dataclass
class Answer:
    logits: Tensor


def thirds(x: Tensor) -> Tensor:
    return (torch.arange(len(x)) % 3).unsqueeze(1)


MIXING: dict[str, Callable[..., Any]] = {
    "the batch's size": lambda m, x: m.linear(x) / len(x),
    "the batch's size in a constant": lambda m, x: m.linear(x) * torch.full((1,), 1 / x.shape[0]),
    "places": lambda m, x: m.linear(x) + m.table[: len(x)],
    "places counted": lambda m, x: m.linear(x) * torch.arange(len(x)).unsqueeze(1),
    "places in threes": lambda m, x: m.linear(x) * thirds(x),
    "the first": lambda m, x: m.linear(x) * torch.eye(len(x))[0].add(1).unsqueeze(1),
    "whether they are even": lambda m, x: m.linear(x).mul(1.0 if len(x) % 2 else -1.0),
    "one of several outputs": lambda m, x: {"out": m.linear(x), "other": m.linear(x) / len(x)},
    "attributes": lambda m, x: (m.linear(x), SimpleNamespace(out=Answer(m.linear(x) / len(x)))),
    "a sum": lambda m, x: (m.linear(x), (m.linear(x) * thirds(x)).square().sum()),
    "a mean": lambda m, x: (m.linear(x), (m.linear(x) * torch.arange(len(x)).unsqueeze(1)).mean()),
    "after noise": lambda m, x: noisy(m, x) / len(x),
    "after noise of length one": lambda m, x: (m.linear(x) + F.normalize(torch.randn(4), dim=0, eps=0)) / len(x),
    "after attention": lambda m, x: (
        F.scaled_dot_product_attention(*3 * (m.linear(x).view(-1, 1, 1, 4),), None, 0.5).flatten(1) / len(x)
    ),
    "with recurrent dropout": lambda m, x: m.lstm(x.unsqueeze(1).expand(-1, 3, -1))[0] / len(x),
    "beside a large number": lambda m, x: torch.cat([m.linear(x) / len(x), torch.full_like(x[:, :1], 1e3)], 1),
    "a sum and a constant": lambda m, x: (m.linear(x), (m.linear(x) * thirds(x)).square().sum() + 2.0),
    "integers": lambda m, x: (m.linear(x), x.long() + len(x)),
    "as wide as the batch": lambda m, x: m.linear(x).unsqueeze(1).expand(-1, len(x), -1),
    "as wide as the batch, in several": lambda m, x: (m.linear(x), torch.cat([m.linear(x)] * len(x), 1)),
}


@pytest.mark.parametrize("name", MIXING)
def test_influence_that_no_operation_shows_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=INFLUENCE):
        once(Net(MIXING[name]), data())
    with pytest.raises(ValueError, match="no per-example gradients"):
        gradients.check(Net(MIXING[name]), data())


def noisy(m: Any, x: Tensor) -> Tensor:
    noise = torch.randn_like(x) + torch.randn(len(x), 4) + torch.rand(x.shape) + torch.empty_like(x).normal_()
    return m.linear(x) * F.dropout(torch.ones_like(x), 0.5) + noise * torch.empty(len(x), 1).bernoulli_(0.5)


def skipping(m: Any, x: Tensor) -> Tensor:
    """Layers that are left out at random, for the whole batch."""
    for draw in (random.random, np.random.random, lambda: float(torch.rand(()))):
        if draw() < 0.5:
            x = m.linear(x)
    return m.linear(x)


def keeping(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    m.count += 1
    m.counted += 1
    m.new = m.linear(x)
    m.kept.append(m.new)
    m.named[f"step {m.steps}"] = [m.new]
    m.nested["losses"]["all"].append(m.new)
    m.seen.add(m.steps)
    m.calls["all"] += 1
    m.last[:] = x.detach()[0, :2]
    m.noise = torch.rand(3, generator=m.generator)
    np.random.random()  # noqa: NPY002
    return m.new + m.steps  # type: ignore[no-any-return]


def _numpy_state() -> Any:
    return np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # noqa: NPY002


def calling_itself(m: Any, x: Tensor) -> Any:
    m.steps += 1
    return m(x * 2) if m.steps < 3 else m.linear(x)


def buffered(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return m.linear(x) * m.table[0] * (m.count + 1)  # type: ignore[no-any-return]


def with_losses(m: Any, x: Tensor) -> Any:
    out = m.linear(x)
    y = torch.zeros(len(x), dtype=torch.long)
    summed = F.cross_entropy(out, y, reduction="sum")
    return out, summed, F.cross_entropy(out, y), summed / len(x), summed + 2.0, Answer(out), SimpleNamespace(out=out)


HONEST: dict[str, Callable[..., Any]] = {
    "plain": lambda m, x: m.linear(x),
    "noise": noisy,
    "layers left out": skipping,
    "noise in place": lambda m, x: m.linear(x) + torch.empty(x.shape).uniform_() + torch.empty(len(x), 1).normal_(),
    "entries left out": lambda m, x: m.linear(x) * torch.bernoulli(torch.full((len(x), 4), 0.5)),
    "attention's own dropout": lambda m, x: F.scaled_dot_product_attention(
        *3 * (m.linear(x).view(-1, 1, 2, 2),), dropout_p=0.5
    ).flatten(1),
    "attention with dropout": lambda m, x: m.attention(*3 * (m.linear(x).unflatten(1, (1, 4)),))[0].flatten(1),
    "recurrent dropout": lambda m, x: m.lstm(x.unsqueeze(1).expand(-1, 3, -1))[0],
    "buffers in the graph": buffered,
    "losses and attributes": with_losses,
    "calls itself": calling_itself,
    "eight bits": lambda m, x: (m.linear(x), m.linear(x).detach().to(torch.float8_e4m3fn)),
    "not a number": lambda m, x: torch.where(x[:, :1] > 0.5, torch.nan, m.linear(x)),
    "words and numbers beside": lambda m, x: {"out": m.linear(x), "size": len(x), "why": "because"},
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_are_accepted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        once(Net(HONEST[name]), data())
    assert "were not compared" not in caplog.text


def test_the_comparison_leaves_no_trace_in_the_models_state_or_random_generators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Net(keeping)
    model.counted, model.last = torch.zeros(()), torch.zeros(2)  # plain tensors
    model.nested, model.calls = {"losses": {"all": []}}, Counter()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    np.random.random()  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate(), _numpy_state()
    np.random.seed(1)  # noqa: NPY002
    expected = torch.Generator().manual_seed(3)
    drawn = torch.rand(3, generator=expected)
    engine = gradients.attach(model, reduction="sum")
    try:
        x = data()
        model(x)
        assert model.steps == model.count == model.counted == 1 and len(model.kept) == 1 and model.kept[0] is model.new
        assert list(model.named) == ["step 1"] and model.seen == {1} and model.calls == {"all": 1}
        assert model.nested["losses"]["all"] == [model.new] and torch.equal(model.last, x[0, :2])
        assert torch.equal(model.noise, drawn) and torch.equal(model.generator.get_state(), expected.get_state())
        assert len(model.kept[0]) == B
        now = torch.get_rng_state(), random.getstate(), _numpy_state()
        assert torch.equal(now[0], states[0]) and now[1:] == states[1:]
    finally:
        engine.detach()
    assert "were not compared" not in caplog.text


def test_tensors_that_hooks_keep_come_from_the_whole_batch(flat: Any) -> None:
    """A function that a model calls writes where no copy reaches."""
    kept: dict[str, Tensor] = {}
    calls: list[int] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, args, out: kept.__setitem__("features", out))
    model[1].register_forward_hook(lambda module, args, out: calls.append(len(out)))
    engine = gradients.attach(model)
    x, y = data(), torch.zeros(B, dtype=torch.long)
    loss = F.cross_entropy(model(x), y, reduction="none") + 0.1 * kept["features"].square().sum(1)
    loss.mean().backward()
    assert len(engine.norms()) == len(kept["features"]) == B and calls == [B]
    engine.detach()


class Telling(nn.Module):
    """Gives its features to a function of somebody else's, in the forward pass itself."""

    def __init__(self, tell: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.tell = nn.Linear(4, 4), tell

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        self.tell(out)
        return out  # type: ignore[no-any-return]


def test_tensors_kept_from_the_comparison_do_not_count_as_constants() -> None:
    for place in (0, -1):  # of the comparison, and of the batch itself
        means: list[Tensor] = []
        model = Telling(lambda out, means=means: means.append(out.detach().mean(0)))  # type: ignore[misc]
        engine = gradients.attach(model, reduction="sum")
        out = model(data())
        assert len(means) == 7  # the plan, five parts, the batch
        loss = (out - means[place]).square().sum()
        with pytest.raises(ValueError, match=r"another batch|combines a quantity of the whole batch"):
            loss.backward()
        engine.discard()
        if place == 0:  # in the next batch neither
            loss = (model(data()) - means[place]).square().sum()
            with pytest.raises(ValueError, match="another batch"):
                loss.backward()
        engine.detach()


def test_mixing_that_an_operation_shows_is_reported_once() -> None:
    engine = gradients.attach(model := Net(lambda m, x: m.linear(x - x.mean(0))))
    with pytest.raises(ValueError, match=r"linear \(Linear\)") as error:
        model(data())
    assert str(error.value).count("\n  - ") == 1
    engine.detach()


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weights_that_are_computed_anew(normed: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = gradients.attach(model := nn.Sequential(normed(nn.Linear(4, 3)), nn.Tanh()))
    model(data()).sum().backward()
    assert len(engine.norms()) == B and "were not compared" not in caplog.text
    engine.detach()


def test_inputs_with_names(caplog: pytest.LogCaptureFixture) -> None:
    class Named(dict[str, Tensor]):
        def __getattr__(self, name: str) -> Tensor:
            return self[name]

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, inputs: Any) -> Tensor:
            return self.linear(inputs.x)  # type: ignore[no-any-return]

    engine = gradients.attach(model := Reader())
    model(Named(x=data())).sum().backward()
    assert len(engine.norms()) == B and "were not compared" not in caplog.text
    engine.detach()


def test_packed_inputs_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    engine = gradients.attach(model := nn.LSTM(4, 3))
    packed = pack_padded_sequence(torch.randn(5, B, 4), [1 + i % 5 for i in range(B)], enforce_sorted=False)
    model(packed)[1][0].sum().backward()
    assert len(engine.norms()) == B and "not rows in the order of the examples" in caplog.text
    engine.detach()


def drawing(m: Any, x: Tensor) -> Any:
    if isinstance(m.own, torch.Generator):
        return m.linear(x) * torch.randint(0, 9, (len(x), 1), generator=m.own)
    return m.linear(x) * torch.tensor([[m.own.random()] for _ in range(len(x))], dtype=torch.float32)


OWN: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "torch": torch.Generator,
    "numpy": lambda: np.random.default_rng(1),
    "numpy, as before": lambda: np.random.RandomState(1),
    "python": lambda: random.Random(1),
}


@pytest.mark.parametrize("name", OWN)
def test_a_model_with_other_randomness_is_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Net(drawing if name != "none" else lambda m, x: m.linear(x) + torch.ones(len(x), 4).geometric_(0.5))
    model.own = OWN[name]()
    once(model, data())
    assert "its outputs are random" in caplog.text


class Sampler:
    """Draws for a model, which keeps it."""

    def __init__(self) -> None:
        self.random = [random.Random(1)]

    def draw(self, n: int) -> Tensor:
        return torch.tensor([[self.random[0].random()] for _ in range(n)])


def test_generators_that_others_keep_for_a_model(caplog: pytest.LogCaptureFixture) -> None:
    model = Net(lambda m, x: m.linear(x) * m.sampler.draw(len(x)))
    model.sampler = Sampler()
    once(model, data())
    assert "its outputs are random" in caplog.text
    expected = Sampler()
    expected.draw(B)
    assert torch.equal(model.sampler.draw(3), expected.draw(3))


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.linear(x) * torch.randint(1, 9, (len(x), 1), generator=generator)  # type: ignore[no-any-return]


def test_generators_that_the_caller_gives(caplog: pytest.LogCaptureFixture) -> None:
    engine, generator = gradients.attach(model := Drawing()), torch.Generator().manual_seed(1)
    model(data(), generator).sum().backward()
    engine.detach()
    expected = torch.Generator().manual_seed(1)
    torch.randint(1, 9, (B, 1), generator=expected)
    assert "its outputs are random" in caplog.text and torch.equal(generator.get_state(), expected.get_state())


WRITES: dict[str, Callable[[nn.Parameter, Tensor], Any]] = {
    "in place": lambda p, value: p.mul_(0.9).add_(value, alpha=0.1),
    "to its data": lambda p, value: p.data.mul_(0.9).add_(value, alpha=0.1),
    "other data": lambda p, value: setattr(p, "data", p.data * 0.9 + value * 0.1),
    "to a view": lambda p, value: p.view(-1).copy_((p * 0.9 + value * 0.1).view(-1)),
    "to an entry": lambda p, value: p.__setitem__(slice(None), p * 0.9 + value * 0.1),
    "several": lambda p, value: (torch._foreach_mul_([p], 0.9), torch._foreach_add_([p], [value * 0.1])),
    "out": lambda p, value: torch.add(p * 0.9, value * 0.1, out=p),
}


@pytest.mark.parametrize("name", WRITES)
def test_parameters_that_a_model_writes_to_are_written_to_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A teacher that follows its pupil, say."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            WRITES[name](m.teacher.weight, m.linear.weight)
        return m.linear(x) - m.teacher(x)  # type: ignore[no-any-return]

    model = Net(forward)
    model.teacher = nn.Linear(4, 4).requires_grad_(False)
    expected = 0.9 * model.teacher.weight + 0.1 * model.linear.weight.detach()
    once(model, data())
    torch.testing.assert_close(model.teacher.weight.detach(), expected)
    assert "it writes to its parameters" in caplog.text


def test_writes_to_nothing_are_no_writes_to_parameters(caplog: pytest.LogCaptureFixture) -> None:
    model = Net(lambda m, x: (torch.empty(0).zero_(), m.linear(x))[1])
    model.none = nn.Parameter(torch.empty(0))
    once(model, data())
    assert "were not compared" not in caplog.text


class Single(nn.LSTM):
    """There is one of it."""

    def __deepcopy__(self, memo: Any) -> Single:
        return self


def test_a_module_that_refuses_to_be_copied_is_left_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    model = Net(lambda m, x: m.single(x.unsqueeze(1).expand(-1, 3, -1))[0])
    model.single = Single(4, 4, 2, dropout=0.5, batch_first=True)
    model.single.register_forward_hook(lambda module, args, out: None)
    once(model, data())
    assert model.single.dropout == 0.5 and len(model.single._forward_hooks) == 1
    assert "refuse to be copied" in caplog.text
    gradients.check(model, data())
    assert model.single.dropout == 0.5 and len(model.single._forward_hooks) == 1


def test_hooks_see_the_batch_and_no_run_of_the_comparison(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    model = Net(lambda m, x: m.linear(x))
    model.linear.register_forward_pre_hook(lambda module, args: heard.append(len(args[0])))
    model.linear.register_forward_hook(lambda module, args, out: heard.append(len(out)), always_call=True)
    once(model, data())
    assert heard == [B, B] and "were not compared" not in caplog.text
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: heard.append(0))
    once(model, data())
    handle.remove()
    assert heard == [B, B, B, 0, B, 0] and caplog.text.count("a hook for all modules") == 1
    heard.clear()
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: heard.append(0))
    once(model, data())
    handle.remove()
    assert heard == [0, 0, B, B] and caplog.text.count("a hook for all modules") == 2


class Hooked(nn.Module):
    """Reads what hooks of its own have kept."""

    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.body, self.divided = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), divided
        self.body[1].register_forward_hook(self.keep)
        self.kept: dict[str, Tensor] = {}

    def keep(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        self.kept["features"] = out
        return out / len(out) if self.divided else None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.kept["features"]  # type: ignore[no-any-return]


def test_hooks_of_the_models_own(caplog: pytest.LogCaptureFixture) -> None:
    model = Hooked(divided=False)
    for _ in range(2):
        once(model, data())
        assert len(model.kept["features"]) == B
    assert "were not compared" not in caplog.text
    with pytest.raises(ValueError, match=INFLUENCE):
        once(Hooked(divided=True), data())


def test_the_comparison_does_not_write_to_the_callers_arguments(caplog: pytest.LogCaptureFixture) -> None:
    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, notes: Any) -> Tensor:
            out: Tensor = self.linear(x)
            notes.losses.append(out.square().mean(1))
            return out

    notes = SimpleNamespace(losses=[])
    engine = gradients.attach(model := Told())
    (model(data(), notes).square().sum(1) + sum(notes.losses)).sum().backward()
    assert len(engine.norms()) == B and len(notes.losses) == 1 and "were not compared" not in caplog.text
    engine.detach()


def test_constants_that_are_kept_elsewhere(flat: Any) -> None:
    tables: dict[int, Tensor] = {}

    def forward(m: Any, x: Tensor) -> Tensor:
        width = x.shape[1]
        if width not in tables:
            tables[width] = torch.linspace(0, 1, width).type_as(x).to(x)
        return m.linear(x) * tables[width]  # type: ignore[no-any-return]

    engine = gradients.attach(model := Net(forward))
    for _ in range(2):
        model(data()).sum().backward()
        engine.clipped_sum(flat(1.0))
    engine.detach()


def test_checking_runs_the_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, args, out: out - out.mean(0))
    with pytest.raises(ValueError, match="whole batch"):
        gradients.check(model, data())


def test_a_model_without_outputs_of_examples_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Quiet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> str:
            self.out = self.linear(x)
            return "done"

    engine = gradients.attach(model := Quiet())
    model(data())
    model.out.sum().backward()
    engine.detach()
    assert "no output that belongs to examples" in caplog.text


def test_it_is_asked_once_and_of_enough_examples(flat: Any) -> None:
    sizes: list[int] = []
    model = Net(lambda m, x: (sizes.append(len(x)), m.linear(x))[1])
    engine = gradients.attach(model)
    for n in (3, 0, 20, 5):
        model(data()[:1].expand(n, 4).clone()).sum().backward()
        engine.clipped_sum(flat(1.0))
    engine.detach()
    plan, comparison = [3], [7, 3, 4, 3, 4]
    assert sizes == [*plan, 3, 0, *comparison, 20, 5]


def test_a_batch_of_four_is_enough() -> None:
    with pytest.raises(ValueError, match=INFLUENCE):
        once(Net(MIXING["places"]), data()[:4])


def test_it_is_asked_again_where_it_was_refused(flat: Any) -> None:
    engine = gradients.attach(model := Net(MIXING["places"]))
    for _ in range(2):
        with pytest.raises(ValueError, match=INFLUENCE):
            model(data())
        engine.discard()
    engine.detach()


def test_one_recorded_batch_is_the_plan_and_one_forward_pass() -> None:
    sizes: list[int] = []
    with gradients.record(model := Net(lambda m, x: (sizes.append(len(x)), m.linear(x))[1])):
        model(data()).sum().backward()
    assert sizes == [7, B]


def test_evaluation_runs_the_forward_pass_only_once() -> None:
    sizes: list[int] = []
    engine = gradients.attach(model := Net(lambda m, x: (sizes.append(len(x)), m.linear(x))[1]))
    with torch.no_grad():
        model(data())
    engine.detach()
    assert sizes == [B]


def test_a_model_that_fails_on_parts_is_refused() -> None:
    def fixed(m: Any, x: Tensor) -> Tensor:
        return m.linear(x) + m.table[:B]  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="raised RuntimeError when it was given some examples") as found:
        once(Net(fixed), data())
    assert isinstance(found.value.__cause__, RuntimeError)


def test_a_model_whose_copies_fail_is_reported_and_trained(flat: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Net(lambda m, x: m.linear(x))
    original = [id(model)]

    def itself(m: Any, x: Tensor) -> Tensor:
        if id(m) not in original:
            raise KeyError("a registry of models does not know the copy")
        return m.linear(x)  # type: ignore[no-any-return]

    model.function = itself
    engine = gradients.attach(model)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(data()).sum().backward()
            engine.clipped_sum(flat(1.0))
    engine.detach()
    assert caplog.text.count("were not compared") == 1 and "a copy of it raised KeyError" in caplog.text


def test_examples_elsewhere_than_first_and_of_several_rows() -> None:
    once(nn.LSTM(4, 3), torch.randn(5, B, 4), batch_dim=1)
    once(Net(HONEST["plain"]), torch.randn(2 * B, 4), rows_per_record=2)
    with pytest.raises(ValueError, match=INFLUENCE):
        once(Net(MIXING["places"]), torch.randn(2 * B, 4), rows_per_record=2)


def test_lengths_in_a_list_go_with_their_examples(caplog: pytest.LogCaptureFixture) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: Tensor, lengths: list[int]) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.lstm(packed)[1][0][-1]  # type: ignore[no-any-return]

    model, lengths = Reader(), [1 + i % 5 for i in range(B)]
    engine = gradients.attach(model)
    model(torch.randn(B, 5, 4), lengths).sum().backward()
    assert len(engine.norms()) == B
    engine.detach()
    assert "were not compared" not in caplog.text


def test_numbers_in_an_array_go_with_their_examples(caplog: pytest.LogCaptureFixture) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, weights: Any) -> Tensor:
            return self.linear(x) * torch.as_tensor(weights)[: len(x)].unsqueeze(1)  # type: ignore[no-any-return]

    engine = gradients.attach(model := Weighted())
    model(data(), np.arange(B, dtype=np.float32)).sum().backward()
    assert len(engine.norms()) == B and "were not compared" not in caplog.text
    engine.detach()


def test_inputs_that_are_differentiated(caplog: pytest.LogCaptureFixture) -> None:
    def saliency(m: Any, x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(m.linear(x).square().sum(), x)
        return m.linear(x) * found  # type: ignore[no-any-return]

    once(Net(saliency), data().requires_grad_())
    assert "were not compared" not in caplog.text


def test_doubles_are_compared_as_finely_as_they_are() -> None:
    model = Net(lambda m, x: m.linear(x) * (1 + 1e-6 * len(x))).double()
    with pytest.raises(ValueError, match=INFLUENCE):
        once(model, data().double())


def test_half_precision_is_compared_all_the_same() -> None:
    model = Net(lambda m, x: m.linear(x) * (1 + 0.1 * len(x)))
    with pytest.raises(ValueError, match=INFLUENCE), torch.autocast("cpu", torch.bfloat16):
        once(model, data())


@pytest.mark.parametrize("setting", [(1, 2, 1, 2), [0.5, 1.0, 1.5, 2.0], (1, 1)])
def test_settings_as_long_as_the_batch(setting: Any) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, setting: Any) -> Tensor:
            return F.pad(self.linear(x), (len(setting), 0)) * torch.tensor(setting).sum()

    engine = gradients.attach(model := Padded())
    model(data()[:4], setting).sum().backward()
    assert len(engine.norms()) == 4
    engine.detach()


def test_ctrl_c_in_the_comparison(flat: Any) -> None:
    for at in range(4):
        left = [at]

        def forward(m: Any, x: Tensor, left: list[int] = left) -> Tensor:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return m.linear(x)  # type: ignore[no-any-return]

        engine = gradients.attach(model := Net(forward))
        with pytest.raises(KeyboardInterrupt):
            model(data())
        model(data()).sum().backward()
        assert engine._recorder.epoch >= 0 and len(engine.norms()) == B
        assert not engine._recorder.inside
        engine.detach()


def test_half_precision_is_compared_as_coarsely_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    engine = gradients.attach(model)
    with torch.autocast("cpu", torch.bfloat16):
        model(data()).float().sum().backward()
    assert len(engine.norms()) == B
    engine.detach()
