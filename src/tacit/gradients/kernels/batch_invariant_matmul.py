"""Matrix products that compute a row alike in every place and beside any number of others.

The compiled ones do (`_loops/products.h`). As the library computes them they do not, and the theorem of
docs/finite-precision.md wants them to. Products of few rows, and with one output or input, take kernels that compute
the last rows in another way; those of few inputs or outputs round a row by where in memory it begins, unless rows are
multiples of 16 bytes. Zeros are added in these cases. That this is enough was found by trying
(`tests/gradients/test_places.py`), and is not promised for every library.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._compiled import Kernels, kernels
from tacit._threads import threads

LINE = 16
"""Rows, or columns, that are whole lines of 64 bytes however wide they are (of float32)."""

_WHOLE = 4
_NOTHING = torch.empty(0, dtype=torch.float32, device="cpu")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, turned: bool = False) -> Tensor:
    """`F.linear`: compiled, or with zeros where they are needed. A ``turned`` weight has its inputs first."""
    outputs, inputs = weight.shape[::-1] if turned else weight.shape
    if x.shape[-1:] != (inputs,):
        return F.linear(x, weight.t() if turned else weight, bias)  # PyTorch raises the error
    ours = _compiled(x, weight, bias)
    if ours is not None:
        added = _NOTHING if bias is None else bias.contiguous()
        out = torch.empty((*x.shape[:-1], outputs), dtype=torch.float32, device="cpu")
        ours.linear(x.contiguous(), weight.contiguous(), added, out, inputs, int(not turned), threads())
        return out
    flat, weight = _rows(x), (weight.t() if turned else weight).contiguous()  # a turned one rounds rows by their place
    last, more_in, more_out = _missing(len(flat), inputs, outputs)
    if more_in or more_out:
        weight = F.pad(weight, (0, more_in, 0, more_out))
        bias = None if bias is None else F.pad(bias, (0, more_out))
    out = F.linear(F.pad(flat, (0, more_in, 0, last)) if last or more_in else flat, weight, bias)
    return out[: len(flat), :outputs].reshape(*x.shape[:-1], outputs)


def linear_backward(grad: Tensor, weight: Tensor, *, turned: bool = False) -> Tensor:
    """The gradient of the input of `linear`, from that of its output: where no zeros are added, no view of anything."""
    outputs, inputs = weight.shape[::-1] if turned else weight.shape
    shape = (*grad.shape[:-1], inputs)
    ours = _compiled(grad, weight, None)
    if ours is not None:
        out = torch.empty(shape, dtype=torch.float32, device="cpu")
        ours.linear(grad.contiguous(), weight.contiguous(), _NOTHING, out, outputs, int(turned), threads())
        return out
    flat, weight = _rows(grad), (weight.t() if turned else weight).contiguous()
    last, more_in, more_out = _missing(len(flat), inputs, outputs)
    if not (last or more_in or more_out):
        out = grad.new_empty(shape)
        torch.mm(flat, weight, out=out.view(len(flat), inputs))
        return out
    wide = F.pad(flat, (0, more_out, 0, last)) @ F.pad(weight, (0, more_in, 0, more_out))
    return wide[: len(flat), :inputs].reshape(shape)


def is_linear(x: Tensor, weight: Any, bias: Any) -> bool:
    """Return whether `linear` is meant for it: in float32, on the processor, of shapes that fit."""
    if torch.is_autocast_enabled("cpu") or not _are_plain(x, weight, bias):
        return False
    return weight.ndim == 2 and x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])


def _compiled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Kernels | None:
    """Return the kernels if they can read these tensors, and no mode or subclass replaces operations."""
    if kernels is None or not kernels.wide or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    return kernels if x.numel() and weight.numel() and _are_plain(x, weight, bias) else None


def _are_plain(*given: Tensor | None) -> bool:
    """Return whether these are ordinary tensors of float32 in the processor's memory."""
    for t in given:
        if t is None:
            continue
        if type(t) not in (Tensor, nn.Parameter) or t.dtype is not torch.float32 or not t.is_cpu:
            return False
        if t.layout is not torch.strided or t.is_neg():
            return False
    return True


def _rows(x: Tensor) -> Tensor:
    """As a matrix that begins with a line of memory, row after row.

    With a dimension of one a tensor passes for contiguous whatever its strides, and its product is another kernel's.
    """
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).contiguous()
    return flat if flat.data_ptr() % (4 * LINE) == 0 else flat.clone()


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
