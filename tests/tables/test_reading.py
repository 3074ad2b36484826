"""A row of a CSV file says the same whatever rows are beside it."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tables.arrow import entries
from tacit.tables.entries import numeric, words
from tacit.tables.reading import _plain_lines, read

NAMES = ("a", "b", "c")
NUMBERS = frozenset("ab")
SPACES = "".join(chr(code) for code in range(sys.maxunicode) if chr(code).isspace() and chr(code) not in "\n\r")
ODD = "\x00\x07\x1b\x7f\u200b\ufeff\u0663_+-.eE0123456789infaNxX#'?"


def understood(columns: dict[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Return what every row says: two numbers and a word."""
    numbers = [numeric(name, columns[name], text="missing").tolist() for name in "ab"]
    return list(zip(*(map(repr, part) for part in numbers), words(columns["c"]).tolist()))


def both_ways(lines: list[str], mark: str = ",") -> tuple[list[tuple[str, ...]] | None, list[tuple[str, ...]]]:
    """Return what the fast way makes of the lines (None: it declines them), and what the slow way does."""
    fast = _plain_lines(lines, 3, NAMES, (0, 1, 2), NUMBERS, mark)
    slow = {
        name: entries(column, name in NUMBERS)
        for name, column in zip(NAMES, zip(*csv.reader(lines, strict=True, delimiter=mark)))
    }
    return None if fast is None else understood(dict(fast)), understood(slow)


@pytest.mark.parametrize("mark", SPACES + ODD)
@pytest.mark.parametrize("cell", ["{}1", "1{}", "{}1.5e3{}", "1{}2", "{}", "1e{}3"])
def test_every_space_and_odd_character_is_read_alike_both_ways(mark: str, cell: str) -> None:
    fast, slow = both_ways([f"{cell.format(mark, mark)},2,{mark}x{mark}\n"])
    assert fast is None or fast == slow


@pytest.mark.parametrize("mark", "\x1c\x1d\x1e\x1f")
def test_a_quoted_entry_does_not_change_the_numbers_of_other_rows(mark: str, tmp_path: Path) -> None:
    seen = []
    for last in ("3,4,x", '3,"4",x'):
        (tmp_path / "t.csv").write_text(f"a,b,c\n{mark}1,2{mark},x\n{last}\n")
        [piece] = read(tmp_path / "t.csv", NAMES, numbers=NUMBERS)
        seen.append(understood(dict(piece)))
    assert seen[0] == seen[1] == [("1.0", "2.0", "x"), ("3.0", "4.0", "x")]


_CELL = st.one_of(
    st.text(st.sampled_from(SPACES + ODD), max_size=8),
    st.tuples(
        st.text(st.sampled_from(SPACES), max_size=2), st.floats(), st.text(st.sampled_from(SPACES), max_size=2)
    ).map(lambda parts: f"{parts[0]}{parts[1]!r}{parts[2]}"),
    st.text(st.characters(exclude_characters='",\n\r', exclude_categories=("Cs",)), max_size=4),
    st.integers().map(str),
    st.sampled_from(["1" * 400, "x" * 400, "", "nan", "inf", "1_0", "0x10", "1e400", "1e-400"]),
)


@settings(max_examples=500)
@given(rows=st.lists(st.tuples(_CELL, _CELL, _CELL), min_size=1, max_size=4))
def test_the_fast_way_and_the_slow_way_agree_on_generated_cells(rows: list[tuple[str, str, str]]) -> None:
    for mark in ",;\t":
        if any(mark in cell for row in rows for cell in row):
            continue
        fast, slow = both_ways([mark.join(row) + "\n" for row in rows], mark)
        assert fast is None or fast == slow
