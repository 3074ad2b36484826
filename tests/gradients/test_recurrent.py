"""Recurrent layers: what a caller may do with inputs, outputs and gradients is the same for any number of records."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.factors.outer import NARROW, Outer
from tacit.gradients.precision import MARGIN

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_writing_to_the_input_after_backward_does_not_change_the_clipped_sum(kind: Any, first: bool, flat: Any) -> None:
    """With a multiple of 16 records as with others: one record more would turn everybody's gradient round."""
    torch.manual_seed(0)
    model = kind(4, 5, batch_first=first)
    x = torch.randn(33, 3, 4)

    def run(n: int) -> dict[str, Tensor]:
        inputs = x[:n].clone() if first else x[:n].transpose(0, 1).contiguous()
        with gradients.record(model, batch_dim=0 if first else 1) as tape:
            model(inputs)[0].sum().backward()
        inputs.neg_()
        return tape.clipped_sum(flat(1.0))

    sums = {n: run(n) for n in (15, 16, 17, 31, 32, 33)}
    for n in (15, 16, 31, 32):
        moved = sum(float((sums[n + 1][name] - each).double().square().sum()) for name, each in sums[n].items()) ** 0.5
        assert moved <= 1 + MARGIN, n


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_may_be_overwritten_as_pytorch_lets_them(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"before": nn.Linear(4, 6), "layer": kind(6, 6, batch_first=True)})

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            y = self.parts["before"](x)
            y += self.parts["layer"](y)[0]
            return y  # type: ignore[no-any-return]

    whole = Residual()
    for n in range(1, 34):
        with gradients.record(whole) as tape:
            whole(torch.randn(n, 3, 4)).sum().backward()
        assert tape.norms().shape[0] == n


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_computed_alike_wherever_the_batch_begins_in_memory(kind: Any) -> None:
    torch.manual_seed(0)
    for inputs, hidden in ((20, 5), (8, 8), (30, 3), (30, 2)):
        model, raw = kind(inputs, hidden, batch_first=True), torch.randn(33 * 3 * inputs + 1)

        x, found = raw[1:].view(33, 3, inputs), {}
        for n in (15, 16, 17, 32, 33):
            with gradients.record(model):
                found[n] = model(x[:n])[0].detach().as_subclass(Tensor)
        assert all(torch.equal(each, found[33][:n]) for n, each in found.items()), (inputs, hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_pass_adds_the_same_again(kind: Any, flat: Any) -> None:
    torch.manual_seed(0)
    model, x = kind(4, 5, batch_first=True), torch.randn(6, 3, 4)

    def total(times: int) -> dict[str, Tensor]:
        with gradients.record(model) as tape:
            loss = model(x)[0].sin().sum()
            for _ in range(times):
                loss.backward(retain_graph=True)
        return tape.clipped_sum(flat(1e9))

    once, twice = total(1), total(2)
    for name, each in once.items():
        torch.testing.assert_close(twice[name], 2 * each)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_state_may_be_overwritten(kind: Any, flat: Any) -> None:
    torch.manual_seed(0)
    model, x = kind(4, 5, batch_first=True), torch.randn(6, 3, 4)

    def total(overwritten: bool) -> dict[str, Tensor]:
        with gradients.record(model) as tape:
            out, last = model(x)
            if overwritten:
                (last[0] if isinstance(last, tuple) else last).zero_()
            out.sin().sum().backward()
        return tape.clipped_sum(flat(1e9))

    plain, written = total(False), total(True)
    assert all(torch.equal(written[name], each) for name, each in plain.items())


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(4, 4), *(lambda kind=kind: kind(4, 4, batch_first=True) for kind in KINDS)]
)
def test_gradients_of_inputs_are_not_taken_for_those_of_parameters(make: Callable[[], nn.Module], flat: Any) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(6, 3, 4)

    def loss(own: Tensor) -> Tensor:
        out = model(own)
        return (out[0] if isinstance(out, tuple) else out).sin().sum()

    def total(adversarial: bool) -> dict[str, Tensor]:
        engine = gradients.attach(model, reduction="sum")
        try:
            own = engine.trace(x, 6)
            if adversarial:
                torch.autograd.grad(loss(own.requires_grad_()), [own])
                own = own.detach()
            loss(own).backward()
            return engine.clipped_sum(flat(1e9))
        finally:
            engine.detach()

    plain, other = total(False), total(True)
    for name, each in plain.items():
        torch.testing.assert_close(other[name], each)


def test_writing_to_what_was_read_after_the_norms_were_taken_is_refused(flat: Any) -> None:
    model, x = nn.Linear(4, 2), torch.randn(5, 4)
    with gradients.record(model) as tape:
        model(x).sum().backward()
    tape.norms()
    x.mul_(1000)
    with pytest.raises(RuntimeError, match="'weight' is made of was modified in place after the norms"):
        tape.clipped_sum(flat(1.0))


