"""Maxima over windows: PyTorch's own values, gradients and choices between equal entries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tacit import gradients
from tacit.gradients.layers import pooling

COMPILED = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)

BY_THREADS = pytest.mark.parametrize("threads", [1, 2], indirect=True)

CASES = {
    "halves": ((3, 4, 24, 24), 2, 2, 0),
    "narrow": ((2, 3, 12, 12), 2, 2, 0),
    "odd": ((2, 3, 13, 17), 2, 2, 0),
    "overlapping": ((2, 3, 14, 14), 2, 1, 0),
    "padded": ((2, 3, 15, 33), 3, 2, 1),
    "threes": ((2, 2, 20, 37), (2, 4), (1, 3), (1, 2)),
    "far apart": ((2, 2, 23, 41), (1, 2), (5, 7), (0, 1)),
    "everything": ((2, 2, 6, 7), (6, 7), 1, 0),
    "one entry": ((1, 1, 1, 1), 1, 1, 0),
    "mostly padding": ((2, 2, 1, 2), (2, 3), 2, 1),
}


class Pooled(nn.Module):
    """A maximum over windows, of data or of what a layer made of it, and one trained layer."""

    def __init__(self, x: Tensor, *how: object, frozen: bool = True, **more: object) -> None:
        super().__init__()
        self.how, self.more = how, more
        self.first = nn.Conv2d(x.shape[1], 3, 1).requires_grad_(not frozen)
        self.last = nn.Linear(self.features(x).shape[1], 2)

    def features(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.first(x), *self.how, **self.more).flatten(1)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.features(x))


class Looking(nn.Module):
    """A model that has something done with its data on the way."""

    def __init__(self, look: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.look, self.last = look, nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return self.last(x.flatten(1)[:, :1].float())


class Spy:
    """The kernels, with a count of how often windows were left to them."""

    def __init__(self, kernels: object) -> None:
        self.kernels, self.calls, self.placed = kernels, 0, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.kernels, name)

    def max_pool(self, *arguments: object) -> None:
        self.calls += 1
        self.kernels.max_pool(*arguments)  # type: ignore[attr-defined]

    def max_pool_placed(self, *arguments: object) -> None:
        self.placed += 1
        self.kernels.max_pool_placed(*arguments)  # type: ignore[attr-defined]


@pytest.fixture(params=[1])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    found = Spy(pooling.kernels)
    monkeypatch.setattr(pooling, "kernels", found if pooling.kernels is not None else None)
    return found


def recorded(x: Tensor, *how: object, **more: object) -> Tensor:
    """What a model sees of the maxima of its data."""
    seen: list[Tensor] = []
    model = Looking(lambda x: seen.append(F.max_pool2d(x, *how, **more)))  # type: ignore[arg-type]
    with gradients.record(model, isolate=False):
        model(x)
    return seen[0].detach().as_subclass(Tensor)


@BY_THREADS
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", CASES)
def test_the_values_are_pytorchs(name: str, spy: Spy, arithmetic: str) -> None:
    shape, *how = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    assert torch.equal(recorded(x, *how), F.max_pool2d(x, *how))
    assert spy.calls == (arithmetic != "arrays")


def any_windows(numbers: np.random.Generator) -> list[tuple[int, ...]]:
    """Height and width of images, and kernel, stride and padding of windows that fit."""
    h, w = int(numbers.integers(1, 20)), int(numbers.integers(1, 50))
    kernel = int(numbers.integers(1, min(5, h) + 1)), int(numbers.integers(1, min(6, w) + 1))
    stride = tuple(map(int, numbers.integers(1, 6, 2)))
    return [(h, w), kernel, stride, tuple(int(numbers.integers(0, k // 2 + 1)) for k in kernel)]


def test_random_windows_are_pytorchs() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(150):
        (h, w), *how = any_windows(numbers)
        x = torch.from_numpy(numbers.standard_normal((2, 2, h, w), dtype=np.float32))
        assert torch.equal(recorded(x, *how), F.max_pool2d(x, *how))


@pytest.mark.parametrize("place", range(16))
def test_not_a_number_and_infinity_stay_in_their_windows(place: int) -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        x = torch.randn(1, 1, 4, 4)
        x.view(-1)[place] = value
        found, wanted = recorded(x, 2, 1, 1), F.max_pool2d(x, 2, 1, 1)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(nan=0.5), wanted.nan_to_num(nan=0.5))


@pytest.mark.parametrize("more", [{"ceil_mode": True}, {"dilation": 2}, {"dilation": (1, 2), "padding": 1}], ids=str)
def test_pooling_falls_back_to_pytorch_for_unusual_options_and_layouts(more: dict[str, object], spy: Spy) -> None:
    x = torch.randn(2, 2, 11, 13)
    assert torch.equal(recorded(x, 2, 3, **more), F.max_pool2d(x, 2, 3, **more))  # type: ignore[arg-type]
    for other in (x.double(), x.to(memory_format=torch.channels_last), x[..., ::2]):
        assert torch.equal(recorded(other, 2), F.max_pool2d(other, 2))
    assert spy.calls == 0


@pytest.mark.parametrize(
    "how",
    [(2, 2, 2), (0,), (20,), (2, -1), (2, 0), (2, 1, -1), ((2, 2, 2),), (2.0,), (True,), ("2",), (2, 2**62), (2**40,)],
    ids=str,
)
def test_wrong_pooling_arguments_raise_the_same_error_as_pytorch(how: tuple[object, ...]) -> None:
    x = torch.randn(2, 2, 8, 8)
    with pytest.raises((RuntimeError, TypeError)) as wanted:
        F.max_pool2d(x, *how)  # type: ignore[arg-type]
    with pytest.raises(wanted.type) as found:
        recorded(x, *how)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("shape", [(8, 8), (2, 0, 8, 8), (2, 2, 0, 8), (2, 2, 2, 8, 8)])
def test_images_of_other_dimensions_are_pytorchs_to_refuse(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.raises((RuntimeError, TypeError)) as wanted:
        F.max_pool2d(x, 2)
    with pytest.raises(wanted.type):
        recorded(x, 2)


def test_numbers_as_pytorch_takes_them(spy: Spy, arithmetic: str) -> None:
    x = torch.randn(2, 2, 8, 8)
    given = [(np.int64(2), np.int64(2)), ((2, 2), ()), ([2], [2], [1]), (2, None), (2, 2**30), ((2, 3), (1, 2**30), 1)]
    for how in given:
        assert torch.equal(recorded(x, *how), F.max_pool2d(x, *how))  # type: ignore[arg-type]
    assert torch.equal(recorded(x[:, :, :1, :1], 9, 1, 4), F.max_pool2d(x[:, :, :1, :1], 9, 1, 4))
    assert spy.calls == len(given) * (arithmetic != "arrays")


def test_without_a_graph_no_places_are_noted(spy: Spy, arithmetic: str) -> None:
    def look(x: Tensor) -> None:
        x = x.detach().requires_grad_(True)
        with torch.no_grad():
            assert not F.max_pool2d(x, 2).requires_grad

    model = Looking(look)
    with gradients.record(model, isolate=False):
        model(torch.randn(2, 2, 8, 8))
    assert (spy.calls, spy.placed) == (arithmetic != "arrays", 0)


@COMPILED
def test_gradients_however_they_lie_in_memory() -> None:
    sizes = (8, 8, 2, 2, 2, 2, 0, 0)
    x = torch.randn(3, 2, 8, 8, requires_grad=True)
    out, wanted = pooling.Pool.apply(x, sizes), F.max_pool2d(x, 2)  # type: ignore[no-untyped-call]
    g = torch.randn(3, 2, 4, 4)
    turned = g.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    for given in (
        g,
        turned,
        torch._neg_view(g),
        torch.ones(()).expand(3, 2, 4, 4),
        g.to(memory_format=torch.channels_last),
    ):
        (found,) = torch.autograd.grad(out, x, given, retain_graph=True)
        assert torch.equal(found, torch.autograd.grad(wanted, x, given, retain_graph=True)[0])
    seed = g.clone().requires_grad_(True)
    (back,) = torch.autograd.grad(out, x, seed, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        back.sum().backward()


def test_tangents_are_not_lost(spy: Spy) -> None:
    def look(x: Tensor) -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
            assert forward_ad.unpack_dual(F.max_pool2d(dual, 2)).tangent is not None

    model = Looking(look)
    with (
        contextlib.suppress(AttributeError),
        gradients.record(model, isolate=False),
    ):  # what the engine cannot follow it may refuse
        model(torch.randn(2, 2, 8, 8))
    assert (spy.calls, spy.placed) == (0, 0)


def found_back(x: Tensor, seed: Tensor, *how: object, recorded: bool) -> tuple[Tensor, Tensor]:
    """Maxima, and the gradient of x from what is given for them."""
    kept: list[Tensor] = []

    def look(x: Tensor) -> None:
        x = x.detach().requires_grad_(True)
        out = F.max_pool2d(x, *how)  # type: ignore[arg-type]
        (back,) = torch.autograd.grad((out * seed).sum(), x)
        kept.extend(each.detach().as_subclass(Tensor) for each in (out, back))

    model = Looking(look)
    with gradients.record(model, isolate=False) if recorded else contextlib.nullcontext():
        model(x)
    return kept[0], kept[1]


@BY_THREADS
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("values", ["normal", "equal", "few", "infinite"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_come_back_where_pytorch_brings_them(name: str, values: str, spy: Spy) -> None:
    """To the first of equal entries, and added up where windows overlap in the same order: to the last bit."""
    shape, *how = CASES[name]
    torch.manual_seed(0)
    x = {
        "normal": torch.randn(shape),
        "equal": torch.zeros(shape),
        "few": torch.randint(-1, 2, shape).float() * torch.tensor([-0.0, 1.0])[torch.randint(2, shape)],
        "infinite": torch.where(torch.rand(shape) < 0.8, -torch.inf, torch.randn(shape)),
    }[values]
    seed = torch.randn_like(F.max_pool2d(x, *how))
    found = found_back(x, seed, *how, recorded=True)
    for own, wanted in zip(found, found_back(x, seed, *how, recorded=False), strict=True):
        assert torch.equal(own, wanted)
    assert spy.placed == (pooling.kernels is not None)


def test_random_gradients_are_pytorchs() -> None:
    numbers = np.random.default_rng(1)
    for _ in range(100):
        (h, w), *how = any_windows(numbers)
        x = torch.from_numpy(numbers.integers(-3, 4, (2, 2, h, w)).astype(np.float32))
        seed = torch.randn_like(F.max_pool2d(x, *how))
        found = found_back(x, seed, *how, recorded=True)
        for own, wanted in zip(found, found_back(x, seed, *how, recorded=False), strict=True):
            assert torch.equal(own, wanted)


def test_windows_too_large_for_a_byte_are_left_to_pytorch(spy: Spy) -> None:
    x = torch.randn(2, 1, 20, 20)
    for kernel, ours in (((16, 16), 1), ((16, 17), 0)):
        spy.placed = 0
        seed = torch.randn_like(F.max_pool2d(x, kernel))
        found = found_back(x, seed, kernel, recorded=True)
        assert spy.placed == ours * (pooling.kernels is not None)
        assert all(map(torch.equal, found, found_back(x, seed, kernel, recorded=False)))


def test_gradients_below_the_windows_are_those_of_single_records(spy: Spy) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 2, 9, 9), torch.tensor([0, 1, 1, 0, 1])
    model = Pooled(x, 3, 2, frozen=False)
    with gradients.record(model, isolate=False) as tape:
        F.cross_entropy(model(x), y).backward()
    norms = tape.norms()
    assert spy.placed == (pooling.kernels is not None)
    for i in range(5):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
        assert torch.allclose(norms[i], own, rtol=1e-5)


def test_one_record_that_is_not_a_number_does_not_touch_the_others() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 2, 9, 9), torch.tensor([0, 1, 1, 0, 1])
    model = Pooled(x, 3, 2, frozen=False)
    with gradients.record(model, isolate=False) as tape:
        F.cross_entropy(model(x), y).backward()
    wanted = tape.norms()
    x[2, :, 3:5, 2] = torch.nan
    with gradients.record(model, isolate=False) as tape:
        F.cross_entropy(model(x), y).backward()
    norms = tape.norms()
    others = [0, 1, 3, 4]
    assert torch.equal(norms[others], wanted[others])
    assert norms[2] == torch.inf


def test_windows_within_a_checkpoint_and_a_second_pass() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 2, 9, 9), torch.tensor([0, 1, 1, 0, 1])
    model = Pooled(x, 3, 2, frozen=False)
    with gradients.record(model, isolate=False) as tape:
        F.cross_entropy(model(x), y).backward()
    wanted = tape.norms()
    with gradients.record(model, isolate=False) as tape:
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        loss.backward(retain_graph=True)
    assert torch.allclose(tape.norms(), wanted)
    with gradients.record(model, isolate=False) as tape:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
    assert torch.allclose(tape.norms(), 2 * wanted)


def test_gradients_above_frozen_layers_are_those_of_single_records(spy: Spy, arithmetic: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 2, 9, 9), torch.tensor([0, 1, 1, 0, 1])
    model = Pooled(x, 3, 2, 1)
    with gradients.record(model, isolate=False) as tape:
        F.cross_entropy(model(x), y).backward()
    norms = tape.norms()
    assert spy.calls == (arithmetic != "arrays")
    for i in range(5):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        own = torch.cat([p.grad.flatten() for p in model.last.parameters() if p.grad is not None]).norm()
        assert torch.allclose(norms[i], own, rtol=1e-5)


def test_examples_in_the_place_of_channels_are_refused() -> None:
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 1))
    with gradients.record(model, isolate=False), pytest.raises(ValueError, match="channels or space"):
        model(torch.randn(3, 8, 8))


def test_an_empty_batch_has_no_norms_and_calls_no_kernel(spy: Spy) -> None:
    x = torch.randn(2, 2, 8, 8)
    model = Pooled(x, 2)
    with gradients.record(model, isolate=False) as tape:
        model(x[:0]).sum().backward()
    assert tape.norms().shape == (0,)
    assert spy.calls == 0


@COMPILED
def test_nothing_is_written_beyond_the_result() -> None:
    assert pooling.kernels is not None
    x = np.random.default_rng(0).standard_normal((3, 15, 33), dtype=np.float32)
    memory = np.full(16 + 3 * 8 * 17 + 16, 7.0, dtype=np.float32)
    pooling.kernels.max_pool(x, memory[16:-16], 15, 33, 3, 3, 2, 2, 1, 1, 2)
    assert (memory[:16] == 7.0).all()
    assert (memory[-16:] == 7.0).all()
    assert np.array_equal(memory[16:-16].reshape(3, 8, 17), F.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy())


@COMPILED
def test_whatever_is_given_for_places_nothing_is_written_elsewhere() -> None:
    assert pooling.kernels is not None
    numbers = np.random.default_rng(0)
    for padding in (0, 1):
        memory = np.full(16 + 3 * 15 * 33 + 16, 7.0, dtype=np.float32)
        grads = numbers.standard_normal((3, 7 + padding, 16 + padding), dtype=np.float32)
        for most in (9, 12, 256):
            places = numbers.integers(0, most, grads.shape, dtype=np.uint8)
            pooling.kernels.max_unpool(grads, places, memory[16:-16], 15, 33, 3, 3, 2, 2, padding, padding, 2)
            rows, columns = np.indices(grads.shape[1:])
            rows, columns = 2 * rows - padding + places // 3, 2 * columns - padding + places % 3
            inside = (rows >= 0) & (rows < 15) & (columns >= 0) & (columns < 33)
            wanted = np.zeros((3, 15, 33))
            np.add.at(wanted, (np.indices(grads.shape)[0][inside], rows[inside], columns[inside]), grads[inside])
            assert np.allclose(memory[16:-16].reshape(3, 15, 33), wanted, atol=1e-5)
            assert (memory[:16] == 7.0).all()
            assert (memory[-16:] == 7.0).all()


GIVEN = [8, 8, 2, 2, 2, 2, 0, 0, 1]


@COMPILED
@pytest.mark.parametrize(("place", "value"), [(0, 0), (1, 7), (2, 9), (3, 0), (4, 0), (5, 3), (6, 2), (7, 1), (8, 0)])
def test_sizes_that_do_not_fit_are_refused(place: int, value: int) -> None:
    assert pooling.kernels is not None
    x, out = np.zeros((2, 8, 8), dtype=np.float32), np.zeros((2, 4, 4), dtype=np.float32)
    pooling.kernels.max_pool(x, out, *GIVEN)
    with pytest.raises(ValueError, match="do not fit"):
        pooling.kernels.max_pool(x, out, *GIVEN[:place], value, *GIVEN[place + 1 :])
    with pytest.raises(ValueError, match="do not fit"):
        pooling.kernels.max_pool(x, out[:1], *GIVEN)
    with pytest.raises(ValueError, match="do not fit"):
        pooling.kernels.max_pool(x, out, *GIVEN[:place], 2**63, *GIVEN[place + 1 :])
    with pytest.raises((ValueError, OverflowError)):
        pooling.kernels.max_pool(x, out, *GIVEN[:place], 2**64, *GIVEN[place + 1 :])
    places = np.zeros((2, 4, 4), dtype=np.uint8)
    for call, given, made in ((pooling.kernels.max_pool_placed, x, out), (pooling.kernels.max_unpool, out, x)):
        call(given, places, made, *GIVEN)
        with pytest.raises(ValueError, match="do not fit"):
            call(given, places, made, *GIVEN[:place], value, *GIVEN[place + 1 :])
        with pytest.raises(ValueError, match="do not fit"):
            call(given, places[:1], made, *GIVEN)
        with pytest.raises(TypeError, match="instead of 12"):
            call(given, places, made, *GIVEN[1:])


@COMPILED
def test_numbers_that_make_no_whole_images_and_windows_too_large_for_a_byte_are_refused() -> None:
    assert pooling.kernels is not None
    one_more, out = np.zeros(2 * 64 + 1, dtype=np.float32), np.zeros((2, 4, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        pooling.kernels.max_pool(one_more, out, *GIVEN)
    line, places, found = np.zeros(300, np.float32), np.zeros(300, np.uint8), np.zeros(300, np.float32)
    pooling.kernels.max_pool_placed(line, places[:45], found[:45], 1, 300, 1, 256, 1, 1, 0, 0, 1)
    with pytest.raises(ValueError, match="do not fit"):
        pooling.kernels.max_pool_placed(line, places[:44], found[:44], 1, 300, 1, 257, 1, 1, 0, 0, 1)
