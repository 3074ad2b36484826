"""One layer of a recurrent network in one direction, forward and backward through time, by hand.

The backward pass yields the gradient of every gate at every step. With these a recurrent layer is two linear maps
(of the inputs and of the previous states) whose weights are used once per step, so the rules for linear maps apply.
Tensors are [columns, time, features], as those rules want them; `mask` is one where a column is still running, or None.
Factors of a gradient that do not depend on later steps are computed for all steps at once, where the gradient will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._compiled import Kernels, kernels
from tacit._threads import threads
from tacit.gradients.kernels.batch_invariant_matmul import add_product_, linear, product


@dataclass(slots=True)
class Trace:
    """The parts of the forward pass that the backward pass needs."""

    gates: Tensor
    before: Tensor
    cells: Tensor | None = None
    squashed: Tensor | None = None


@dataclass(slots=True)
class Found:
    """Gradients of a layer: of its gates, as the inputs and as the states reach them, and of what it was given."""

    gates: list[Tensor]
    x: Tensor | None
    h: Tensor
    c: Tensor | None = None


def _order(reverse: bool, steps: int) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _kept(mask: Tensor | None, t: int, new: Tensor, old: Tensor) -> None:
    if mask is not None:
        torch.where(mask[:, t] > 0, new, old, out=new)


def _parts(gates: Tensor, widths: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """The gates, so many features each, at every step."""
    return [part.unbind(1) for part in gates.split(list(widths), 2)]  # type: ignore[no-untyped-call]


def _input_gradient(d_gates: Tensor, w_ih: Tensor, wanted: bool) -> Tensor | None:
    return product(d_gates.flatten(0, 1), w_ih).reshape(*d_gates.shape[:2], -1) if wanted else None


def _compiled(gates: Tensor, cell: Tensor) -> Kernels | None:
    """The kernels, where they serve: not by how many records there are, as long as there are some."""
    serve = gates.dtype == cell.dtype == torch.float32 and gates.device.type == "cpu" and gates.numel()
    return kernels if serve else None


def _lstm_blocks(w: Tensor) -> Tensor:
    """Gates in the order used in the forward pass: output, input, forget, candidate, with the sigmoids in a row."""
    i, f, g, o = w.chunk(4, 0)
    return torch.cat([o, i, f, g])


def lstm_forward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor | None,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Trace]:
    columns, steps, _ = x.shape
    hidden = w_hh.shape[0] // 4
    w_rec = _lstm_blocks(w_hh).t()
    gates = linear(x, _lstm_blocks(w_ih), None if bias is None else _lstm_blocks(bias))
    squashed, cells = x.new_empty(columns, steps, hidden), x.new_empty(columns, steps, hidden)
    outs, before = x.new_empty(columns, steps, h.shape[1]), x.new_empty(columns, steps, h.shape[1])
    if mask is None and (compiled := _compiled(gates, c)) is not None:
        cell, state = c.clone(memory_format=torch.contiguous_format), h
        arrays = gates, cells, squashed, outs, cell
        for t in _order(reverse, steps):
            before[:, t] = state
            add_product_(gates[:, t], state, w_rec)
            compiled.lstm_forward(*arrays, t, steps, hidden, threads())
            state = outs[:, t]
        return outs, state, cell, Trace(gates, before, cells, squashed)
    sigmoids, candidates = _parts(gates, (3 * hidden, hidden))
    o, i, f, _ = _parts(gates, (hidden,) * 4)
    for t in _order(reverse, steps):
        before[:, t] = h
        cells[:, t] = c
        add_product_(gates[:, t], h, w_rec)
        sigmoids[t].sigmoid_()
        candidates[t].tanh_()
        cell = torch.mul(f[t], c)
        cell.addcmul_(i[t], candidates[t])
        torch.tanh(cell, out=squashed[:, t])
        out = torch.mul(o[t], squashed[:, t], out=outs[:, t])
        _kept(mask, t, cell, c)
        _kept(mask, t, out, h)
        h, c = out, cell
    return outs, h, c, Trace(gates, before, cells, squashed)


def lstm_backward(
    trace: Trace,
    w_ih: Tensor,
    w_hh: Tensor,
    d_out: Tensor | None,
    d_h: Tensor,
    d_c: Tensor,
    reverse: bool,
    mask: Tensor | None,
    wants_input: bool,
) -> Found:
    gates, squashed, cells = trace.gates, trace.squashed, trace.cells
    assert squashed is not None
    assert cells is not None
    steps, width = gates.shape[1:]
    hidden = width // 4
    o, i, f, g = gates.split(hidden, 2)  # type: ignore[no-untyped-call]
    d_gates = torch.empty_like(gates)
    if mask is None and (compiled := _compiled(gates, d_c)) is not None:
        d_state, d_cell = d_h, d_c.clone(memory_format=torch.contiguous_format)
        arrays = gates, cells, squashed, d_gates, d_cell
        for t in _order(not reverse, steps):
            d_state = (d_state if d_out is None else d_state + d_out[:, t]).contiguous()
            compiled.lstm_backward(*arrays, d_state, t, steps, hidden, threads())
            d_state = product(d_gates[:, t], w_hh)
        d_x = _input_gradient(d_gates, w_ih, wants_input)
        return Found([d_gates, d_gates], d_x, d_state, d_cell)
    for_i, for_f, for_g, for_o = d_gates.split(hidden, 2)  # type: ignore[no-untyped-call]
    torch.mul(i, 1 - i, out=for_i).mul_(g)
    torch.mul(f, 1 - f, out=for_f).mul_(cells)
    torch.mul(g, g, out=for_g).neg_().add_(1).mul_(i)
    torch.mul(o, 1 - o, out=for_o).mul_(squashed)
    for_cell = (squashed * squashed).neg_().add_(1).mul_(o)
    of_cell = [part.unflatten(1, (3, hidden)) for part in d_gates[..., : 3 * hidden].unbind(1)]  # type: ignore[no-untyped-call]
    of_output, at_cell, forget = for_o.unbind(1), for_cell.unbind(1), f.unbind(1)
    d_state = d_h
    for t in _order(not reverse, steps):
        if d_out is not None:
            d_state = d_state + d_out[:, t]
        kept_h = kept_c = None
        if mask is not None:
            kept_h, kept_c = d_state * (1 - mask[:, t]), d_c * (1 - mask[:, t])
            d_state, d_c = d_state * mask[:, t], d_c * mask[:, t]
        d_c = torch.addcmul(d_c, d_state, at_cell[t])
        of_output[t].mul_(d_state)
        of_cell[t].mul_(d_c.unsqueeze(1))
        d_c = d_c * forget[t]
        d_state = product(d_gates[:, t], w_hh)
        if kept_h is not None and kept_c is not None:
            d_state, d_c = d_state + kept_h, d_c + kept_c
    d_x = _input_gradient(d_gates, w_ih, wants_input)
    return Found([d_gates, d_gates], d_x, d_state, d_c)


def gru_forward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h: Tensor,
    reverse: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Trace]:
    columns, steps, _ = x.shape
    hidden = w_hh.shape[0] // 3
    gates = linear(x, w_ih, b_ih)
    recurrent = x.new_zeros(columns, steps, hidden)
    outs, before = x.new_empty(columns, steps, hidden), x.new_empty(columns, steps, hidden)
    both, candidate = _parts(gates, (2 * hidden, hidden))
    r, z, _ = _parts(gates, (hidden,) * 3)
    w_gates, w_new = w_hh[: 2 * hidden].t(), w_hh[2 * hidden :].t()
    if b_hh is not None:
        gates[..., : 2 * hidden] += b_hh[: 2 * hidden]
        recurrent += b_hh[2 * hidden :]
    for t in _order(reverse, steps):
        before[:, t] = h
        add_product_(both[t], h, w_gates).sigmoid_()
        candidate[t].addcmul_(r[t], add_product_(recurrent[:, t], h, w_new)).tanh_()
        out = torch.lerp(candidate[t], h, z[t], out=outs[:, t])
        _kept(mask, t, out, h)
        h = out
    return outs, h, Trace(gates, before, recurrent)


def gru_backward(
    trace: Trace,
    w_ih: Tensor,
    w_hh: Tensor,
    d_out: Tensor | None,
    d_h: Tensor,
    reverse: bool,
    mask: Tensor | None,
    wants_input: bool,
) -> Found:
    gates, before, recurrent = trace.gates, trace.before, trace.cells
    assert recurrent is not None
    steps, width = gates.shape[1:]
    hidden = width // 3
    r, z, n = gates.split(hidden, 2)  # type: ignore[no-untyped-call]
    d_in, d_rec = torch.empty_like(gates), torch.empty_like(gates)
    for_r, for_z, for_n = d_in.split(hidden, 2)  # type: ignore[no-untyped-call]
    torch.mul(r, 1 - r, out=for_r).mul_(recurrent)
    torch.mul(z, 1 - z, out=for_z).mul_(before - n)
    torch.mul(n, n, out=for_n).neg_().add_(1).mul_(1 - z)
    d_r, d_z, d_n = (part.unbind(1) for part in (for_r, for_z, for_n))
    in_both = d_in[..., : 2 * hidden].unbind(1)
    rec_both, rec_n = _parts(d_rec, (2 * hidden, hidden))
    reset, update = r.unbind(1), z.unbind(1)
    d_state = d_h
    for t in _order(not reverse, steps):
        if d_out is not None:
            d_state = d_state + d_out[:, t]
        kept = None
        if mask is not None:
            kept, d_state = d_state * (1 - mask[:, t]), d_state * mask[:, t]
        d_n[t].mul_(d_state)
        d_z[t].mul_(d_state)
        d_r[t].mul_(d_n[t])
        rec_both[t].copy_(in_both[t])
        torch.mul(d_n[t], reset[t], out=rec_n[t])
        d_state = add_product_(d_state * update[t], d_rec[:, t], w_hh)
        if kept is not None:
            d_state = d_state + kept
    return Found([d_in, d_rec], _input_gradient(d_in, w_ih, wants_input), d_state)


def rnn_forward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor | None,
    h: Tensor,
    reverse: bool,
    mask: Tensor | None,
    relu: bool,
) -> tuple[Tensor, Tensor, Trace]:
    gates = linear(x, w_ih, bias)
    before, outs = torch.empty_like(gates), torch.empty_like(gates)
    w_rec = w_hh.t()
    for t in _order(reverse, x.shape[1]):
        before[:, t] = h
        state = add_product_(gates[:, t], h, w_rec)
        state = state.relu_() if relu else state.tanh_()
        out = outs[:, t].copy_(state)
        _kept(mask, t, out, h)
        h = out
    return outs, h, Trace(gates, before)


def rnn_backward(
    trace: Trace,
    w_ih: Tensor,
    w_hh: Tensor,
    d_out: Tensor | None,
    d_h: Tensor,
    reverse: bool,
    mask: Tensor | None,
    wants_input: bool,
    relu: bool,
) -> Found:
    state = trace.gates
    d_gates = (state > 0).to(state.dtype) if relu else (state * state).neg_().add_(1)
    d_state = d_h
    for t in _order(not reverse, state.shape[1]):
        if d_out is not None:
            d_state = d_state + d_out[:, t]
        kept = None
        if mask is not None:
            kept, d_state = d_state * (1 - mask[:, t]), d_state * mask[:, t]
        d_state = product(d_gates[:, t].mul_(d_state), w_hh)
        if kept is not None:
            d_state = d_state + kept
    return Found([d_gates, d_gates], _input_gradient(d_gates, w_ih, wants_input), d_state)
