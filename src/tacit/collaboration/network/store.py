"""The server's state on disk: a snapshot, and every upload since, each committed before it is applied or acknowledged.

**Claim.** After a crash at any moment, `Store.server` gives the parameters that result from applying every committed
upload exactly once, in the order of commitment; an upload that was acknowledged is among them.

**Why.** An upload is committed in one transaction, under a key, (participant, sequence), that can exist once; SQLite
keeps a committed transaction (write-ahead log, ``synchronous=FULL``). It is applied and acknowledged only afterwards.
A snapshot is committed together with the number of the last upload in it, so the uploads with higher numbers are
exactly those that it lacks, and the state depends on nothing but the uploads and their order.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tacit._files import sync
from tacit.collaboration.messages import Vector
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.codec import unpack_upload
from tacit.collaboration.network.database import Sole, connect, created, explained, transaction, write_blob
from tacit.collaboration.network.roster import MOST
from tacit.collaboration.server import ParameterServer, Rules

FORMAT = 4
_CHECKPOINT = 6144  # pages, 192 MiB
_PIECE = 1 << 18  # values, 1 MiB
_LONG = 1 << 20  # bytes of an upload from which on SQLite is to have no copies of it
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE participants (
    name TEXT PRIMARY KEY, revoked INTEGER NOT NULL DEFAULT 0, statement TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE uploads (
    number INTEGER PRIMARY KEY, participant TEXT NOT NULL, sequence INTEGER NOT NULL, digest BLOB NOT NULL,
    UNIQUE (participant, sequence)
) STRICT;
CREATE TABLE bodies (number INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE snapshot (
    one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, facts TEXT NOT NULL
) STRICT;
CREATE TABLE pieces (
    name TEXT NOT NULL, place INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (name, place)
) STRICT;
"""
_LATER = """
CREATE TABLE IF NOT EXISTS revoked_certificates (serial TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS rounds (
    participant TEXT NOT NULL, id BLOB NOT NULL, PRIMARY KEY (participant, id), UNIQUE (id, participant)
) STRICT, WITHOUT ROWID;
"""


