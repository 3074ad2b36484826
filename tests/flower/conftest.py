"""What the tests of Flower share."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
collect_ignore = [] if importlib.util.find_spec("flwr") else ["helpers.py", "federation.py"]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who the process is, which Flower sets before it runs an app; messages say so."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
