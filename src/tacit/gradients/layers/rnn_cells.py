"""Single steps of recurrent layers, as `nn.LSTMCell` and its kin call them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.layers.registry import operation
from tacit.gradients.recording import Recording


def _gates(x: Tensor, h: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
    w_ih, w_hh, b_ih, b_hh = [*weights, None, None][:4]
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)


@operation("lstm_cell")
def lstm_cell(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    (h, c), weights = args[1], args[2:]
    a, b = _gates(args[0], h, weights)
    i, f, g, o = (a + b).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@operation("gru_cell")
def gru_cell(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = _gates(args[0], args[1], args[2:])
    (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
    z = (az + bz).sigmoid()
    n = (an + (ar + br).sigmoid() * bn).tanh()
    return n + z * (args[1] - n)


@operation("rnn_tanh_cell rnn_relu_cell")
def rnn_cell(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = _gates(args[0], args[1], args[2:])
    return (a + b).tanh() if "tanh" in func.__name__ else (a + b).relu()
