"""Events of a ledger: frozen descriptions of what was done to the records, and nothing else.

A *step* is one sampling event and every query answered from that one sample (paper: McMahan, Andrew et al. 2019,
section 6). The words used here have one meaning throughout the library:

* a *record* is the unit protected (an example, a user, ...), named by ``unit``;
* ``clip_norm`` is S, the most one record can contribute to the sum, in L2 norm (L1 for Laplace noise);
* ``noise_std`` is the standard deviation of the noise added to the *sum*, not to the mean;
* the noise multiplier is z = noise_std / clip_norm, whatever the adjacency. (Under replace-one a record can move the
  sum by 2 S; the accountants know that, the ledger does not fold it in.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from tacit._version import __version__
from tacit.ledger.checks import check_count, check_positive, check_text, is_number
from tacit.ledger.queries import GaussianSum, LaplaceSum, SparseVector, ThresholdedCounts
from tacit.ledger.samplings import (
    Allocated,
    CyclicPoisson,
    Everyone,
    FixedSize,
    OwnedPoisson,
    Poisson,
    Sampling,
    Shuffled,
    TruncatedPoisson,
)

__all__ = [
    "FORMAT",
    "Adjacency",
    "Allocated",
    "CyclicPoisson",
    "Everyone",
    "FixedSize",
    "GaussianSum",
    "Header",
    "LaplaceSum",
    "OwnedPoisson",
    "Poisson",
    "Query",
    "Sampling",
    "Selection",
    "Shuffled",
    "SparseVector",
    "Step",
    "ThresholdedCounts",
    "TruncatedPoisson",
    "from_json",
    "kinds",
    "to_json",
]

FORMAT = 1
"""The format of the ledger that this version writes and reads."""


class Adjacency(StrEnum):
    """The neighbouring relation: which two data sets must be hard to tell apart."""

    ADD_REMOVE = "add/remove"
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, kw_only=True)
class Header:
    """The facts that hold for a whole ledger and go into every guarantee drawn from it."""

    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: str = "example"
    secure_randomness: bool = True
    purpose: str = ""
    fingerprint: str = ""
    format: int = FORMAT
    library: str = field(default=f"tacit {__version__}")

    def __post_init__(self) -> None:
        if self.adjacency not in tuple(Adjacency):
            raise ValueError(f"adjacency is {self.adjacency!r}; it must be one of {', '.join(Adjacency)}.")
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        if isinstance(self.format, bool) or not isinstance(self.format, int) or self.format != FORMAT:
            raise ValueError(f"ledger format is {self.format!r}; this version of tacit reads format {FORMAT}.")
        if not isinstance(self.secure_randomness, bool):
            raise ValueError(f"secure_randomness is {self.secure_randomness!r}; it must be true or false.")
        check_text("unit", self.unit)
        for name in ("purpose", "fingerprint", "library"):
            check_text(name, getattr(self, name), empty=True)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best of K runs, K random (Papernot & Steinke 2021), each run costing what ``candidate`` lists.

    ``trials`` names the distribution of K: ``"truncated-negative-binomial"`` with parameters ``eta`` > -1 and
    0 < ``gamma`` < 1, or ``"poisson"`` with mean ``mean``.
    """

    group: str
    trials: Literal["truncated-negative-binomial", "poisson"]
    candidate: tuple[tuple[Step, int], ...]
    eta: float | None = None
    gamma: float | None = None
    mean: float | None = None

    def __post_init__(self) -> None:
        check_text("group", self.group)
        if self.trials == "truncated-negative-binomial":
            if self.eta is None or not is_number(self.eta) or not self.eta > -1:
                raise ValueError(f"eta is {self.eta!r}; it must be a finite number above -1.")
            if self.gamma is None or not is_number(self.gamma) or not 0 < self.gamma < 1:
                raise ValueError(f"gamma is {self.gamma!r}; it must be in (0, 1).")
            if self.mean is not None:
                raise ValueError(f"mean is {self.mean!r}; leave it out: these trials are set by eta and gamma.")
        elif self.trials == "poisson":
            check_positive("mean number of trials", self.mean if self.mean is not None else math.nan)
            if self.eta is not None or self.gamma is not None:
                raise ValueError(f"eta is {self.eta!r}, gamma {self.gamma!r}; leave them out: only mean is used.")
        else:
            raise ValueError(f"trials is {self.trials!r}; it must be 'truncated-negative-binomial' or 'poisson'.")
        pairs = (tuple(pair) if isinstance(pair, tuple | list) else (pair,) for pair in self.candidate)
        object.__setattr__(self, "candidate", tuple(pairs))
        if not self.candidate:
            raise ValueError("candidate is empty; list the steps that one trial costs.")
        for pair in self.candidate:
            step, count = pair if len(pair) == 2 else (pair, 1)
            if not isinstance(step, Step):
                raise ValueError(f"candidate holds {step!r}; it must hold (Step, count) pairs.")
            check_count("count", count)


