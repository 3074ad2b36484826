"""Records that several people own, both ends of a message or all people in a picture: Poisson lots of some of them.

The crux is which records take part. An owner may have any number of records, so some must be left out. But a rule that
leaves records out because of how many their owners have is *not stable*: without one owner, and the records that this
owner shares, other owners have room again, records of theirs come in, and with them others go out. In the chain (0, 1),
(1, 2), (2, 3), ... with one record for each owner, the removal of owner 0 changes every choice after it; no rule that
keeps a fixed share of all records is known here that avoids it. So there are two ways, each with its neighbours:

* *Ownership is public* (the fixed-graph relation of Ganesh et al., arXiv 2503.03622). Neighbours have the same lists of
  owners and differ in what is *in* the records of one owner: those records are empty in one of the two, or hold
  something else under replace-one. The choice reads the lists alone and is the same for both, however unstable it is.
* *Ownership is private*. Nothing is left out: every owner must have at most ``most`` records already, which is a
  promise about the data set like the number of records, and neighbours are data sets that keep it, one with an owner
  more and all the records that this owner has a share in. No owner's list decides if other records take part.

In both, neighbours differ in at most ``most`` of the records that take part, each of which is in a lot by a coin of its
own: a group of ``most`` records, whose dominating pair is the mixture of Gaussians of `tacit.accounting.groups`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from tacit.ledger.events import OwnedPoisson
from tacit.randomness import Integers, Source
from tacit.sampling.samplers import Drawable, PoissonSampler, mismatch

Owners = Sequence[Iterable[Hashable]]
"""The owners of each record."""


def bounded_by_owner(owners: Owners, most: int) -> Integers:
    """Return the numbers of records, in order, of which no owner has more than ``most``: for public ownership.

    Records with few owners are considered first, since they use up the least room; no record that is left out could be
    added. The choice depends on the lists of owners alone.

    >>> bounded_by_owner([(0, 1), (0, 2), (1,), (0,), (2, 3)], most=2).tolist()
    [0, 2, 3, 4]
    """
    people = _listed(owners, most)
    owned: Counter[Hashable] = Counter()
    chosen = []
    for number in sorted(range(len(people)), key=lambda record: len(people[record])):
        if all(owned[person] < most for person in people[number]):
            owned.update(people[number])
            chosen.append(number)
    return np.sort(np.array(chosen, dtype=np.int64))


def within_bound(owners: Owners, most: int) -> Integers:
    """Return the numbers of all records; refuse them if an owner has more than ``most``: for private ownership."""
    people = _listed(owners, most)
    owned = Counter(person for each in people for person in each)
    if max(owned.values(), default=0) > most:
        raise ValueError(  # how many owners, and how many records they have, is private
            f"some owners have more than {most} records; with ownership='private' none may be left out because of "
            "that. Raise records_per_owner, or use ownership='public' if who owns which record may be known."
        )
    return np.arange(len(people))


def _listed(owners: Owners, most: int) -> list[frozenset[Hashable]]:
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"most is {most!r}; it must be a whole number, at least 1.")
    people = [frozenset(each) for each in owners]
    for number, each in enumerate(people):
        if not each:
            raise ValueError(f"record {number} has no owner; give it one, or leave it out.")
    return people


class OwnerSampler(PoissonSampler):
    """Poisson lots of records that people own, at most ``most`` of them each; `records` counts those that take part.

    Proof obligation: which records can be drawn is fixed when the sampler is made, by the lists of owners alone or not
    at all (the module's text); no owner has more than ``most`` of them; inclusion as `PoissonSampler` draws it. Each
    record is clipped alone, so an owner moves a sum by at most as many clip norms as records of theirs are in the lot.
    """

    def __init__(
        self,
        owners: Owners,
        rate: float,
        *,
        most: int,
        source: Source,
        ownership: Literal["public", "private"] = "public",
    ) -> None:
        self._chosen = chosen_records(owners, most, ownership)
        super().__init__(len(self._chosen), rate, source=source, unit="owner")
        self._owned = OwnedPoisson(rate=rate, records=len(self._chosen), most=most, ownership=ownership)

    def event(self) -> OwnedPoisson:  # type: ignore[override]
        return self._owned

    def at(self, rate: float) -> OwnedPoisson:  # type: ignore[override]
        """The event of a step at another rate, for schedules."""
        own = self._owned
        return OwnedPoisson(rate=rate, records=own.records, most=own.most, ownership=own.ownership)

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if not isinstance(event, OwnedPoisson) or event != self.at(event.rate):
            raise mismatch(event, self._owned)
        self._draws += 1
        return self._chosen[self._choose(event.rate)]

    def state(self) -> dict[str, Any]:
        return super().state() | {"sampler": "owned poisson"}


def chosen_records(owners: Owners, most: int, ownership: str) -> Integers:
    """Return the numbers of the records that take part."""
    if ownership not in ("public", "private"):
        raise ValueError(f"ownership is {ownership!r}; it must be 'public' or 'private'.")
    return bounded_by_owner(owners, most) if ownership == "public" else within_bound(owners, most)
