from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from tacit.ledger import AdaptiveBudget, Budget, BudgetExceeded


@pytest.mark.parametrize("kind", [Budget, AdaptiveBudget])
@pytest.mark.parametrize(
    ("epsilon", "delta", "named"),
    [
        (0, 1e-5, "epsilon is 0;"),
        (-1.0, 1e-5, "epsilon"),
        (math.nan, 1e-5, "epsilon is nan"),
        (math.inf, 1e-5, "epsilon is inf"),
        ("2", 1e-5, "epsilon is '2'"),
        (True, 1e-5, "epsilon"),
        (2.0, 0, "delta is 0;"),
        (2.0, 1, "delta is 1;"),
        (2.0, math.nan, "delta is nan"),
        (2.0, None, "delta is None"),
    ],
)
def test_a_budget_out_of_range_is_refused(kind: Any, epsilon: Any, delta: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(epsilon, delta)


def test_the_two_budgets_are_never_equal() -> None:
    assert Budget(2.0, 1e-5) == Budget(epsilon=2.0, delta=1e-5)
    assert Budget(2.0, 1e-5) != AdaptiveBudget(2.0, 1e-5)


def test_the_refusal_travels_between_processes() -> None:
    refusal = BudgetExceeded.before(Budget(2.0, 1e-5), steps=3)
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)
    assert "budget of 2" in str(refusal)
