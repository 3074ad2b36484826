"""Steps of an LSTM, compiled and not: as PyTorch computes them, and every record alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.layers import rnn_steps as cells

COMPILED = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)


def forward(gates: Tensor, cell: Tensor, threads: int = 1) -> list[Tensor]:
    """The second of three steps; what is written of the others must stay as it was."""
    records, hidden = cell.shape
    all_gates = torch.full((records, 3, 4 * hidden), 7.0)
    all_gates[:, 1] = gates
    kept = [torch.full((records, 3, hidden), 7.0) for _ in range(3)]
    now = cell.clone()
    assert cells.kernels is not None
    cells.kernels.lstm_forward(*(t.numpy() for t in (all_gates, *kept, now)), 1, 3, hidden, threads)
    for t in (all_gates, *kept):
        assert (t[:, [0, 2]] == 7).all()
    return [all_gates[:, 1], *(t[:, 1] for t in kept), now]


@COMPILED
def test_sigmoid_and_tanh_are_right_to_the_last_digits() -> None:
    x = torch.cat([torch.linspace(-100, 100, 40_001), torch.logspace(-30, 1, 5_000), -torch.logspace(-30, 1, 5_000)])
    x = torch.cat([x, torch.tensor([0.0, -0.0, 0.65, -0.65, 3e38, -3e38, torch.inf, -torch.inf])])
    gates, *_ = forward(x.expand(4, -1).reshape(1, -1), torch.zeros(1, len(x)))
    o, i, f, g = gates.view(4, -1).double()
    exact = x.double().sigmoid()
    for found in (o, i, f):
        assert ((found - exact).abs() <= 4 * 2.0**-24 * exact + 2e-38).all()
        assert (found[x < -89] == 0).all()
        assert (found[x > 89] == 1).all()
    assert ((g - x.double().tanh()).abs() <= 4 * 2.0**-24 * x.double().tanh().abs()).all()
    assert torch.equal(g.signbit(), x.signbit())


@COMPILED
@pytest.mark.parametrize("hidden", [1, 3, 8, 16, 31, 33, 128])
def test_a_step_and_its_gradients(hidden: int) -> None:
    torch.manual_seed(hidden)
    gates, cell = torch.randn(5, 4 * hidden) * 2, torch.randn(5, hidden)
    squashed_gates, before, squashed, out, now = forward(gates, cell)
    assert torch.equal(before, cell)
    raw, c = gates.double().requires_grad_(), cell.double().requires_grad_()
    o, i, f, g = raw.chunk(4, 1)
    next_cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    state = o.sigmoid() * next_cell.tanh()
    for found, exact in ((squashed, next_cell.tanh()), (out, state), (now, next_cell)):
        assert torch.allclose(found.double(), exact, rtol=1e-6, atol=1e-6)
    d_state, d_cell = torch.randn(5, hidden), torch.randn(5, hidden)
    expected, d_before = torch.autograd.grad([state, next_cell], [raw, c], [d_state.double(), d_cell.double()])
    d_gates, d_now = torch.full((5, 1, 4 * hidden), torch.nan), d_cell.clone()
    arrays = squashed_gates.unsqueeze(1), before.unsqueeze(1), squashed.unsqueeze(1), d_gates, d_now, d_state
    assert cells.kernels is not None
    cells.kernels.lstm_backward(*(t.contiguous().numpy() for t in arrays[:3]), *(t.numpy() for t in arrays[3:]),
                                0, 1, hidden, 1)  # fmt: skip
    d_o, d_i, d_f, d_g = expected.chunk(4, 1)
    assert torch.allclose(d_gates[:, 0].double(), torch.cat([d_i, d_f, d_g, d_o], 1), rtol=1e-5, atol=1e-6)
    assert torch.allclose(d_now.double(), d_before, rtol=1e-5, atol=1e-6)


def both_ways(records: int, hidden: int, threads: int, offset: int = 0) -> list[Tensor]:
    """Every array after a step forward and one backward, from memory that begins at some offset."""
    generator = torch.Generator().manual_seed(0)

    def array(width: int) -> Tensor:
        values = torch.randn(200, width, generator=generator)[:records]  # of each record the same, however many
        return torch.cat([torch.zeros(offset), values.flatten()])[offset:].view(records, width)

    gates, cells_, squashed, outs, cell = (array(n * hidden) for n in (4, 1, 1, 1, 1))
    d_gates, d_cell, d_state = (array(n * hidden) for n in (4, 1, 1))
    assert cells.kernels is not None
    numbers = 0, 1, hidden, threads
    forward_arrays, backward_arrays = (gates, cells_, squashed, outs, cell), (d_gates, d_cell, d_state)
    cells.kernels.lstm_forward(*(t.numpy() for t in forward_arrays), *numbers)
    cells.kernels.lstm_backward(*(t.numpy() for t in (*forward_arrays[:3], *backward_arrays)), *numbers)
    return [*forward_arrays, *backward_arrays]


@COMPILED
@pytest.mark.parametrize("hidden", [1, 3, 17, 64, 128])
def test_every_record_is_alike_beside_any_others_with_any_threads(hidden: int) -> None:
    whole = both_ways(70, hidden, 1)
    for records, threads, offset in ((1, 1, 1), (2, 3, 2), (7, 2, 3), (33, 7, 5), (70, 1, 7), (70, 2, 0), (70, 64, 9)):
        for found, expected in zip(both_ways(records, hidden, threads, offset), whole):
            assert torch.equal(found, expected[:records])


@COMPILED
def test_the_choice_does_not_depend_on_the_records() -> None:
    chosen = {
        cells._compiled(torch.empty(1, 1, 8).expand(n, 3, 8), torch.empty(1, 2).expand(n, 2)) is None
        for n in (1, 15, 16, 17, 192, 193, 300, 2048, 5000)
    }
    assert chosen == {False}
    assert cells._compiled(torch.empty(2, 3, 8), torch.empty(2, 2, dtype=torch.float64)) is None
    assert cells._compiled(torch.empty(2, 3, 8, dtype=torch.float64), torch.empty(2, 2, dtype=torch.float64)) is None


@COMPILED
def test_a_record_that_is_not_a_number_stays_by_itself() -> None:
    gates, cell = torch.randn(3, 4 * 40), torch.randn(3, 40)
    right = forward(gates, cell)
    gates[1] = torch.nan
    wrong = forward(gates, cell)
    for before, after in zip(right, wrong):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert wrong[0][1].isnan().all() and wrong[3][1].isnan().all() and wrong[4][1].isnan().all()


@COMPILED
def test_steps_that_do_not_fit_are_refused() -> None:
    kernels = cells.kernels
    assert kernels is not None

    def array(*shape: int) -> Any:
        return np.ones(shape, dtype=np.float32)

    right = array(2, 3, 16), array(2, 3, 4), array(2, 3, 4), array(2, 3, 4), array(2, 4)
    kernels.lstm_forward(*right, 2, 3, 4, 1)
    for numbers in ((3, 3, 4, 1), (0, 2, 4, 1), (0, 3, 5, 1), (0, 3, 0, 1), (0, 0, 4, 1), (0, 3, 4, 0)):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.lstm_forward(*right, *numbers)
    for i, wrong in enumerate((array(2, 3, 15), array(2, 3, 5), array(2, 2, 4), array(1, 3, 4), array(3, 4))):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.lstm_forward(*right[:i], wrong, *right[i + 1 :], 0, 3, 4, 1)
    back = (*right[:3], array(2, 3, 16), array(2, 4))
    kernels.lstm_backward(*back, array(2, 4), 0, 3, 4, 1)
    for d_state in (array(1, 4), array(2, 5)):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.lstm_backward(*back, d_state, 0, 3, 4, 1)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.lstm_backward(*right, array(2, 4), 0, 3, 4, 1)
    with pytest.raises(TypeError, match="9 arguments instead of 10"):
        kernels.lstm_backward(*back, 0, 3, 4, 1)
    with pytest.raises((BufferError, ValueError), match="read-only"):
        kernels.lstm_forward(*right[:4], np.frombuffer(bytes(32), dtype=np.float32), 0, 3, 4, 1)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 3}, {"bias": False}])
@pytest.mark.parametrize("first", [True, False])
def test_layers_are_those_of_pytorch(options: dict[str, Any], first: bool) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(5, 20, batch_first=first, **options)
    x = torch.randn(7, 4, 5) if first else torch.randn(4, 7, 5)
    ways, out_size = (
        (2 if options.get("bidirectional") else 1) * options.get("num_layers", 1),
        options.get("proj_size", 20),
    )
    states = torch.randn(out_size, ways, 7).permute(1, 2, 0), torch.randn(20, ways, 7).permute(1, 2, 0)

    def loss(output: Any) -> Tensor:
        out, (h, c) = output
        own = out.square().sum((1, 2)) if first else out.square().sum((0, 2))
        return own + (h * 0.3).sum((0, 2)) + c.square().sum((0, 2))

    plain = loss(model(x, states))
    expected = [torch.autograd.grad(own, list(model.parameters()), retain_graph=True) for own in plain]
    with gradients.record(model, batch_dim={0: 0 if first else 1, 1: 1}) as tape:
        losses = loss(model(x, states))
        losses.sum().backward()
    assert torch.allclose(losses, plain, rtol=1e-5)
    norms = torch.stack([torch.stack([g.norm() for g in own]).norm() for own in expected])
    assert torch.allclose(tape.norms(), norms, rtol=1e-4)
