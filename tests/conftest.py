"""What the tests share."""

from __future__ import annotations

import gc
import logging
import os
import secrets
from collections.abc import Callable

import pytest
from hypothesis import settings

from tacit.ledger import Header, Ledger, Query, Receipt, Sampling, Step

# How long an example takes says nothing on a busy machine. The fast run tries the same examples every time, so that a
# change that is green stays green; `make test-all` (TACIT_EXPLORE=1) tries others each time.
settings.register_profile("tacit", deadline=None, derandomize="TACIT_EXPLORE" not in os.environ)
settings.load_profile("tacit")


def pytest_collection_finish() -> None:
    """Set the objects of imported libraries apart: the collector need not walk through them in each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _budgets_of_their_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a test are not added up with those of others, nor with the user's."""
    monkeypatch.setenv("TACIT_STATE", str(tmp_path_factory.getbasetemp() / "state" / secrets.token_hex(4)))


@pytest.fixture
def record() -> Callable[..., Receipt]:
    """Records a step in a ledger of its own: ``record(sampling, *queries)``."""

    def write(sampling: Sampling, *queries: Query) -> Receipt:
        return Ledger(Header(unit=sampling.unit)).record(Step(sampling, queries))

    return write


@pytest.fixture(autouse=True)
def _logs_as_python_begins() -> None:
    """Undo what a test before this one, or a library that it loaded, did to the loggers of this process."""
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    logging.root.disabled = False
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "tacit" and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
