"""A server with everything beside it: the judge of its model, the status page."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.judge import Judge
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.serving import GrpcServer
from tacit.collaboration.network.status import StatusPage


class Server:
    """A parameter server that listens, until `stop`; also a context manager.

    ``address`` is where participants reach it, ``status`` the address of its status page, if there is one.
    """

    def __init__(
        self,
        service: Service,
        listen: str,
        credentials: Credentials | None,
        *,
        judge: Judge | None = None,
        page: StatusPage | None = None,
    ) -> None:
        self.service, self.judge, self._page = service, judge, page
        self._grpc = GrpcServer(service, listen, credentials)
        self.address = f"{listen.rpartition(':')[0]}:{self._grpc.port}"
        self.status = None if page is None else page.address
        self._ended = threading.Event()
        for part in self._parts():
            part.start()

    def _parts(self) -> Sequence[Any]:
        return [part for part in (self._grpc, self.judge, self._page) if part is not None]

    @property
    def agreement(self) -> Agreement:
        """Return what everybody has agreed on."""
        return self.service.agreement

    def accuracy(self) -> float | None:
        """Return the accuracy of the global model on the public records, if there are any."""
        return None if self.judge is None else self.judge.look()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `end` is called, at most ``timeout`` seconds; return True if it was."""
        return self._ended.wait(timeout)

    def end(self) -> None:
        """Let `wait` return; any thread or signal handler may call it."""
        self._ended.set()

    def stop(self) -> None:
        """Answer what was begun, take nothing more, write a snapshot."""
        self._ended.set()
        self.service.retire()
        for part in reversed(self._parts()):
            part.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
