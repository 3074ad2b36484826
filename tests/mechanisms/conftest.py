"""A receipt as the ledger gives it: the recorded events, each handed out once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tacit.ledger.events import Query, Sampling, Step

settings.register_profile("tacit", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("tacit")


class Receipt:
    def __init__(self, step: Step) -> None:
        self.step = step
        self._queries = {query.group: query for query in step.queries}
        self._drawn = False

    def draw(self) -> Sampling:
        if self._drawn:
            raise RuntimeError("the sample of this step was already drawn.")
        self._drawn = True
        return self.step.sampling

    def spend(self, group: str) -> Query:
        if group in self._queries:
            return self._queries.pop(group)
        if any(query.group == group for query in self.step.queries):
            raise RuntimeError(f"group {group!r} of this step was already released.")
        raise ValueError(f"group is {group!r}; it is not in the recorded step.")


@pytest.fixture
def record() -> Callable[..., Receipt]:
    """Records a step: ``record(sampling, *queries)``."""

    def write(sampling: Sampling, *queries: Query) -> Receipt:
        return Receipt(Step(sampling, queries))

    return write
