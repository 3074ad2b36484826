"""Memory that one step frees and the next one needs again stays in the process while a run is open.

PyTorch takes memory for CPU tensors from the C library, and the GNU C library gives large pieces back to the operating
system at once. Each step then pays for its pages anew, which on some machines is a third of the time of a step. What is
kept goes back when the last run is closed; from then on the library gives back what is above 32 MB, or 64 MB in all.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # numbers of the options in malloc.h
_NEVER = -1
_LARGEST, _LARGEST_BEFORE_2_35 = 1 << 30, 1 << 25  # data sets, which are larger, still have memory of their own
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "MALLOC_ARENA_MAX",
)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for the next step; does nothing without the GNU C library or if the user has configured it."""
    library = None if _set_up_by_user() else _gnu()
    if library is None:
        yield
        return
    with _open.lock:
        _open.runs += 1
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST) or library.mallopt(_MMAP_THRESHOLD, _LARGEST_BEFORE_2_35)
    try:
        yield
    finally:
        with _open.lock:
            _open.runs -= 1
            if not _open.runs:  # the values that the library itself arrives at after some large allocations
                library.mallopt(_TRIM_THRESHOLD, 1 << 26)
                library.mallopt(_MMAP_THRESHOLD, 1 << 25)
                library.malloc_trim(0)


def share_one_heap() -> None:
    """Let threads that start from now on take memory from one heap; does nothing where `freed_memory_kept` would not.

    The GNU C library gives every thread a heap of its own, and what one thread has freed another cannot use: a server
    whose threads handle long messages in turn would keep the longest message once for each of them.
    """
    library = None if _set_up_by_user() else _gnu()
    if library is not None:
        library.mallopt(_ARENA_MAX, 1)


class _Open:
    def __init__(self) -> None:
        # A run that was dropped may be closed by the garbage collector, in the middle of opening another.
        self.lock, self.runs = threading.RLock(), 0


_open = _Open()


def _set_up_by_user() -> bool:
    return any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def _gnu() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return (
        library if all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")) else None
    )
