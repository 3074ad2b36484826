"""Experiments and their results: rows, numbers beside the paper's, and curves; drawing is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tacit.recipes.reproduction.measure import Runs

Value = float | int | str | None
Tell = Callable[[str, float], None]
"""A function of the work at hand and of the fraction of the whole that is done (0 to 1)."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One number of the paper beside ours. ``paper`` None: not printed there. ``unit`` comes after both.

    ``bound``: ours is an upper bound, and is never rounded down.
    """

    what: str
    paper: float | None
    ours: float | None
    unit: str = ""
    bound: bool = False

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours - self.paper


def percent(what: str, paper: float | None, ours: float | None) -> Comparison:
    """An accuracy, or a difference of two, in per cent."""
    return Comparison(what=what, paper=paper, ours=ours, unit="%")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve, or (``style="points"``) marks, or (``style="level"``) a horizontal line at the first y."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "dashed", "points", "level"] = "line"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment. ``rows`` are those of the CSV file and have the same keys, in the same order.

    ``columns`` are the heads of the two columns of numbers that are compared.
    """

    comparisons: Sequence[Comparison]
    rows: Sequence[Mapping[str, Value]]
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()
    columns: tuple[str, str] = ("paper", "ours")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The way an experiment is run: quick or full, its seeds, and where finished runs are kept."""

    quick: bool
    runs: Runs
    seeds: tuple[int, ...]
    tell: Tell

    @classmethod
    def make(cls, *, quick: bool, runs: Path, seeds: int, tell: Tell | None = None) -> Setting:
        """With so many seeds, from 1 on."""
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}; at least one run is needed.")
        silent: Tell = lambda words, share: None  # noqa: E731
        return cls(quick=quick, runs=Runs(runs), seeds=tuple(range(1, seeds + 1)), tell=tell or silent)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure or table of a paper, in the quick and in the full setting.

    ``minutes``: roughly, on two cores. ``seeds``: how many runs of each kind if nothing else is said.
    """

    name: str
    title: str
    paper: str
    minutes: tuple[float, float]
    seeds: tuple[int, int] = (1, 3)
    run: Callable[[Setting], Result]

    def usual_seeds(self, *, quick: bool) -> int:
        return self.seeds[0 if quick else 1]
