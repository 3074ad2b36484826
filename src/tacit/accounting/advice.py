"""Advice on a budget, from public numbers: what a choice of ε and δ does not protect against."""

from __future__ import annotations

import math

LARGEST_EPSILON = 10.0


def budget_advice(*, epsilon: float, delta: float, records: int) -> list[str]:
    """Return a sentence for each of ε and δ that says little, with the reason and a remedy.

    >>> budget_advice(epsilon=2.0, delta=1e-6, records=60_000)
    []
    >>> [text.split(";")[0] for text in budget_advice(epsilon=20.0, delta=1e-4, records=60_000)]
    ['delta is 0.0001 with 60000 records', 'epsilon is 20, above 10']
    """
    found = []
    if delta >= 1 / records:
        found.append(
            f"delta is {delta:g} with {records} records; publishing one of them at random would meet it. Take a delta "
            f"well below 1/{records}, for example {_rounded(0.1 / records):g}."
        )
    if epsilon > LARGEST_EPSILON:
        found.append(
            f"epsilon is {epsilon:g}, above {LARGEST_EPSILON:g}; the odds that a record was used may then change by a "
            f"factor of {_factor(epsilon)}, which promises little. Take at most {LARGEST_EPSILON:g}, with more "
            "records or fewer steps if accuracy needs it."
        )
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.0e}")


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon):.0e}".replace("e+0", "e").replace("e+", "e") if epsilon < 700 else f"e^{epsilon:g}"
