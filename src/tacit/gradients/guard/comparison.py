"""When a training loop's batches are compared with parts of themselves, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from tacit.gradients.guard.model_copies import NotCompared
from tacit.gradients.guard.run_in_parts import INFLUENCE, FailedOnPart, is_influenced
from tacit.gradients.problems import refuse
from tacit.gradients.recording import Recording

log = logging.getLogger(__name__)

FEWEST = 4
"""Examples of a batch that is compared with its halves: an example alone may have an unexpected shape."""


MOST = 16
"""Sequences of operations that are compared: layers that are left out by chance have many."""


class Comparison:
    """A check that examples do not influence each other where no operation shows it.

    On the first batch it fits, and again on the first whose pass is made of other operations: what a model begins to do
    in a later batch is found in that batch.
    """

    def __init__(self, recorder: Recording, *, wanted: bool) -> None:
        self._recorder, self._wanted = recorder, wanted
        self._compared = set[Sequence[Any]]()
        self._last: Sequence[Any] | None = None
        """The operations of the last pass, if they were compared: most passes are as the one before."""
        self._found: bool | NotCompared | FailedOnPart | None = None

    def begin(self, args: Any, kwargs: Any) -> None:
        """Before the model runs on these arguments: what its code keeps somewhere is then of the batch itself."""
        self._found = None
        if not self._wanted or (self._recorder.batch or 0) < FEWEST or self._recorder.sharded:
            return
        try:
            self._found = is_influenced(self._recorder, args, kwargs)
        except (NotCompared, FailedOnPart) as error:
            self._found = error

    def is_new(self, operations: Sequence[Any]) -> bool:
        """Return whether a pass did something else than those that were compared, and is to be compared as well."""
        if not self._wanted and operations == self._last:
            return False
        fits = (self._recorder.batch or 0) >= FEWEST and 0 < len(self._compared) < MOST
        self._last = operations if operations in self._compared else None
        self._wanted = self._wanted or (fits and self._last is None)
        return self._wanted and fits

    def conclude(self, operations: Sequence[Any]) -> None:
        """After it ran, and what operations show was found to be right, which would say more."""
        found, self._found = self._found, None
        if found is None:
            return
        if isinstance(found, FailedOnPart):
            raise found
        refuse([INFLUENCE] if found is True else [])
        self._wanted = False
        if found is False:
            self._compared.add(operations)
        else:
            self._compared.clear()  # nor will another batch be
            log.warning(
                "the model's outputs for a batch were not compared with those for parts of it (%s): examples "
                "that influence each other through the batch's size or a place in it are not found in this way; check "
                "that the model computes each example's output from that example alone",
                found,
            )
