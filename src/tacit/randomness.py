"""The source of every secret random number: an AES-256-CTR keystream keyed by the operating system.

Noise and sampling protect people only if they cannot be predicted, so both draw from one `Source`, and none of it can
be reached by ``torch.manual_seed`` or ``numpy.random.seed``. This module stands below the rooms `sampling` and
`mechanisms`, which both need it and may not import each other.

Properties of the numbers, beyond the assumption that AES-256 cannot be told from random:

* `Source.integers`, `Source.choice` and `Source.permutation` are exactly uniform (rejection, no modulo bias).
* `Source.gaps` follows the geometric distribution with every probability right to a relative error of about 2^-50.
* `Source.normal_` in float32 draws a key of 256 bits from the stream for each piece of 2^14 values, and makes them from
  the AES-256-CTR keystream of that key, which is used once and overwritten; in float64, from the stream itself.
* It is Box-Muller on 32 random bits for the angle and 32 for the radius (64 and 64 in float64), with 64 bits more
  wherever the first 32 leave the radius with fewer than 22 significant ones. Large and small radii are both drawn with
  full relative precision: |value| reaches 11.6 standard deviations (9.4 in float64) and the mass cut off beyond is
  below 2^-96 (2^-64) a pair. Within that range a value x differs from the real Box-Muller value of its bits by the
  rounding of float32 (float64): less than 2^-20 (2^-49) of 1 + radius. That is also how finely the values lie: a
  mechanism whose noise must hide the last bits of a sum rounds the noisy sum to a coarser grid.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from tacit._aes import keystream as keystream
from tacit._normal import noise

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Drawn = Callable[[int, torch.dtype, torch.device], torch.Tensor | None]
"""Return ``size`` values of this dtype on this device, each handed out once, to be overwritten; or None."""

_ZEROS = memoryview(bytes(1 << 16))


class Source(ABC):
    """A stream of random bits and the distributions made of it. Safe to share between threads.

    A process made by ``fork`` gets a key of its own before it draws, so parent and child never see the same stream. A
    source cannot be pickled or copied, and its key cannot be read from it.
    """

    secure: ClassVar[bool]
    share = 1.0
    """The share of a noise's standard deviation drawn here: below 1 if other processes draw the rest."""

    join_: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Add the other processes' values of the same sum in place, in subclasses that have other processes."""

    drawn: Drawn | None = None
    """Return standard normal values drawn ahead for a device, if the run has some."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rekey(forked=False)
        _sources.add(self)

    @abstractmethod
    def _key(self, *, forked: bool) -> bytes: ...

    def _rekey(self, *, forked: bool) -> None:
        self._pid = os.getpid()
        self._stream = keystream(self._key(forked=forked))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied; make a new one where it is needed.")

    def fill(self, buffer: bytearray | memoryview) -> None:
        """Overwrite ``buffer`` with random bytes."""
        with self._lock:
            if os.getpid() != self._pid:
                self._rekey(forked=True)
            view = memoryview(buffer)
            for start in range(0, len(view), len(_ZEROS)):
                piece = view[start : start + len(_ZEROS)]
                self._stream.update_into(_ZEROS[: len(piece)], piece)

    def bytes(self, size: int) -> bytes:
        """``size`` random bytes."""
        buffer = bytearray(size)
        self.fill(buffer)
        return bytes(buffer)

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """``size`` random 64-bit words."""
        buffer = bytearray(8 * size)
        self.fill(buffer)
        return np.frombuffer(buffer, dtype=np.uint64)

    def uniform(self, size: int) -> Floats:
        """Return ``size`` uniform numbers on the 53-bit grid strictly between 0 and 1."""
        mantissas = self.words(size) >> np.uint64(11)
        while (zeros := np.flatnonzero(mantissas == 0)).size:
            mantissas[zeros] = self.words(zeros.size) >> np.uint64(11)
        return np.asarray(mantissas * 2.0**-53, dtype=np.float64)

    def exponential(self, size: int) -> Floats:
        """Return ``size`` standard exponential numbers, with full relative precision near zero and far out (up to
        45)."""
        words = self.words(size).view(np.int64)
        halves = (np.where(words >= 0, words, ~words) + 0.5) * 2.0**-64
        return np.asarray(np.where(words >= 0, -np.log(halves), -np.log1p(-halves)))

    def gaps(self, rate: float, size: int) -> Integers:
        """Return ``size`` geometric numbers: failures before the first success, of probability ``rate``."""
        if not 0 < rate <= 1:
            raise ValueError(f"rate is {rate!r}; it must be in (0, 1].")
        if rate == 1:
            return np.zeros(size, dtype=np.int64)
        with np.errstate(over="ignore"):
            return np.minimum(self.exponential(size) / -math.log1p(-rate), 2.0**62).astype(np.int64)

    def integers(self, bound: int | Integers, size: int) -> Integers:
        """``size`` whole numbers, uniform on 0, 1, ..., ``bound`` - 1; ``bound`` may differ for each."""
        bounds = np.asarray(bound)
        if bounds.size and (bounds.min() < 1 or bounds.max() >= 2**63):
            raise ValueError(f"bound is {bound!r}; it must be at least 1 and below 2^63.")
        bounds = np.broadcast_to(bounds.astype(np.uint64), size)
        leftover = (np.uint64(2**64 - 1) - bounds + np.uint64(1)) % bounds  # 2^64 mod bound
        values = self.words(size)
        while (low := np.flatnonzero(values < leftover)).size:
            values[low] = self.words(low.size)
        return np.asarray(values % bounds, dtype=np.int64)

    def permutation(self, size: int) -> Integers:
        """Return the numbers 0, 1, ..., ``size`` - 1 in uniformly random order."""
        while True:
            keys = self.words(size)
            order = np.argsort(keys)
            keys = keys[order]
            if not np.any(keys[1:] == keys[:-1]):  # a tie (chance size^2 / 2^65) would favour the sorting algorithm
                return order

    def choice(self, population: int, size: int) -> Integers:
        """``size`` different numbers below ``population``, every ordered choice equally likely, in O(``size``)."""
        if not 0 <= size <= population:
            raise ValueError(f"size is {size!r}; it must be between 0 and the population, {population!r}.")
        if 3 * size > population:
            return self.permutation(population)[:size]
        drawn = np.empty(0, dtype=np.int64)
        while True:  # the first `size` distinct values of independent uniform ones
            drawn = np.concatenate([drawn, self.integers(population, size + size // 8 + 8)])
            first = np.sort(np.unique(drawn, return_index=True)[1])
            if first.size >= size:
                return drawn[first[:size]]

    def normal_(self, tensor: torch.Tensor, std: float = 1.0) -> torch.Tensor:
        """Overwrite ``tensor`` with independent N(0, std^2) values, like ``tensor.normal_(0, std)``, and return it."""
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the tensor is {tensor.dtype}; noise is drawn in float32 or float64.")
        if not 0 <= std < math.inf:
            raise ValueError(f"std is {std!r}; it must be a finite number, at least 0.")
        with torch.no_grad():
            direct = tensor.is_contiguous() and tensor.device.type == "cpu"
            values = tensor.detach() if direct else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            noise(self, [(values.numpy(), std, 0.0)])
            return tensor if direct else tensor.copy_(values)

    def add_normal_(self, total: torch.Tensor, std: float, grid: float) -> None:
        """Add independent N(0, std^2) values to ``total`` and round to multiples of ``grid``, a power of two.

        ``total`` is contiguous, in the memory of the processor, of float32 or float64.
        """
        self.add_normals_([(total, std, grid)])

    def add_normals_(self, sums: Sequence[tuple[torch.Tensor, float, float]]) -> None:
        """`add_normal_` for each (total, std, grid)."""
        noise(self, [(total.detach().numpy(), std / grid, grid) for total, std, grid in sums])

    def laplace_(self, tensor: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Overwrite ``tensor`` with independent Laplace values of the given scale: exponentials with a random sign."""
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the tensor is {tensor.dtype}; noise is drawn in float32 or float64.")
        size = tensor.numel()
        sizes = self.exponential(size) * scale
        signs = np.frombuffer(self.bytes(size), dtype=np.uint8) < 128
        values = torch.from_numpy(np.negative(sizes, out=sizes, where=signs))
        with torch.no_grad():
            return tensor.copy_(values.view(tensor.shape))


class SecureSource(Source):
    """Keyed with 256 bits from the operating system, and again in every forked process."""

    secure = True

    def _key(self, *, forked: bool) -> bytes:
        return os.urandom(32)


class SeededSource(Source):
    """The same stream for the same seed: for debugging only. A ledger written with it must say it is not secure."""

    secure = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed is {seed!r}; it must be a whole number.")
        self._seed: int | str = seed
        super().__init__()

    def branch(self, name: str) -> None:
        """Go on with another stream, the same for the same seed and name."""
        with self._lock:
            self._seed = f"{self._seed}, {name}"
            self._rekey(forked=False)

    def _key(self, *, forked: bool) -> bytes:
        process = f"process {os.getpid()}" if forked else "first process"
        return hashlib.sha256(f"tacit seeded source {self._seed} {process}".encode()).digest()


_sources: weakref.WeakSet[Source] = weakref.WeakSet()


def _after_fork() -> None:
    for source in list(_sources):
        source._lock = threading.RLock()  # another thread may have held it when the process was copied
        source._rekey(forked=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
