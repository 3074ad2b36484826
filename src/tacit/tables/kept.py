"""The state of an unfinished run on a table: enough for ``--resume`` to go on without asking anything twice.

It holds what was released (noisy counts, shapes, weights), which is in the ledger, and one bit a record that says who
is held out, which is as secret as the records. It never holds a key or a state of a random generator: noise is drawn
afresh.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit._files import write_whole


class Kept:
    """Files in the directory ``place``, each written whole; without a place nothing is kept and nothing is found."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place

    def save(self, name: str, facts: dict[str, Any]) -> None:
        """Keep plain values under a name."""
        if self.place is not None:
            self.place.mkdir(exist_ok=True)
            write_whole(self.place / f"{name}.json", json.dumps(facts).encode(), mode=0o600)

    def load(self, name: str) -> dict[str, Any] | None:
        """Return what was kept under a name, None if nothing was."""
        if self.place is None or not (self.place / f"{name}.json").exists():
            return None
        return _read(self.place / f"{name}.json")

    def save_aside(self, aside: NDArray[np.bool_]) -> None:
        """Keep who is held out: their number, and a bit a record."""
        if self.place is not None:
            self.place.mkdir(exist_ok=True)
            data = len(aside).to_bytes(8, "little") + np.packbits(aside).tobytes()
            write_whole(self.place / "aside", data, mode=0o600)

    def load_aside(self) -> NDArray[np.bool_] | None:
        """Return who is held out, None if that was not decided yet."""
        if self.place is None or not (self.place / "aside").exists():
            return None
        data = (self.place / "aside").read_bytes()
        count = int.from_bytes(data[:8], "little")
        if len(data) != 8 + (count + 7) // 8:
            raise ValueError(f"{self.place / 'aside'} is damaged; begin a new run.")
        bits = np.unpackbits(np.frombuffer(data[8:], dtype=np.uint8), count=count)
        held: NDArray[np.bool_] = bits.astype(np.bool_)
        return held

    @property
    def checkpoint(self) -> Path | None:
        """Where a descent keeps its checkpoint."""
        return None if self.place is None else self.place / "checkpoint"

    @property
    def step(self) -> int:
        """The step of the descent's checkpoint; 0 if there is none."""
        if self.place is None:
            return 0
        for name in ("checkpoint", "checkpoint.old"):  # a crash between two renames leaves the older one
            if (found := self.place / name / "run.json").exists():
                return int(_read(found)["step"])
        return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; begin a new run.") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is damaged; begin a new run.")
    return facts