MIXED = """
import torch
from torch import nn
from tacit import gradients

def norms(model, x, forward, backward):
    mixed = lambda enabled: torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)
    with gradients.record(model) as tape:
        with mixed(forward):
            loss = model(x)[0].float().sin().sum()
        with mixed(backward):
            loss.backward()
    return tape.norms()

for kind in (nn.GRU, nn.RNN):
    torch.manual_seed(0)
    layer, line, x = kind(6, 8, batch_first=True), nn.Linear(6, 6), torch.randn(5, 4, 6)
    ways = [(False, False), (True, False), (False, True), (True, True)]
    plain, *others = (norms(layer, x, *way) for way in ways)
    assert all(torch.equal(plain, each) for each in others)
    plain, *others = (norms(nn.Sequential(line, layer), x, *way) for way in ways)
    assert all(torch.allclose(plain, each, rtol=0.05) for each in others)
    assert not torch.equal(plain, others[0])
"""


def test_mixed_precision_runs_recurrent_layers_in_the_type_of_their_weights() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    subprocess.run([sys.executable, "-c", MIXED], env=environment, check=True)


@pytest.mark.parametrize("positions", [600, 5])
def test_narrow_gradients_are_formed_as_they_are_wherever_they_are_formed(positions: int) -> None:
    """Transposed on the way, in pieces and at once."""
    torch.manual_seed(0)
    for inputs in (NARROW, NARROW // 2):
        a, g = torch.randn(4, 1, positions, inputs), torch.randn(4, 1, positions, 3 * inputs)
        wanted = torch.einsum("bkti,bkto->boi", a.double(), g.double())
        outer = Outer(a, g, (3 * inputs, inputs))
        for formed in (outer.instantiate(0, 4), outer.formed(), outer.settle().instantiate(0, 4), outer.alone(2)):
            expected = wanted if len(formed) == 4 else wanted[2:3]
            torch.testing.assert_close(formed.double(), expected, rtol=1e-4, atol=1e-4 * positions**0.5)


class Started(nn.Module):
    """A recurrent layer, frozen or trained, with a first state of somebody's making, and a head."""

    def __init__(self, frozen: bool, start: Any, packed: bool = False) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 4, batch_first=True).requires_grad_(not frozen), nn.Linear(4, 2)
        self.start, self.packed = start, packed

    def forward(self, x: Tensor) -> Tensor:
        given: Any = x
        if self.packed:
            given = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), True, enforce_sorted=False)
        out: Tensor = self.head(self.rnn(given, self.start(x))[1][0])
        return out


@pytest.mark.parametrize("frozen", [False, True])
def test_first_states_of_other_examples_are_refused(frozen: bool) -> None:
    x = torch.randn(4, 5, 3)
    for start in (
        lambda x: x[:, 0, :1].flip(0).expand(4, 4).unsqueeze(0),
        lambda x: x[torch.tensor([1, 0, 3, 2]), 0, :1].expand(4, 4).unsqueeze(0),
        lambda x: x[:, 0].mean(0)[:1].expand(1, 4, 4),
        lambda x: x[:, 0, :1].expand(4, 4).T.contiguous().unsqueeze(0),
    ):
        model = Started(frozen, start)
        with gradients.record(model), pytest.raises(ValueError, match="example"):
            model(x).sum().backward()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_first_states_of_ones_own_but_not_of_earlier_batches(frozen: bool, packed: bool) -> None:
    x = torch.randn(4, 5, 3)
    model = Started(frozen, lambda x: x[:, 0, :1].expand(len(x), 4).unsqueeze(0).contiguous(), packed)
    engine = gradients.attach(model)
    model(x).sum(1).mean().backward()
    assert len(engine.norms()) == 4
    engine.discard()
    kept: list[Tensor] = []
    model.start = lambda x: kept[-1][:, : len(x)] if kept else torch.zeros(1, len(x), 4)
    for _ in range(2):
        out = model.rnn(engine.trace(x, 4))[1].detach()
        with (
            pytest.raises((ValueError, RuntimeError), match="computed from an earlier batch") if kept else nullcontext()
        ):
            model(x).sum(1).mean().backward()
        engine.discard()
        kept.append(out)
    engine.detach()


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_batch_of_one_may_be_a_step_of_a_decoder(batch_first: bool, naive: Any, compare: Any) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gru, self.head = nn.Linear(4, 4), nn.GRU(4, 4, batch_first=batch_first), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            state = self.first(x).tanh().unsqueeze(0)
            for _ in range(2):
                out, state = self.gru(x.unsqueeze(1 if batch_first else 0), state)
            return self.head(out.squeeze(1 if batch_first else 0) + state[-1])

    model = Decoder().double()
    alone = copy.deepcopy(model)
    engine = gradients.attach(model)
    for size in (1, 3, 1):
        x = torch.randn(size, 4, dtype=torch.float64)
        model(x).square().sum(1).mean().backward()
        compare(engine, naive(alone, lambda i, x=x: alone(x[i : i + 1]).square().sum(), size))
        engine.discard()
    engine.detach()


STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "unsqueezed": lambda m, x: m.layer(x.unsqueeze(0))[0],
    "indexed": lambda m, x: m.attend(x[None], x[None], x[None])[0][0],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_sequence_of_one_place_may_come_with_a_batch_of_one(name: str, naive: Any, compare: Any) -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
            self.attend, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(STEPS[name](self, x))

    model = Step().double()
    alone = copy.deepcopy(model)
    engine = gradients.attach(model)
    for size in (3, 1):
        x = torch.randn(size, 4, dtype=torch.float64)
        model(x).square().sum(1).mean().backward()
        compare(engine, naive(alone, lambda i, x=x: alone(x[i : i + 1]).square().sum(), size))
        engine.discard()
    assert engine.isolated == ()
    engine.detach()
