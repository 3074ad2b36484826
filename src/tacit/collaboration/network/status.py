"""The status port: a page, its facts as JSON, health for an orchestrator and metrics for Prometheus. Read only.

It is on this machine unless told otherwise. One thread serves all connections: a slow one holds a socket until its time
is over, and no thread. What participants say about their budgets is shown as they said it: nothing here checks it.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tacit.collaboration.network.judge import Judge
from tacit.collaboration.network.metrics import facts, prometheus
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.serving import is_loopback

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_LONGEST_HEAD = 8192
_SECONDS = 10.0  # from the first to the last byte of a question, and for its answer
_CONNECTIONS = 256
_STATUS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not "
           "Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the status port is, and who may read it.

    ``password`` ("user:password") is asked for by basic authentication. ``keys`` is a folder with the server's
    certificate: the port then speaks TLS, and without a password a certificate of the same authority must be shown.
    All who can connect may read health (/healthz, /readyz).
    """

    port: int
    host: str = "127.0.0.1"
    password: str | None = None
    keys: Path | None = None

    def __post_init__(self) -> None:
        if self.password is not None and not all(self.password.partition(":")):
            raise ValueError("the status password has no name; write one line, user:password, to its file.")
        if self.password is not None and self.keys is None and not is_loopback(f"{self.host}:0"):
            raise ValueError(
                f"the status page on {self.host} would ask for its password without encryption; say --status-tls, or "
                "put a proxy with TLS in front of a loopback address."
            )

    def context(self) -> ssl.SSLContext | None:
        """Return how to speak TLS, if it is to be spoken."""
        if self.keys is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.keys / "server.pem", self.keys / "server.key")
        if self.password is None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.keys / "ca.pem")
        return context


@dataclass(frozen=True, kw_only=True)
class _Answer:
    status: int
    kind: str
    body: bytes
    challenge: bool = False


class StatusPage:
    """Serves the status port on a thread of its own."""

    def __init__(self, service: Service, judge: Judge | None, access: Access) -> None:
        self._service, self._judge, self._access, self._started = service, judge, access, time.time()
        self._page = files("tacit.collaboration.network").joinpath("status.html").read_bytes()
        self._local = is_loopback(f"{access.host}:0")
        self._open = 0
        self._loop = asyncio.new_event_loop()
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(
                    self._connected, access.host, access.port, ssl=access.context(), limit=_LONGEST_HEAD, backlog=128
                )
            )
        except OSError as error:
            self._loop.close()
            raise ValueError(f"cannot show the status on {access.host}:{access.port}: {error.strerror}.") from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.address = f"http{'s' if access.keys else ''}://{access.host}:{self.port}/"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                async with asyncio.timeout(_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = await asyncio.to_thread(self._answer, head.decode("latin-1"))
                    writer.write(_packed(answer))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.transport.abort()  # a reader that is too slow, says too much or has gone
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: str) -> _Answer:
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if method != "GET":
            return _text(405, "only GET is answered")
        # Another site's page, in a browser on this machine, must not read this under a name of its own.
        if self._local and not is_loopback(_with_port(fields.get("host", ""))):
            return _text(403, "this page is for this machine")
        if path == "/healthz":
            return _text(200, "ok")
        if path == "/readyz":
            why = self._service.unready
            return _text(200, "ready") if why is None else _text(503, why)
        if not self._may_read(fields.get("authorization", "")):
            return _Answer(status=401, kind="text/plain", body=b"a name and a password are needed\n", challenge=True)
        pages: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/": lambda: ("text/html; charset=utf-8", self._page),
            "/status.json": lambda: ("application/json", self._json()),
            "/metrics": lambda: ("text/plain; version=0.0.4; charset=utf-8", self._metrics()),
        }
        if path not in pages:
            return _text(404, f"there is {', '.join(pages)}, /healthz and /readyz")
        try:
            kind, body = pages[path]()
        except Exception as error:  # a page that fails must not take the others with it
            return _text(500, f"the state cannot be read: {error}")
        return _Answer(status=200, kind=kind, body=body)

    def _may_read(self, shown: str) -> bool:
        if self._access.password is None:
            return True
        wanted = "Basic " + base64.b64encode(self._access.password.encode()).decode()
        return hmac.compare_digest(wanted.encode(), shown.encode())

    def _json(self) -> bytes:
        return json.dumps(facts(self._service, self._judge, self._started), ensure_ascii=False).encode()

    def _metrics(self) -> bytes:
        return prometheus(self._service, self._judge, self._started).encode()


def _text(status: int, text: str) -> _Answer:
    return _Answer(status=status, kind="text/plain; charset=utf-8", body=f"{text}\n".encode())


def _packed(answer: _Answer) -> bytes:
    head = [
        f"HTTP/1.1 {answer.status} {_STATUS[answer.status]}",
        "Server: tacit",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        f"Content-Security-Policy: {_POLICY}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.challenge:
        head.append('WWW-Authenticate: Basic realm="tacit", charset="UTF-8"')
    return "\r\n".join([*head, "", ""]).encode() + answer.body


def _with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdigit() else f"{host}:80"
