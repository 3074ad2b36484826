"""From a ledger to a guarantee: what it all cost, computed afterwards from what was written down."""

from tacit.accounting.accountants import ACCOUNTANTS
from tacit.accounting.composition import Composition, Interval, Unproved
from tacit.accounting.entries import compose
from tacit.accounting.filter import Filter
from tacit.accounting.guarantee import Guarantee, account, guarantee
from tacit.accounting.plan import Plan, plan

__all__ = [
    "ACCOUNTANTS",
    "Composition",
    "Filter",
    "Guarantee",
    "Interval",
    "Plan",
    "Unproved",
    "account",
    "compose",
    "guarantee",
    "plan",
]
