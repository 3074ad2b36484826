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
import sys
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from tacit._version import __version__
from tacit.ledger.correlation import check_strategy

FORMAT = 1


class Adjacency(StrEnum):
    """The neighbouring relation: which two data sets must be hard to tell apart."""

    ADD_REMOVE = "add/remove"
    REPLACE_ONE = "replace-one"


def _number(value: object) -> bool:
    """Return True for a finite number; a whole number too large to be a float is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _positive(name: str, value: float, *, most: float = math.inf) -> None:
    if not _number(value) or not 0 < value <= most:
        bound = "a finite number above 0" if math.isinf(most) else f"in (0, {most:g}]"
        raise ValueError(f"{name} is {value!r}; it must be {bound}.")


def _count(name: str, value: int, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}.")


def _text(name: str, value: str, *, empty: bool = False) -> None:
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"{name} is {value!r}; it must be text.")


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
        _text("unit", self.unit)
        for name in ("purpose", "fingerprint", "library"):
            _text(name, getattr(self, name), empty=True)


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """No sampling: every record takes part."""

    unit: str = "example"

    def __post_init__(self) -> None:
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each record takes part with probability ``rate``, independently of the others and of other steps."""

    rate: float
    records: int | None = None
    unit: str = "example"

    def __post_init__(self) -> None:
        _positive("sampling rate", self.rate, most=1)
        if self.records is not None:
            _count("records", self.records)
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson:
    """As `Poisson`, but of more than ``most`` records drawn some are dropped, so that lots have a largest size."""

    rate: float
    records: int
    most: int
    unit: str = "example"

    def __post_init__(self) -> None:
        _positive("sampling rate", self.rate, most=1)
        _count("records", self.records)
        _count("largest lot size", self.most)
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class OwnedPoisson:
    """As `Poisson`, of records that have one owner or several; no owner has more than ``most`` of the ``records``.

    The unit is the owner. ``ownership`` says what neighbours are under add/remove (under replace-one the owner's
    records hold something else instead):

    * ``"public"``: the lists of owners are the same for both, and the records of one owner, shared ones with them, are
      empty in one of the two. An empty record adds nothing to any sum.
    * ``"private"``: every owner has at most ``most`` records in both, and one of the two lacks an owner and all records
      that this owner has a share in.
    """

    rate: float
    records: int
    most: int
    ownership: Literal["public", "private"] = "public"
    unit: str = "owner"

    def __post_init__(self) -> None:
        _positive("sampling rate", self.rate, most=1)
        _count("records", self.records)
        _count("records of an owner", self.most)
        if self.ownership not in ("public", "private"):
            raise ValueError(f"ownership is {self.ownership!r}; it must be 'public' or 'private'.")
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """``size`` of the ``records`` slots, uniformly without replacement, independently at each step."""

    size: int
    records: int
    unit: str = "example"

    def __post_init__(self) -> None:
        _count("lot size", self.size)
        _count("records", self.records)
        if self.size > self.records:
            raise ValueError(f"lot size is {self.size}; it must be at most the number of records, {self.records}.")
        _text("unit", self.unit)

    @property
    def rate(self) -> float:
        return self.size / self.records


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """One lot of a random partition of the records into ``lots`` disjoint lots; a new partition each epoch.

    A record takes part exactly once in epoch number ``epoch`` of the partition named ``partition``. ``assignment``
    says how records come into lots, which decides what one record more changes:

    * ``"independent"``: each record's own uniform coin chooses its lot. One record more changes one lot.
    * ``"equal"``: a shuffled list of the records is cut into lots of nearly equal size, as a shuffling data loader
      does. A record *replaced* changes one lot; one record *more* moves the cuts, and with them other records.
    """

    lots: int
    epoch: int
    records: int
    partition: str = "main"
    unit: str = "example"
    assignment: Literal["equal", "independent"] = "equal"

    def __post_init__(self) -> None:
        if self.assignment not in ("equal", "independent"):
            raise ValueError(f"assignment is {self.assignment!r}; it must be 'equal' or 'independent'.")
        _count("lots", self.lots)
        _count("epoch", self.epoch, least=0)
        _count("records", self.records)
        _text("partition", self.partition)
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """One lot of an epoch of ``lots`` lots: random allocation, also called balls in bins.

    In epoch number ``epoch`` of the partition named ``partition`` each record takes part in exactly
    ``participations`` of the lots, every set of so many equally likely, chosen by its own coins: independent of the
    other records, of how many there are, and of other epochs.
    """

    lots: int
    epoch: int
    records: int
    participations: int = 1
    partition: str = "main"
    unit: str = "example"

    def __post_init__(self) -> None:
        _count("lots", self.lots)
        _count("epoch", self.epoch, least=0)
        _count("records", self.records)
        _count("participations", self.participations)
        if self.participations > self.lots:
            raise ValueError(
                f"participations is {self.participations}; it must be at most the number of lots, {self.lots}."
            )
        _text("partition", self.partition)
        _text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class CyclicPoisson:
    """Records in ``groups`` groups, which take turns; of the group whose turn it is, each with probability ``rate``.

    Each record's own uniform coin chooses its group when the block named ``block`` begins, and it stays there as long
    as the block lasts: in a step whose number in the block is not its group's modulo ``groups`` it takes no part. In
    its own steps it takes part by a coin of probability ``rate``. The steps of a block are counted from the first that
    is recorded, and all of them are the same event.
    """

    groups: int
    rate: float
    block: str
    records: int | None = None
    unit: str = "example"

    def __post_init__(self) -> None:
        _count("groups", self.groups)
        _positive("sampling rate", self.rate, most=1)
        _text("block", self.block)
        if self.records is not None:
            _count("records", self.records)
        _text("unit", self.unit)


