"""Gradients of convolutions, formed record by record: right, alike in every place, and summed as they were measured."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients.factors import contribution as contributions
from tacit.gradients.factors.cancellation import bounded_squares
from tacit.gradients.factors.contribution import Dense, row_rounding
from tacit.gradients.factors.parameter_uses import Part
from tacit.gradients.factors.uses import Uses
from tacit.gradients.layers import conv_kernel as formed
from tacit.gradients.layers.conv_kernel import Formed, Geometry, can_be_formed, offsets
from tacit.gradients.precision import UNIT, chain_error

COMPILED = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)

CASES = {
    "one pixel": (2, (1, 1, 1), 1, Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)),
    "sequence": (3, (2, 17), 5, Geometry((4,), (2,), (1,), (1,), 1)),
    "image": (3, (3, 9, 8), 7, Geometry((3, 2), (1, 2), (1, 0), (1, 1), 1)),
    "sixteen outputs": (2, (4, 8, 8), 16, Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "seventeen outputs": (2, (1, 8, 8), 17, Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "dilated": (2, (2, 12, 11), 4, Geometry((3, 3), (1, 2), (2, 3), (3, 2), 1)),
    "groups": (2, (6, 7, 7), 9, Geometry((3, 3), (1, 1), (1, 1), (1, 1), 3)),
    "depthwise": (2, (5, 7, 7), 5, Geometry((3, 3), (2, 2), (1, 1), (1, 1), 5)),
    "volume": (2, (2, 5, 6, 4), 3, Geometry((2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 1)),
    "many places": (2, (1, 40, 40), 3, Geometry((5, 5), (1, 1), (2, 2), (1, 1), 1)),
    "wide windows": (2, (20, 9, 9), 18, Geometry((5, 5), (2, 2), (0, 0), (1, 1), 1)),
}


def made(name: str, images: int = 1, seed: int = 0) -> Formed:
    """Records of a convolution with random images and gradients."""
    records, image, outputs, geometry = CASES[name]
    torch.manual_seed(seed)
    a = torch.randn(records, images, *image)
    space = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(image[1:], geometry.padding, geometry.dilation, geometry.kernel, geometry.stride)
    ]
    g = torch.randn(records, images, outputs, *space)
    return Formed(a, g, (outputs, image[0] // geometry.groups, *geometry.kernel), geometry)


def one_by_one(given: Formed) -> tuple[Tensor, Tensor]:
    """Every record's gradient by autograd in float64, and the same with absolute values: the size of its terms."""
    found = []
    for i in range(given.batch):
        for of in (lambda x: x.double(), lambda x: x.double().abs()):
            weight = torch.zeros(given.shape, dtype=torch.float64, requires_grad=True)
            call = getattr(F, f"conv{given.image.ndim - 3}d")
            g = given.geometry
            out = call(of(given.image[i]), weight, None, g.stride, g.padding, g.dilation, g.groups)
            found.append(torch.autograd.grad(out, weight, of(given.grad[i]))[0])
    return torch.stack(found[::2]), torch.stack(found[1::2])


@COMPILED
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_record_is_formed_measured_and_added(name: str, images: int) -> None:
    given = made(name, images)
    exact, sizes = one_by_one(given)
    own = given.instantiate(0, given.batch)
    terms = images * math.prod(given.grad.shape[3:])
    assert ((own - exact).abs() <= (terms + 1) * UNIT * sizes * (1 + 1e-3)).all()
    squares = own.double().flatten(1).square().sum(1)
    assert ((given.squares() - squares).abs() <= row_rounding(given.shape.numel()) * UNIT * squares).all()
    weights = torch.rand(given.batch)
    total, wide = torch.empty(given.shape), torch.zeros(given.shape, dtype=torch.float64)
    given.assign(total, weights, 1)
    given.widen(wide, weights)
    expected = torch.einsum("i,i...->...", weights.double(), own.double())
    bound = (given.batch + 2) * UNIT * torch.einsum("i,i...->...", weights.double(), own.double().abs())
    assert ((total - expected).abs() <= bound).all()
    assert ((wide - expected).abs() <= bound).all()


