"""From the bytes of a journal to its contents: strict, and never in favour of fewer steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from tacit.ledger.contents import FIRST, WIDTH, ZEROS, Contents, check_unit, counter_line, seal
from tacit.ledger.events import Header, Step, from_json

_COUNTER = re.compile(rb'\{"kind":"count","steps": *(\d{1,15}),"lines": *(\d{1,15}),"tail":"([0-9a-f]{64})"')
_SEAL = len(seal("", ZEROS)[0]) - 1  # the bytes of `,"hash":"..."}`


class LedgerCorrupt(ValueError):
    """The journal is not what was written: a line was changed, removed, inserted or moved."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


Corrupt = Callable[[int, str], LedgerCorrupt]


def read(data: bytes, name: str) -> Contents:
    """Return what the bytes of the journal called ``name`` say, or raise `LedgerCorrupt`.

    Guarantee: the bytes are accepted only if a crash of the writer (see `tacit.ledger.journal`) can leave exactly
    these, and then the steps returned are all those whose `record` had returned, and at most the one in flight besides.
    So damage is refused, and fewer steps are returned only for bytes that a shorter history leaves: a rollback.

    Let n be what the newest readable counter says. The bytes of the other counter are each those of n - 1 or of n + 1,
    and a crash leaves one of

    * nothing after the last line that n counts. A mixture means that one more step of the last run was on its way in,
      since the line of any other step is on the disk before its counter is touched: n + 1 steps;
    * one whole line after it, a step on its way in: n + 1 steps;
    * a torn line after it. Its counter was not begun, so nothing was released for it: n steps.

    Bytes of the other counter that are neither may have counted a line that is gone: they are refused.
    """

    def corrupt(line: int, what: str) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"{name}, line {line}: {what} The ledger no longer proves what was spent; restore the whole file "
            "from a copy, and charge again what was released after that copy was made.",
            line,
        )

    contents = _read_start(data, corrupt)
    contents.steps, contents.lines, tail = _newest(data, contents, corrupt)
    other = data[contents.counters_at + (contents.steps + 1) % 2 * WIDTH :][:WIDTH]
    *whole, rest = data[contents.size :].split(b"\n")
    counted = contents.lines + 1 - FIRST
    sealed, before = 0, contents.tail
    for number, line in enumerate(whole[:counted], FIRST):
        opened = _open(line, contents.tail)
        if opened is None:
            raise corrupt(number, "the line does not match its hash and the line before it.")
        before = contents.tail
        sealed += _take(opened, number, contents, corrupt)
        contents.size += len(line) + 1
    if len(whole) < counted:
        raise corrupt(FIRST + len(whole), f"the journal is cut short here; its counter says {contents.lines} lines.")
    if contents.tail != tail:
        raise corrupt(contents.lines, "the last line is not the one that the counter names.")
    run = contents.steps - sealed
    if contents.runs:
        contents.runs[-1] = (contents.runs[-1][0], run)
    if (run < 1) if contents.runs else (run != 0):
        raise corrupt(2, f"the counter says {contents.steps} steps, the lines before the last run {sealed}.")
    older = (contents.lines - 1, before) if run == 1 else (contents.lines, contents.tail)
    old = counter_line(max(contents.steps - 1, 0), *older, contents.origin)[0]
    _read_end(whole[counted:], rest, run, (old, other), contents, corrupt)
    return contents


def _read_start(data: bytes, corrupt: Corrupt) -> Contents:
    line, end, _ = data.partition(b"\n")
    opened = _open(line, ZEROS) if end else None
    if opened is None:
        raise corrupt(1, "this is not the header of a ledger, or it was changed.")
    try:
        header = from_json(_load(opened[0]))
    except ValueError as error:
        raise corrupt(1, f"{error}") from None
    if not isinstance(header, Header):
        raise corrupt(1, "the first line is not a header.")
    at = len(line) + 1
    contents = Contents(header=header, origin=opened[1], counters_at=at, tail=opened[1], size=at + 2 * WIDTH)
    if len(data) < contents.size:
        raise corrupt(1 + data.count(b"\n"), "the journal is cut short before its first step.")
    return contents


