"""The settings of a run, step by step, fixed before the first release."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar, Union

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
    """The most records of a lot, to which all lots are filled up."""
    allocate: Callable[[float], Allocation] | None = None
    """The noise of a step from its noise multiplier, where that is all there is to it."""
    solved: float | None = None
    """The noise multiplier, where it was solved for; a resumed run keeps the one it began with."""

    def check_schedules(self) -> None:
        """Ask for every step's clipping and noise now, so that a wrong one is found before the first is charged."""
        for step in range(self.steps):
            self.clipping(step), self.noise(step)


def by_step(value: Any) -> Callable[[int], Any]:
    """A schedule as a function."""
    return value if callable(value) else lambda step: value


def length(epochs: float | None, steps: int | None, records: int, lot_size: Schedule[int]) -> int:
    """How many steps: as many as given, or enough for ``epochs`` passes; nothing is lost to rounding."""
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
    """Refuse, before anything is charged, a lot size that some step of the run could not have."""
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
