"""A server for the fault test: kills itself between commit and acknowledgement whenever the file ``die`` exists.

Arguments: the folder of its state, the folder of the keys, the port.
"""

from __future__ import annotations

import os
import signal
import sys
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


def main() -> None:
    state, keys, port = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    store = MortalStore(state)
    store.folder = state
    service = Service(store, lease=5.0, patience=2.0, snapshot_every=7)
    GrpcServer(service, f"127.0.0.1:{port}", Credentials.read(keys, "server")).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
