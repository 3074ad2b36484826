"""What the tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tacit.ledger import Header, Ledger, Query, Receipt, Sampling, Step

settings.register_profile("tacit", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("tacit")


@pytest.fixture
def record() -> Callable[..., Receipt]:
    """Records a step in a ledger of its own: ``record(sampling, *queries)``."""

    def write(sampling: Sampling, *queries: Query) -> Receipt:
        return Ledger(Header(unit=sampling.unit)).record(Step(sampling, queries))

    return write
