"""Places in code from which operations are called: a number for each, however the interpreter carries the call out."""

from __future__ import annotations

import opcode
from types import CodeType

_BEFORE, _CALL = opcode.opmap.get("PRECALL"), opcode.opmap.get("CALL")
_WIDTH = 4
"""Python 3.11 calls by two instructions, and functions in C by the first alone once the place is warm."""

MOST = 1 << 16

SITES: dict[int, int] = {}
"""The number of each place that was seen, by the address of its instruction."""

_codes: dict[int, CodeType] = {}
"""Keeps these addresses from being given to other code."""


def site(code: CodeType, last: int) -> int:
    """Return the number of the place where code is at its instruction `last`."""
    place = id(code) + last
    found = SITES.get(place)
    if found is None:
        if len(SITES) >= MOST:
            SITES.clear()
            _codes.clear()
        _codes[id(code)] = code
        text = code.co_code
        by_two = _BEFORE is not None and last >= _WIDTH and text[last] == _CALL and text[last - _WIDTH] == _BEFORE
        found = SITES[place] = place - _WIDTH if by_two else place
    return found
