"""Places of data sets: `TACIT_DATA`, the shared directory beside the checkout, the user's cache."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tacit.data.catalogue import entry
from tacit.data.entries import Entry, Layout


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
    return [*found, *_beside(), cache()]


def _beside() -> list[Path]:
    """``shared/data`` beside the current directory, and beside the checkout if that is what runs."""
    roots = [Path.cwd()]
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():  # not so when installed into site-packages
        roots.append(checkout)
    found = dict.fromkeys(root.parent / "shared" / "data" for root in roots)
    return [place for place in found if place.is_dir()]


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
    tried = ", ".join(_tried(known, place) for place in places())
    return f"{known.name} is not here (tried {tried}); {known.remedy} under one of these or under TACIT_DATA."


def _tried(known: Entry, place: Path) -> str:
    """The place and, if it has some of the files of a layout, which one it lacks."""
    for layout in known.layouts:
        lacking = [file.path for file in layout.files if not (place / file.path).is_file()]
        if len(lacking) < len(layout.files):
            return f"{place}, which has no {lacking[0]}"
    return str(place)