def rules_for(agreement: Agreement, *, participants: int) -> Rules:
    """Return what the parameter server checks: single uploads, or sums of as many as can be in a round."""
    bound = agreement.bound * (MOST if agreement.pool else 1)
    upload = min(agreement.most / agreement.size, 1.0)
    return Rules(bound=bound, upload=upload, decay_every=1 if agreement.pool else max(participants, 1))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An upload to be committed: its exact bytes and their SHA-256; of a sum, the round and who is in it."""

    participant: str
    sequence: int
    digest: bytes
    body: bytes | memoryview
    round_id: bytes = b""
    contributors: tuple[str, ...] = ()


class Revocations:
    """Which certificates were revoked, as of now, on a connection of its own: readers do not wait for a write."""

    def __init__(self, path: Path) -> None:
        self._db, self._lock = connect(path), threading.Lock()

    def __contains__(self, serial: int) -> bool:
        with self._lock:
            row = self._db.execute("SELECT 1 FROM revoked_certificates WHERE serial = ?", (f"{serial:x}",)).fetchone()
        return row is not None

    def close(self) -> None:
        with self._lock:
            self._db.close()


class Store:
    """The folder of one server; one process at a time may serve it."""

    def __init__(self, folder: Path, *, sole: bool = True) -> None:
        path = folder / "server.sqlite"
        if not path.exists():
            raise ValueError(f"{folder} has no server's state; begin one with `tacit collaborate serve --model ...`.")
        self._sole = Sole(folder) if sole else None
        self._path, self._db = path, connect(path)
        # Where SQLite was built to write zeros over what is deleted, forgetting an upload costs as much as keeping it.
        # The longer the log grows, the more pages in it are used again before they are copied to the database.
        self._db.execute("PRAGMA secure_delete = FAST")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
        facts = dict(self._db.execute("SELECT name, value FROM facts").fetchall())
        if facts.get("format") != str(FORMAT):
            self.close()
            raise ValueError(f"{path} has format {facts.get('format')}; this version of tacit reads format {FORMAT}.")
        with explained(self._db):
            self._db.executescript(_LATER)
        self.agreement = Agreement.from_json(facts["agreement"])
        self.rules = Rules(**json.loads(facts["rules"]))

    def backup(self, path: Path) -> None:
        """Write a copy of the state as of now to ``path``, also while a server runs; the whole of it or nothing."""
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            copy = sqlite3.connect(draft)
            with explained(copy):
                self._db.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
            copy.close()
            sync(draft)
            draft.rename(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def create(cls, folder: Path, agreement: Agreement, initial: Vector, rules: Rules) -> Store:
        """Begin with ``initial``, the server's slice of the parameters; the whole of it appears or nothing."""
        sole = Sole(folder)
        try:
            path = folder / "server.sqlite"
            if path.exists():
                raise ValueError(f"{folder} has a server's state already; serve that, or choose another folder.")
            if initial.shape != (agreement.size,):
                raise ValueError(f"there are {initial.size} parameters; the server is to own {agreement.size}.")
            with created(path) as db:
                db.executescript(_SCHEMA)
                values = {"format": str(FORMAT), "agreement": agreement.to_json(), "rules": json.dumps(asdict(rules))}
                with transaction(db):
                    db.executemany("INSERT INTO facts VALUES (?, ?)", values.items())
                    _write_snapshot(db, ParameterServer(initial, rules))
        finally:
            sole.release()
        return cls(folder)

    # -- participants ------------------------------------------------------------------------------------------------

    def admit(self, name: str) -> None:
        """Take uploads from ``name``; one that was revoked stays so."""
        with transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO participants (name) VALUES (?)", (name,))

    def revoke(self, name: str) -> None:
        """Take nothing more from ``name``. A server that is running notices."""
        with transaction(self._db):
            done = self._db.execute("UPDATE participants SET revoked = 1 WHERE name = ?", (name,))
            if not done.rowcount:
                raise ValueError(f"{name!r} does not take part; there is nothing to revoke.")

    def revoke_certificate(self, serial: int) -> None:
        """Take nothing more under the certificate of this number. A running server notices.

        Its participant can go on with another certificate.
        """
        with transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO revoked_certificates VALUES (?)", (f"{serial:x}",))

    def revocations(self) -> Revocations:
        """Return a look-up of revoked certificates that does not wait for writers."""
        return Revocations(self._path)

    def people(self) -> dict[str, bool]:
        """Return everybody who was admitted, in that order, and whether they were revoked."""
        rows = self._db.execute("SELECT name, revoked FROM participants ORDER BY rowid")
        return {name: bool(revoked) for name, revoked in rows}

    def changes(self) -> int:
        """Return a number that is another one after another process has written."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def state(self, name: str, statement: str) -> None:
        """Keep what a participant says about its budget."""
        with transaction(self._db):
            self._db.execute("UPDATE participants SET statement = ? WHERE name = ?", (statement, name))

    def statements(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT name, statement FROM participants"))

    # -- uploads -----------------------------------------------------------------------------------------------------

    def commit(self, entries: Sequence[Entry]) -> None:
        """Write uploads down, all or none of them, in this order."""
        with transaction(self._db):
            last = self._db.execute("SELECT coalesce(max(number), 0) FROM uploads").fetchone()[0]
            numbered = list(enumerate(entries, last + 1))
            self._db.executemany(
                "INSERT INTO uploads VALUES (?, ?, ?, ?)",
                [(number, entry.participant, entry.sequence, entry.digest) for number, entry in numbered],
            )
            self._db.executemany(
                "INSERT INTO bodies VALUES (?, ?)",
                [(number, entry.body) for number, entry in numbered if len(entry.body) < _LONG],
            )
            for number, entry in numbered:
                if len(entry.body) >= _LONG:
                    self._db.execute("INSERT INTO bodies VALUES (?, zeroblob(?))", (number, len(entry.body)))
                    write_blob(self._db, "bodies", "body", number, [entry.body])
            self._db.executemany(
                "INSERT INTO rounds VALUES (?, ?)",
                [(name, entry.round_id) for entry in entries for name in entry.contributors],
            )

    def contributions(self) -> dict[str, int]:
        """In how many sums everybody is."""
        return dict(self._db.execute("SELECT participant, count(*) FROM rounds GROUP BY participant"))

    def finished(self, name: str, round_id: bytes) -> bool:
        """Return True if the sum of a round was committed with this participant's upload in it."""
        query = "SELECT 1 FROM rounds WHERE participant = ? AND id = ?"
        return self._db.execute(query, (name, round_id)).fetchone() is not None

    def digest(self, participant: str, sequence: int) -> bytes | None:
        """Return the digest of an upload that was committed."""
        row = self._db.execute(
            "SELECT digest FROM uploads WHERE participant = ? AND sequence = ?", (participant, sequence)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def snapshot(self, server: ParameterServer) -> None:
        """Keep the state, and forget what was in the uploads that led to it; those committed since stay."""
        with transaction(self._db):
            last = _write_snapshot(self._db, server)
            self._db.execute("DELETE FROM bodies WHERE number <= ?", (last,))

    def server(self) -> ParameterServer:
        """Return the state that all committed uploads lead to: the snapshot, and what came after it."""
        number, facts = self._db.execute("SELECT number, facts FROM snapshot").fetchone()
        arrays = {name: self._array(name) for name in ("parameters", "stat")}
        # A participant that was revoked since had uploads taken before: revoking comes last.
        server = ParameterServer.restore(arrays, {**json.loads(facts), "revoked": []}, self.rules)
        rows = self._db.execute(
            "SELECT number, participant, sequence, body FROM uploads LEFT JOIN bodies USING (number) WHERE number > ? "
            "ORDER BY number",
            (number,),
        )
        for found, participant, sequence, body in rows:
            if participant not in server.participants:
                server.admit(participant)
            number += 1
            if found != number or body is None:
                raise ValueError(f"upload {number} is missing; the state was tampered with or the disk is damaged.")
            _, indices, values = unpack_upload(body, size=self.agreement.size)
            server.push(participant, sequence, indices, values)
        return server

    def _array(self, name: str) -> Vector:
        """Return an array of the snapshot, put together from its pieces."""
        found = np.empty(self.agreement.size, dtype=np.float32)
        place = 0
        for (piece,) in self._db.execute("SELECT data FROM pieces WHERE name = ? ORDER BY place", (name,)):
            values = np.frombuffer(piece, dtype="<f4")
            found[place : place + values.size] = values
            place += values.size
        if place != found.size:
            raise ValueError(f"the snapshot has {place} of {found.size} {name}; the disk is damaged.")
        return found

    def close(self) -> None:
        try:
            self._db.close()
        except sqlite3.Error:
            raise ValueError("the server's state could not be closed; it is as of the last commit.") from None
        finally:
            if self._sole is not None:
                self._sole.release()


def _write_snapshot(db: sqlite3.Connection, server: ParameterServer) -> int:
    """Write a snapshot and return the number of the last upload in it: each was pushed once, the first is 1."""
    arrays, facts = server.snapshot()
    number = int(facts["pushes"])
    # In pieces: SQLite copies every value that it writes, and a large model would be in memory several times.
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, dtype="<f4")
        db.executemany(
            "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?)",
            ((name, place, plain[place : place + _PIECE].data) for place in range(0, plain.size, _PIECE)),
        )
    db.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", (number, json.dumps(facts, allow_nan=False)))
    return number
