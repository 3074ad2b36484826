"""Frozen layers at the beginning of a Sequential, run on a few records at a time."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from tacit import gradients
from tacit.gradients import frozen_prefix as prefix

RECORDS = 4
B = 3 * RECORDS + 2
"""Three parts, and one more with two records."""


def shape_of(dims: int) -> tuple[int, ...]:
    return (3, *(9, 8, 7)[:dims])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of RECORDS records whatever the first layer gives."""
    monkeypatch.setattr(prefix, "_bytes", lambda first, x: prefix.PART // RECORDS)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every time the first layer of a Sequential asked: whether it was run in parts."""
    asked: list[bool] = []
    computed = prefix.Prefix.features

    def noted(self: prefix.Prefix, layers: Any, given: Tensor) -> Tensor | None:
        found = computed(self, layers, given)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(prefix.Prefix, "features", noted)
    return asked


def frozen(*layers: nn.Module) -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in layers]


def network(*layers: nn.Module, features: int = 4) -> nn.Sequential:
    """Frozen layers and a trained one."""
    return nn.Sequential(
        *frozen(nn.Conv2d(3, features, 3), *layers), nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2)
    )


def ready(model: nn.Module, *shape: int) -> nn.Module:
    with torch.no_grad():
        model(torch.randn(2, *(shape or shape_of(2))))  # lazy layers take their shape
    return model


SEVERAL: dict[str, tuple[int, Callable[[], list[nn.Module]]]] = {
    "one dimension": (1, lambda: [nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4).eval(), nn.ReLU(), nn.MaxPool1d(2)]),
    "averages, one dimension": (1, lambda: [nn.Conv1d(3, 4, 3), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2)]),
    "two dimensions": (2, lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU(True), nn.MaxPool2d(2)]),
    "averages": (2, lambda: [nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)]),
    "three dimensions": (3, lambda: [nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4).eval(), nn.ReLU(), nn.MaxPool3d(2)]),
    "averages, three dimensions": (3, lambda: [nn.Conv3d(3, 4, 3), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(2)]),
    "two convolutions": (2, lambda: [nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, stride=2), nn.Sigmoid()]),
    "normalised": (2, lambda: [nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm([4, 7, 6]), nn.Identity()]),
    "smooth": (2, lambda: [nn.Conv2d(3, 4, 3), nn.GELU(), nn.SiLU(), nn.ELU(inplace=True), nn.Hardswish()]),
    "broken lines": (2, lambda: [nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2, inplace=True), nn.ReLU6(), nn.Flatten()]),
    "padded by copies": (2, lambda: [nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU()]),
}


def test_every_kind_of_layer_is_tried() -> None:
    tried = {type(layer) for _, make in SEVERAL.values() for layer in make()}
    assert tried == set(prefix._FOLLOWING)


@pytest.mark.parametrize("kind", SEVERAL)
def test_sums_are_those_of_one_record_at_a_time(kind: str, agree: Any, parts: list[bool]) -> None:
    dims, make = SEVERAL[kind]
    model = nn.Sequential(*frozen(*make()), nn.Flatten(), nn.LazyLinear(2))
    agree(ready(model, *shape_of(dims)), torch.randn(B, *shape_of(dims)))
    assert parts == [True] * 6  # three reductions, two types; the oracle's own calls do not count


@pytest.mark.parametrize("kind", SEVERAL)
def test_features_are_those_of_the_whole_batch_in_its_memory_format(kind: str, parts: list[bool]) -> None:
    dims, make = SEVERAL[kind]
    layers = frozen(*make())
    x = torch.randn(B, *shape_of(dims))
    formats = [torch.contiguous_format, *([torch.channels_last] if dims == 2 else [])]
    for memory_format in formats:
        given = x.to(memory_format=memory_format)
        wanted = nn.Sequential(*layers)(given)
        seen: list[Tensor] = []
        model = Watching(nn.Sequential(*layers), seen)
        with gradients.record(model):
            model(given)
        torch.testing.assert_close(seen[0], wanted, rtol=1e-6, atol=1e-6)
        assert seen[0].stride() == wanted.stride()
        assert torch.equal(given, x), "nothing may be written to what the caller gave"
    assert parts == [True] * len(formats)


