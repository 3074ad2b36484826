"""`report` and `model_card`: from the files of a run to a file for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tacit._files import write_whole
from tacit.reports.card import card
from tacit.reports.findings import Findings, Run, find
from tacit.reports.page import page
from tacit.reports.twin import read_signoff, twin


def report(run_directory: str | os.PathLike[str], *, output: Path | None = None, delta: float | None = None) -> Path:
    """Write the HTML report of a run, or of a bare ledger file, and return where.

    Every number on privacy is computed anew from the ledger; run.json adds names and accuracy. δ is ``delta``, else the
    one in run.json, else 1e-5. Without ``output`` the report is ``report.html`` in the run's directory, or beside the
    ledger and named after it.
    """
    run = Run.load(Path(run_directory))
    return write_page(run, find(run, delta=delta), output)


def model_card(run_directory: str | os.PathLike[str], *, delta: float | None = None) -> str:
    """The statement of a run as a section in Markdown."""
    run = Run.load(Path(run_directory))
    return card(run, find(run, delta=delta))


def write_page(run: Run, facts: Findings, output: Path | None, *, signoff: Path | None = None) -> Path:
    """Write the page at ``output``, or in the run's directory with privacy.json beside it."""
    place = run.place
    signed = read_signoff(run, signoff)
    path = output or (place / "report.html" if place.is_dir() else place.with_name(f"{place.stem}.report.html"))
    write(path, page(run, facts, signed), keep=run.files)
    if place.is_dir() and output is None:
        text = json.dumps(twin(run, facts, signed), ensure_ascii=False, indent=1, allow_nan=False)
        write(place / "privacy.json", text + "\n", keep=run.files)
    return path


def write(path: Path, text: str, *, keep: tuple[Path, ...] = ()) -> None:
    """Put ``text`` at ``path``, whole or not at all; never over one of ``keep``."""
    if path.is_dir():
        raise ValueError(f"cannot write the report to {path}: it is a directory; give the name of a file in it.")
    if any(path.exists() and kept.exists() and os.path.samefile(path, kept) for kept in keep):
        raise ValueError(f"cannot write the report over {path}: the run needs that file; choose another name.")
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ValueError(
            f"cannot write the report to {path}: {error.strerror or error}; choose another place."
        ) from error
