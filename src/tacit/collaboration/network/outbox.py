"""A participant's own state on disk: what it is about to send, byte for byte, and where it stands.

**Claim.** Whenever the process is killed, what the server may have seen of an upload is in the outbox and is sent
again as it is: noise is never drawn twice for one upload. And all of it is in the ledger.

**Why.** An upload is committed here, with ``synchronous=FULL``, before its first byte is sent, together with the number
of the next one. The ledger was written before the noise was drawn. If the process dies between the two, an upload was
paid for and never sent: the ledger says more than was released, never less.

The folder also remembers what must not change between two starts: who takes part in what under which agreement, how
uploads are protected, how many steps the ledger had, and which rounds of masked uploads were answered.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.collaboration.messages import Vector
from tacit.collaboration.network.codec import Piece
from tacit.collaboration.network.database import Sole, StorageFailed, connect, read_blob, transaction, write_blob

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, steps INTEGER NOT NULL, parameters BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS uploads (
    sequence INTEGER NOT NULL, part INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB, PRIMARY KEY (sequence, part)
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (id BLOB PRIMARY KEY) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a participant stands: the number of its next upload, steps of training, its local parameters.

    ``charged`` is how many steps its ledger had; it cannot have fewer later.
    """

    sequence: int
    steps: int
    parameters: Vector
    charged: int = 0


@dataclass(frozen=True, kw_only=True)
class Letter:
    """An upload, or the part of it that goes to one of several servers, that was not acknowledged yet."""

    sequence: int
    part: int
    digest: bytes


