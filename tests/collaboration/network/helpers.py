"""A small agreement, and a server's state that begins with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.collaboration.network import Agreement, GrpcServer, Service, Store
from tacit.collaboration.network.store import rules_for

PEOPLE = ("ann", "bob", "carl")
SIZE = 40


def agreement(**changes: Any) -> Agreement:
    facts: dict[str, Any] = {
        "collaboration": "c" * 32,
        "model": "mlp",
        "layout": "l" * 64,
        "parameters": SIZE,
        "start": 0,
        "stop": SIZE,
        "bound": 0.5,
        "upload": 0.5,
        "protocol": "asynchronous",
        "pool": 0,
        "mean": (0.0,),
        "std": (1.0,),
    }
    return Agreement(**(facts | changes))


def begin(folder: Path, agreed: Agreement, people: Sequence[str] = PEOPLE, initial: np.ndarray | None = None) -> Store:
    start = np.zeros(agreed.size, dtype=np.float32) if initial is None else initial
    store = Store.create(folder, agreed, start, rules_for(agreed, participants=len(people)))
    for name in people:
        store.admit(name)
    return store


@dataclass
class Place:
    """A server that runs in this process."""

    service: Service
    server: GrpcServer
    address: str


class Killed(BaseException):
    """A participant's process is gone."""