def _newest(data: bytes, contents: Contents, corrupt: Corrupt) -> tuple[int, int, str]:
    """Return the newest readable counter: steps, lines, tail."""
    found: list[tuple[int, int, str]] = []
    for slot in range(2):
        line = data[contents.counters_at + slot * WIDTH :][:WIDTH]
        match = _COUNTER.match(line)
        steps, lines, tail = (int(match[1]), int(match[2]), match[3].decode()) if match else (0, 0, "")
        genuine = bool(match) and line == counter_line(steps, lines, tail, contents.origin)[0]
        if genuine and lines >= FIRST - 1 and (steps % 2 == slot or (steps == 0 and found)):
            found.append((steps, lines, tail))
    if not found:
        raise corrupt(2, "no counter matches its hash and its place.")
    counts = [steps for steps, _, _ in found]
    if len(found) == 2 and abs(counts[0] - counts[1]) != 1 and max(counts) > 0:
        raise corrupt(2, f"the two counters say {counts[0]} and {counts[1]} steps; they are never more than one apart.")
    return max(found)


def _take(opened: tuple[str, str], number: int, contents: Contents, corrupt: Corrupt) -> int:
    """Add the step on a sealed line to the contents; returns the length of the run before it."""
    text, digest = opened
    try:
        values = _load(text)
        previous = values.pop("previous_count", None)
        step = from_json(values)
        if not isinstance(step, Step):
            raise ValueError(f"the line holds {values.get('kind')!r}, not a step.")
        check_unit(contents.header, step)
        if type(previous) is not int or (previous < 1 if contents.runs else previous != 0):
            raise ValueError(f"previous_count is {previous!r}; it must be the number of steps in the run before.")
        if contents.runs and contents.runs[-1][0] == step:
            raise ValueError("the step equals the one on the line before; a run of equal steps has one line.")
    except (ValueError, RecursionError) as error:
        raise corrupt(number, f"{error}") from None
    if contents.runs:
        contents.runs[-1] = (contents.runs[-1][0], previous)
    contents.runs.append((step, 1))
    contents.tail = digest
    return int(previous)


def _read_end(
    extra: list[bytes], rest: bytes, run: int, counters: tuple[bytes, bytes], contents: Contents, corrupt: Corrupt
) -> None:
    """Read what lies after the last line counted, and the other counter: as it was before the last write, and now."""
    number = contents.lines + 1
    if len(extra) + bool(rest) > 1:
        raise corrupt(number, f"lines follow, but the counter says there are {contents.lines}.")
    old, other = counters
    at = 2 + (contents.steps + 1) % 2
    damaged = corrupt(
        at,
        "the counter is damaged, and not by a crash, so a line that only this counter names may be missing; the "
        f"other counter says {contents.steps} steps.",
    )
    opened = _open(extra[0], contents.tail) if extra else None
    if opened is not None:
        if _take(opened, number, contents, corrupt) != run:
            raise corrupt(number, f"the run before this line has {run} steps, not as many as it says.")
        contents.lines, contents.size, contents.steps = number, contents.size + len(extra[0]) + 1, contents.steps + 1
        if not _is_mixture(other, old, contents.counter()):
            raise damaged
        contents.notes.append(f"line {number} was written but not yet counted; it counts as one step")
    elif extra or rest:
        if other != old:
            raise damaged
        contents.notes.append(f"line {number} is torn and is left out; nothing was released for it")
    elif other != old:
        if not contents.runs:
            raise damaged
        contents.runs[-1] = (contents.runs[-1][0], run + 1)
        contents.steps += 1
        if not _is_mixture(other, old, contents.counter()):
            raise damaged
        contents.notes.append(f"the counter on line {at} is torn; it counts as one more step of the last run")


def _is_mixture(found: bytes, old: bytes, new: bytes) -> bool:
    """Return whether a torn write of ``new`` over ``old`` can leave what was ``found``."""
    return all(byte in pair for byte, *pair in zip(found, old, new, strict=True))


def _open(line: bytes, before: str) -> tuple[str, str] | None:
    """The content of a line and its hash, or None if the two do not belong together."""
    try:
        text = line[:-_SEAL].decode("ascii")
    except UnicodeDecodeError:
        return None
    sealed, digest = seal(text, before)
    return (text, digest) if sealed[:-1] == line else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a field is given twice among {[name for name, _ in pairs]}.")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON or a ledger allows.")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _load(text: str) -> dict[str, Any]:
    try:
        values = _DECODER.decode(text + "}")
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object.")
    return values
