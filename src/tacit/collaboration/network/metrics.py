"""Facts for watching a server: those of its status page, and the same as Prometheus metrics."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from tacit.collaboration.network.judge import Judge
from tacit.collaboration.network.service import Service

_SHOWN = 500  # points of the curve


def facts(service: Service, judge: Judge | None, started: float) -> dict[str, Any]:
    """Return all that the page shows."""
    agreed, traffic = service.agreement, service.traffic
    return {
        "collaboration": agreed.collaboration,
        "model": agreed.model,
        "parameters": agreed.parameters,
        "slice": [agreed.start, agreed.stop],
        "protocol": str(agreed.protocol),
        "pool": agreed.pool,
        "bound": agreed.bound,
        "upload": agreed.upload,
        "mechanism": agreed.mechanism,
        "epsilon": agreed.epsilon,
        "delta": agreed.delta,
        "unready": service.unready,
        "uploads": service.uploads(),
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "refused": traffic.refused,
        "seconds": time.time() - started,
        "now": time.time(),
        "participants": service.overview(),
        "accuracy": [] if judge is None else judge.history[-_SHOWN:],
        "validation": None if judge is None else _validation(judge),
    }


def _validation(judge: Judge) -> dict[str, Any]:
    """Return what accuracy is measured on, and what it is worth."""
    return {"name": judge.name, "records": judge.records, "chance": judge.chance}


def prometheus(service: Service, judge: Judge | None, started: float) -> str:
    """Return the same in Prometheus' text format; facts in memory even if the disk fails."""
    return "".join(_lines(service, judge, started))


def _lines(service: Service, judge: Judge | None, started: float) -> Iterator[str]:
    traffic = service.traffic
    try:
        people, readable = service.overview(), True
    except sqlite3.Error:
        people, readable = [], False
    yield _metric("ready", "gauge", "1 while uploads are taken.", int(service.unready is None))
    healthy = readable and service.storage_failure is None
    yield _metric("storage_ok", "gauge", "0 once the state could not be written or read.", int(healthy))
    yield _metric("uploads_total", "counter", "Uploads that were applied.", service.uploads())
    yield _metric("received_bytes_total", "counter", "Bytes of uploads since the start.", traffic.up)
    yield _metric("sent_bytes_total", "counter", "Bytes of downloads since the start.", traffic.down)
    yield _metric("refused_total", "counter", "Calls refused since the start.", traffic.refused)
    yield _metric("start_time_seconds", "gauge", "When the process began, in Unix time.", f"{started:.3f}")
    yield _metric("parameters", "gauge", "Parameters of the model that this server owns.", service.agreement.size)
    if judge is not None and judge.history:
        yield _metric("accuracy", "gauge", "On the public records.", judge.history[-1][1])
        yield _metric("accuracy_chance", "gauge", "Of always answering their commonest class.", judge.chance)
    for name, kind, text, key in (
        ("participant_uploads_total", "counter", "Uploads of a participant that were applied.", "uploads"),
        ("participant_last_upload_seconds", "gauge", "When it uploaded last, in Unix time.", "last"),
        ("participant_certificate_expires_seconds", "gauge", "When its certificate expires, in Unix time.", "expires"),
        ("participant_revoked", "gauge", "1 for a participant that was revoked.", "revoked"),
    ):
        known = [(person["name"], person[key]) for person in people if person[key] is not None]
        if known:
            yield f"# HELP tacit_{name} {text}\n# TYPE tacit_{name} {kind}\n"
            for who, value in known:
                yield f'tacit_{name}{{participant="{_escaped(str(who))}"}} {_number(value)}\n'


def _metric(name: str, kind: str, text: str, value: object) -> str:
    return f"# HELP tacit_{name} {text}\n# TYPE tacit_{name} {kind}\ntacit_{name} {value}\n"


def _number(value: object) -> str:
    return str(int(value)) if isinstance(value, bool | int) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