class Outbox:
    """The folder of one participant in one collaboration; one process at a time may use it."""

    def __init__(self, folder: Path, *, participant: str, collaboration: str) -> None:
        self.folder, self._sole = folder, Sole(folder)
        try:
            self._db = connect(folder / "participant.sqlite")
        except ValueError:
            self._sole.release()
            raise
        try:
            with transaction(self._db):
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
            person, group = self.remember("participant", participant), self.remember("collaboration", collaboration)
            if (person, group) != (participant, collaboration):
                raise ValueError(
                    f"{folder} belongs to {person!r} in the collaboration {group[:12]}; this is {participant!r} in "
                    f"{collaboration[:12]}. Another folder has a ledger of its own, and what the two cost the same "
                    "records adds up: for one ledger of both, give the other folder this one's (--ledger)."
                )
        except sqlite3.Error as error:
            self.close()
            raise ValueError(f"{folder / 'participant.sqlite'} cannot be used: {error}.") from error
        except (ValueError, StorageFailed):
            self.close()
            raise

    def remember(self, name: str, value: str) -> str:
        """Return what the folder was told of ``name`` first: ``value``, unless it is something else."""
        with transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        return self.fact(name) or ""

    def settle(self, facts: Mapping[str, str]) -> None:
        """Remember these from now on, whatever was said before."""
        with transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def position(self) -> Position | None:
        """Where the participant stood after its last upload; None before the first."""
        row = self._db.execute("SELECT sequence, steps FROM position").fetchone()
        if row is None:
            return None
        with self._db.blobopen("position", "parameters", 1, readonly=True) as blob:
            parameters = np.empty(len(blob) // 4, dtype=np.float32)
            read_blob(blob, parameters.data.cast("B"))
        return Position(sequence=row[0], steps=row[1], parameters=parameters, charged=self.charged)

    @property
    def charged(self) -> int:
        """Return how many steps the ledger is known to have had."""
        return int(self.fact("charged") or 0)

    def note_charged(self, steps: int) -> None:
        """The ledger has ``steps`` steps."""
        with transaction(self._db):
            self._note_charged(steps)

    def _note_charged(self, steps: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES ('charged', ?)", (str(max(steps, self.charged)),))

    def put(self, bodies: Sequence[Sequence[Piece]], position: Position, *, round_id: bytes | None = None) -> None:
        """Keep an upload, a body in pieces for each server, and the position after it; on the disk when this returns.

        ``round_id`` is the round that is answered with it, if it is masked: no other upload will answer that. A large
        model's upload is never in memory a second time: SQLite would copy a value twice, and a blob it writes through.
        """
        with transaction(self._db):
            self._note_charged(position.charged)
            if round_id is not None:
                self._db.execute("INSERT INTO rounds VALUES (?)", (round_id,))
            for part, body in enumerate(bodies):
                length, digest = sum(map(len, body)), hashlib.sha256()
                for piece in body:
                    digest.update(piece)
                row = self._db.execute(
                    "INSERT INTO uploads VALUES (?, ?, ?, zeroblob(?))",
                    (position.sequence - 1, part, digest.digest(), length),
                ).lastrowid
                write_blob(self._db, "uploads", "body", row or 0, body)
            parameters = position.parameters.astype("<f4", copy=False)
            self._db.execute(
                "INSERT OR REPLACE INTO position VALUES (1, ?, ?, zeroblob(?))",
                (position.sequence, position.steps, parameters.nbytes),
            )
            write_blob(self._db, "position", "parameters", 1, [parameters.data.cast("B")])

    def unsent(self) -> list[Letter]:
        """Return what was not acknowledged, in order."""
        rows = self._db.execute("SELECT sequence, part, digest FROM uploads WHERE body IS NOT NULL ORDER BY 1, 2")
        return [Letter(sequence=sequence, part=part, digest=bytes(digest)) for sequence, part, digest in rows]

    def body(self, letter: Letter) -> bytes:
        """Return the bytes to send, or raise ValueError if the disk has changed them."""
        row = self._db.execute(
            "SELECT rowid FROM uploads WHERE sequence = ? AND part = ?", (letter.sequence, letter.part)
        ).fetchone()[0]
        with self._db.blobopen("uploads", "body", row, readonly=True) as blob:
            body = blob.read()
        if hashlib.sha256(body).digest() != letter.digest:
            raise ValueError(
                f"upload {letter.sequence} in {self.folder} is damaged and was not sent; put back a copy of the folder "
                "from after it was made."
            )
        return body

    def answered(self, round_id: bytes) -> bool:
        """Return True if the round had its answer: an upload, or none for good."""
        return self._db.execute("SELECT 1 FROM rounds WHERE id = ?", (round_id,)).fetchone() is not None

    def answer(self, round_id: bytes) -> None:
        """No upload will be made for the round any more."""
        with transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO rounds VALUES (?)", (round_id,))

    @property
    def foreign(self) -> int:
        """Return how many uploads under this name another key holder made."""
        return int(self.fact("foreign") or 0)

    def renumber(self, letters: Sequence[Letter], bodies: Sequence[bytes], *, first: int, skipped: int) -> None:
        """Skip numbers that another key holder has used; ``letters`` become ``bodies``, numbered from ``first``."""
        with transaction(self._db):
            pairs = list(enumerate(zip(letters, bodies, strict=True), first))
            for number, (letter, body) in reversed(pairs):
                self._db.execute(
                    "UPDATE uploads SET sequence = ?, body = ?, digest = ? WHERE sequence = ? AND part = ?",
                    (number, body, hashlib.sha256(body).digest(), letter.sequence, letter.part),
                )
            self._db.execute("UPDATE position SET sequence = sequence + ?", (skipped,))
            self._db.execute("INSERT OR REPLACE INTO facts VALUES ('foreign', ?)", (str(self.foreign + skipped),))

    def acknowledged(self, letter: Letter) -> None:
        """Forget what was in it; its digest stays."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE uploads SET body = NULL WHERE sequence = ? AND part = ?", (letter.sequence, letter.part)
            )

    def digests(self) -> dict[tuple[int, int], bytes]:
        """Return the SHA-256 of every upload, by sequence number and part."""
        return {
            (row[0], row[1]): bytes(row[2]) for row in self._db.execute("SELECT sequence, part, digest FROM uploads")
        }

    def close(self) -> None:
        self._db.close()
        self._sole.release()