Sampling = Everyone | Poisson | TruncatedPoisson | OwnedPoisson | FixedSize | Shuffled | Allocated | CyclicPoisson


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """A sum of vectors, each of L2 norm at most ``clip_norm``, plus N(0, noise_std^2) on every coordinate.

    With ``noise`` "discrete" the sum is rounded to whole multiples of ``lattice`` and the noise is ``lattice`` times a
    discrete Gaussian N_Z(0, (noise_std / lattice)^2); ``clip_norm`` then includes what rounding adds.

    With ``noise`` "correlated" the noise is C^-1 z over the steps of a block, z having N(0, noise_std^2) on every
    coordinate and C being the matrix that ``strategy`` and ``parameters`` name (`tacit.ledger.correlation`).
    """

    group: str
    clip_norm: float
    noise_std: float
    noise: str = "gaussian"
    lattice: float | None = None
    strategy: str | None = None
    parameters: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _text("group", self.group)
        _positive("clip norm", self.clip_norm)
        _positive("noise standard deviation", self.noise_std)
        _text("noise", self.noise)
        if self.noise == "correlated":
            object.__setattr__(self, "parameters", tuple(self.parameters or ()))
            check_strategy(str(self.strategy), self.parameters or ())
        elif self.strategy is not None or self.parameters is not None:
            raise ValueError(f"strategy is {self.strategy!r}; leave it out: only correlated noise has one.")
        if self.noise == "discrete":
            _positive("lattice step", self.lattice if self.lattice is not None else math.nan)
        elif self.lattice is not None:
            raise ValueError(f"lattice is {self.lattice!r}; leave it out: only discrete noise lies on a lattice.")


@dataclass(frozen=True, kw_only=True)
class LaplaceSum:
    """A sum of vectors, each of L1 norm at most ``clip_norm``, plus Laplace noise of scale ``scale`` on every one.

    ``dimension`` is the number of coordinates: one coordinate has a tighter proof than several.
    """

    group: str
    clip_norm: float
    scale: float
    dimension: int

    def __post_init__(self) -> None:
        _text("group", self.group)
        _positive("clip norm", self.clip_norm)
        _positive("Laplace scale", self.scale)
        _count("dimension", self.dimension)


@dataclass(frozen=True, kw_only=True)
class SparseVector:
    """At most ``releases`` answers above a noisy threshold (Shokri & Shmatikov 2015, Figure 12).

    The whole mechanism, all answers included, is (threshold_epsilon + release_epsilon)-DP under the header's
    adjacency: that is what the mechanism that writes this event has to prove.
    """

    group: str
    threshold_epsilon: float
    release_epsilon: float
    releases: int

    def __post_init__(self) -> None:
        _text("group", self.group)
        _positive("threshold epsilon", self.threshold_epsilon)
        _positive("release epsilon", self.release_epsilon)
        _count("releases", self.releases)


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
        _text("group", self.group)
        if self.trials == "truncated-negative-binomial":
            if self.eta is None or not _number(self.eta) or not self.eta > -1:
                raise ValueError(f"eta is {self.eta!r}; it must be a finite number above -1.")
            if self.gamma is None or not _number(self.gamma) or not 0 < self.gamma < 1:
                raise ValueError(f"gamma is {self.gamma!r}; it must be in (0, 1).")
            if self.mean is not None:
                raise ValueError(f"mean is {self.mean!r}; leave it out: these trials are set by eta and gamma.")
        elif self.trials == "poisson":
            _positive("mean number of trials", self.mean if self.mean is not None else math.nan)
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
            _count("count", count)


@dataclass(frozen=True, kw_only=True)
class ThresholdedCounts:
    """Counts of values that were not listed beforehand, with N(0, noise_std^2); those above ``threshold`` are released.

    One record adds one to one count, and a value that occurs nowhere is not released. Beside the Gaussian sum of
    sensitivity 1 that this is on the values others have too, a record can show by bringing a value of its own, with
    probability ``slack``.
    """

    group: str
    noise_std: float
    threshold: float

    def __post_init__(self) -> None:
        _text("group", self.group)
        _positive("noise standard deviation", self.noise_std)
        if not _number(self.threshold) or not self.threshold > 1:
            raise ValueError(f"threshold is {self.threshold!r}; it must be a finite number above 1.")

    @property
    def shared(self) -> GaussianSum:
        """The sum on the values that neighbours share."""
        return GaussianSum(group=self.group, clip_norm=1.0, noise_std=self.noise_std)

    @property
    def slack(self) -> float:
        """The probability that a count of one, with noise rounded to a grid of 2^-14 of it, passes the threshold."""
        distance = (self.threshold - 1) / self.noise_std - 2.0**-14
        return math.erfc(distance / math.sqrt(2)) / 2 * (1 + 1e-9) + 1e-300


Query = GaussianSum | LaplaceSum | SparseVector | Selection | ThresholdedCounts


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
    """A plain dictionary with a ``kind``, ready for ``json.dumps``; `from_json` is its inverse."""
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
    """The event that `to_json` wrote. Anything unknown, missing or out of range is a ValueError that names it."""
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
