"""One layer of a recurrent network in one direction, forward and backward through time, by hand.

The backward pass yields the gradient of every gate at every step. With these a recurrent layer is two linear maps
(of the inputs and of the previous states) whose weights are used once per step, so the rules for linear maps apply.
Tensors are time-major: [time, columns, features]. `mask` is one where a column is still running, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Trace:
    """What the backward pass needs of the forward pass."""

    gates: Tensor
    before: Tensor
    cells: Tensor | None = None
    squashed: Tensor | None = None
    projected: Tensor | None = None
    memory: Tensor | None = None


def _order(reverse: bool, steps: int) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _kept(mask: Tensor | None, t: int, new: Tensor, old: Tensor) -> None:
    if mask is not None:
        torch.where(mask[t] > 0, new, old, out=new)


def _blocks(w: Tensor, order: tuple[int, ...]) -> Tensor:
    parts = w.chunk(len(order), 0)
    return torch.cat([parts[i] for i in order])


_LSTM = (3, 0, 1, 2)
"""Gate order used inside: output, input, forget, candidate. Three sigmoids in a row, three cell gradients in a row."""


def lstm_forward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor | None,
    w_hr: Tensor | None,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Trace]:
    steps, columns, _ = x.shape
    hidden = w_hh.shape[0] // 4
    w_in, w_rec = _blocks(w_ih, _LSTM), _blocks(w_hh, _LSTM).t()
    flat = x.reshape(-1, x.shape[2])
    inputs = flat @ w_in.t() if bias is None else torch.addmm(_blocks(bias, _LSTM), flat, w_in.t())
    gates = inputs.view(steps, columns, 4 * hidden)
    cells, squashed = x.new_empty(steps, columns, hidden), x.new_empty(steps, columns, hidden)
    memory = x.new_empty(steps, columns, hidden) if w_hr is not None else None
    outs = x.new_empty(steps, columns, h.shape[1])
    before = x.new_empty(steps, columns, h.shape[1])
    memory_before = x.new_empty(steps, columns, hidden)
    sigmoids, candidates = gates[..., : 3 * hidden].unbind(0), gates[..., 3 * hidden :].unbind(0)
    o, i, f = (g.unbind(0) for g in gates[..., : 3 * hidden].chunk(3, 2))
    for t in _order(reverse, steps):
        before[t] = h
        memory_before[t] = c
        gates[t].addmm_(h, w_rec)
        sigmoids[t].sigmoid_()
        candidates[t].tanh_()
        cell = torch.mul(f[t], c, out=cells[t])
        cell.addcmul_(i[t], candidates[t])
        torch.tanh(cell, out=squashed[t])
        if w_hr is None:
            out = torch.mul(o[t], squashed[t], out=outs[t])
        else:
            assert memory is not None
            out = torch.mm(torch.mul(o[t], squashed[t], out=memory[t]), w_hr.t(), out=outs[t])
        _kept(mask, t, cell, c)
        _kept(mask, t, out, h)
        h, c = out, cell
    return outs, h, c, Trace(gates, before, memory_before, squashed, memory)


def lstm_backward(
    trace: Trace,
    w_ih: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    d_out: Tensor | None,
    d_h: Tensor,
    d_c: Tensor,
    reverse: bool,
    mask: Tensor | None,
    wants_input: bool,
) -> dict[str, Any]:
    gates, squashed, memory_before = trace.gates, trace.squashed, trace.cells
    assert squashed is not None
    assert memory_before is not None
    steps, columns, width = gates.shape
    hidden = width // 4
    o, i, f, g = gates.split(hidden, 2)  # type: ignore[no-untyped-call]
    # Everything that does not depend on later steps is computed for all steps at once.
    factors = gates.new_empty(steps, columns, 3, hidden)
    torch.mul(g, i * (1 - i), out=factors[:, :, 0])
    torch.mul(memory_before, f * (1 - f), out=factors[:, :, 1])
    torch.mul(i, 1 - g * g, out=factors[:, :, 2])
    for_cell = o * (1 - squashed * squashed)
    for_output = squashed * o * (1 - o)
    d_gates = torch.empty_like(gates)
    w_rec = _blocks(w_hh, _LSTM)
    out_part, cell_part = d_gates[..., :hidden].unbind(0), d_gates[..., hidden:].unflatten(2, (3, hidden)).unbind(0)  # type: ignore[no-untyped-call]
    d_projected = [None] * steps
    d_c = d_c.clone()
    d_state = d_h
    for t in _order(not reverse, steps):
        if d_out is not None:
            d_state = d_state + d_out[t]
        kept_h = kept_c = None
        if mask is not None:
            kept_h, kept_c = d_state * (1 - mask[t]), d_c * (1 - mask[t])
            d_state, d_c = d_state * mask[t], d_c * mask[t]
        if w_hr is not None:
            d_projected[t] = d_state  # type: ignore[call-overload]
            d_state = d_state @ w_hr
        d_c = torch.addcmul(d_c, d_state, for_cell[t])
        torch.mul(d_state, for_output[t], out=out_part[t])
        torch.mul(d_c.unsqueeze(1), factors[t], out=cell_part[t])
        d_c = d_c * f[t]
        d_state = torch.mm(d_gates[t], w_rec)
        if kept_h is not None and kept_c is not None:
            d_state, d_c = d_state + kept_h, d_c + kept_c
    d_x = (d_gates.view(-1, width) @ _blocks(w_ih, _LSTM)).view(steps, columns, -1) if wants_input else None
    out_gate, others = d_gates.split((hidden, 3 * hidden), 2)  # type: ignore[no-untyped-call]
    ordered = torch.cat([others, out_gate], 2)
    projected = torch.stack(d_projected) if w_hr is not None else None  # type: ignore[arg-type]
    return {"x": d_x, "h": d_state, "c": d_c, "in": ordered, "rec": ordered, "projected": projected}


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
    steps, columns, _ = x.shape
    hidden = w_hh.shape[0] // 3
    flat = x.reshape(-1, x.shape[2])
    inputs = flat @ w_ih.t() if b_ih is None else torch.addmm(b_ih, flat, w_ih.t())
    gates = inputs.view(steps, columns, 3 * hidden)
    recurrent = x.new_empty(steps, columns, hidden)
    outs, before = x.new_empty(steps, columns, hidden), x.new_empty(steps, columns, hidden)
    both, candidate = gates[..., : 2 * hidden].unbind(0), gates[..., 2 * hidden :].unbind(0)
    r, z = (g.unbind(0) for g in gates[..., : 2 * hidden].chunk(2, 2))
    w_gates, w_new = w_hh[: 2 * hidden].t(), w_hh[2 * hidden :].t()
    b_gates, b_new = (None, None) if b_hh is None else (b_hh[: 2 * hidden], b_hh[2 * hidden :])
    if b_gates is not None:
        gates[..., : 2 * hidden] += b_gates
    for t in _order(reverse, steps):
        before[t] = h
        both[t].addmm_(h, w_gates).sigmoid_()
        if b_new is None:
            torch.mm(h, w_new, out=recurrent[t])
        else:
            torch.addmm(b_new, h, w_new, out=recurrent[t])
        candidate[t].addcmul_(r[t], recurrent[t]).tanh_()
        out = torch.lerp(candidate[t], h, z[t], out=outs[t])
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
) -> dict[str, Any]:
    gates, before, recurrent = trace.gates, trace.before, trace.cells
    assert recurrent is not None
    steps, columns, width = gates.shape
    hidden = width // 3
    r, z, n = gates.split(hidden, 2)  # type: ignore[no-untyped-call]
    for_new = (1 - z) * (1 - n * n)
    for_update = (before - n) * z * (1 - z)
    for_reset = recurrent * r * (1 - r)
    d_in, d_rec = torch.empty_like(gates), torch.empty_like(gates)
    d_r, d_z, d_n = (g.unbind(0) for g in d_in.split(hidden, 2))  # type: ignore[no-untyped-call]
    d_both, d_rec_n = d_rec[..., : 2 * hidden].unbind(0), d_rec[..., 2 * hidden :].unbind(0)
    in_both = d_in[..., : 2 * hidden].unbind(0)
    d_state = d_h
    for t in _order(not reverse, steps):
        if d_out is not None:
            d_state = d_state + d_out[t]
        kept = None
        if mask is not None:
            kept, d_state = d_state * (1 - mask[t]), d_state * mask[t]
        torch.mul(d_state, for_new[t], out=d_n[t])
        torch.mul(d_state, for_update[t], out=d_z[t])
        torch.mul(d_n[t], for_reset[t], out=d_r[t])
        d_both[t].copy_(in_both[t])
        torch.mul(d_n[t], r[t], out=d_rec_n[t])
        d_state = torch.addmm(d_state * z[t], d_rec[t], w_hh)
        if kept is not None:
            d_state = d_state + kept
    d_x = (d_in.view(-1, width) @ w_ih).view(steps, columns, -1) if wants_input else None
    return {"x": d_x, "h": d_state, "c": None, "in": d_in, "rec": d_rec, "projected": None}


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
    steps, columns, _ = x.shape
    flat = x.reshape(-1, x.shape[2])
    inputs = flat @ w_ih.t() if bias is None else torch.addmm(bias, flat, w_ih.t())
    gates = inputs.view(steps, columns, -1)
    before, outs = torch.empty_like(gates), torch.empty_like(gates)
    w_rec = w_hh.t()
    for t in _order(reverse, steps):
        before[t] = h
        state = gates[t].addmm_(h, w_rec)
        state = state.relu_() if relu else state.tanh_()
        out = outs[t].copy_(state)
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
) -> dict[str, Any]:
    state = trace.gates
    steps, columns, width = state.shape
    slope = (state > 0).to(state.dtype) if relu else 1 - state * state
    d_gates = torch.empty_like(state)
    d_state = d_h
    for t in _order(not reverse, steps):
        if d_out is not None:
            d_state = d_state + d_out[t]
        kept = None
        if mask is not None:
            kept, d_state = d_state * (1 - mask[t]), d_state * mask[t]
        torch.mul(d_state, slope[t], out=d_gates[t])
        d_state = torch.mm(d_gates[t], w_hh)
        if kept is not None:
            d_state = d_state + kept
    d_x = (d_gates.view(-1, width) @ w_ih).view(steps, columns, -1) if wants_input else None
    return {"x": d_x, "h": d_state, "c": None, "in": d_gates, "rec": d_gates, "projected": None}
