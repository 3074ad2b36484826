"""Tacit: train on data about people, and prove how little the result says about any one of them.

Names are loaded when first used, so that ``import tacit`` costs nothing and needs neither torch nor scipy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tacit._version import __version__

if TYPE_CHECKING:
    from tacit.accounting import Guarantee as Guarantee
    from tacit.accounting import account as account
    from tacit.accounting import plan as plan
    from tacit.ledger import AdaptiveBudget as AdaptiveBudget
    from tacit.ledger import Budget as Budget
    from tacit.ledger import BudgetExceeded as BudgetExceeded
    from tacit.ledger import Ledger as Ledger
    from tacit.mechanisms import Adaptive as Adaptive
    from tacit.mechanisms import Automatic as Automatic
    from tacit.mechanisms import Flat as Flat
    from tacit.mechanisms import Groups as Groups
    from tacit.mechanisms import Joint as Joint
    from tacit.mechanisms import PerLayer as PerLayer
    from tacit.mechanisms import SumQuery as SumQuery
    from tacit.training import Metric as Metric
    from tacit.training import Parallel as Parallel
    from tacit.training import fit as fit
    from tacit.training import fix as fix
    from tacit.training import make_private as make_private
    from tacit.training import private_batch_norm as private_batch_norm
    from tacit.training import validate as validate

_ROOMS = {
    "Adaptive": "mechanisms",
    "AdaptiveBudget": "ledger",
    "Automatic": "mechanisms",
    "Budget": "ledger",
    "BudgetExceeded": "ledger",
    "Flat": "mechanisms",
    "Groups": "mechanisms",
    "Guarantee": "accounting",
    "Joint": "mechanisms",
    "Ledger": "ledger",
    "Metric": "training",
    "Parallel": "training",
    "PerLayer": "mechanisms",
    "SumQuery": "mechanisms",
    "account": "accounting",
    "fit": "training",
    "fix": "training",
    "make_private": "training",
    "plan": "accounting",
    "private_batch_norm": "training",
    "validate": "training",
}

__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    value = getattr(import_module(f"tacit.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