class Watching(nn.Module):
    """Keeps the features it computes with frozen layers; something after them is trained."""

    def __init__(self, layers: nn.Module, seen: list[Tensor]) -> None:
        super().__init__()
        self.layers, self.scale, self.seen = layers, nn.Parameter(torch.ones(())), seen

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers(x)
        self.seen.append(features.detach().clone().as_subclass(Tensor))
        return features * self.scale


class Largest(TorchDispatchMode):
    """How many entries the largest tensor has that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, Tensor) else 0)
        return out


@pytest.mark.usefixtures("without_isolation")  # the plan is made with seven records, which are more than a part here
def test_no_activation_of_frozen_layers_exists_for_the_whole_batch() -> None:
    layers = frozen(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(4))
    model = ready(nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2)))
    x = torch.randn(20 * RECORDS, *shape_of(2))
    with gradients.record(model), Largest() as largest:
        model(x)
    assert 0 < largest.numbers < x.numel() < 32 * 7 * 6 * len(x)


def test_a_part_has_the_bytes_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rows: list[int] = []

    class Rows(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "convolution" in str(func):
                rows.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(prefix, "PART", 1 << 16)
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2), features=8))  # 9·8·8 numbers of 4 bytes at most: 28 rows
    with gradients.record(model), Rows():
        model(torch.randn(55, *shape_of(2)))
        model(torch.randn(56, *shape_of(2)))
        model(torch.randn(60, *shape_of(2)))
        model(torch.randn(70, *shape_of(2)))
    assert rows == [7, 55, *[28, 28], *[28, 28, 28], *[28, 28, 28]]
    rows.clear()
    monkeypatch.setattr(prefix, "PART", 1 << 17)  # 56, of which 32 are whole
    with gradients.record(model), Rows():
        model(torch.randn(70, *shape_of(2)))
    assert rows == [7, 32, 32, 32]


@pytest.mark.parametrize("act", [nn.ReLU(), nn.ELU(), nn.Sigmoid(), nn.GELU()])
@pytest.mark.parametrize("records", [3, 7, prefix.WHOLE + 5])
def test_a_record_is_rounded_alike_beside_any_number_of_others(
    act: nn.Module, records: int, monkeypatch: pytest.MonkeyPatch, parts: list[bool]
) -> None:
    """One more, two more…: every record's features are the same bits, the last part's too.

    In a whole batch they are not: of exponentials PyTorch rounds the last few entries of a tensor in another way.
    """
    monkeypatch.setattr(prefix, "_bytes", lambda first, x: prefix.PART // records)
    x = 4 * torch.randn(4 * prefix.WHOLE, 3, 5, 5)
    seen: list[Tensor] = []
    model = Watching(nn.Sequential(*frozen(nn.Conv2d(3, 33, 3), act, nn.Conv2d(33, 9, 2, padding=1))), seen)
    with gradients.record(model):
        for n in range(83, len(x) + 1, 5):  # with every remainder that parts and vectors can leave
            model(x[:n])
    assert all(torch.equal(features, seen[-1][: len(features)]) for features in seen)
    assert parts == [True] * len(seen)


def test_a_record_of_nan_changes_no_other_record(naive: Any, flat: Any, parts: list[bool]) -> None:
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2)))
    x = torch.randn(B, *shape_of(2))
    x[B - 1] = torch.nan
    with gradients.record(model) as tape:
        model(x).square().sum(1).mean().backward()
    rest = x[:-1]
    with gradients.record(model) as others:
        model(rest).square().sum(1).mean().backward()
    assert parts == [True, True]
    assert torch.isinf(tape.norms()).nonzero().flatten().tolist() == [B - 1]
    found, wanted = tape.clipped_sum(flat(0.1)), others.clipped_sum(flat(0.1))
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_records_of_several_rows_stay_together(rows: int, flat: Any, parts: list[bool]) -> None:
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2)))
    x = torch.randn(B * rows, *shape_of(2))
    sums = []
    for wanted in (True, False):
        with gradients.record(model, rows_per_record=rows) as tape:
            given = x if wanted else x.clone().requires_grad_()  # a graph: not in parts
            model(given).square().sum(1).mean().backward()
        sums.append((tape.norms(), *tape.clipped_sum(flat(0.1)).values()))
    assert parts == [True]
    for found, wanted_sum in zip(*sums):
        torch.testing.assert_close(found, wanted_sum, rtol=1e-5, atol=1e-6)


# -- where the layers must see the batch itself ----------------------------------------------------------------------


def features_seen(model: nn.Module, at: nn.Module, x: Tensor) -> Tensor:
    """What a forward hook on a layer sees."""
    seen: list[Tensor] = []
    handle = at.register_forward_hook(lambda module, args, out: seen.append(out.detach().as_subclass(Tensor)))
    model(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("at", [0, 1])
def test_a_users_hook_in_the_frozen_prefix_sees_the_whole_batch(at: int, parts: list[bool]) -> None:
    model = ready(network(nn.Tanh(), nn.MaxPool2d(2)))
    assert isinstance(model, nn.Sequential)
    x = torch.randn(B, *shape_of(2))
    wanted = features_seen(model, model[at], x)
    with gradients.record(model):
        assert torch.equal(features_seen(model, model[at], x), wanted)
        seen: list[int] = []
        handle = model[at].register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
        model(x)
        handle.remove()
        handle = register_module_forward_hook(lambda module, args, out: seen.append(len(out)))
        model(x)
        handle.remove()
        handle = register_module_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
        model(x)
        handle.remove()
        assert set(seen) == {B}
        assert parts == []
        model(x)
        assert parts == [True]


class OneByOne(nn.Module):
    """Calls the layers of a Sequential itself and uses what is between them."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers, self.head = layers, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        between = []
        for layer in self.layers:
            x = layer(x)
            between.append(x.flatten(2).mean(2))
        return self.head(sum(between) + self.layers[1](self.layers[0](x[:, :3])).flatten(2).mean(2))


