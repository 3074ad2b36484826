"""A participant's own state on disk: what it is about to send, byte for byte, and where it stands.

**Claim.** Whenever the process is killed, what the server may have seen of an upload is in the outbox and is sent
again as it is: noise is never drawn twice for one upload. And all of it is in the ledger.

**Why.** An upload is committed here, with ``synchronous=FULL``, before its first byte is sent, together with the number
of the next one. The ledger was written before the noise was drawn. If the process dies between the two, an upload was
paid for that nobody ever sees: the ledger says more than was released, never less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.collaboration.messages import Vector
from tacit.collaboration.network.database import Sole, connect, transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, steps INTEGER NOT NULL, parameters BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS uploads (
    sequence INTEGER NOT NULL, part INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB, PRIMARY KEY (sequence, part)
) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a participant stands: the number of its next upload, steps of training, its local parameters."""

    sequence: int
    steps: int
    parameters: Vector


@dataclass(frozen=True, kw_only=True)
class Letter:
    """An upload, or the part of it that goes to one of several servers, that was not acknowledged yet."""

    sequence: int
    part: int
    body: bytes


class Outbox:
    """The folder of one participant in one collaboration; one process at a time may use it."""

    def __init__(self, folder: Path, *, participant: str, collaboration: str) -> None:
        self._sole = Sole(folder)
        self._db = connect(folder / "participant.sqlite")
        with transaction(self._db):
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            for name, value in (("participant", participant), ("collaboration", collaboration)):
                self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        held = dict(self._db.execute("SELECT name, value FROM facts").fetchall())
        if held != {"participant": participant, "collaboration": collaboration}:
            self.close()
            raise ValueError(
                f"{folder} belongs to {held['participant']!r} in the collaboration {held['collaboration'][:12]}; this "
                f"is {participant!r} in {collaboration[:12]}. Choose another folder."
            )

    def position(self) -> Position | None:
        """Where the participant stood after its last upload; None before the first."""
        row = self._db.execute("SELECT sequence, steps, parameters FROM position").fetchone()
        if row is None:
            return None
        return Position(sequence=row[0], steps=row[1], parameters=np.frombuffer(row[2], dtype="<f4").copy())

    def put(self, bodies: Sequence[bytes], position: Position) -> None:
        """Keep an upload, in parts for each server, and the position after it; on the disk when this returns."""
        with transaction(self._db):
            for part, body in enumerate(bodies):
                digest = hashlib.sha256(body).digest()
                self._db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?)", (position.sequence - 1, part, digest, body))
            parameters = position.parameters.astype("<f4").tobytes()
            self._db.execute(
                "INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?)", (position.sequence, position.steps, parameters)
            )

    def unsent(self) -> list[Letter]:
        """What was not acknowledged, in order."""
        rows = self._db.execute("SELECT sequence, part, body FROM uploads WHERE body IS NOT NULL ORDER BY 1, 2")
        return [Letter(sequence=sequence, part=part, body=bytes(body)) for sequence, part, body in rows]

    def replace(self, letter: Letter, body: bytes) -> Letter:
        """Keep the same upload in another form, as masked ones need it when somebody has left: the values in it, and
        so the noise, must be those that were in it before.
        """
        with transaction(self._db):
            self._db.execute(
                "UPDATE uploads SET body = ?, digest = ? WHERE sequence = ? AND part = ?",
                (body, hashlib.sha256(body).digest(), letter.sequence, letter.part),
            )
        return Letter(sequence=letter.sequence, part=letter.part, body=body)

    def acknowledged(self, letter: Letter) -> None:
        """Forget what was in it; its digest stays."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE uploads SET body = NULL WHERE sequence = ? AND part = ?", (letter.sequence, letter.part)
            )

    def digests(self) -> dict[tuple[int, int], bytes]:
        """The SHA-256 of every upload, by sequence number and part."""
        return {
            (row[0], row[1]): bytes(row[2]) for row in self._db.execute("SELECT sequence, part, digest FROM uploads")
        }

    def close(self) -> None:
        self._db.close()
        self._sole.release()
