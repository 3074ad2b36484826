"""The privacy ledger: a record of every use of the data, written before anything is released."""

from tacit.ledger.book import Gate, Ledger
from tacit.ledger.budget import AdaptiveBudget, Budget, BudgetExceeded
from tacit.ledger.events import (
    FORMAT,
    Adjacency,
    Allocated,
    CyclicPoisson,
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    OwnedPoisson,
    Poisson,
    Query,
    Sampling,
    Selection,
    Shuffled,
    SparseVector,
    Step,
    ThresholdedCounts,
    TruncatedPoisson,
    from_json,
    to_json,
)
from tacit.ledger.journal import LedgerUnavailable
from tacit.ledger.reading import LedgerCorrupt
from tacit.ledger.receipt import Receipt

__all__ = [
    "FORMAT",
    "AdaptiveBudget",
    "Adjacency",
    "Allocated",
    "Budget",
    "BudgetExceeded",
    "CyclicPoisson",
    "Everyone",
    "FixedSize",
    "Gate",
    "GaussianSum",
    "Header",
    "LaplaceSum",
    "Ledger",
    "LedgerCorrupt",
    "LedgerUnavailable",
    "OwnedPoisson",
    "Poisson",
    "Query",
    "Receipt",
    "Sampling",
    "Selection",
    "Shuffled",
    "SparseVector",
    "Step",
    "ThresholdedCounts",
    "TruncatedPoisson",
    "from_json",
    "to_json",
]
