"""The settings of a run, step by step, fixed before the first release."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar, Union

from tacit.gradients.precision import LARGEST_BATCH
from tacit.mechanisms import Allocation, Strategy

T = TypeVar("T")
Schedule: TypeAlias = Union[T, Callable[[int], T]]  # noqa: UP007
"""A value for all steps, or a function of the step's number, which must not depend on the records."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Functions of the step's number."""

    steps: int
    clipping: Callable[[int], Strategy]
    noise: Callable[[int], Allocation]
    lot_size: Callable[[int], int]
    batch_size: int
    microbatch_size: int = 1
    max_lot_size: int | None = None
    """The largest number of records of a lot; all lots are padded to it."""
    allocate: Callable[[float], Allocation] | None = None
    """The noise of a step as a function of its noise multiplier, if nothing else decides it."""
    solved: float | None = None
    """The noise multiplier, where it was solved for; a resumed run keeps the one it began with."""

    def resumed_with(self, noise_multiplier: float) -> RunSettings:
        """Return the settings with the noise multiplier that was solved for when the run began, if one was."""
        if self.solved is None:
            return self
        assert self.allocate is not None
        noise = self.allocate(noise_multiplier)
        return replace(self, noise=lambda step: noise, solved=noise_multiplier)

    def check_schedules(self) -> None:
        """Evaluate every step's clipping and noise, to find a wrong one before the first step is charged."""
        for step in range(self.steps):
            self.clipping(step), self.noise(step)


def by_step(value: Any) -> Callable[[int], Any]:
    """A schedule as a function."""
    return value if callable(value) else lambda step: value


def length(epochs: float | None, steps: int | None, records: int, lot_size: Schedule[int]) -> int:
    """Return the number of steps: as given, or enough for ``epochs`` passes, rounded up."""
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs is {epochs!r} and steps is {steps!r}; give one of them.")
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is {steps!r}; it must be a whole number, at least 1.")
        return steps
    assert epochs is not None
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs is {epochs!r}; it must be a finite number above 0.")
    wanted = Fraction(str(epochs)) * records
    if not callable(lot_size):
        _check_size(lot_size, records, None)
        return max(1, math.ceil(wanted / lot_size))
    seen, count = 0, 0
    while seen < wanted:
        size = lot_size(count)
        _check_size(size, records, count)
        seen, count = seen + size, count + 1
    return count


def check_sizes(lot_size: Schedule[int], steps: int, records: int, *, sampling: str) -> None:
    """Refuse lot sizes that some step of the run could not have."""
    if not callable(lot_size):
        _check_size(lot_size, records, None)
        return
    sizes = set()
    for step in range(steps):
        size = lot_size(step)
        _check_size(size, records, step)
        sizes.add(size)
    if len(sizes) > 1 and sampling in ("shuffled", "allocation"):
        raise ValueError(
            f"lot_size changes from {lot_size(0)} to others; lots of sampling={sampling!r} have one size: use "
            "Poisson or fixed-size sampling."
        )


def _check_size(size: Any, records: int, step: int | None) -> None:
    when = "" if step is None else f" at step {step}"
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"lot_size is {size!r}{when}; it must be a whole number, or a function of the step.")
    if not 1 <= size <= records:
        raise ValueError(f"lot_size is {size}{when}; it must be from 1 to the number of records, {records}.")


def physical_batch_size(wanted: int | None, lot_size: int, microbatch_size: int, max_lot_size: int | None) -> int:
    """Return how many examples are in memory at once: whole microbatches, and at most what the margin is proved for."""
    size = max(1, min(2 * lot_size * microbatch_size, 4096)) if wanted is None else wanted
    if isinstance(size, int) and size > 0:
        size = min(max(size // microbatch_size, 1), LARGEST_BATCH) * microbatch_size
    if max_lot_size is not None and wanted is None:
        return min(size, max_lot_size)
    return size  # what is not a size is refused by the reader