Query = GaussianSum | LaplaceSum | SparseVector | Selection | ThresholdedCounts
"""Any query that a step can answer."""


@dataclass(frozen=True)
class Step:
    """One sampling event and every query answered from that sample."""

    sampling: Sampling
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise ValueError(f"sampling is {self.sampling!r}; it must be one of {_names(Sampling)}.")
        object.__setattr__(self, "queries", tuple(self.queries))
        for query in self.queries:
            if not isinstance(query, Query):
                raise ValueError(f"query is {query!r}; it must be one of {_names(Query)}.")
        groups = [query.group for query in self.queries]
        if len(set(groups)) < len(groups):
            raise ValueError(f"groups are {groups}; each query of one sample needs a group name of its own.")

    @property
    def noise_multiplier(self) -> float:
        """z of the one Gaussian sum query equivalent to all of this step's: (sum_g (S_g / sigma_g)^2)^(-1/2).

        Scaling group g by 1 / sigma_g turns the queries into one sum with unit noise and sensitivity
        S* = sqrt(sum_g (S_g / sigma_g)^2) (McMahan, Andrew et al. 2019, Equation 1).

        >>> four = GaussianSum(group="a", clip_norm=4.0, noise_std=16.0)
        >>> Step(Everyone(), (four,)).noise_multiplier
        4.0
        """
        ratios = []
        for query in self.queries:
            if not isinstance(query, GaussianSum):
                raise ValueError(f"group {query.group!r} is a {type(query).__name__}; z is defined for Gaussian sums.")
            ratios.append(query.clip_norm / query.noise_std)
        if not ratios:
            return math.inf
        total = math.hypot(*ratios)
        return 1 / total if total > 1e-300 else math.inf


_EVENTS: dict[str, type[Any]] = {
    "header": Header,
    "everyone": Everyone,
    "poisson": Poisson,
    "truncated-poisson": TruncatedPoisson,
    "owned-poisson": OwnedPoisson,
    "fixed-size": FixedSize,
    "shuffled": Shuffled,
    "allocated": Allocated,
    "cyclic-poisson": CyclicPoisson,
    "gaussian-sum": GaussianSum,
    "laplace-sum": LaplaceSum,
    "sparse-vector": SparseVector,
    "selection": Selection,
    "thresholded-counts": ThresholdedCounts,
}
_KINDS = {cls: kind for kind, cls in _EVENTS.items()}


def kinds() -> dict[type[Any], str]:
    """The events that are written to a ledger, each with its ``kind``."""
    return dict(_KINDS)


def _names(union: Any) -> str:
    return ", ".join(cls.__name__ for cls in union.__args__)


def to_json(event: Header | Sampling | Query | Step) -> dict[str, Any]:
    """Return a plain dictionary with a ``kind``, ready for ``json.dumps``; `from_json` is the inverse."""
    if isinstance(event, Step):
        return {
            "kind": "step",
            "sampling": to_json(event.sampling),
            "queries": [to_json(query) for query in event.queries],
        }
    if type(event) not in _KINDS:
        raise ValueError(f"{event!r} is a {type(event).__name__}; a ledger holds {', '.join(_EVENTS)} and step.")
    values: dict[str, Any] = {"kind": _KINDS[type(event)]}
    for item in fields(event):
        value = getattr(event, item.name)
        if item.name == "candidate":
            value = [[to_json(step), count] for step, count in value]
        if value is not None:
            values[item.name] = value
    return values


def from_json(data: Any) -> Any:
    """Return the event that `to_json` wrote; a ValueError names anything unknown, missing or out of range."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError(f"not an event: {str(data)[:80]!r}.")
    kind, values = data["kind"], {key: value for key, value in data.items() if key != "kind"}
    if kind == "step":
        if set(values) != {"sampling", "queries"} or not isinstance(values["queries"], list):
            raise ValueError(f"a step has a sampling and queries; this one has {sorted(values)}.")
        return Step(from_json(values["sampling"]), tuple(from_json(query) for query in values["queries"]))
    if kind not in _EVENTS:
        raise ValueError(f"event kind is {kind!r}; this version of tacit knows {', '.join([*_EVENTS, 'step'])}.")
    if "candidate" in values:
        pairs = values["candidate"]
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"candidate is {str(pairs)[:80]!r}; it must be a list of [step, count] pairs.")
        values["candidate"] = tuple((from_json(step), count) for step, count in pairs)
    try:
        return _EVENTS[kind](**values)
    except TypeError as error:
        raise ValueError(f"a {kind} event has the wrong fields: {sorted(values)}.") from error
