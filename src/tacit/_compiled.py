"""The functions of `_kernels.c`, compiled where a C compiler was found when Tacit was installed."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Singles = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview


class Kernels(Protocol):
    """What they do is said in `_kernels.c`. They refuse arrays whose sizes do not fit, or that are not contiguous."""

    wide: int
    """Whether they were compiled for registers of 32 bytes or more."""

    aes: int
    """Whether the processor has instructions for AES; `keystream` and `noise` need them."""

    def keystream(self, key: Buffer, out: Buffer, /) -> None: ...
    def noise(self, keys: Buffer, out: Singles, std: float, grid: float, piece: int, threads: int, /) -> None: ...
    def outer_sum(
        self, narrow: Singles, wide: Singles, out: Singles, rows: int, call: int, threads: int, /
    ) -> None: ...
    def product_sum(
        self, left: Singles, right: Singles, weights: Singles, out: Singles, call: int, threads: int, /
    ) -> None: ...
    def linear(
        self, x: Singles, weight: Singles, bias: Singles, out: Singles, terms: int, turned: int, threads: int, /
    ) -> None: ...
    def squares(self, rows: Singles, out: Singles, threads: int, /) -> None: ...
    def digest(self, words: npt.NDArray[Any], key: npt.NDArray[np.uint32], threads: int, /) -> int: ...
    def max_pool(self, images: Singles, out: Singles, /, *sizes_and_threads: int) -> None: ...
    def max_pool_placed(self, images: Singles, places: Bytes, out: Singles, /, *sizes_and_threads: int) -> None: ...
    def max_unpool(self, grads: Singles, places: Bytes, images: Singles, /, *sizes_and_threads: int) -> None: ...
    def windows_form(self, *windows_and_out: Any) -> None: ...
    def windows_squares(self, *windows_and_out: Any) -> None: ...
    def lstm_forward(self, *arrays_and_numbers: Any) -> None: ...
    def lstm_backward(self, *arrays_and_numbers: Any) -> None: ...
    def windows_sum(self, *windows_weights_and_out: Any) -> None: ...


LEAST_COLUMNS = 64
"""`outer_sum` wants rows of at least so many entries."""

KEY_WORDS = 1026
"""How many words `digest` wants in its key."""

kernels: Kernels | None
try:
    kernels = importlib.import_module("tacit._kernels")
except ImportError:
    kernels = None
"""None where they could not be compiled; whoever uses them does the same with arrays then."""


def array(tensor: Tensor) -> npt.NDArray[Any]:
    """The memory of a tensor that may be somebody else's, as an array.

    `Tensor.numpy` marks it, for good, as memory that is shared with an array, may be written to through that, and can
    no longer grow.
    """
    return np.from_dlpack(tensor.detach())
