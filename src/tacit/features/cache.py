"""Keep features on disk, computed once: a .npy file in half precision, written and read piece by piece. The file is as
secret as the images: only its owner may read it, and no run releases it. Its name is a hash of all images, which
confirms a guess at them, so no log and no error contains the name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.features.front import Fitted

log = logging.getLogger("tacit")

_FORMAT = 1  # to be raised when a front end's numbers change
_ROWS = 1024


def cached(images: Tensor, fitted: Fitted, directory: str | Path, *, configuration: str) -> Tensor:
    """The features of all ``images`` in float16, mapped from a file in ``directory``, which is made if it is missing.

    The file's name is a hash of the images, of ``configuration`` (the ``repr`` of the front end says everything) and of
    what the front end learned, so that nothing stale is ever found. A file appears when it is complete.
    """
    folder = Path(directory)
    path = folder / f"features-{_key(images, fitted, configuration)}.npy"
    shape = (len(images), *fitted.shape)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, images, fitted, shape)
    found = np.load(path, mmap_mode="c", allow_pickle=False)  # copied on write: the file stays as it is
    # Texts name the folder: a file's name is a hash of all images, and confirms a guess at them.
    if not isinstance(found, np.ndarray):
        raise ValueError(f"a file of features is an archive, not an array; remove it: {folder}/features-*.npy.")
    if found.shape != shape or found.dtype != np.float16:
        raise ValueError(
            f"a file of features has {found.dtype} of shape {found.shape}, not float16 of {shape}; remove it: "
            f"{folder}/features-*.npy."
        )
    return torch.from_numpy(found)


def _write(path: Path, images: Tensor, fitted: Fitted, shape: tuple[int, ...]) -> None:
    handle, name = tempfile.mkstemp(prefix=".features-", suffix=".npy", dir=path.parent)
    os.close(handle)
    try:
        rows = np.lib.format.open_memmap(name, mode="w+", dtype=np.float16, shape=shape)
        _fill(rows, images, fitted)
        rows.flush()
        del rows
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    log.info("features of %d images written to a file in %s", shape[0], path.parent)


def _fill(rows: npt.NDArray[np.float16], images: Tensor, fitted: Fitted) -> None:
    fitted.transform(images[:1])  # objects made at the first use are made once

    def fill(start: int) -> None:
        rows[start : start + _ROWS] = fitted.transform(images[start : start + _ROWS]).to(torch.float16).numpy()

    with _threads() as pool:
        for _ in pool.map(fill, range(0, len(images), _ROWS)):
            pass


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch would use, each with one of torch's own.

    Front ends are made of many small operations; several threads inside each spend their time waiting for one another,
    several times as long as the work itself where other programs run as well. After a failure no further piece
    begins.
    """
    pool = ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _key(images: Tensor, fitted: Fitted, configuration: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{configuration}\n{tuple(images.shape)}\n{images.dtype}\n".encode())
    digest.update(images.contiguous().numpy().data)
    for name, value in sorted(fitted.state().items()):
        digest.update(f"{name}\n{tuple(value.shape)}\n{value.dtype}\n".encode())
        digest.update(value.contiguous().numpy().data)
    return digest.hexdigest()[:32]
