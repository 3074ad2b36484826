"""The training configuration under audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tacit.mechanisms import Flat, Strategy

Track = Callable[[range], Iterable[int]]
"""A progress bar: wraps the range that the audit works through."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The arguments of `tacit.make_private` in every run of an audit.

    ``records`` counts places, canaries included. A canary that is left out leaves its place to a blank record, whose
    gradient is zero: for a sum over a Poisson sample that is the same as removing it, and the number of places, which
    is public, stays what it is.
    """

    records: int = 100
    lot_size: int = 100
    steps: int = 1
    noise_multiplier: float = 1.0
    delta: float = 1e-5
    clipping: Strategy = field(default_factory=lambda: Flat(1.0))
    confidence: float = 0.99

    def __post_init__(self) -> None:
        for name in ("records", "lot_size", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        if self.lot_size > self.records:
            raise ValueError(f"lot_size is {self.lot_size}; it must be at most the number of records, {self.records}.")
        if not 0 < self.noise_multiplier < float("inf"):
            raise ValueError(f"noise_multiplier is {self.noise_multiplier!r}; it must be a finite number above 0.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta!r}; it must be in (0, 1).")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence!r}; it must be in [0.5, 1).")


def check_count(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} to {most}.")
