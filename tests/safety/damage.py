"""Ways to damage files: of bytes, and of JSON that stays JSON."""

from __future__ import annotations

import copy
import math
from typing import Any

from hypothesis import strategies as st

ODD: list[Any] = [
    None, True, 0, -1, 1, 10**30, 0.5, -0.0, 1e308, math.nan, math.inf, "", "x", "é\u202e", "9" * 300, [], {}, [[]],
    {"kind": "x"}, {"": ""}, [1, "2", None], "\ud800",
]  # fmt: skip
"""Values that JSON allows, or that Python's reader lets through, and that no field expects."""


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with a piece taken out, put in, or both."""
    place = draw(st.integers(0, len(data)))
    removed = draw(st.sampled_from([0, 1, 8, 100, len(data)]))
    put = draw(st.binary(max_size=30) | st.sampled_from([b"", b"\0" * 64, b"\n", b"\xff\xfe", b"[" * 100_000, b'"']))
    return data[:place] + put + data[place + removed :]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything in a JSON value is."""
    found = [at]
    if isinstance(value, dict):
        for key in value:
            found += paths(value[key], (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += paths(item, (*at, index))
    return found


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one part of it left out or replaced by something odd."""
    changed = copy.deepcopy(value)
    path = draw(st.sampled_from(paths(value)))
    if not path:
        return draw(st.sampled_from(ODD))
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if draw(st.booleans()):
        holder[path[-1]] = draw(st.sampled_from(ODD))
    else:
        del holder[path[-1]]
    return changed
