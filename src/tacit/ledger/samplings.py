"""Samplings: which records take part in a step. The words are those of `tacit.ledger.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tacit.ledger.checks import check_count, check_positive, check_text


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """No sampling: every record takes part."""

    unit: str = "example"

    def __post_init__(self) -> None:
        check_text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each record takes part with probability ``rate``, independently of the others and of other steps."""

    rate: float
    records: int | None = None
    unit: str = "example"

    def __post_init__(self) -> None:
        check_positive("sampling rate", self.rate, most=1)
        if self.records is not None:
            check_count("records", self.records)
        check_text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson:
    """As `Poisson`, but of more than ``most`` records drawn some are dropped, so that lots have a largest size."""

    rate: float
    records: int
    most: int
    unit: str = "example"

    def __post_init__(self) -> None:
        check_positive("sampling rate", self.rate, most=1)
        check_count("records", self.records)
        check_count("largest lot size", self.most)
        check_text("unit", self.unit)


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
        check_positive("sampling rate", self.rate, most=1)
        check_count("records", self.records)
        check_count("records of an owner", self.most)
        if self.ownership not in ("public", "private"):
            raise ValueError(f"ownership is {self.ownership!r}; it must be 'public' or 'private'.")
        check_text("unit", self.unit)


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """``size`` of the ``records`` slots, uniformly without replacement, independently at each step."""

    size: int
    records: int
    unit: str = "example"

    def __post_init__(self) -> None:
        check_count("lot size", self.size)
        check_count("records", self.records)
        if self.size > self.records:
            raise ValueError(f"lot size is {self.size}; it must be at most the number of records, {self.records}.")
        check_text("unit", self.unit)

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
        check_count("lots", self.lots)
        check_count("epoch", self.epoch, least=0)
        check_count("records", self.records)
        check_text("partition", self.partition)
        check_text("unit", self.unit)


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
        check_count("lots", self.lots)
        check_count("epoch", self.epoch, least=0)
        check_count("records", self.records)
        check_count("participations", self.participations)
        if self.participations > self.lots:
            raise ValueError(
                f"participations is {self.participations}; it must be at most the number of lots, {self.lots}."
            )
        check_text("partition", self.partition)
        check_text("unit", self.unit)


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
        check_count("groups", self.groups)
        check_positive("sampling rate", self.rate, most=1)
        check_text("block", self.block)
        if self.records is not None:
            check_count("records", self.records)
        check_text("unit", self.unit)


Sampling = Everyone | Poisson | TruncatedPoisson | OwnedPoisson | FixedSize | Shuffled | Allocated | CyclicPoisson
"""Any sampling that a step can have."""
