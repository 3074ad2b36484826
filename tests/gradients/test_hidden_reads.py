"""Models that read the batch where the engine does not see it are found by running parts of the first batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.nn.utils.rnn import pack_sequence as packed_from
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from torch.utils.dlpack import from_dlpack, to_dlpack
from torch.utils.flop_counter import FlopCounterMode

from tacit import gradients

B = 8
ALL = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))
X = ALL[8:16]
ONE, NEXT = ALL[13:14], ALL[16:18]
Body = Callable[["Model", Tensor], Tensor]
INFLUENCE = "influence each other|by themselves|outside the engine's sight|combines different examples|shape"


class Model(nn.Module):
    mask: Tensor

    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.line, self.rnn = body, nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)
        self.register_buffer("mask", torch.rand(4))
        self.centres = ALL[30:34]  # of the data set that the batch is cut from
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(self.line(self.body(self, x)))


def plain(x: Tensor) -> Tensor:
    return torch.Tensor.as_subclass(x, Tensor)  # not by the method, which the engine's tensors have themselves


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x - x.mean(0)


traced: Any = torch.jit.trace(lambda x: x - x.mean(0), torch.ones(B, 4))  # type: ignore[no-untyped-call]


def overridable(x: Tensor) -> Tensor:
    """Somebody's own function in the manner of PyTorch's."""
    if has_torch_function((x,)):
        return handle_torch_function(overridable, (x,), x)  # type: ignore[no-any-return]
    return x * torch.Tensor(x).mean(0)


def caught(x: Tensor) -> Tensor:
    try:
        return x * torch.Tensor(x).mean(0)
    except Exception:
        return x


def of_a_node(model: Model, x: Tensor) -> Tensor:
    weight = torch.ones(4, requires_grad=True)
    return x * (x * weight).grad_fn(torch.ones(B, 4))[1].sum(0).detach()  # type: ignore[misc]


def in_a_hook(model: Model, x: Tensor) -> Tensor:
    """Run by autograd, for gradients with respect to the batch."""
    found: list[Tensor] = []
    given = x.detach().requires_grad_()
    out = given.square()
    out.register_hook(lambda grad: found.append(plain(given).mean(0)))  # type: ignore[no-untyped-call]
    torch.autograd.grad(out.sum(), given)
    return x * found[0]


def written(how: Callable[[Tensor, Tensor], Any]) -> Body:
    """Into a constant, which is then read."""

    def body(model: Model, x: Tensor) -> Tensor:
        kept = torch.zeros(len(x), 4)
        how(kept, x)
        return x * Tensor._make_subclass(Tensor, kept).mean(0)

    return body


WAYS: dict[str, Body] = {
    "torch.Tensor": lambda m, x: x * torch.Tensor(x).mean(0),
    "torch.FloatTensor": lambda m, x: x * torch.FloatTensor(x).mean(),
    "Variable": lambda m, x: x * Variable(x).mean(0),
    "set_": lambda m, x: x * torch.empty(0).set_(x).mean(0),  # type: ignore[call-overload]
    "by its class": lambda m, x: x * plain(x).mean(0),
    "of a result": lambda m, x: x * plain(m.line(x)).mean(0).detach(),
    "a list": lambda m, x: x * plain(x).tolist()[0][0],
    "an array": lambda m, x: x * float(plain(x).numpy()[0, 0]),
    "text": lambda m, x: x * len(repr(plain(x))),
    "one entry": lambda m, x: x * float(plain(x)[0, 0]),
    "_make_subclass": lambda m, x: x * Tensor._make_subclass(Tensor, x.detach()).mean(0),
    "dlpack": lambda m, x: x * from_dlpack(to_dlpack(x)).mean(),  # type: ignore[no-untyped-call]
    "scripted": lambda m, x: x * scripted(x).detach(),
    "scripted, with its graph": lambda m, x: scripted(m.line(x)),
    "traced": lambda m, x: x * traced(x).detach(),
    "a node of the graph": of_a_node,
    "beside the batch alone": lambda m, x: torch.cdist(x, plain(x))[:, :4],
    "for a weight": lambda m, x: F.linear(x, plain(x)[:4]),
    "nobody's argument, after a part of the batch": lambda m, x: x * x[:1].square().expand(B, 4) * 0 + x * ONE,
    "in a hook": in_a_hook,
    "assigned to a constant": written(lambda kept, x: kept.__setitem__((slice(None), slice(2)), x[:, 2:])),
    "added to a constant": written(lambda kept, x: kept.add_(x)),
    "somebody's own function": lambda m, x: overridable(x),
    "refusals that are caught": lambda m, x: caught(x),
}


def lengths(x: Tensor) -> Tensor:
    return (5 * x[:, 0].sigmoid()).long().cpu() + 1


def packed(x: Tensor) -> PackedSequence:
    return pack_padded_sequence(x[:, None].expand(-1, 6, -1), lengths(x), batch_first=True, enforce_sorted=False)


def around_constants(x: Tensor) -> PackedSequence:
    return PackedSequence(torch.ones(6 * B, 4), packed(x).batch_sizes)


READINGS: dict[str, Body] = {
    "values": lambda m, x: x * packed(x).batch_sizes.float().mean(),
    "one": lambda m, x: x * packed(x).batch_sizes[1],
    "a list": lambda m, x: x * sum(packed(x).batch_sizes.tolist()),
    "how many": lambda m, x: x * len(packed(x).batch_sizes),
    "shape": lambda m, x: x * packed(x).batch_sizes.shape[0],
    "beside the batch": lambda m, x: x[:, :1] * packed(x).batch_sizes,
    "reversed": lambda m, x: x * (1 - packed(x).batch_sizes)[0],
    "lengths of constants": lambda m, x: x * pad_packed_sequence(around_constants(x))[1].float().mean(),
    "states of constants": lambda m, x: x * m.rnn(around_constants(x))[1][0].detach().mean(),
}


@pytest.mark.parametrize("name", [*WAYS, *READINGS])
def test_reading_the_batch_unseen_is_found_in_parts_of_it(name: str, flat: Any) -> None:
    model = Model({**READINGS, **WAYS}[name])
    engine = gradients.attach(model)

    def step() -> None:
        model(X).sum().backward()
        engine.clipped_sum(flat(1.0))

    with pytest.raises((ValueError, RuntimeError), match=INFLUENCE):
        step()
    engine.detach()


class Packed(nn.Module):
    def __init__(self, body: Callable[[Any, PackedSequence], Any]) -> None:
        super().__init__()
        self.body, self.rnn, self.line = body, nn.LSTM(4, 4), nn.Linear(4, 4)

    def forward(self, given: PackedSequence) -> Any:
        return self.body(self, given)


SEQUENCES = [torch.rand(n, 4) for n in (2, 5, 3, 4)]


@pytest.mark.usefixtures("without_isolation")
def test_constants_beside_the_rows_of_a_packed_input_are_refused() -> None:
    """Which row is whose is decided by lengths: what stands beside a row would be another's in another batch."""
    model = Packed(lambda m, p: m.line(p.data) * torch.arange(14.0)[:, None])
    with pytest.raises(ValueError, match="no per-example gradients"), gradients.record(model):
        model(packed_from(SEQUENCES, enforce_sorted=False)).sum().backward()


