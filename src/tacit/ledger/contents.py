"""Contents of a journal: runs of steps, and the sealed lines of JSON that hold them. No file is touched here.

The lines, by number:

1.  the header;
2.  a counter: the number of steps taken in all, the number of lines, and the hash of the last one (``tail``);
3.  another counter. Of the two, number n is written in line 2 if n is even and in line 3 if n is odd, in place and
    with a fixed width, so the newest counter never overwrites the one before it;
4.  and on: one line for each run of equal steps, with the number of steps in the run *before* it. The length of the
    last run is the counter's total less all of those.

Every line ends in its ``hash``: the SHA-256, in hexadecimal, of another hash and then of the line's own bytes up to
``,"hash"``. That other hash is zeros for the header, the header's for a counter and for the first run, and the line
before's for every other run. The newest counter names the hash of the last line, so it seals the whole journal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tacit.ledger.events import Header, Selection, Step, to_json

ZEROS = "0" * 64
FIRST = 4  # the number of the first line that holds a step


def seal(text: str, before: str) -> tuple[bytes, str]:
    """The finished line whose content is ``text`` (a JSON object without its closing brace), and its hash."""
    digest = hashlib.sha256((before + text).encode("ascii")).hexdigest()
    return f'{text},"hash":"{digest}"}}\n'.encode("ascii"), digest


def counter_line(steps: int, lines: int, tail: str, origin: str) -> tuple[bytes, str]:
    """Return the counter line for these numbers, and its hash."""
    return seal(f'{{"kind":"count","steps":{steps:15d},"lines":{lines:15d},"tail":"{tail}"', origin)


WIDTH = len(counter_line(0, 0, ZEROS, ZEROS)[0])


def _dump(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":"))[:-1]


def check_unit(header: Header, step: Step) -> None:
    """Refuse a step, or a candidate's step inside it, that protects another unit than the header says."""
    if step.sampling.unit != header.unit:
        raise ValueError(
            f"the step's unit is {step.sampling.unit!r}; this ledger's header says {header.unit!r}, "
            "and the cost of one unit says nothing about another: keep one ledger for each."
        )
    for query in step.queries:
        if isinstance(query, Selection):
            for inner, _ in query.candidate:
                check_unit(header, inner)


@dataclass(slots=True)
class Contents:
    """A header, its runs of steps, and where the lines that hold them begin and end."""

    header: Header
    origin: str  # the header's hash
    counters_at: int  # where line 2 begins
    tail: str  # the hash of the last line
    size: int  # where the last line ends
    lines: int = FIRST - 1
    steps: int = 0
    runs: list[tuple[Step, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # damage that `read` forgave, and why that is safe

    @classmethod
    def new(cls, header: Header) -> tuple[bytes, Contents]:
        """Return an empty journal: its first three lines, and their content."""
        line, origin = seal(_dump(to_json(header)), ZEROS)
        contents = cls(header=header, origin=origin, counters_at=len(line), tail=origin, size=0)
        contents.size = len(line) + 2 * WIDTH
        return line + 2 * contents.counter(), contents

    def add(self, step: Step) -> bytes:
        """Count one more step. Returns the line to append, which is empty if the step continues the last run."""
        last, run = self.runs[-1] if self.runs else (None, 0)
        line = b""
        if step is last or step == last:
            self.runs[-1] = (step, run + 1)
        else:
            line, self.tail = seal(_dump(to_json(step) | {"previous_count": run}), self.tail)
            self.runs.append((step, 1))
            self.lines += 1
            self.size += len(line)
        self.steps += 1
        return line

    def counter(self) -> bytes:
        """The counter line that says how many steps and lines there are now."""
        return counter_line(self.steps, self.lines, self.tail, self.origin)[0]

    @property
    def counter_at(self) -> int:
        """The counter line's place in the file."""
        return self.counters_at + self.steps % 2 * WIDTH

    @property
    def digest(self) -> str:
        """The hash of the newest counter, which seals everything."""
        return counter_line(self.steps, self.lines, self.tail, self.origin)[1]

    def steps_at(self, digest: str) -> int | None:
        """Return after how many steps the digest was this one, or None if it never was."""
        if digest == self.digest:
            return self.steps
        _, replay = Contents.new(self.header)
        if digest == replay.digest:
            return 0
        for step, count in self.runs:
            replay.add(step)
            for _ in range(count):
                if digest == replay.digest:
                    return replay.steps
                replay.steps += 1
            replay.steps -= 1
            replay.runs[-1] = (step, count)
        return None
