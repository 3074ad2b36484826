"""Read ε during training without slowing it down."""

from __future__ import annotations

import time

from tacit.training.open_run import OpenRun


class Odometer:
    """ε spent, read so seldom that accounting takes at most a twentieth of the time."""

    def __init__(self) -> None:
        self.step, self._rest = 0, 0.0

    @property
    def due(self) -> bool:
        """True if enough time has passed since the last reading."""
        return time.perf_counter() >= self._rest

    def read(self, run: OpenRun) -> float:
        """Return ε of everything in the run's ledger, at the budget's δ (1e-5 without a budget)."""
        start = time.perf_counter()
        epsilon = run.guarantee(run.budget.delta if run.budget else 1e-5).epsilon
        end = time.perf_counter()
        self.step, self._rest = run.step, end + 19 * (end - start)
        return epsilon
