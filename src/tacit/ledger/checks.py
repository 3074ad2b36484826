"""Checks of the values in events: a ValueError names the field and the value."""

from __future__ import annotations

import math
import sys


def is_number(value: object) -> bool:
    """Return True for a finite number; a whole number too large to be a float is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_positive(name: str, value: float, *, most: float = math.inf) -> None:
    """Refuse a value that is not a number above 0, at most ``most``."""
    if not is_number(value) or not 0 < value <= most:
        bound = "a finite number above 0" if math.isinf(most) else f"in (0, {most:g}]"
        raise ValueError(f"{name} is {value!r}; it must be {bound}.")


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """Refuse a value that is not a whole number, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}.")


def check_text(name: str, value: str, *, empty: bool = False) -> None:
    """Refuse a value that is not text, or is empty if that is not allowed."""
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"{name} is {value!r}; it must be text.")
