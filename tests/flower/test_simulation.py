"""Flower's own simulation, its queues, states and grid, with ClientApps in threads where it would start Ray.

Flower offers no other way: its simulation loads a backend called RayBackend whatever it is told. Ray is not installed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.simulation import run_simulation

from flower.helpers import network, records
from flower.test_exchange import SETTINGS
from tacit.collaboration import FlatParameters
from tacit.collaboration.network import Store
from tacit.flower import Averager, Averaging, Host, Member, averaging_app, participant_app, server_app, update_app
from tacit.ledger import Budget, Ledger


class Threads(Backend):
    """Runs a ClientApp where it is asked to, one at a time."""

    num_workers = 2

    def __init__(self, backend_config: Any) -> None:
        self._lock = threading.Lock()

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None: ...

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        with self._lock:
            return self._app(message, context), context


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("raybackend")
    module.RayBackend = Threads  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr.server.superlink.fleet.vce.backend.raybackend", module)


def test_an_exchange_in_the_simulation(tmp_path: Path) -> None:
    def prepare(context: Context) -> Member:
        number = int(context.node_config["partition-id"])
        inputs, labels = records(number)
        folder = tmp_path / str(number)
        return Member(
            network=network, inputs=inputs, labels=labels, settings=replace(SETTINGS, seed=None), folder=folder
        )

    def host(context: Context) -> Host:
        return Host(network=network, folder=tmp_path / "server", participants=3, bound=0.05, upload=0.2, pause=0.05)

    run_simulation(server_app(host), participant_app(prepare), num_supernodes=3, backend_name="threads")
    store = Store(tmp_path / "server")
    server = store.server()
    store.close()
    assert sorted(server.participants.values()) == [3, 3, 3]
    assert not np.array_equal(server.parameters, FlatParameters(network()).vector)
    for number in range(3):
        assert len(Ledger.load(tmp_path / str(number) / "ledger.jsonl")) == 3


def test_averaging_in_the_simulation(tmp_path: Path) -> None:
    settings = Averaging(
        network=network,
        folder=tmp_path,
        population=3,
        lot_size=3,
        clip_norm=0.5,
        rounds=3,
        budget=Budget(1e6, 1e-5),
        noise_multiplier=0.05,
        learning_rate=1.0,
        least=3,
        pause=0.05,
    )

    def train(model: Any, context: Context) -> None:
        FlatParameters(model).vector[:] += 0.01  # everybody the same way

    run_simulation(averaging_app(lambda context: settings), update_app(network, train), 3, backend_name="threads")
    with Averager(settings) as averager:
        assert averager.rounds == 3
        moved = averager.parameters - FlatParameters(network()).vector
    assert abs(moved.mean() - 0.03) < 0.01  # three rounds of 0.01, and noise
