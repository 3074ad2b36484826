"""nn.LSTM, nn.GRU and nn.RNN as they are: layers, directions, dropout and packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.empty_batch import run_empty
from tacit.gradients.factors.contribution import Contribution, Dense, own_sums
from tacit.gradients.factors.outer import Outer
from tacit.gradients.kernels.batch_invariant_matmul import LINE
from tacit.gradients.layers import rnn_steps
from tacit.gradients.layers.pointwise import personal
from tacit.gradients.layers.registry import ALWAYS, in_order, layout_of, operation, rule, trainable, unknown_form
from tacit.gradients.layout import Layout, Mixed, by_example, owners, steps_agree, warn_of_lengths
from tacit.gradients.nested import detached
from tacit.gradients.recording import Recording
from tacit.gradients.tap import OWN
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark, plain


class RecurrentLayer(torch.autograd.Function):
    """A layer in one direction; its backward pass hands the gate gradients to the recorder."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, h: Tensor, c: Tensor | None, job: _Job) -> tuple[Tensor, ...]:
        weights = [None if w is None else w.detach() for w in job.weights]
        w_ih, w_hh, b_ih, b_hh = weights
        assert w_ih is not None
        assert w_hh is not None
        bias = None if b_ih is None or b_hh is None else b_ih + b_hh
        if job.kind == "lstm":
            assert c is not None
            out, h_last, c_last, trace = rnn_steps.lstm_forward(x, w_ih, w_hh, bias, h, c, job.reverse, job.mask)
            results: tuple[Tensor, ...] = (out, h_last.clone(), c_last.clone())
        elif job.kind == "gru":
            out, h_last, trace = rnn_steps.gru_forward(x, w_ih, w_hh, b_ih, b_hh, h, job.reverse, job.mask)
            results = (out, h_last.clone())
        else:
            relu = job.kind == "rnn_relu"
            out, h_last, trace = rnn_steps.rnn_forward(x, w_ih, w_hh, bias, h, job.reverse, job.mask, relu)
            results = (out, h_last.clone())
        ctx.save_for_backward(x, trace.gates, trace.before, trace.cells, trace.squashed, w_ih, w_hh)
        ctx.job, ctx.epoch, ctx.made_by = job, job.recorder.epoch, OWN
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None = None) -> Any:
        job: _Job = ctx.job
        x, gates, before, cell, squashed, w_ih, w_hh = ctx.saved_tensors
        trace = rnn_steps.Trace(gates, before, cell, squashed)
        like = before[:, 0]
        d_h = torch.zeros_like(like) if d_h is None else d_h
        wants = ctx.needs_input_grad[1]
        with torch.autocast(gates.device.type, enabled=False):  # backward may be called within it
            if job.kind == "lstm":
                d_c = gates.new_zeros(like.shape[0], w_hh.shape[0] // 4) if d_c is None else d_c
                found = rnn_steps.lstm_backward(trace, w_ih, w_hh, d_out, d_h, d_c, job.reverse, job.mask, wants)
            elif job.kind == "gru":
                found = rnn_steps.gru_backward(trace, w_ih, w_hh, d_out, d_h, job.reverse, job.mask, wants)
            else:
                relu = job.kind == "rnn_relu"
                found = rnn_steps.rnn_backward(trace, w_ih, w_hh, d_out, d_h, job.reverse, job.mask, wants, relu)
            if job.recorder.capturing:
                job.recorder.capture(job.pairs(x, before, found), ctx.epoch)
        return None, found.x, found.h, found.c, None


class _Job:
    """Where a layer's gradients go."""

    def __init__(
        self,
        recorder: Recording,
        kind: str,
        weights: list[Tensor | None],
        reverse: bool,
        mask: Tensor | None,
        columns: Layout,
        count: int,
    ) -> None:
        self.recorder, self.kind, self.weights, self.reverse = recorder, kind, weights, reverse
        self.mask, self.columns, self.count = mask, columns, count

    def _rows(self, x: Tensor) -> Tensor:
        batch = self.recorder.batch
        assert batch is not None
        own = by_example(x[: self.count], self.columns.at(0), batch)
        return own.reshape(batch, 1, -1, x.shape[-1]).contiguous()

    def pairs(self, x: Tensor, before: Tensor, found: rnn_steps.Found) -> Iterator[tuple[Tensor, Contribution]]:
        """One after the other: gate gradients are gone once what they give is settled."""
        w_ih, w_hh, b_ih, b_hh = self.weights
        for weight, bias, a in ((w_ih, b_ih, x), (w_hh, b_hh, before)):
            g = self._rows(found.gates.pop(0))
            if trainable(weight):
                assert weight is not None
                yield weight, Outer(self._rows(a), g, weight.shape)
            if trainable(bias):
                assert bias is not None
                yield bias, Dense(own_sums(g, (1, 2)))


@operation("lstm gru rnn_tanh rnn_relu", ALWAYS)
def recurrent(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    kind: str = func.__name__
    packed = isinstance(args[3], (list, tuple))
    if packed:
        x, sizes, hx, weights, has_bias, layers, dropout, training, bidirectional = args[:9]
        batch_first = False
    else:
        x, hx, weights, has_bias, layers, dropout, training, bidirectional, batch_first = args[:9]
        sizes = None
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    layout = layout_of(recorder, x)
    expected = 0 if packed or batch_first else 1
    if recorder.batch == 1 and layout is not None and not packed:
        layout = Layout(expected, x.shape[expected])  # all rows are of one example, wherever its size of one was put
    _, shared = recorder.scan(args, kwargs)
    if recorder.batch == 0:
        return (
            run_empty(recorder, func, args, kwargs, bool(shared))
            if not packed
            else _nothing(recorder, args, bool(shared))
        )
    reason = _objection(recorder, layout, expected, packed, sizes, states, weights)
    if len(weights) // (layers * (2 if bidirectional else 1)) in (3, 5):
        reason = "an LSTM with proj_size has no rule"
    if reason is not None:
        recorder.problems.add(reason)
        with without_subclasses():
            out = func(*detached(args, shared))
        return tuple(mark(t, recorder, Mixed(reason)) for t in out)
    assert layout is not None
    columns = _columns(recorder, layout, sizes)
    if not shared or not torch.is_grad_enabled():
        with without_subclasses():
            out = func(*args, **kwargs)
        mark(out[0], recorder, layout)
        for state in out[1:]:
            mark(state, recorder, columns)
        return out
    mixed = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False):  # layers are computed by hand here, in the type of their weights
        if mixed:
            x, states = x.to(weights[0].dtype), [s.to(weights[0].dtype) for s in states]
        return _run(
            recorder,
            kind,
            x,
            layout,
            sizes,
            states,
            list(weights),
            has_bias,
            layers,
            dropout,
            training,
            bidirectional,
            batch_first,
        )


def _columns(recorder: Recording, layout: Layout, sizes: Tensor | None) -> Layout:
    """Return whose the columns of states are."""
    if sizes is None:
        return layout.at(1)
    assert layout.owner is not None
    assert recorder.batch is not None
    return in_order(1, layout.owner[: int(sizes[0])], recorder.batch)


def _same_owners(own: Layout, columns: Layout, batch: int | None, size: int) -> bool:
    if own.same_order(columns):
        return True
    return batch is not None and torch.equal(owners(own, batch, size), owners(columns, batch, size))


def _objection(
    recorder: Recording, layout: Layout | None, expected: int, packed: bool, sizes: Any, states: Any, weights: Any
) -> str | None:
    """Why a layer's examples cannot be told apart."""
    if layout is None or layout.dim != expected or (packed and layout.owner is None):
        return "the examples are not in the dimension this recurrent layer takes for the batch (see batch_first)"
    columns = _columns(recorder, layout, sizes)
    if layout.owner is not None and sizes is not None and not steps_agree(layout.owner, sizes):
        return "the rows of a packed sequence belong to other examples than those of its first step"
    for state, own in recorder.scan(states, {})[0]:
        if isinstance(own, Mixed):
            return own.reason
        if recorder.batch == 1 and isinstance(own, Layout):
            continue  # of one example alone, whose dimension is not told by its size
        if (
            not isinstance(own, Layout)
            or own.dim != 1
            or not _same_owners(own, columns, recorder.batch, state.shape[1])
        ):
            return "the initial state's examples are in another order or dimension than the input's"
    if any(type(weight) is Traced for weight in weights):
        return "data of the batch is used as a weight of a recurrent layer, where it acts on all examples"
    return None


def _nothing(recorder: Recording, args: Any, trained: bool) -> Any:
    """No sequence at all, which PyTorch's packed kernels refuse: outputs of the right widths with no rows."""
    x, _, hx = args[:3]
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    width = states[0].shape[-1] * (2 if args[8] else 1)
    return run_empty(
        recorder, lambda: (plain(x).new_zeros(0, width), *(plain(s).detach().clone() for s in states)), (), {}, trained
    )


def _run(
    recorder: Recording,
    kind: str,
    x: Tensor,
    layout: Layout,
    sizes: Tensor | None,
    states: list[Tensor],
    weights: list[Tensor],
    has_bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    data, mask, steps_index, column_index = plain(x), None, None, None
    columns = _columns(recorder, layout, sizes)
    if sizes is not None:
        warn_of_lengths()
        counts = sizes.tolist()
        steps_index = torch.repeat_interleave(torch.arange(len(counts)), sizes).to(data.device)
        column_index = torch.cat([torch.arange(n) for n in counts]).to(data.device)
        mask = data.new_zeros(counts[0], len(counts), 1)
        mask[column_index, steps_index] = 1
        data = data.new_zeros(counts[0], len(counts), data.shape[1]).index_put((column_index, steps_index), data)
    else:
        data = data if batch_first else data.transpose(0, 1)
    count = data.shape[0]
    # The last rows of a product, and all where there are few, are computed by other kernels: these are of empty columns
    # then, which are dropped below. Where none is needed these are copies all the same: what is written to the
    # input later must not matter for some numbers of columns only.
    own = [personal(recorder, s, columns, s.shape[1], 3) if trainable(s) else plain(s) for s in states]  # a learned one
    states = [F.pad(s, (0, 0, 0, -count % LINE)) for s in own]
    data = F.pad(data.contiguous(), (0, 0, 0, 0, 0, -count % LINE))
    mask = None if mask is None else F.pad(mask, (0, 0, 0, 0, 0, -count % LINE))
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    lasts: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(weights[at * each : (at + 1) * each])
            full: list[Tensor | None] = [own[0], own[1], *(own[2:4] if has_bias else (None, None))]
            job = _Job(recorder, kind, full, direction == 1, mask, columns, count)
            cell = states[1][at] if kind == "lstm" else None
            out, *last = RecurrentLayer.apply(recorder.anchor, data, states[0][at], cell, job)  # type: ignore[no-untyped-call]
            outs.append(out)
            for kept, state in zip(lasts, last):
                kept.append(state)
        data = outs[0] if directions == 1 else torch.cat(outs, 2)
        if dropout and training and layer < layers - 1:
            data = F.dropout(data, dropout, True)
    data = data[:count]
    finals = tuple(mark(torch.stack(kept)[:, :count], recorder, columns) for kept in lasts)
    if sizes is not None:
        data = data[column_index, steps_index]
    elif not batch_first:
        data = data.transpose(0, 1)
    return (mark(data, recorder, layout), *finals)


rule("lstm gru rnn_tanh rnn_relu")(unknown_form)
