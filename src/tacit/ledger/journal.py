"""The journal: the file that a ledger is kept in, safe against a crash between any two instructions.

**Claim.** Let r be the number of `Journal.write` calls that returned before a crash. Reading the file afterwards
(`tacit.ledger.reading.read`) gives those r steps and at most the one in flight besides, or refuses; never fewer.

The writer does nothing but these, and each waits until the one before is safely on the disk:

* *append*: bytes after the last line, for a step that differs from the one before; then
* *count*: overwrite one counter, the older of the two, with n + 1.

**Proof**, for a process killed anywhere, and for a power cut with a disk that may leave any part of an unfinished
write undone, but leaves bytes alone that the write does not change. Before write number n + 1 the file holds n steps,
its newest counter says n, and nothing follows the last line. Then a crash can leave:

1. before or during *append*: counters n and n - 1, and after the last line nothing, a torn line, or the whole line.
   Read as n, n, n + 1 steps. Released: n.
2. during *count*: the line whole, counter n whole, the other one n - 1, torn, or n + 1. If n - 1: with a new line it
   is case 1 and reads n + 1; without one it reads n. Torn reads n + 1; n + 1 reads n + 1. Released: n.
3. after *count*: reads n + 1. Released: n or n + 1.

Opening for writing puts the file back in the state before a write, in an order that is itself one of the cases: cut
off the torn line, wait for the disk, then write the counter of the number just read in its own place (a torn counter
there reads as that same number, by case 2). If a disk breaks the assumption and harms neighbouring bytes, a hash no
longer fits: refused.

**What is detected** beside crashes: any changed byte, and any line removed, inserted, moved or cut off, alone or
together, is refused with its line number unless the bytes are exactly those that a crash can leave; bytes after the
last line are left out as a torn line. In particular a damaged counter cannot hide that the line it counted was cut
off: it is forgiven only where each of its bytes is that of the counter before or of one more step of the last run,
and a counter that names another line has other hashes. **What no file can detect by itself**: that it was put back to
an older genuine state (all of it, or a counter with the lines that it alone counts), or removed, or forged by a
person who computes the hashes afresh (they are not keyed). The receipt of the newest state, `Ledger.digest` and the
number of steps, kept elsewhere, detects that: `Ledger.steps_at`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit._files import sync
from tacit.ledger.contents import WIDTH, Contents
from tacit.ledger.events import Header, Step
from tacit.ledger.reading import LedgerCorrupt, read

_log = logging.getLogger(__name__)

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission is denied; change the permissions or choose another place",
    errno.EPERM: "permission is denied; change the permissions or choose another place",
    errno.ENOENT: "there is no such file; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a directory; choose another place",
    errno.EEXIST: "a part of the path is a file, not a directory; choose another place",
    errno.EISDIR: "it is a directory; give the name of a file in it",
}


_FIX = "Put the file back as it was, or stop this run: without its ledger nothing may be released."


class LedgerUnavailable(OSError):
    """The ledger cannot be read or written as things stand; nothing was released."""


@contextmanager
def _explained(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except LedgerUnavailable:
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}; mend that and try again")
        unavailable = LedgerUnavailable(f"Cannot {doing} the ledger {path}: {reason}.")
        unavailable.errno = error.errno
        raise unavailable from error


def _sync(fd: int) -> None:
    """Wait until the data of a file, and its length, are safely on the disk."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def _put(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _lock(fd: int, path: Path) -> None:
    """Become the one writer, until the file is closed or the process ends."""
    try:
        import fcntl
    except ImportError:
        raise LedgerUnavailable(
            f"Cannot lock the ledger {path}: this system has no flock; use a POSIX system."
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerUnavailable(
            f"The ledger {path} is already open for writing, here or in another process; "
            "wait for that run to end or close it, or give this run a ledger of its own."
        ) from error


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _create(path: Path, header: Header) -> None:
    """Make an empty journal that appears under its name whole or not at all, and never over another one."""
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
    # A unique name: a file that was not made here is never truncated.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        data, _ = Contents.new(header)
        _put(fd, data, 0)
        os.fsync(fd)
        with contextlib.suppress(FileExistsError):  # another process just made it
            os.link(draft, path)
    finally:
        os.close(fd)
        draft.unlink()


def _read_all(fd: int) -> bytes:
    """The whole file, with counters that belong to its lines even if a writer is at work.

    A line is on the disk before its counter. So read to the end, then look at the counters again: if they did not
    change meanwhile, all lines that they count were read, and at most the one in flight besides.
    """
    data = bytearray()
    for _ in range(1000):
        while chunk := os.pread(fd, 1 << 20, len(data)):
            data += chunk
        start = os.pread(fd, data.find(b"\n") + 1 + 2 * WIDTH, 0)
        if data[: len(start)] == start:
            break
        data[: len(start)] = start
    return bytes(data)


def load(path: Path) -> Contents:
    """Return the journal's contents now. Takes no lock and changes nothing; a writer may be at work meanwhile."""
    with _explained(path, "read"):
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _check_regular(fd, path)
            data = _read_all(fd)
            for _ in range(5):
                try:
                    return read(data, str(path))
                except LedgerCorrupt:
                    before, data = data, _read_all(fd)
                    if data == before:
                        raise
            return read(data, str(path))
        finally:
            os.close(fd)


def _check_regular(fd: int, path: Path) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise LedgerUnavailable(f"Cannot use {path} as a ledger: it is not a regular file; choose another path.")


class Journal:
    """A journal open for writing, by this process alone."""

    def __init__(self, path: Path, header: Header | None) -> None:
        self.path = path
        self._fd = -1
        self._known: int | None = None  # how many steps there were before the last write
        self._settled = True  # whether that write was finished
        with _explained(path, "open"):
            if not os.path.lexists(path):
                _create(path, header or Header())
            self._fd = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
            try:
                _check_regular(self._fd, path)
                _lock(self._fd, path)
                sync(path.parent)
                self.contents = self._recover()
            except BaseException:
                self.close()
                raise
        _JOURNALS.add(self)

    def _recover(self) -> Contents:
        """Read the file and put it in the state before a write (see the proof above)."""
        self._check_place()
        data = _read_all(self._fd)
        contents = read(data, str(self.path))
        known = contents.steps if self._known is None else self._known
        if not known <= contents.steps <= known + 1:
            raise LedgerUnavailable(f"The ledger {self.path} says {contents.steps} steps, not {known}. {_FIX}")
        for note in contents.notes:
            _log.warning("%s: %s.", self.path, note)
        if len(data) > contents.size:
            os.ftruncate(self._fd, contents.size)
            os.fsync(self._fd)
        # The last line and the counter again: after a failed sync the cache may hold what the disk does not.
        last = data.rfind(b"\n", 0, contents.size - 1) + 1
        _put(self._fd, data[last : contents.size], last)
        _put(self._fd, contents.counter(), contents.counter_at)
        os.fsync(self._fd)
        return contents

    def settle(self) -> Contents:
        """The contents, read again from the file if the last write failed or was interrupted."""
        if not self._settled:
            with _explained(self.path, "open"):
                self.contents = self._recover()
            self._settled = True
        return self.contents

    def write(self, step: Step) -> None:
        """Add one step to settled contents, safely on the disk when this returns."""
        contents = self.contents
        with _explained(self.path, "write to"):
            self._check_place(contents.size)
            self._known, self._settled = contents.steps, False
            end = contents.size
            line = contents.add(step)
            if line:
                _put(self._fd, line, end)
                _sync(self._fd)
            _put(self._fd, contents.counter(), contents.counter_at)
            _sync(self._fd)
            self._check_place(contents.size)
            self._settled = True

    def _check_place(self, size: int | None = None) -> None:
        """The file must still be under its name and no shorter or longer than it was left."""
        if not _is_at(self._fd, self.path):
            raise LedgerUnavailable(f"The ledger {self.path} was deleted, moved or replaced during the run. {_FIX}")
        found = os.fstat(self._fd).st_size
        if size is not None and found != size:
            raise LedgerUnavailable(f"The ledger {self.path} has {found} bytes, but {size} were written. {_FIX}")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked child lets go of the files, or it would hold the lock when the writer is gone."""
    for journal in list(_JOURNALS):
        journal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
