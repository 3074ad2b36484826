"""The parameter server with its store, where uploads are before they are applied. Callers hold the service's lock."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress

from tacit.collaboration.network.database import Busy, StorageFailed
from tacit.collaboration.network.pool import NAME as POOL
from tacit.collaboration.network.store import Entry, Store
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.server import Checked, ParameterServer

log = logging.getLogger("tacit")

_SNAPSHOT_BYTES = 32 << 20  # the pages of uploads before it are used again, and not copied from the log as well
_SNAPSHOT_TIMES = 4  # the size of a snapshot itself: writing it is then a fifth of all that is written


class State:
    """``people`` says of everybody who was admitted whether they were revoked since.

    ``snapshot_every`` uploads (or so many that four snapshots are as long, at least 32 MiB) the whole state is
    written, so that a restart is quick.
    """

    def __init__(self, store: Store, *, snapshot_every: int) -> None:
        self.store, self._every = store, snapshot_every
        self.agreement = store.agreement
        self.server: ParameterServer = store.server()
        self.people: dict[str, bool] = {}
        self._since_snapshot = self._bytes_since = 0
        self._enough = max(_SNAPSHOT_BYTES, _SNAPSHOT_TIMES * 8 * self.agreement.size)
        self._changes = -1
        self._failed: str | None = None
        self.refresh()

    @property
    def failure(self) -> str | None:
        """Why the disk takes nothing more, or None."""
        return self._failed

    @property
    def uploads(self) -> int:
        """Return how many uploads were applied."""
        return sum(self.server.participants.values())

    def due(self, name: str) -> int:
        """Return the number of the next upload; of masked ones, in how many finished rounds one was."""
        return self.store.contributions().get(name, 0) if self.agreement.pool else self.server.next_sequence(name)

    def commit(self, taken: Sequence[tuple[Entry, Checked]]) -> None:
        """Write uploads to the disk, all or none, and then apply them."""
        self.guarded(lambda: self.store.commit([entry for entry, _ in taken]))
        for _, checked in taken:
            self.server.apply(checked)
        self._since_snapshot += len(taken)
        self._bytes_since += sum(len(entry.body) for entry, _ in taken)
        if self._since_snapshot >= self._every or self._bytes_since >= self._enough:
            with suppress(Refused):  # logged; the uploads themselves are safe
                self.guarded(lambda: self.store.snapshot(self.server))
            self._since_snapshot = self._bytes_since = 0

    def guarded(self, write: Callable[[], None]) -> None:
        """Write to the disk. After a failure its contents are uncertain: nothing more is taken until a restart."""
        if self._failed is None:
            try:
                return write()
            except Busy:
                raise Refused(Reason.WAIT, "another program has locked the server's state; try again later.") from None
            except (sqlite3.Error, StorageFailed) as error:
                self._failed = "its disk is full" if "is full" in str(error) else "its disk fails"
                log.error("the server's state cannot be written: %s; restart it when that is mended", error)
        self.check_storage()

    def check_storage(self) -> None:
        """Refuse if the disk has failed, before a participant trains or waits for an upload that is not taken."""
        if self._failed is not None:
            raise Refused(
                Reason.UNAVAILABLE,
                f"the server cannot write its state ({self._failed}); it must be mended and restarted. Join again "
                "then.",
            )

    def refresh(self) -> None:
        """Notice who was admitted or revoked by another process."""
        changes = self.store.changes()
        if changes == self._changes:
            return
        self._changes, self.people = changes, self.store.people()
        if self.agreement.pool:
            if POOL not in self.server.participants:
                self.server.admit(POOL)
            return
        for name, revoked in self.people.items():
            if name not in self.server.participants:
                self.server.admit(name)
            if revoked and name not in self.server.revoked:
                log.warning("%s was revoked", name)
                self.server.revoke(name)

    def check_person(self, name: str) -> None:
        """Refuse a name that is not admitted, or is revoked, at this moment."""
        self.refresh()
        self.check_known(name)

    def check_known(self, name: str) -> None:
        """Refuse a name that was not admitted, or was revoked, at the last look."""
        if name not in self.people:
            raise Refused(
                Reason.UNKNOWN,
                f"participant {name[:80]!r} is not known; ask the operator to admit it (tacit collaborate admit "
                f"{name[:80]} --state FOLDER), then give the same command.",
            )
        if self.people[name]:
            raise Refused(Reason.REVOKED, f"participant {name!r} was revoked; nothing more is taken from it.")

    def admit(self, name: str) -> None:
        self.store.admit(name)
        self._changes = -1
        self.refresh()

    def close(self) -> None:
        """Write a snapshot and let go of the store."""
        if self._failed is None:
            self.guarded(lambda: self.store.snapshot(self.server))
        self.store.close()
