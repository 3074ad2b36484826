"""What a mutant is: a patch in memory, and the ordinary tests that must fail on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One broken variant of the library."""

    name: str
    bug: str
    note: int | None
    caught_by: tuple[str, ...]
    apply: Callable[[Patch], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(
    bug: str, *caught_by: str, note: int | None = None
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        MUTANTS[name] = Mutant(name=name, bug=bug, note=note, caught_by=caught_by, apply=apply)
        return apply

    return register


HISTORY = "tests/history/test_history.py"
AUDIT = "tests/audit/test_audit.py::test_many_runs_come_near_the_claim"
