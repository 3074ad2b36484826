"""The population that a run protects: the records of a data set, their unit, adjacency and sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tacit.ledger import Adjacency
from tacit.randomness import Integers, Source
from tacit.sampling import (
    AllocationSampler,
    CyclicSampler,
    FixedSizeSampler,
    Owners,
    OwnerSampler,
    PoissonSampler,
    Sampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
    UserSampler,
    chosen_records,
)


@dataclass(frozen=True, kw_only=True)
class Owned:
    """The owners of each record, and the largest number of records of one owner."""

    owners: Owners
    most: int
    ownership: Literal["public", "private"]

    @property
    def chosen(self) -> Integers:
        """The numbers of the records that take part."""
        return chosen_records(self.owners, self.most, self.ownership)


@dataclass(frozen=True, kw_only=True)
class Population:
    """The records of a run: their number, their unit, and which data sets are neighbours."""

    records: int
    unit: str
    adjacency: Adjacency
    sampling: str
    users: Sequence[int] | None = None
    examples_per_user: int | None = None
    participations: int = 1
    max_lot_size: int | None = None
    owned: Owned | None = None

    def sampler(self, lot_size: int, source: Source, groups: int = 1) -> Sampler | UserSampler:
        """Draws lots of about ``lot_size`` records; ``groups`` is for cyclic sampling."""
        drawer: Sampler
        if self.owned is not None:
            rate, own = lot_size / self.records, self.owned
            drawer = OwnerSampler(own.owners, rate, most=own.most, ownership=own.ownership, source=source)
        elif self.sampling == "poisson" and self.max_lot_size is not None:
            drawer = TruncatedPoissonSampler(
                self.records, lot_size / self.records, most=self.max_lot_size, source=source, unit=self.unit
            )
        elif self.sampling == "poisson":
            drawer = PoissonSampler(self.records, lot_size / self.records, source=source, unit=self.unit)
        elif self.sampling == "fixed-size":
            drawer = FixedSizeSampler(self.records, lot_size, source=source, unit=self.unit)
        elif self.sampling == "allocation":
            lots = math.ceil(self.records * self.participations / lot_size)
            drawer = AllocationSampler(
                self.records, lots, participations=self.participations, source=source, unit=self.unit
            )
        elif self.sampling == "cyclic":
            rate = lot_size * groups / self.records
            drawer = CyclicSampler(self.records, groups=groups, rate=rate, source=source, unit=self.unit)
        else:
            lots = math.ceil(self.records / lot_size)
            drawer = ShuffledSampler(self.records, lots, source=source, unit=self.unit)
        if self.users is None or self.examples_per_user is None:
            return drawer
        return UserSampler(self.users, drawer, most=self.examples_per_user, source=source)


def population(
    dataset: Any,
    *,
    sampling: str,
    adjacency: str | None,
    users: Sequence[int] | None,
    examples_per_user: int | None,
    microbatch_size: int,
    participations: int = 1,
    max_lot_size: int | None = None,
    owners: Owners | None = None,
    records_per_owner: int | None = None,
    ownership: Literal["public", "private"] = "public",
) -> Population:
    """The records of ``dataset``: its examples, owned or not, its users, or its microbatches."""
    policies = ("poisson", "fixed-size", "shuffled", "allocation", "cyclic")
    if sampling not in policies:
        raise ValueError(f"sampling is {sampling!r}; choose one of {', '.join(map(repr, policies))}.")
    if isinstance(participations, bool) or not isinstance(participations, int) or participations < 1:
        raise ValueError(f"participations is {participations!r}; it must be a whole number, at least 1.")
    if participations > 1 and sampling != "allocation":
        raise ValueError(f"participations is {participations} with sampling={sampling!r}; it is for 'allocation' only.")
    if max_lot_size is not None:
        if isinstance(max_lot_size, bool) or not isinstance(max_lot_size, int) or max_lot_size < 1:
            raise ValueError(f"max_lot_size is {max_lot_size!r}; it must be a whole number, at least 1.")
        if sampling != "poisson" or users is not None or owners is not None or microbatch_size > 1:
            raise ValueError(
                f"max_lot_size is {max_lot_size}; it is for Poisson lots of single examples: leave it out, or leave "
                "out sampling, users, owners and microbatch_size."
            )
    known = [each.value for each in Adjacency]
    if adjacency is not None and adjacency not in known:
        raise ValueError(f"adjacency is {adjacency!r}; choose {' or '.join(map(repr, known))}.")
    chosen = Adjacency(adjacency or ("replace-one" if sampling == "fixed-size" else "add/remove"))
    if sampling == "fixed-size" and chosen is Adjacency.ADD_REMOVE:
        raise ValueError(
            "fixed-size sampling has no proof under add/remove; use adjacency='replace-one' or Poisson sampling."
        )
    if users is not None and examples_per_user is None:
        raise ValueError("examples_per_user is missing; say how many examples a user may bring to a lot.")
    if examples_per_user is not None and (
        isinstance(examples_per_user, bool) or not isinstance(examples_per_user, int) or examples_per_user < 1
    ):
        raise ValueError(f"examples_per_user is {examples_per_user!r}; it must be a whole number, at least 1.")
    if users is None and examples_per_user is not None:
        raise ValueError(
            f"examples_per_user is {examples_per_user} but users is missing; give the user of each example."
        )
    records = _records(dataset, users, microbatch_size)
    owned = None
    if owners is not None or records_per_owner is not None:
        owned = _owned(owners, records_per_owner, ownership, records)
        if sampling != "poisson" or users is not None or microbatch_size > 1:
            raise ValueError(
                f"owners are given with sampling={sampling!r}, users or microbatch_size; several owners of a record "
                "have a proof with Poisson lots of single examples: leave these out."
            )
        records = len(owned.chosen)
    elif ownership != "public":
        raise ValueError(f"ownership is {ownership!r} but owners is missing; list the owners of each record.")
    return Population(
        records=records,
        unit=_unit(users, owned, microbatch_size),
        adjacency=chosen,
        sampling=sampling,
        users=users,
        examples_per_user=examples_per_user,
        participations=participations,
        max_lot_size=max_lot_size,
        owned=owned,
    )


def _unit(users: Sequence[int] | None, owned: Owned | None, microbatch_size: int) -> str:
    if users is not None:
        return "user"
    if owned is not None:
        return "owner"
    return "example" if microbatch_size == 1 else "microbatch"


def _owned(owners: Owners | None, most: int | None, ownership: Literal["public", "private"], records: int) -> Owned:
    if owners is None:
        raise ValueError(f"records_per_owner is {most} but owners is missing; list the owners of each record.")
    if most is None:
        raise ValueError("records_per_owner is missing; say how many records of an owner may take part.")
    if len(owners) != records:
        raise ValueError(f"owners has {len(owners)} entries; the data set has {records} examples.")
    for number, each in enumerate(owners):
        if isinstance(each, str) or not isinstance(each, Iterable):
            raise ValueError(f"owners[{number}] is {each!r}; list the owners of each record: [['ann', 'bob'], ...].")
    return Owned(owners=owners, most=most, ownership=ownership)


def _records(dataset: Any, users: Sequence[int] | None, microbatch_size: int) -> int:
    if isinstance(microbatch_size, bool) or not isinstance(microbatch_size, int) or microbatch_size < 1:
        raise ValueError(f"microbatch_size is {microbatch_size!r}; it must be a whole number, at least 1.")
    if users is not None and microbatch_size > 1:
        raise ValueError("a record is either a user or a microbatch; give users or microbatch_size.")
    try:
        length = len(dataset)
    except TypeError:
        raise ValueError(
            f"the data set ({type(dataset).__name__}) has no length; private sampling needs a map-style data set."
        ) from None
    if not length:
        raise ValueError("the data set is empty (its length is 0); give one with records.")
    if users is None:
        if length < microbatch_size:
            raise ValueError(f"microbatch_size is {microbatch_size}; the data set has only {length} examples.")
        return length // microbatch_size  # examples that do not fill a microbatch take no part
    if len(users) != length:
        raise ValueError(f"users has {len(users)} entries; the data set has {length} examples.")
    numbers = np.asarray(users)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.min() < 0:
        raise ValueError(
            f"users is {numbers.dtype} of shape {numbers.shape}; give each example's user as a number from 0 on: "
            "np.unique(names, return_inverse=True)[1]."
        )
    return int(numbers.max()) + 1
