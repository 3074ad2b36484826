"""A receipt as the ledger gives it: the recorded events, each handed out once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tacit.ledger.events import Query, Sampling, Step


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
        if group not in self._queries:
            raise RuntimeError(f"group {group!r} is not recorded in this step, or was released before.")
        return self._queries.pop(group)


@pytest.fixture
def record() -> Callable[..., Receipt]:
    """Records a step: ``record(sampling, *queries)``."""

    def write(sampling: Sampling, *queries: Query) -> Receipt:
        return Receipt(Step(sampling, queries))

    return write
