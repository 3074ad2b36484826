"""SQLite the way both sides keep their state: a write-ahead log that is on the disk before a commit returns."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tacit._files import sync

_PAGE = 32768  # short pages make a commit several times slower; of longer ones an upload of 112 KB wastes more
_CHECKPOINT = 2048  # pages, 64 MiB
_PIECE = 1 << 20


def connect(path: Path) -> sqlite3.Connection:
    """Open or create a database; threads that share it need a lock of their own."""
    # A file that is there is not opened here: closing it would let go of the locks that SQLite holds on it for another
    # connection of this process, and the next program to close the database would then take its log away.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # for its owner alone; so is its log
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise ValueError(f"{path} cannot be used: {os.strerror(errno.EACCES)}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be used: {error.strerror}.") from error
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be used: {error}.") from error
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise ValueError(f"{path} is on a file system without shared memory; choose a local disk.")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    except sqlite3.Error as error:
        connection.close()
        raise ValueError(f"{path} cannot be used: {error}.") from error
    except ValueError:
        connection.close()
        raise
    return connection


class Busy(sqlite3.OperationalError):
    """Another program keeps the database locked; nothing was written."""


class StorageFailed(OSError):
    """The disk is full or fails. What was to be written was not, and what was written before stays."""


@contextmanager
def explained(connection: sqlite3.Connection) -> Iterator[None]:
    """Say in one sentence that the disk is full or fails (`StorageFailed`)."""
    try:
        yield
    except Busy:
        raise
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        reason = "the disk is full; free some space" if full else f"{error}; mend that"
        raise StorageFailed(f"{path} cannot be written: {reason} and start again.") from error


@contextmanager
def created(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a new database that appears at ``path`` when the block ends, the whole of it, or not at all."""
    fresh = path.with_suffix(".new")
    for left in (fresh, fresh.with_name(f"{fresh.name}-wal"), fresh.with_name(f"{fresh.name}-shm")):
        left.unlink(missing_ok=True)  # of an attempt that a full disk has ended
    with closing(connect(fresh)) as connection, explained(connection):
        yield connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    fresh.rename(path)
    sync(path.parent)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Write all or nothing; on the disk when it ends."""
    with explained(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            raise Busy(str(error)) from None
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def write_blob(
    connection: sqlite3.Connection, table: str, column: str, row: int, pieces: Iterable[bytes | memoryview]
) -> None:
    """Write pieces of memory into a blob of zeros of their length, without a copy of them.

    SQLite makes two copies of a value that a statement has as a parameter.
    """
    with connection.blobopen(table, column, row) as blob:
        for piece in pieces:
            blob.write(piece)


def read_blob(blob: sqlite3.Blob, into: memoryview) -> None:
    """Read a blob piece by piece, so that it is in memory once."""
    for place in range(0, len(into), _PIECE):
        piece = blob.read(_PIECE)
        into[place : place + len(piece)] = piece


class Sole:
    """The right to be the only process that works on a folder; it ends with the process at the latest."""

    def __init__(self, folder: Path) -> None:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # a participant keeps its local parameters here
        self._handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            raise ValueError(f"another process works on {folder}; end it or choose another folder.") from None

    def release(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
