"""PyTorch's switches that let float32 products be computed with fewer bits (TF32, bfloat16), by device.

No sensitivity is proved for such products (docs/finite-precision.md). On CUDA they are PyTorch's default for
convolutions and recurrent layers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

_MATMUL = {"cuda": torch.backends.cuda.matmul, "mkldnn": getattr(torch.backends.mkldnn, "matmul")}  # noqa: B009 (stubs)
_OTHERS = {
    "cuda": {f"cudnn.{name}": getattr(torch.backends.cudnn, name) for name in ("conv", "rnn")},
    "mkldnn": {f"mkldnn.{name}": getattr(torch.backends.mkldnn, name) for name in ("conv", "rnn")},
}
_EXACT = ("ieee", "none")  # "none" is said where no setting above it says another


def _library(device: torch.device) -> str:
    return "mkldnn" if device.type == "cpu" else "cuda"


def coarse(device: torch.device) -> list[str]:
    """List the statements that make float32 products exact to the last bit again where a switch lets them be coarser.

    Settings are read in their new form, which PyTorch keeps up to date when `allow_tf32` or
    `set_float32_matmul_precision` are used, and which alone can be read when both forms were used.
    """
    library = _library(device)
    found = []
    if _MATMUL[library].fp32_precision not in _EXACT:
        found.append('torch.set_float32_matmul_precision("highest")')
    for name, setting in _OTHERS[library].items():
        if setting.fp32_precision not in _EXACT:
            found.append(f'torch.backends.{name}.fp32_precision = "ieee"')
    return found


_lock = threading.RLock()
_users = 0
_undo: list[Callable[[], None]] = []


@contextmanager
def ieee_float32(devices: Iterable[torch.device]) -> Iterator[list[str]]:
    """Let float32 products be exact within, on all ``devices``; yields the statements that were needed for it.

    The settings are the process's: the last of several such blocks to end puts them back as the first found them.
    """
    global _users
    used = list(dict.fromkeys(devices))
    needed = list(dict.fromkeys(each for device in used for each in coarse(device)))
    with _lock:
        _users += 1  # first: the garbage collector may end the block of a dropped run at any moment
        if needed:
            _set_exact({_library(device) for device in used})
    try:
        yield needed
    finally:
        with _lock:
            _users -= 1
            while not _users and _undo:
                _undo.pop()()


def _set_exact(libraries: Iterable[str]) -> None:
    """Set every switch in its old form and in its new one: PyTorch fails where the two contradict each other.

    They are put back in the same order, so that the new form, which says more, has the last word.
    """
    undo: list[Callable[[], None]] = []
    with suppress(RuntimeError):  # the old form cannot be read where the new one contradicts it
        undo.append(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    undo += [_putting_back(setting) for setting in _MATMUL.values()]
    torch.set_float32_matmul_precision("highest")
    for library in libraries:
        if library == "cuda":
            with suppress(RuntimeError):
                undo.append(partial(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32))
        undo += [_putting_back(setting) for setting in _OTHERS[library].values()]
        if library == "cuda":
            torch.backends.cudnn.allow_tf32 = False
        for setting in _OTHERS[library].values():
            setting.fp32_precision = "ieee"
    _undo.extend(reversed(undo))


def _putting_back(setting: Any) -> Callable[[], None]:
    return partial(setattr, setting, "fp32_precision", setting.fp32_precision)
