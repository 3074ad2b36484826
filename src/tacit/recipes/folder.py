"""The directory of a run: its files, and the checks before a run begins or resumes in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit.recipes.outcome import read_json, read_tensors, write_json, write_tensors
from tacit.training import PrivateRun

_FIXED = ("dataset", "recipe", "budget", "accountant", "seed")
"""Settings that a resumed run must share with the run that was begun."""


class Folder:
    """``out`` and the files in it. run.json exists from the beginning, and marks a finished run."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.facts, self.ledger = out / "run.json", out / "ledger.jsonl"
        self.model, self.architecture = out / "model.safetensors", out / "model.json"
        self._work = out / "work"
        self._made: list[Path] = []
        self.front, self.features, self._point = (
            self._work / "front.safetensors",
            self._work / "features",
            self._work / "checkpoint",
        )

    def check(self) -> None:
        """Refuse a directory with anything in it."""
        if self.facts.exists():
            if read_json(self.facts).get("finished"):
                raise ValueError(f"{self.out} holds a finished run; choose another directory.")
            raise ValueError(f"{self.out} holds a run that was not finished; resume it, or choose another directory.")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(f"{self.out} holds other files; choose another directory.")

    def make(self) -> None:
        """Make the directory; one with anything in it is refused."""
        self.check()
        self._made = [place for place in self.out.parents if not place.exists()]
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def work(self) -> Path:
        """The directory of the files that resuming needs; it is removed when the run is finished."""
        return self._work

    def saved(self, wanted: Mapping[str, Any], fixed: Sequence[str] = _FIXED) -> dict[str, Any]:
        """Return the facts of the unfinished run that is here; refuse if one that is ``fixed`` is not as ``wanted``."""
        if not self.facts.exists():
            raise ValueError(f"there is no run to resume in {self.out}.")
        found = read_json(self.facts)
        if found.get("finished"):
            raise ValueError(f"the run in {self.out} is finished; there is nothing to resume.")
        for name in fixed:
            if found.get(name) != wanted[name]:
                raise ValueError(f"the run in {self.out} was begun with another {name}; resume it with the same.")
        return found

    def check_ledger(self) -> None:
        """Refuse to resume without the ledger: the run would forget what it cost."""
        if not self.ledger.exists():
            raise ValueError(
                f"{self.ledger} is missing, and only it has the cost of the run; restore it, or begin another run."
            )

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down the settings of the run before it learns anything."""
        write_json(self.facts, facts)
        self._work.mkdir(exist_ok=True)

    def save(self, run: PrivateRun, average: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Save a point to resume at; the step in the average's file name keeps it with the right weights."""
        write_json(self.facts, facts)
        write_tensors(self._average(run.step), average)
        run.save(self._point)
        for other in self._work.glob("average-*.safetensors"):
            if other != self._average(run.step):
                other.unlink()

    def load(self, run: PrivateRun) -> dict[str, Tensor] | None:
        """Put ``run`` where it was saved and return the average; None if it never was."""
        if not any(self._work.glob("checkpoint*/run.json")):
            return None
        run.load(self._point)
        return read_tensors(self._average(run.step))

    def _average(self, step: int) -> Path:
        return self._work / f"average-{step}.safetensors"

    def discard(self) -> None:
        """Remove all files again; only for a run that has not looked at any record."""
        shutil.rmtree(self.out)
        for place in self._made:
            if not any(place.iterdir()):
                place.rmdir()

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Mark the run as complete, then remove the files that only resuming needs."""
        write_json(self.facts, facts)
        shutil.rmtree(self._work, ignore_errors=True)


def next_free(parent: Path, name: str) -> Path:
    """Return ``parent/name``, or the first of name-2, name-3, … that does not exist."""
    taken = {entry.name for entry in parent.iterdir()} if parent.is_dir() else set()
    stem = re.sub(r"[^\w.-]+", "-", name)
    number = 1
    while (label := stem if number == 1 else f"{stem}-{number}") in taken:
        number += 1
    return parent / label