def test_layers_called_one_by_one(agree: Any, parts: list[bool]) -> None:
    model = OneByOne(nn.Sequential(*frozen(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.MaxPool2d(2, 1))))
    agree(model, torch.randn(B, 3, 9, 9))
    assert parts == []


class Between(nn.Module):
    """A Sequential that is called, whose layers are called on something else as well, before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*frozen(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.MaxPool2d(2)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[2](self.layers[0](x))
        second = self.layers(x)
        third = self.layers[2](self.layers[0](x + 1))
        fourth = self.layers(x * 2)
        return self.head(sum(each.flatten(2).mean(2) for each in (first, second, third, fourth)))


def test_layers_called_also_by_themselves(agree: Any, parts: list[bool]) -> None:
    agree(Between(), torch.randn(B, *shape_of(2)))
    assert parts == [True, True] * 6


def _replaced(model: nn.Sequential) -> None:
    model[1] = nn.Softplus()


def _own_forward(model: nn.Sequential) -> None:
    model[1].forward = lambda x: x.sin()  # type: ignore[method-assign]


def _own_walk(model: nn.Sequential) -> None:
    def walk(x: Tensor) -> Tensor:
        for i, layer in enumerate(model):
            x = layer(x) if i else layer(x).sin()
        return x

    model.forward = walk  # type: ignore[method-assign]


def _unfrozen(model: nn.Sequential) -> None:
    model[0].weight.requires_grad_(True)


def _own_convolution(model: nn.Sequential) -> None:
    model[0]._conv_forward = lambda x, w, b: F.conv2d(x, w, b) / len(x)


CHANGES = {
    "layer": _replaced,
    "forward": _own_forward,
    "walk": _own_walk,
    "frozen": _unfrozen,
    "convolution": _own_convolution,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("late", [False, True])
def test_a_model_that_is_not_what_it_seems(change: str, late: bool, parts: list[bool]) -> None:
    model = ready(network(nn.Tanh(), nn.MaxPool2d(2)))
    assert isinstance(model, nn.Sequential)
    x = torch.randn(B, *shape_of(2))
    if not late:
        CHANGES[change](model)
        wanted = model(x)
    with gradients.record(model):
        if late:
            CHANGES[change](model)
            wanted = model.forward(x)
        torch.testing.assert_close(model(x).detach().as_subclass(Tensor), wanted.detach())
    assert parts == []


def test_a_changed_class_is_not_trusted(monkeypatch: pytest.MonkeyPatch, parts: list[bool]) -> None:
    model = ready(network(nn.Tanh(), nn.MaxPool2d(2)))
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: x.sin())
    with gradients.record(model):
        model(torch.randn(B, *shape_of(2)))
    assert parts == []


@pytest.mark.parametrize("other", [nn.Dropout(0.5), nn.Softmax(0), nn.BatchNorm2d(4, track_running_stats=False)])
def test_a_run_ends_where_layers_are_not_known(other: nn.Module) -> None:
    layers = frozen(nn.Conv2d(3, 4, 3), nn.ReLU(), other, nn.MaxPool2d(2))
    assert prefix.beginning(nn.Sequential(*layers)) == tuple(layers[:2])


def test_statistics_of_a_batch_are_refused_as_ever(parts: list[bool]) -> None:
    model = ready(network(nn.BatchNorm2d(4), nn.ReLU()).eval())
    assert isinstance(model, nn.Sequential)
    with gradients.record(model), pytest.raises(ValueError, match="batch"):
        model.train()(torch.randn(B, *shape_of(2)))
    assert parts == []


def test_a_graph_through_frozen_layers_is_kept(parts: list[bool]) -> None:
    """Trained layers before them, or gradients with respect to the input."""
    model = nn.Sequential(nn.Conv2d(3, 3, 3), network(nn.Tanh()))
    ready(model)
    with gradients.record(model) as tape:
        model(torch.randn(B, *shape_of(2))).square().sum(1).mean().backward()
    assert float(tape.norms([("0.weight",), tuple(n for n in tape.shapes if n != "0.weight")])[:, 0].min()) > 0
    assert parts == []


def test_features_under_no_grad(agree: Any, parts: list[bool]) -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(*frozen(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.features(x / 2).flatten(1)
            out: Tensor = self.head(h)
            return out

    agree(Features(), torch.randn(B, *shape_of(2)))
    assert parts == [True] * 6


def test_few_records_an_empty_batch_and_an_evaluation(parts: list[bool], flat: Any) -> None:
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2)))
    engine = gradients.attach(model)
    for n in (0, 1, 2 * RECORDS - 1):
        model(torch.randn(n, *shape_of(2))).square().sum().backward()
        assert engine.batch_size == n
        engine.clipped_sum(flat(1.0))
    with torch.no_grad():
        out = model(torch.randn(B, *shape_of(2)))
    assert type(out) is Tensor and len(out) == B
    assert parts == [False] * 3
    engine.detach()


def test_channels_are_not_taken_for_records(parts: list[bool]) -> None:
    image = nn.Sequential(*frozen(nn.Conv2d(B, B, 3), nn.ReLU()), nn.Linear(6, 2))
    with gradients.record(image), pytest.raises(ValueError, match="example"):
        image(torch.randn(B, 9, 8))
    with gradients.record(image, batch_dim=1), pytest.raises(ValueError, match="channels"):
        image(torch.randn(B, B, 9, 8))
    assert not any(parts)


def hooks(model: nn.Module) -> dict[str, tuple[set[str], int, int]]:
    return {n: (set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules() if n}


def test_layers_are_never_hooked(parts: list[bool]) -> None:
    """They can be copied, pickled and saved in between, and nothing of the engine comes with them."""
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2)))
    before, x = hooks(model), torch.randn(B, *shape_of(2))
    engine = gradients.attach(model)
    assert hooks(model) == before
    model(x).sum().backward()
    assert hooks(model) == before
    assert isinstance(model, nn.Sequential)
    assert pickle.loads(pickle.dumps(model[0])).weight.shape == model[0].weight.shape
    with pytest.raises(RuntimeError, match="channels"):
        model(x[:, :2])
    assert hooks(model) == before
    engine.detach()
    assert hooks(model) == before
    assert parts == [True, False]


# -- attacks ---------------------------------------------------------------------------------------------------------


class Features(nn.Module):
    """Frozen features and a trained head; `seen` is what the Sequential gave."""

    def __init__(self, *layers: nn.Module, head: int = 36) -> None:
        super().__init__()
        layers = layers or (nn.Conv2d(3, 4, 3), nn.Tanh(), nn.MaxPool2d(2))
        self.features: nn.Module = nn.Sequential(*frozen(*layers))
        self.head = nn.Linear(head, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.computed(x).flatten(1))
        return out

    def computed(self, x: Tensor) -> Tensor:
        found: Tensor = self.features(x)
        return found


def is_as_without(model: nn.Module, then: Callable[[Any], Any] = lambda model: None) -> None:
    """A recorded model gives what it gives otherwise; `then` is done to it after recording began."""
    x = torch.randn(B, *shape_of(2))
    with gradients.record(model):
        then(model)
        found = model(x.clone()).detach().as_subclass(Tensor)
    torch.testing.assert_close(found, model(x.clone()).detach())


def test_a_sequential_with_a_forward_of_its_own(monkeypatch: pytest.MonkeyPatch, parts: list[bool]) -> None:
    class Own(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            between = self[0](input)
            out: Tensor = self[2](self[1](between) + between.mean(1, keepdim=True))
            return out

    model = Features()
    model.features = Own(*model.features.children())
    is_as_without(model)

    def patched(self: nn.Sequential, input: Tensor) -> Tensor:
        for layer in self:
            input = layer(input).sin() if type(layer) is nn.Conv2d else layer(input)
        return input

    monkeypatch.setattr(nn.Sequential, "forward", patched)
    is_as_without(Features())
    assert parts == []


class Halved(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / len(input)


def test_a_layer_of_a_class_of_its_own(parts: list[bool]) -> None:
    is_as_without(Features(Halved(3, 4, 3), nn.Tanh(), nn.MaxPool2d(2)))
    assert parts == []


def test_inputs_by_name_or_replaced_by_a_hook(parts: list[bool]) -> None:
    class Named(Features):
        def computed(self, x: Tensor) -> Tensor:
            found: Tensor = self.features(input=x)
            return found

    is_as_without(Named())
    is_as_without(Features(), lambda model: model.features.register_forward_pre_hook(lambda m, args: (args[0] * 2,)))
    assert parts == [True, True]


@pytest.mark.parametrize(
    ("layers", "head"),
    [
        ([nn.Conv2d(3, 1, 3), nn.Flatten(0, 1)], 42),
        ([nn.Conv2d(3, 4, 3), nn.Flatten(0, 1), nn.Unflatten(0, (-1, 4))], 168),
        ([nn.ReLU(inplace=True), nn.Conv2d(3, 1, 3), nn.ReLU()], 42),
        ([nn.Identity(), nn.ELU(inplace=True), nn.Conv2d(3, 1, 3)], 42),
    ],
)
def test_runs_that_do_not_keep_rows_or_own_no_memory(layers: list[nn.Module], head: int) -> None:
    is_as_without(Features(*copy.deepcopy(layers), head=head))


def test_a_pool_that_gives_indices_too() -> None:
    class First(Features):
        def computed(self, x: Tensor) -> Tensor:
            found: Tensor = self.features(x)[0]
            return found

    is_as_without(First(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, return_indices=True)))


CONV, ACT = nn.Conv2d(3, 3, 3), nn.Tanh()
AGAIN = {
    "last": ([CONV, ACT, nn.Conv2d(3, 3, 3), ACT], 3),
    "first": ([CONV, ACT, CONV], 0),
    "first of three": ([CONV, ACT, nn.Conv2d(3, 3, 1), CONV, ACT], 0),
    "all": ([CONV, ACT, CONV, ACT], 0),
}


@pytest.mark.parametrize("stride", [1, torch.tensor(2), (2, 1), (2,)])
def test_strides_as_people_write_them(stride: Any) -> None:
    model = Features(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(3))
    assert isinstance(model.features, nn.Sequential)
    model.features[0].stride = stride
    model.features[0].out_channels = None
    is_as_without(model)


def test_a_weight_computed_from_a_trained_parameter(agree: Any, parts: list[bool]) -> None:
    class Computed(Features):
        def __init__(self) -> None:
            super().__init__()
            assert isinstance(self.features, nn.Sequential)
            conv = self.features[0]
            start = conv.weight.detach().clone()
            del conv.weight
            conv.weight = start
            self.weight = nn.Parameter(start.clone())

        def computed(self, x: Tensor) -> Tensor:
            assert isinstance(self.features, nn.Sequential)
            self.features[0].weight = self.weight * 1.0
            return super().computed(x)

    model = Computed()
    x = torch.randn(B, *shape_of(2))
    with gradients.record(model) as tape:
        model(x).square().sum(1).mean().backward()
    assert float(tape.norms([("weight",), ("head.weight", "head.bias")])[:, 0].min()) > 0
    assert parts == []


def _set(layer: nn.Module, name: str, value: Tensor) -> None:
    layer._parameters.pop(name, None)
    layer._buffers.pop(name, None)
    setattr(layer, name, value)


LEAKS: dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor], Any]]] = {
    "slope": (nn.LeakyReLU(), lambda layer, x: _set(layer, "negative_slope", x[0, 0, 0, 0])),
    "scale": (nn.BatchNorm2d(4).eval(), lambda layer, x: _set(layer, "weight", x[0, 0, 0, :4])),
    "mean": (nn.BatchNorm2d(4).eval(), lambda layer, x: _set(layer, "running_mean", x.mean().expand(4))),
    "rows": (nn.BatchNorm2d(4).eval(), lambda layer, x: _set(layer, "running_mean", x[:4, 0, 0, 0])),
    "groups": (nn.GroupNorm(2, 4), lambda layer, x: _set(layer, "bias", x[0, 0, 0, :4])),
    "normalised": (
        nn.LayerNorm([4, 7, 6]),
        lambda layer, x: _set(layer, "bias", x.mean(0)[:1, :7, :6].expand(4, 7, 6)),
    ),
    "convolved": (nn.Conv2d(4, 4, 1), lambda layer, x: _set(layer, "bias", x[0, 0, 0, :4])),
}


@pytest.mark.parametrize("records", [1, 2, RECORDS])
@pytest.mark.parametrize("leak", LEAKS)
def test_setting_a_layers_attribute_from_batch_data_is_refused(
    leak: str, records: int, monkeypatch: pytest.MonkeyPatch, parts: list[bool]
) -> None:
    monkeypatch.setattr(prefix, "_bytes", lambda first, x: prefix.PART // records)
    layer, write = copy.deepcopy(LEAKS[leak][0]), LEAKS[leak][1]

    class Leaking(Features):
        def computed(self, x: Tensor) -> Tensor:
            write(layer, x)
            return super().computed(x)

    model = Leaking(nn.Conv2d(3, 4, 3), layer, nn.MaxPool2d(2))
    with gradients.record(model), pytest.raises(ValueError, match="example"):
        model(torch.randn(B, *shape_of(2))).square().sum(1).mean().backward()


def test_a_part_has_two_records_at_least(monkeypatch: pytest.MonkeyPatch, parts: list[bool]) -> None:
    """A batch of one cannot mix, the engine says; a part is no batch of one."""
    monkeypatch.setattr(prefix, "_bytes", lambda first, x: prefix.PART * 3)
    given: list[int] = []
    after = prefix.Prefix._after_layers

    def noted(self: prefix.Prefix, layers: Any, part: Tensor, records: int, each: int) -> Tensor | None:
        given.append(records)
        return after(self, layers, part, records, each)

    monkeypatch.setattr(prefix.Prefix, "_after_layers", noted)
    is_as_without(Features())
    assert set(given) == {2}
    assert parts == [True]


def test_mixing_before_the_layers_is_refused_and_other_orders_are_kept(parts: list[bool]) -> None:
    class Before(Features):
        def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.how = how

        def computed(self, x: Tensor) -> Tensor:
            return super().computed(self.how(x))

    x = torch.randn(B, *shape_of(2))
    with pytest.raises(ValueError, match="example"), gradients.record(mixing := Before(lambda x: x - x.mean(0))):
        mixing(x)
    backwards = torch.arange(B - 1, -1, -1)
    found = []
    for how in (lambda x: x[backwards], lambda x: x):
        torch.manual_seed(0)
        model = Before(how)
        with gradients.record(model) as tape:
            model(x).square().sum(1).sum().backward()
        found.append(tape.norms())
    torch.testing.assert_close(found[0], found[1])  # by the record, wherever it stood
    twice = Before(lambda x: torch.stack([x, x + 1]).flatten(0, 1))
    is_as_without(twice)
    assert parts.count(True) == 1


@pytest.mark.parametrize(
    "hook",
    [
        lambda seq, args: seq.__setitem__(1, nn.ReLU()),
        lambda seq, args: seq.__setitem__(2, nn.AvgPool2d(2)),
        lambda seq, args: seq[2]._forward_hooks.clear(),
        lambda seq, args: (seq[2]._forward_hooks.clear(), seq[2].register_forward_hook(lambda *_: None)),
        lambda seq, args: seq[0]._forward_pre_hooks.clear(),
        lambda seq, args: seq[1]._forward_hooks or seq[1].register_forward_hook(lambda _, args, out: out + len(out)),
        lambda seq, args: (seq[0](args[0]) * 2)[:, :3, :1, :1] + args[0],
    ],
)
def test_whatever_a_hook_on_the_sequential_does(hook: Any) -> None:
    def once(seq: nn.Sequential, args: tuple[Any, ...]) -> Any:
        found = hook(seq, args)
        return (found,) if isinstance(found, Tensor) else None

    is_as_without(Features(), lambda model: model.features.register_forward_pre_hook(once))


@pytest.mark.parametrize("how", ["training", "none"])
def test_statistics_that_are_switched_on_late(how: str, parts: list[bool]) -> None:
    model = Features(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.MaxPool2d(2))
    assert isinstance(model.features, nn.Sequential)
    norm = model.features[1]
    with gradients.record(model):
        if how == "training":
            norm.train()
        else:
            norm.running_mean = norm.running_var = None
        with pytest.raises(ValueError, match="batch"):
            model(torch.randn(B, *shape_of(2))).sum().backward()
    assert parts == []


# -- interrupted -----------------------------------------------------------------------------------------------------


def test_errors_are_pytorchs_own_and_leave_the_engine_usable(flat: Any) -> None:
    model = ready(network(nn.ReLU(), nn.MaxPool2d(2)))
    engine = gradients.attach(model)
    with pytest.raises(RuntimeError, match=rf"\[{B}, 2, 9, 8\].*channels"):
        model(torch.randn(B, 2, 9, 8))
    model(torch.randn(B, *shape_of(2))).square().sum(1).mean().backward()
    assert engine.batch_size == B
    engine.clipped_sum(flat(1.0))
