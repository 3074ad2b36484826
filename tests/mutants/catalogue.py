"""The library broken on purpose, one way at a time: bugs that happened elsewhere, as patches in memory.

Each mutant names the ordinary tests that must fail on it; ``note`` is the number of the bug in `tests/history`, where
it has one. A test made only to catch a mutant belongs with the other tests of its room, not here.
"""

from __future__ import annotations

from mutants import accounting, charging, clipping, loop, noise, sampling, second_floor, sparse
from mutants.registry import MUTANTS

__all__ = ["MUTANTS", "accounting", "charging", "clipping", "loop", "noise", "sampling", "second_floor", "sparse"]
