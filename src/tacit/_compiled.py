"""The functions of `_kernels.c`, compiled where a C compiler was found when Tacit was installed."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Singles = npt.NDArray[np.float32]
Buffer = bytes | bytearray | memoryview
Memory = Tensor | npt.NDArray[Any]


class Kernels(Protocol):
    """The compiled loops of `_kernels.c`. They refuse memory whose size does not fit, or that is not contiguous.

    They take it for what its name says: who calls them has looked at its type.
    """

    wide: int
    """True if the kernels were compiled for registers of 32 bytes or more."""

    aes: int
    """True if the processor has instructions for AES; `keystream` and `noise` need them."""

    def keystream(self, key: Buffer, out: Buffer, /) -> None: ...
    def flushes(self, threads: int, /) -> bool | None: ...
    def noise(self, keys: Buffer, out: Memory, std: float, grid: float, piece: int, threads: int, /) -> None: ...
    def mixed_noise(
        self, keys: Buffer, weights: Memory, out: Memory, std: float, grid: float, piece: int, threads: int, /
    ) -> None: ...
    def recursive_noise(
        self,
        keys: Buffer,
        weights: Memory,
        decays: Memory,
        rows: Tensor,
        out: Memory,
        at: int,
        std: float,
        grid: float,
        piece: int,
        threads: int,
        /,
    ) -> None: ...
    def outer_sum(self, narrow: Memory, wide: Memory, out: Memory, rows: int, call: int, threads: int, /) -> None: ...
    def product_sum(
        self, left: Memory, right: Memory, weights: Memory, out: Memory, call: int, threads: int, /
    ) -> None: ...
    def linear(
        self, x: Memory, weight: Memory, bias: Memory, out: Memory, terms: int, turned: int, threads: int, /
    ) -> None: ...
    def squares(self, rows: Memory, out: Memory, threads: int, /) -> None: ...
    def squares_each(self, out: Memory, threads: int, /, *tensors: Memory) -> None: ...
    def row_sums(self, weights: Memory, call: int, threads: int, /, *rows_and_out: Memory) -> None: ...
    def outer_squares(self, left: Memory, right: Memory, out: Memory, of_right: Memory, threads: int, /) -> None: ...
    def roots(self, more: float, factor: float, out: Memory, /, *squares: Memory) -> bool: ...
    def quotients(self, bound: float, norms: Memory, out: Memory, /) -> float: ...
    def divide(self, by: float, threads: int, /, *tensors: Memory) -> None: ...
    def digests(self, key: Memory, threads: int, /, *words: Memory) -> tuple[int, ...]: ...
    def follow(self, func: Any, types: Any, args: Any, kwargs: Any, /) -> Any: ...
    def follow_with(self, *classes_and_functions: Any) -> None: ...
    def max_pool(self, images: Memory, out: Memory, /, *sizes_and_threads: int) -> None: ...
    def max_pool_placed(self, images: Memory, places: Memory, out: Memory, /, *sizes_and_threads: int) -> None: ...
    def max_unpool(self, grads: Memory, places: Memory, images: Memory, /, *sizes_and_threads: int) -> None: ...
    def windows_form(self, *windows_and_out: Any) -> None: ...
    def windows_squares(self, *windows_and_out: Any) -> None: ...
    def lstm_forward(self, *arrays_and_numbers: Any) -> None: ...
    def lstm_backward(self, *arrays_and_numbers: Any) -> None: ...
    def windows_sum(self, *windows_weights_and_out: Any) -> None: ...


LEAST_COLUMNS = 64
"""`outer_sum` wants rows of at least so many entries."""

KEY_WORDS = 1026
"""How many words `digests` wants in its key."""

kernels: Kernels | None
try:
    kernels = importlib.import_module("tacit._kernels")
except ImportError:
    kernels = None
"""None where they could not be compiled; their callers then compute the same with arrays."""
