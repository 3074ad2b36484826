"""Budgets: the limits and the refusal. The arithmetic is the accountants'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def _check(epsilon: Any, delta: Any) -> None:
    for name, value, most in (("epsilon", epsilon, float("inf")), ("delta", delta, 1.0)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < most:
            bound = "a finite number above 0" if name == "epsilon" else "in (0, 1)"
            raise ValueError(f"budget {name} is {value!r}; it must be {bound}.")


@dataclass(frozen=True)
class Budget:
    """At most (epsilon, delta), when every step's parameters are fixed before the first release.

    Any accountant may watch over it. If a later step's noise, sampling or number depends on what earlier steps
    released, the guarantee does not hold: use `AdaptiveBudget`.

    >>> Budget(epsilon=2.0, delta=1e-5)
    Budget(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta)


@dataclass(frozen=True)
class AdaptiveBudget:
    """At most (epsilon, delta), when a step's parameters may be chosen from what earlier steps released.

    Only a proof for adaptively chosen parameters may watch over it (a privacy filter); that costs a little more than
    `Budget`, which is why the two are different types and not one type with a switch.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta)


class BudgetExceeded(RuntimeError):
    """The step would have overrun the budget. It was not taken, and nothing was written or released."""

    @classmethod
    def before(cls, budget: Budget | AdaptiveBudget, *, steps: int, cost: float | None = None) -> BudgetExceeded:
        """The refusal of one more step after ``steps`` of them; ``cost`` is epsilon as it would have become.

        >>> print(BudgetExceeded.before(Budget(2.0, 1e-5), steps=1200, cost=2.0013))
        One more step would spend epsilon 2.0013 at delta 1e-05, over the budget of 2. It was not taken: the 1200 \
steps before it are within the budget and all they released may be kept.
        """
        spend = "more epsilon than is left" if cost is None else f"epsilon {cost:.6g}"
        return cls(
            f"One more step would spend {spend} at delta {budget.delta:g}, over the budget of {budget.epsilon:g}. "
            f"It was not taken: the {steps} steps before it are within the budget and all they released may be kept."
        )
