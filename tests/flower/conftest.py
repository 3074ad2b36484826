"""What the tests of Flower share; without flwr there is nothing to test."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed (pip install -c constraints-flower.txt ...)")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who the process is, which Flower sets before it runs an app; messages say so."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
