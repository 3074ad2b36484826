"""Where data sets lie: `TACIT_DATA`, the shared directory beside the checkout, the user's cache."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tacit.data.catalogue import Entry, Layout, entry


def cache() -> Path:
    """The user's cache, where fetched data sets are kept. Nothing is made until something is fetched."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tacit" / "data"


def places() -> list[Path]:
    """The data directories, in the order in which they are asked."""
    found = []
    if told := os.environ.get("TACIT_DATA"):
        if not Path(told).is_dir():
            raise ValueError(f"TACIT_DATA is {told!r}, which is not a directory; unset it or name one that is.")
        found.append(Path(told))
    beside = [Path.cwd().parent / "shared" / "data"]
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():  # installed from a checkout, not into site-packages
        beside.append(checkout.parent / "shared" / "data")
    found += [place for place in dict.fromkeys(beside) if place.is_dir()]
    return [*found, cache()]


def locate(name: str) -> Path | None:
    """The directory that holds the data set ``name``, or None. Its files are there; `load` checks what is in them.

    >>> locate("mnits")
    Traceback (most recent call last):
    ValueError: no data set is called 'mnits'; there are mnist, fashion, cifar10, cifar100, svhn, tinyimagenet, ...
    """
    known = entry(name)
    if known.package is not None:
        spec = importlib.util.find_spec(known.package)
        return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    found = holding(known)
    return found[0] if found is not None else None


def holding(known: Entry) -> tuple[Path, Layout] | None:
    """The first data directory with all files of one of the layouts, and that layout."""
    for place in places():
        for layout in known.layouts:
            if all((place / file.path).is_file() for file in layout.files):
                return place, layout
    return None


def absent(known: Entry) -> str:
    """One sentence for a data set that is nowhere: what was tried and what to do."""
    if known.package is not None:
        return f"{known.name} is not here: the package {known.package} is not installed; {known.remedy}."
    tried = ", ".join(str(place) for place in places())
    return f"{known.name} is not here: no data directory has its files (tried {tried}); {known.remedy}" + (
        " under one of these or under the directory that TACIT_DATA names."
    )
