"""Columns that number or name the records: of no use to a model, and found without a free look at the records."""

from __future__ import annotations

import re

import numpy as np

from tacit.tables.histograms import EDGES, Array, height

_NAMES = re.compile(
    r"(row|record|line|serial)?(id|index)|(row|record|line|serial)(no|num|number)|rec(id|no)|rows?|rownames?|uuid|guid"
    r"|(unnamed\d*)?"
)
_DOUBTFUL = re.compile(r"[a-z]I[dD]$|[\s_.-](id|ID|Id)$")

NAMED = "its name says that it numbers the records, so it is not used; say --keep-ids, or declare it, to use it"
SPREAD = (
    "its numbers are spread like those of the rows, from 1 to their number, so it is not used; declare it as a number "
    "to use it"
)


def names_records(name: str) -> bool:
    """Return whether a column's name, which is public, says that it numbers the records, as ``id`` and ``Unnamed: 0``.

    ``customer_id`` is not such a name: many records may share a customer, a shop or a school.
    """
    return _NAMES.fullmatch(re.sub(r"[\s_.:#-]", "", name.lower())) is not None


def may_name_records(name: str) -> bool:
    """Return whether a column's name ends like that of an identifier, as ``PassengerId`` and ``customer_id``."""
    return not names_records(name) and _DOUBTFUL.search(name) is not None


def numbers_records(noisy: Array, std: float, records: int) -> bool:
    """Return whether noisy counts of a column's numbers are those of 1 to ``records``, each once.

    ``noisy`` was released, and ``records`` is public. Where noise hides the pattern, the answer is False.
    """
    least = np.ceil(np.clip(EDGES, 1, records + 1))
    expected, loud = np.diff(least), height(std, len(noisy))
    seen = int((expected > 2 * loud).sum())
    return seen >= 3 and bool((np.abs(noisy - expected) <= loud).all())
