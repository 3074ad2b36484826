"""Files that appear whole or not at all, and names that are still there after a power failure."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Put ``data`` at ``path``: a draft beside it, with a unique name, takes its name once it is on the disk.

    ``mode`` is what a new file may be used for, before the umask; one that is replaced gets it too.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems keep no directory to sync
            raise
    finally:
        os.close(handle)
