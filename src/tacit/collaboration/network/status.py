"""The status page: what the server knows, for whoever runs it. Read only, and on this machine unless told otherwise.

What participants say about their budgets is shown as they said it: nothing here checks it.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from tacit.collaboration.network.judge import Judge
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.serving import is_loopback

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def facts(service: Service, judge: Judge | None, started: float) -> dict[str, Any]:
    """All that the page shows."""
    agreed, traffic = service.agreement, service.traffic
    uploads, _ = service.parameters()
    return {
        "collaboration": agreed.collaboration,
        "model": agreed.model,
        "parameters": agreed.parameters,
        "slice": [agreed.start, agreed.stop],
        "protocol": str(agreed.protocol),
        "pool": agreed.pool,
        "bound": agreed.bound,
        "upload": agreed.upload,
        "uploads": uploads,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "refused": traffic.refused,
        "seconds": time.time() - started,
        "now": time.time(),
        "participants": service.overview(),
        "accuracy": [] if judge is None else judge.history[-500:],
        "validation": None if judge is None else _validation(judge),
    }


def _validation(judge: Judge) -> dict[str, Any]:
    """What accuracy is measured on, and what it is worth."""
    return {"name": judge.name, "records": judge.records, "chance": judge.chance}


class StatusPage:
    """Serves the page and, for it, the facts as JSON. ``host`` is the loopback address unless one says otherwise."""

    def __init__(self, service: Service, judge: Judge | None, port: int, *, host: str = "127.0.0.1") -> None:
        page = files("tacit.collaboration.network").joinpath("status.html").read_bytes()
        started, local = time.time(), is_loopback(f"{host}:0")

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version = "tacit", ""

            def do_GET(self) -> None:
                # Another site's page, in a browser on this machine, must not read this under a name of its own.
                if local and not is_loopback(_with_port(self.headers.get("Host", ""))):
                    return self._answer(403, "text/plain", b"this page is for this machine\n")
                if self.path == "/":
                    return self._answer(200, "text/html; charset=utf-8", page)
                if self.path == "/status.json":
                    text = json.dumps(facts(service, judge, started), ensure_ascii=False)
                    return self._answer(200, "application/json", text.encode())
                return self._answer(404, "text/plain", b"there is / and /status.json\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", _POLICY)
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nobody needs a line for each look at the page."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self.address = f"http://{host}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdigit() else f"{host}:80"