@COMPILED
@pytest.mark.parametrize("name", CASES)
def test_each_gradient_is_bitwise_equal_when_summed_alone_or_instantiated(name: str) -> None:
    """To the last bit, though it is formed three times."""
    given = made(name)
    for i in range(given.batch):
        total = torch.full(given.shape, torch.nan)
        given.assign(total, torch.eye(given.batch)[i], 1)
        assert torch.equal(total, given.alone(i)[0])
        assert torch.equal(given.alone(i)[0], given.instantiate(0, given.batch)[i])


@COMPILED
@pytest.mark.parametrize(("places", "entries"), [(600, 1), (600, 7), (2, 1), (300, 250)])
def test_terms_that_cancel_are_measured_as_they_are_added(places: int, entries: int) -> None:
    """What is left of them is rounding alone, so that any other order of additions would leave something else."""
    torch.manual_seed(0)
    a, g = torch.randn(200, 1, 1, places + entries - 1), torch.randn(200, 1, 1, places)
    g[..., 1::2] = -g[..., ::2]
    if entries == 1:
        a[..., 1::2] = a[..., ::2]
    else:
        a[:] = a[..., :1]
    given = Formed(a, g, (1, 1, entries), Geometry((entries,), (1,), (0,), (1,), 1))
    own = given.instantiate(0, 200).double().flatten(1).square().sum(1)
    assert own.count_nonzero() < 200 or own.max() < 1e-6
    assert ((given.squares() - own).abs() <= row_rounding(entries) * UNIT * own).all()


