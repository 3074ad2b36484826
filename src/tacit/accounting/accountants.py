"""The accountants by name."""

from __future__ import annotations

from tacit.accounting.composition import Accountant
from tacit.accounting.moments import Moments
from tacit.accounting.pld import Pld
from tacit.accounting.rdp import Rdp
from tacit.accounting.strong import Strong

ACCOUNTANTS: dict[str, Accountant] = {method.name: method for method in (Pld(), Rdp(), Moments(), Strong())}


def find(name: str) -> Accountant:
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is {name!r}; choose one of {', '.join(ACCOUNTANTS)}.")
    return ACCOUNTANTS[name]
