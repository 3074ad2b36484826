"""The parts of a run that loops, checkpoints and the agreement of several processes use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from tacit.accounting import Guarantee
from tacit.ledger import AdaptiveBudget, Budget, Ledger, Step
from tacit.mechanisms import Clipping
from tacit.sampling import Sampler, UserSampler
from tacit.training.run_settings import RunSettings
from tacit.training.team import Team


class OpenRun(Protocol):
    """A run that is not closed (`tacit.training.run.PrivateRun`)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    sampler: Sampler | UserSampler
    settings: RunSettings
    ledger: Ledger
    budget: Budget | AdaptiveBudget | None
    accountant: str
    team: Team
    step: int
    metrics: dict[str, float]

    @property
    def steps(self) -> int:
        """The number of planned steps."""

    @property
    def contributions(self) -> int:
        """The largest number of examples that a record can bring to a lot."""

    def begin_loop(self, loop: Any) -> None:
        """Note the loop that goes on with the run."""

    def lot(self) -> Iterator[Any]:
        """Yield the batches of one lot."""

    def following_lot(self) -> Iterator[Any]:
        """Yield the batches of the next lot, if no other code ran since the last one ended."""

    def next_step(self) -> Step:
        """Return the step that will be recorded for the next lot."""

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return the guarantee of everything in the ledger so far."""

    def clipping(self) -> Clipping:
        """Return how the next lot is clipped."""

    def between_steps(self, *, saving: bool = False) -> None:
        """Raise an error in the middle of a lot."""

    def clipping_state(self) -> dict[str, Any]:
        """Return the state of adaptive clipping."""

    def renew_randomness(self) -> None:
        """Move a seeded source past the draws of the steps in the ledger."""
