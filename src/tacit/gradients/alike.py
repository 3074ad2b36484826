"""Matrix products that compute a row alike in every place and beside any number of others.

As the library computes them they do not, and the theorem of docs/finite-precision.md wants them to. Products of few
rows, and with one output or input, take kernels that compute the last rows in another way; those of few inputs or
outputs round a row by where in memory it begins, unless rows are multiples of 16 bytes. Zeros are added in these cases.
That this is enough was found by trying (`tests/gradients/test_places.py`), and is not promised for every library.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

LINE = 16
"""Rows, or columns, that are whole lines of 64 bytes however wide they are (of float32)."""

_WHOLE = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, with zeros where they are needed."""
    outputs, inputs = weight.shape
    rows = x.numel() // max(1, inputs)
    last, more_in, more_out = _missing(rows, inputs, outputs)
    if not (last or more_in or more_out):
        return F.linear(x.contiguous(), weight, bias)
    if more_in or more_out:
        weight = F.pad(weight, (0, more_in, 0, more_out))
        bias = None if bias is None else F.pad(bias, (0, more_out))
    out = F.linear(F.pad(x.reshape(rows, inputs), (0, more_in, 0, last)), weight, bias)
    return out[:rows, :outputs].reshape(*x.shape[:-1], outputs)


def linear_backward(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the input of `linear`, from that of its output."""
    outputs, inputs = weight.shape
    rows = grad.numel() // max(1, outputs)
    last, more_in, more_out = _missing(rows, inputs, outputs)
    if not (last or more_in or more_out):
        return grad.contiguous() @ weight
    wide = F.pad(grad.reshape(rows, outputs), (0, more_out, 0, last)) @ F.pad(weight, (0, more_in, 0, more_out))
    return wide[:rows, :inputs].reshape(*grad.shape[:-1], inputs)


def _missing(rows: int, inputs: int, outputs: int) -> tuple[int, int, int]:
    """How many rows, inputs and outputs of zeros a linear map needs, forwards and backwards."""
    last = -rows % LINE if min(outputs, inputs) <= 1 or rows <= LINE else 0
    return last, -inputs % _WHOLE if min(outputs, inputs) <= LINE else 0, _WHOLE - 1 if outputs == 1 else 0


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` for many rows, with zeros where they are needed."""
    if _is_alike(matrix):
        return x @ matrix
    inputs, outputs = matrix.shape
    more_in, more_out = -inputs % _WHOLE, -outputs % _WHOLE
    return (F.pad(x, (0, more_in)) @ F.pad(matrix, (0, more_out, 0, more_in)))[:, :outputs]


def add_product_(total: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """``total += product(x, matrix)``"""
    return total.addmm_(x, matrix) if _is_alike(matrix) else total.add_(product(x, matrix))


def _is_alike(matrix: Tensor) -> bool:
    inputs, outputs = matrix.shape
    return min(inputs, outputs) > LINE or not (inputs % _WHOLE or outputs % _WHOLE)
