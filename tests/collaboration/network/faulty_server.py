"""A server for the fault test: kills itself between commit and acknowledgement whenever the file ``die`` exists."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tacit.collaboration.network import Credentials, GrpcServer, Service, Store
from tacit.collaboration.network.store import Entry


class MortalStore(Store):
    folder: Path

    def commit(self, entries: Sequence[Entry]) -> None:
        super().commit(entries)
        if (self.folder / "die").exists():
            (self.folder / "die").rename(self.folder / f"died-{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)


def run(state: Path, keys: Path, port: int, log: Path) -> None:
    """Until killed."""
    speak_to(log)
    store = MortalStore(state)
    store.folder = state
    service = Service(store, lease=5.0, patience=2.0, snapshot_every=7)
    GrpcServer(service, f"127.0.0.1:{port}", Credentials.read(keys, "server")).start()
    threading.Event().wait()


def speak_to(log: Path) -> None:
    """What is printed, tracebacks above all, goes to a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
