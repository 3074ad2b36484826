"""Records that several people own: choose some of them so that nobody owns more than a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tacit.randomness import Integers


def bounded_by_owner(owners: Sequence[Iterable[int]], most: int) -> Integers:
    """The numbers of records, taken in order, of which no owner has more than ``most``.

    ``owners`` lists the owners of each record: both ends of a message, all people in a picture. Train on the chosen
    records, ``torch.utils.data.Subset(dataset, chosen)``, and ask for groups of ``most``: that is each owner's
    guarantee.

    Proof obligation. *Who owns which record is public*, and neighbours differ in what is in the records of one owner:
    all of them there, or none (the fixed-graph relation of Ganesh et al., arXiv 2503.03622). The choice depends on the
    owners alone, so it is the same for both; at most ``most`` of the chosen records are the owner's, and taking out
    what is in them is a group of so many removed (`tacit.accounting.groups`, whose mixture of Gaussians covers several
    records of one owner in one lot). If ownership itself is private nothing is promised: a record more can change
    which others are chosen.

    >>> bounded_by_owner([(0, 1), (0, 2), (1,), (0,), (2, 3)], most=2).tolist()
    [0, 1, 2, 4]
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"most is {most!r}; it must be a whole number, at least 1.")
    owned: Counter[int] = Counter()
    chosen = []
    for number, people in enumerate(owners):
        people = set(people)
        if not people:
            raise ValueError(f"record {number} has no owner; give it one, or leave it out.")
        if all(owned[person] < most for person in people):
            owned.update(people)
            chosen.append(number)
    return np.array(chosen, dtype=np.int64)
