"""Tampering with a journal is refused with the line number, or is harmless: never fewer steps than were taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.ledger import GaussianSum, Header, LedgerCorrupt, Poisson, Step
from tacit.ledger.contents import Contents, seal
from tacit.ledger.reading import read

A, B, C = (
    Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=4.0, noise_std=noise),))
    for noise in (4.0, 8.0, 16.0)
)


def written(steps: list[Step]) -> bytes:
    """The journal of these steps, without the file."""
    data, contents = Contents.new(Header())
    image = bytearray(data)
    for step in steps:
        image += contents.add(step)
        at = contents.counter_at
        image[at : at + len(contents.counter())] = contents.counter()
    return bytes(image)


def steps_of(data: bytes) -> list[Step]:
    return [step for step, count in read(data, "j").runs for _ in range(count)]


def attempt(data: bytes) -> tuple[int, list[Step]]:
    """The line that is refused, or 0 and the steps."""
    try:
        return 0, steps_of(data)
    except LedgerCorrupt as error:
        return error.line, []


STEPS = [A, A, A, B, B, A, C]
DATA = written(STEPS)
LINES = DATA.splitlines(keepends=True)


@pytest.mark.parametrize("steps", [STEPS, [], [A], [A, A], [A, B]], ids=len)
def test_a_changed_byte_is_refused_or_counts_no_less(steps: list[Step]) -> None:
    data = written(steps)
    for place in range(len(data)):
        for mask in (0x01, 0x20):
            changed = bytearray(data)
            changed[place] ^= mask
            line = data.count(b"\n", 0, place) + 1
            refused, found = attempt(bytes(changed))
            if refused:
                assert refused in (line, line + 1) or (line == 3 and refused == 2)
            else:  # the changed byte is one that a torn counter can have
                assert line in (2, 3)
                assert found in (steps, [*steps, steps[-1]])


@pytest.mark.parametrize("steps", [STEPS, [], [A], [A, A], [A, B]], ids=len)
def test_every_truncation_is_refused_with_the_line(steps: list[Step]) -> None:
    data = written(steps)
    for size in range(len(data)):
        with pytest.raises(LedgerCorrupt) as caught:
            read(data[:size], "j")
        assert caught.value.line == data.count(b"\n", 0, size) + 1
        assert f"j, line {caught.value.line}: " in str(caught.value)


def test_a_line_removed_doubled_or_moved_is_refused() -> None:
    for i in range(len(LINES)):
        for j in range(len(LINES) + 1):
            moved = LINES[:i] + LINES[i + 1 :]
            moved.insert(j, LINES[i])
            doubled = list(LINES)
            doubled.insert(j, LINES[i])
            for lines in (moved, doubled, LINES[:i] + LINES[i + 1 :]):
                if lines == LINES:
                    continue
                refused, found = attempt(b"".join(lines))
                if lines[: len(LINES)] == LINES:
                    assert found == STEPS  # a torn line at the end, with both counters whole
                else:
                    assert refused


def test_several_lines_at_the_end_are_refused() -> None:
    for extra in (b"x\ny\n", b"x\ny", b"\n\n"):
        with pytest.raises(LedgerCorrupt, match="line 8"):
            read(DATA + extra, "j")


def test_one_counter_in_the_place_of_the_other_is_refused() -> None:
    header, even, odd, *rest = LINES
    for first, second in ((odd, even), (odd, odd), (even, even)):
        with pytest.raises(LedgerCorrupt, match=r"line [23]"):
            read(b"".join([header, first, second, *rest]), "j")
    with pytest.raises(LedgerCorrupt, match=r"line 3|line 7"):  # the newest gone, and the line that only it counts
        read(b"".join([header, even, even, *rest[:-1], rest[-1][:50]]), "j")


def test_counters_too_far_apart_are_refused() -> None:
    old = written([A]).splitlines(keepends=True)
    new = written([A] * 4).splitlines(keepends=True)
    with pytest.raises(LedgerCorrupt, match="4 and 1 steps"):
        read(b"".join([new[0], new[1], old[2], *new[3:]]), "j")


@given(st.data())
def test_any_edit_is_refused_or_counts_no_less(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(DATA)))
    removed = data.draw(st.integers(0, 40))
    put = data.draw(st.binary(max_size=40) | st.sampled_from([*LINES, b"\n", b" ", b"\0" * 600]))
    changed = DATA[:place] + put + DATA[place + removed :]
    try:
        found = steps_of(changed)
    except LedgerCorrupt:
        return
    assert found[: len(STEPS)] == STEPS
    assert len(found) <= len(STEPS) + 1


@given(st.binary(max_size=2000))
def test_any_bytes_at_all_are_refused(data: bytes) -> None:
    with pytest.raises(LedgerCorrupt, match="line 1"):
        read(data, "j")


def sealed(*texts: str) -> bytes:
    """A forged journal whose hashes are right."""
    (start, contents), lines = Contents.new(Header()), b""
    pair = [contents.counter()] * 2
    for number, text in enumerate(texts, 1):
        line, contents.tail = seal(text, contents.tail)
        lines += line
        contents.steps, contents.lines = number, 3 + number
        pair[number % 2] = contents.counter()
    return start[: contents.counters_at] + b"".join(pair) + lines


GOOD = LINES[3].decode()[: LINES[3].index(b',"hash"')]


def test_a_forged_journal_would_pass_if_its_steps_were_good() -> None:
    assert steps_of(sealed(GOOD)) == [A]


@pytest.mark.parametrize(
    ("good", "bad", "named"),
    [
        ("4.0", "NaN", "NaN"),
        ("4.0", "Infinity", "Infinity"),
        ("4.0", "-Infinity", "Infinity"),
        ("4.0", "1e999", "inf"),
        ("4.0", '"4.0"', "clip norm"),
        ("4.0", "true", "clip norm"),
        ('"poisson"', '"bernoulli"', "bernoulli"),
        ('"rate":0.01', '"rate":0.01,"rate":0.02', "twice"),
        ('"rate":0.01', '"speed":0.01', "fields"),
        ('"unit":"example"', '"unit":"user"', "unit"),
        ('"kind":"step"', '"kind":"pace"', "pace"),
        ('"previous_count":0', '"previous_count":1', "previous_count is 1"),
        ('"previous_count":0', '"previous_count":false', "previous_count is False"),
        ('"previous_count":0', '"previous_count":0,"other":1', "other"),
        ('"queries":[', '"queries":[' + "[" * 100_000, ""),
        ("4.0", "1" * 5000, ""),
    ],
    ids=lambda value: value[:20],
)
def test_a_sealed_line_is_still_parsed_strictly(good: str, bad: str, named: str) -> None:
    assert good in GOOD
    with pytest.raises(LedgerCorrupt, match="line 4") as caught:
        read(sealed(GOOD.replace(good, bad, 1)), "j")
    assert named in str(caught.value)


def test_a_run_split_in_two_lines_is_refused() -> None:
    with pytest.raises(LedgerCorrupt, match=r"line 5.*one line"):
        read(sealed(GOOD, GOOD.replace('"previous_count":0', '"previous_count":1')), "j")