def expanded(m: Model, x: Tensor) -> Tensor:
    """A constant that was made as large as the batch, and is used by itself afterwards."""
    wide, _ = torch.broadcast_tensors(m.mask, x)
    return x * wide * m.mask.expand_as(x) * m.mask.sum() * F.relu(m.line.weight.detach()).sum()


def reused(m: Model, x: Tensor) -> Tensor:
    """Memory that was the batch's and is free again."""
    for _ in range(20):
        h = x * 2.0
        del h
        x = x * torch.rand(B, 4, generator=torch.Generator().manual_seed(0)).mean(0)
    return x


def in_mode(m: Model, x: Tensor) -> Tensor:
    with FlopCounterMode(display=False):
        return x * m.line.weight.detach().mean(0)


def in_place(m: Model, x: Tensor) -> Tensor:
    """A constant that comes to hold the batch, and nobody else has."""
    kept = torch.zeros(len(x), 4)
    kept[:, :2] = x[:, 2:]
    kept += x
    return kept


HONEST: dict[str, Body] = {
    "plain": lambda m, x: x,
    "constants": expanded,
    "memory used again": reused,
    "written": in_place,
    "other rows of the data set": lambda m, x: x - m.centres.mean(0),
    "the next rows of the data set": lambda m, x: x - NEXT.mean(0),
    "another mode": in_mode,
    "sequences": lambda m, x: m.rnn(packed(x))[1][0][0],
    "sequences and states": lambda m, x: m.rnn(packed(x), (torch.zeros(1, len(x), 4), torch.zeros(1, len(x), 4)))[1][0][
        0
    ],
    "sequences unpacked": lambda m, x: pad_packed_sequence(m.rnn(packed(x))[0], batch_first=True, total_length=6)[
        0
    ].sum(1),
    "sizes of what did not come as an argument": lambda m, x: x * X.shape[1] * X.dtype.itemsize,
    "compiled": lambda m, x: torch.compile(torch.sin, backend="eager")(x),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_reads_are_exact(name: str, flat: Any) -> None:
    def clipped(x: Tensor) -> dict[str, Tensor]:
        model = Model(HONEST[name])
        with gradients.record(model) as tape:
            model(x).sum().backward()
        return tape.clipped_sum(flat(1.0))

    alone = [clipped(X[i : i + 1]) for i in range(B)]
    for parameter, total in clipped(X).items():
        assert torch.allclose(total, torch.stack([one[parameter] for one in alone]).sum(0), atol=1e-5)


class Pair(nn.Module):
    mask: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.line, self.rows = nn.Linear(4, 4), rows
        self.register_buffer("mask", torch.rand(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(self.line(x - self.rows.mean(0))) * y[:, :4] * self.mask.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["rows between two inputs", "a constant for every example"])
def test_constants_that_share_memory_with_inputs_are_allowed(kind: str) -> None:
    model = Pair(ALL[16:20])
    with gradients.record(model) as tape:
        model(ALL[:B], ALL[32:40] if kind == "rows between two inputs" else model.mask.expand(B, 4)).sum().backward()
    assert len(tape.norms()) == B


@pytest.mark.usefixtures("without_isolation")
def test_a_model_may_count_for_the_log() -> None:
    """Beside the loss, from batch to batch."""
    counts: list[Tensor] = [torch.zeros(())]

    def body(m: Model, x: Tensor) -> Tensor:
        counts.append(0.9 * counts[-1] + m.line(x).detach().mean())
        return x

    model = Model(body)
    with gradients.record(model) as tape:
        for _ in range(4):
            model(X).sum().backward()
            assert len(tape.norms()) == B
            tape.discard()
    assert all(torch.isfinite(count) for count in counts)


def test_nothing_is_left_of_an_interrupted_pass() -> None:
    class Stopped(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def stop(m: Model, x: Tensor) -> Tensor:
        if m.calls == 1:
            Stopped().__enter__()
            raise KeyboardInterrupt
        return x

    model = Model(stop)
    engine = gradients.attach(model)
    with pytest.raises(KeyboardInterrupt):
        model(X)
    engine.detach()
    left = _get_current_dispatch_mode_stack()
    assert [type(mode) for mode in left] == [Stopped]
    left[0].__exit__(None, None, None)
    assert not _get_current_dispatch_mode_stack()


def test_modes_that_an_interrupted_pass_left_open_stay() -> None:
    """One of somebody's own above the engine's, which goes alone."""

    class Open(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def stop(m: Model, x: Tensor) -> Tensor:
        Open().__enter__()
        raise KeyboardInterrupt

    model = Model(stop)
    with gradients.record(model), pytest.raises(KeyboardInterrupt):
        model(X)
    left = _get_current_dispatch_mode_stack()
    assert [type(mode) for mode in left] == [Open]
    left[0].__exit__(None, None, None)
    assert not _get_current_dispatch_mode_stack()


@pytest.mark.usefixtures("without_isolation")
@pytest.mark.parametrize("body", [lambda m, x: checkpoint(m.line, x, use_reentrant=False), lambda m, x: on_cpu(m, x)])
def test_hooks_on_saved_tensors_that_change_nothing_are_allowed(body: Body) -> None:
    model = Model(body)
    with gradients.record(model) as tape:
        model(X).sum().backward()
    assert tape.norms().isfinite().all()


def on_cpu(m: Model, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return m.line(x).exp()