@COMPILED
@pytest.mark.parametrize("name", CASES)
def test_a_record_is_alike_in_every_place_and_beside_any_others(name: str) -> None:
    given = made(name)
    found, squares = set(), set()
    for others in range(9):
        torch.manual_seed(others)
        memory = [torch.randn(others + (others + 1) * x[:1].numel()) * 100 for x in (given.image, given.grad)]
        image, grad = (m[others:].view(others + 1, *x.shape[1:]) for m, x in zip(memory, (given.image, given.grad)))
        image[others // 2], grad[others // 2] = given.image[0], given.grad[0]
        here = Formed(image, grad, given.shape, given.geometry)
        found.add(here.instantiate(0, others + 1)[others // 2].numpy().tobytes())
        squares.add(here.squares()[others // 2].item())
    assert len(found) == len(squares) == 1


@COMPILED
def test_terms_that_cancel_do_not_touch_other_records() -> None:
    """Terms of 2^60 that cancel would leave nothing of the others in a sum that they share."""
    image, grad = torch.randn(3, 1, 2, 8), torch.randn(3, 1, 5, 8)
    image[0], grad[0] = 2.0**30, 2.0**30
    grad[0, :, :, ::2] *= -1
    given = Formed(image, grad, (5, 2, 1), Geometry((1,), (1,), (0,), (1,), 1))
    uses = Uses([Part(given, None)], given.shape)
    assert bounded_squares([uses])[0][0] == 0
    assert not uses.apart
    total, without = torch.empty(given.shape), torch.empty(given.shape)
    uses.assign(total, torch.ones(3))
    given.assign(without, torch.tensor([0.0, 1.0, 1.0]), 1)
    assert torch.equal(total, without)


@COMPILED
def test_records_are_added_in_blocks() -> None:
    """Lemma 5: chained one by one up to 128 only, terms of 2^-14 beside 1024 would all be lost."""
    geometry = Geometry((2, 2), (1, 1), (0, 0), (1, 1), 1)
    image, grad = torch.full((1000, 1, 1, 2, 2), 2.0**-14), torch.ones(1000, 1, 3, 1, 1)
    image[0] = 1024.0
    given, total = Formed(image, grad, (3, 1, 2, 2), geometry), torch.empty(3, 1, 2, 2)
    given.assign(total, torch.ones(1000), 1)
    assert (total > 1024 + 800 * 2.0**-14).all()


@COMPILED
def test_adversarial_chains_stay_within_the_lemma() -> None:
    generator = torch.Generator().manual_seed(3)
    geometry = Geometry((3,), (1,), (0,), (1,), 1)
    for records in (100, 300):
        image = torch.rand(records, 1, 2, 12, generator=generator)
        grad = torch.rand(records, 1, 5, 10, generator=generator)
        given = Formed(image, grad, (5, 2, 3), geometry)
        own = given.instantiate(0, records).double()
        weights = (1 / own.flatten(1).norm(dim=1)).float()  # every record adds a vector of norm one
        total = torch.empty(given.shape)
        given.assign(total, weights, 1)
        exact = torch.einsum("i,i...->...", weights.double(), own)
        steps = chain_error(1, min(records, 128)) + (chain_error(128, records) if records > 128 else 0)
        assert (total - exact).norm() <= UNIT * (steps + 2 * records)


@COMPILED
def test_records_that_are_not_finite_stay_by_themselves() -> None:
    given = made("image")
    others = given.instantiate(0, 3)[[0, 2]]
    given.image[1, 0, 0, 0, 0] = torch.nan
    given.grad[1, 0, 0, 0, 1] = torch.inf
    assert given.squares().isfinite().tolist() == [True, False, True]
    assert torch.equal(given.instantiate(0, 3)[[0, 2]], others)
    total = torch.empty(given.shape)
    given.without(torch.tensor([False, True, False])).assign(total, torch.ones(3), 1)
    assert torch.allclose(total, others.sum(0))


@COMPILED
def test_any_number_of_threads_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for threads in (1, 2, 3, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for name in ("image", "groups", "wide windows"):
            given = made(name)
            total = torch.empty(given.shape)
            given.assign(total, torch.ones(given.batch), 1)
            results.append(torch.cat([given.instantiate(0, given.batch).flatten(), given.squares(), total.flatten()]))
    for i, result in enumerate(results):
        assert torch.equal(result, results[i % 3])


@pytest.mark.parametrize("arithmetic", ["plain"], indirect=True)  # once, with what is installed
def test_threads_that_flush_denormal_numbers_do_so_no_longer() -> None:
    """As a pool of threads does that was started while its owner did: half of the records had norm zero."""
    code = """
import torch
from tacit.gradients.layers.conv_kernel import Formed, Geometry
torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.randn(2000, 2000).add_(1)
torch.set_flush_denormal(False)
image, grad = torch.full((400, 1, 4, 6, 6), 2.0**-128), torch.full((400, 1, 16, 4, 4), 2.0**120)
given = Formed(image, grad, (16, 4, 3, 3), Geometry((3, 3), (1, 1), (0, 0), (1, 1), 1))
print(given.squares().unique().tolist(), given.instantiate(0, 400).unique().tolist())
from tacit.gradients.precision import check_precision
try:
    check_precision(torch.device("cpu"))
except ValueError as error:  # of PyTorch's own operations
    print("new process" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"[{(2.0**-4) ** 2 * 576}]", "[0.0625]", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forked processes here")
@pytest.mark.parametrize("arithmetic", ["plain"], indirect=True)  # once, with what is installed
def test_a_forked_process_does_not_wait_for_threads_of_its_parent() -> None:
    code = """
import os, signal, torch
from tacit import gradients
class Flat:
    def partition(self, shapes):
        return [tuple(shapes)]
    def weights(self, norms):
        return (1 / norms).clamp(max=1.0)
torch.set_num_threads(2)
torch.randn(2000, 2000).add_(1)
child = os.fork()
if not child:
    signal.alarm(30)
    model = torch.nn.Linear(5, 4)  # so small that PyTorch itself uses one thread
    with gradients.record(model, isolate=False) as tape:
        model(torch.randn(8, 5)).square().sum(1).sum().backward()
    tape.clipped_sum(Flat())
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7"]


@COMPILED
def test_chunks_have_their_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made("image")
    whole = given.squares()
    monkeypatch.setattr(contributions, "CHUNK_BYTES", 1)
    assert torch.equal(given.squares(), whole)


@COMPILED
def test_several_uses_meet_in_float64() -> None:
    """Terms of 2^-25 are lost beside one in float32: within a call, which has so many records and no more."""
    image, grad = torch.full((40, 1, 1, 2), 2.0**-25), torch.ones(40, 1, 1, 1)
    image[0] = 1.0
    given = Formed(image, grad, (1, 1, 2), Geometry((2,), (1,), (0,), (1,), 1))
    for first, lost in ((1, 0), (2, 1), (16, 15), (1000, 15)):
        total = torch.zeros(1, 1, 2, dtype=torch.float64)
        given.widen(total, torch.ones(40), first)
        assert (total == 1 + (39 - lost) * 2.0**-25).all()


@COMPILED
def test_norms_have_a_rounding() -> None:
    given = made("image")
    assert given.rounding().relative >= row_rounding(given.shape.numel())
    assert given.rounding().gram == given.rounding().own == 0


@COMPILED
def test_calls_do_not_disturb_each_other() -> None:
    given = made("wide windows")
    expected = given.instantiate(0, given.batch)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: torch.equal(given.instantiate(0, given.batch), expected), range(40)))


@COMPILED
def test_other_types_defaults_and_layouts_are_taken_as_they_are() -> None:
    given = made("image")
    expected = given.instantiate(0, given.batch)
    half = Formed(given.image.bfloat16(), given.grad.bfloat16(), given.shape, given.geometry)
    rounded = Formed(half.image.float(), half.grad.float(), given.shape, given.geometry)
    assert torch.equal(half.instantiate(0, 3), rounded.instantiate(0, 3))
    last = torch.channels_last
    turned = [x.flatten(0, 1).to(memory_format=last).unflatten(0, (3, 1)) for x in (given.image, given.grad)]
    assert torch.equal(Formed(*turned, given.shape, given.geometry).instantiate(0, 3), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(given.instantiate(0, 3), expected)
        assert given.squares().dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    negative = torch.complex(torch.zeros_like(given.image), -given.image).conj().imag
    assert negative.is_neg()
    assert torch.equal(Formed(negative, given.grad, given.shape, given.geometry).instantiate(0, 3), expected)


@COMPILED
def test_no_records_sum_to_zero() -> None:
    given = made("image")
    none = Formed(given.image[:0], given.grad[:0], given.shape, given.geometry)
    assert none.instantiate(0, 0).shape == (0, *given.shape)
    assert none.squares().shape == (0,)
    total = torch.full(given.shape, torch.nan)
    none.assign(total, torch.empty(0), 1)
    assert (total == 0).all()


def test_which_loop_serves_follows_from_shapes_alone(arithmetic: str) -> None:
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    sizes = 1, 2, 3, 100, 600, 2048, 5000
    for channels, outputs, side in ((3, 16, 32), (512, 512, 4), (16, 32, 8)):
        image, grad = (torch.empty(1, 1, n, side, side).expand(5000, -1, -1, -1, -1) for n in (channels, outputs))
        chosen = {can_be_formed(image[:n], grad[:n], (outputs, channels, 3, 3), geometry) for n in sizes}
        assert chosen == {arithmetic != "arrays" and channels < 512}
    for channels, kept in ((1, True), (20, False)):
        image, grad = (torch.zeros(1, 1, channels, 2, 2).expand(5000, -1, -1, -1, -1) for _ in range(2))
        given = (Formed(image[:n], grad[:n], (channels, channels, 3, 3), geometry) for n in sizes)
        settled = {type(each.settle()) is Dense for each in given if arithmetic != "arrays"}
        assert settled == ({kept} if arithmetic != "arrays" else set())
    wide = torch.empty(1, 1, 3, 8, 8, dtype=torch.float64)
    assert not can_be_formed(wide, torch.empty(1, 1, 4, 8, 8), (4, 3, 3, 3), geometry)
    assert not can_be_formed(torch.empty(1, 1, 3, 8, 8), wide, (3, 3, 3, 3), geometry)


@COMPILED
def test_windows_that_do_not_fit_are_refused() -> None:
    kernels = formed.kernels
    assert kernels is not None
    given = made("groups")
    right = given.windows(0, 2)
    out, sums, each = np.empty((2, *given.shape), np.float32), np.empty(2, np.float32), np.ones(2, np.float32)
    kernels.windows_form(*right, out)

    def changed(**values: Any) -> list[Any]:
        names = ("image", "grad", "starts", "entries", "records", "images", "blocks", "threads")
        return [values.get(name, value) for name, value in zip(names, right)]

    far = right[3].copy()
    far[2] += right[0].numel() // 6  # beyond the group of channels, from the last place on
    for wrong in (
        changed(records=3),
        changed(records=0),
        changed(records=2**63),
        changed(images=2),
        changed(images=2**62, blocks=2**62),
        changed(blocks=2),
        changed(threads=0),
        changed(threads=2**40),
        changed(starts=right[2] + (2**31 - 1 - int(right[2].max()))),
        changed(starts=-right[2]),
        changed(starts=right[2][:-1]),
        changed(starts=right[2] + 1),
        changed(starts=right[2][:0]),
        changed(entries=right[3][:0]),
        changed(entries=right[3][:-1]),
        changed(entries=far),
        changed(entries=-right[3]),
        changed(image=right[0][:1]),
        changed(grad=right[1][:1]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.windows_form(*wrong, out)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.windows_form(*right, out[:1])
    with pytest.raises(ValueError, match="do not fit"):
        kernels.windows_squares(*right, np.empty(3, np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        kernels.windows_sum(*right, each[:1], out[0])
    with pytest.raises(ValueError, match="do not fit"):
        kernels.windows_sum(*right, each, out)
    with pytest.raises(TypeError, match="10 arguments instead of 9"):
        kernels.windows_squares(*right, each, sums)
    with pytest.raises(OverflowError):
        kernels.windows_form(*changed(records=-1), out)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        kernels.windows_form(*right, out[:, ::2])


def test_offsets_are_those_of_unfold() -> None:
    geometry = Geometry((3, 2), (2, 1), (0, 0), (1, 3), 2)
    image = torch.arange(4 * 9 * 8.0).view(1, 4, 9, 8)
    starts, entries = offsets(geometry, (4, 9, 8), (4, 5))
    cut = F.unfold(image[:, :2], (3, 2), dilation=(1, 3), stride=(2, 1))[0]
    assert torch.equal(cut, torch.from_numpy(entries[:, None] + starts[None, :]).float())


class Flat:
    def partition(self, shapes: Any) -> Any:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (0.3 / norms).clamp(max=1.0)


MODELS = {
    "small": lambda: nn.Sequential(nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.Flatten()),
    "wide": lambda: nn.Sequential(nn.Conv2d(1, 40, 3, 4), nn.Tanh(), nn.Conv2d(40, 50, 5, padding=2), nn.Flatten()),
    "up and down": lambda: nn.Sequential(nn.Conv2d(1, 6, 4, 4), nn.ConvTranspose2d(6, 5, 3, 2, 1, 1), nn.Flatten()),
    "Gram": lambda: nn.Sequential(nn.Conv2d(1, 64, 7, 7), nn.Tanh(), nn.Conv2d(64, 64, 3), nn.Flatten()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bad", [False, True])
def test_clipped_sums_equal_the_loop(name: str, bad: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    x = torch.randn(150, 1, 28, 28)
    if bad:
        x[17] = torch.nan
    with gradients.record(model, isolate=False) as tape:
        model(x).square().flatten(1).sum(1).sum().backward()
    found = tape.clipped_sum(Flat())
    expected = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in model.named_parameters()}
    for i in range(150):
        if bad and i == 17:
            continue
        own = torch.autograd.grad(model(x[i : i + 1]).square().sum(), list(model.parameters()))
        norm = torch.stack([g.double().norm() for g in own]).norm()
        for total, g in zip(expected.values(), own):
            total += g.double() * min(1.0, 0.3 / norm)
    for n, total in expected.items():
        assert torch.allclose(found[n].double(), total, rtol=1e-4, atol=1e-5 * total.abs().max()), n


def test_a_batch_that_was_written_to_after_its_norms_is_refused() -> None:
    model = nn.Conv2d(6, 20, 3)
    x = torch.randn(5, 6, 5, 5)
    with gradients.record(model, isolate=False) as tape:
        model(x).square().sum().backward()
    tape.norms()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified in place after the norms"):
        tape.clipped_sum(Flat())


def test_a_batch_that_is_written_to_between_two_sums_is_refused() -> None:
    model = nn.Conv2d(6, 20, 3)
    x = torch.randn(5, 6, 5, 5)
    with gradients.record(model, isolate=False) as tape:
        model(x).square().sum().backward()
    sums = tape.clipped_sums(Flat())
    next(sums)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified in place after the norms"):
        next(sums)


def test_norms_too_are_refused_where_denormal_numbers_are_flushed() -> None:
    model = nn.Conv2d(6, 20, 3)
    with gradients.record(model, isolate=False) as tape:
        model(torch.randn(5, 6, 5, 5)).square().sum().backward()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        with pytest.raises(ValueError, match="flushed to zero"):
            tape.norms()
    finally:
        torch.set_flush_denormal(False)
    tape.norms()
