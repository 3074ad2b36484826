"""Rows to numbers, by the schema alone and one record at a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.randomness import SeededSource
from tacit.tables import records as records_module
from tacit.tables.columns import Number, spellings
from tacit.tables.encoding import Encoding, _code
from tacit.tables.entries import words
from tacit.tables.reading import columns_of, from_columns, read
from tacit.tables.records import encode, encode_parts, held_out
from tacit.tables.schema import Schema

SCHEMA = Schema.from_json(
    {
        "target": "y",
        "columns": {
            "age": {"type": "number", "low": 0, "high": 100},
            "pay": {"type": "number", "bins": [1, 10], "missing": "own"},
            "town": {"type": "category", "values": ["A", "B"], "other": True, "missing": "own"},
            "y": {"type": "category", "values": ["no", "yes"]},
        },
    }
)
ROWS = "age,pay,town,y,name\n50,0,A,yes,x\n200,5,C,no,y\n-3,,,no,z\n25, 10 ,B,yes,w\n"


def write(path: Path, text: str = ROWS) -> Path:
    (path / "people.csv").write_text(text)
    return path / "people.csv"


def test_by_hand(tmp_path: Path) -> None:
    encoding = Encoding(SCHEMA)
    records = encode(read(write(tmp_path), SCHEMA.columns), encoding)
    [(inputs, targets)] = records.slices()
    features = torch.from_numpy(encoding.expand(inputs.numpy()))
    #                          age  pay: gone <1 <10 >=10  town: gone A B other
    assert features.tolist() == [
        [0.0, 0, 1, 0, 0, 0, 1, 0, 0],
        [1.0, 0, 0, 1, 0, 0, 0, 0, 1],
        [-1.0, 1, 0, 0, 0, 1, 0, 0, 0],
        [-0.5, 0, 0, 0, 1, 0, 0, 1, 0],
    ]
    assert targets.tolist() == [1, 0, 0, 1] and targets.dtype == torch.int64
    assert encoding.width == features.shape[1] and len(encoding.names) == encoding.width


def test_a_row_is_encoded_independently_of_the_others(tmp_path: Path) -> None:
    encoding = Encoding(SCHEMA)
    path = write(tmp_path)
    [(together, _)] = encode(read(path, SCHEMA.columns), encoding).slices()
    [(alone, _)] = encode(read(path, SCHEMA.columns, rows=1), encoding).slices()
    assert torch.equal(together.nan_to_num(9), alone.nan_to_num(9))
    assert np.array_equal(encoding.expand(together.numpy())[2:3], encoding.expand(together[2:3].numpy()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("age,pay,town\n1,2,A\n", "no column 'y'"),
        ("age,pay,town,y\nold,2,A,no\n", "row 1: 'old' is not a number"),
        ("age,pay,town,y\ninf,2,A,no\n", "'inf' is not a number"),
        ("age,pay,town,y\n1,2,A,maybe\n", "'maybe' is not among the declared"),
        ("age,pay,town,y\n1,2,A,no\n,2,A,no\n", "row 2: the entry is missing"),
        ("age,pay,town,y\n1,2,A\n", "line 2: 3 fields, not 4"),
        ("age,age,town,y\n", "more than one column"),
        ("age,pay,town,y\n", "no rows"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(read(write(tmp_path, text), SCHEMA.columns), Encoding(SCHEMA))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"age,pay,town,y\n1,2,\xff,no\n")
    with pytest.raises(ValueError, match=r"line 2|UTF-8"):
        list(read(tmp_path / "x.csv", SCHEMA.columns))


def test_numbers_and_text_give_the_same_categories() -> None:
    schema = Schema.from_json(
        {
            "target": "y",
            "columns": {"k": {"type": "category", "values": [1, 2]}, "y": {"type": "category", "values": ["0", "1"]}},
        }
    )
    encoding = Encoding(schema)
    text = encoding.compact({"k": np.array(["1", "2"]), "y": np.array(["0", "1"])})
    numbers = encoding.compact({"k": np.array([1.0, 2.0]), "y": np.array([0.0, 1.0])})
    assert np.array_equal(text, numbers)


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the sklearn extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the sklearn extra is not installed")
    table = arrow.table({"age": [50, 20], "pay": [1.5, None], "town": ["A", None], "y": ["yes", "no"]})
    parquet.write_table(table, tmp_path / "p.parquet")
    assert columns_of(tmp_path / "p.parquet") == ("age", "pay", "town", "y")
    records = encode(read(tmp_path / "p.parquet", SCHEMA.columns), Encoding(SCHEMA))
    assert records[1][0].tolist() == [pytest.approx([-0.6, -1, -1])]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match="not a whole Parquet file"):
        columns_of(tmp_path / "bad.parquet")


def test_rows_in_a_file_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, path = Encoding(SCHEMA), write(tmp_path)
    aside = np.array([False, True, False, False])
    memory, other = encode_parts(read(path, SCHEMA.columns, rows=3), encoding, aside)
    monkeypatch.setattr(records_module, "IN_MEMORY", 0)
    file, apart = encode_parts(read(path, SCHEMA.columns, rows=3), encoding, aside)
    assert len(file) == len(memory) == 3 and len(apart) == len(other) == 1
    for pick in ([2, 0], [1]):
        [batch], [same] = file.__getitems__(pick), memory.__getitems__(pick)
        assert torch.equal(batch[0].nan_to_num(9), same[0].nan_to_num(9)) and torch.equal(batch[1], same[1])
    assert file[0][0][0, 0] == 0.0 and apart[0][0][0, 0] == 1.0  # ages 50 and 200
    assert [len(rows) for rows, _ in file.slices(2)] == [2, 1]
    with pytest.raises(ValueError, match="shorter"):
        encode_parts(read(path, SCHEMA.columns), encoding, np.zeros(5, dtype=bool))
    with pytest.raises(ValueError, match="longer"):
        encode_parts(read(path, SCHEMA.columns), encoding, np.zeros(3, dtype=bool))


def test_held_out_places_do_not_depend_on_others() -> None:
    few, many = held_out(100, 0.3, SeededSource(5)), held_out(101, 0.3, SeededSource(5))
    assert np.array_equal(few, many[:100])
    assert 0.2 < held_out(10_000, 0.25, SeededSource(1)).mean() < 0.3


def test_columns_in_memory_must_agree() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        list(from_columns({"a": np.zeros(2), "b": np.zeros(3)}, ["a", "b"]))


_MEASURED = """
import resource, sys
from pathlib import Path
import tacit.tables.records
from tacit.cli import main

tacit.tables.records.IN_MEMORY = 2**20
try:
    main(["train", sys.argv[1], *sys.argv[3:], "--target", "y", "--out", sys.argv[2], "--json"])
except SystemExit as stop:
    assert not stop.code, stop.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of the peak memory differs")
@pytest.mark.parametrize("kind", ["csv", "parquet", "undeclared"])
def test_training_on_a_large_file_takes_no_more_memory(tmp_path: Path, kind: str) -> None:
    """Six times the rows, the same memory: read in pieces, kept on disk, and only lots of them read again."""
    names = [f"x{place}" for place in range(12)]
    number = {"type": "number", "low": 0, "high": 1}
    columns = {**dict.fromkeys(names, number), "y": {"type": "category", "values": ["0", "1"]}}
    (tmp_path / "schema.json").write_text(json.dumps({"target": "y", "columns": columns}))
    draw = np.random.default_rng(0)
    peaks = []
    for rows in (100_000, 600_000):
        table = {name: draw.random(rows).round(6) for name in names}
        table["y"] = (table["x0"] + table["x1"] > 1).astype(int)
        path = tmp_path / f"{rows}.{'parquet' if kind == 'parquet' else 'csv'}"
        if kind == "parquet":
            arrow = pytest.importorskip("pyarrow", reason="the sklearn extra is not installed")
            parquet = pytest.importorskip("pyarrow.parquet", reason="the sklearn extra is not installed")
            parquet.write_table(arrow.table(table), path, row_group_size=rows)
        else:
            np.savetxt(path, np.column_stack(list(table.values())), "%.6g", ",", header=",".join(table), comments="")
        options = [] if kind == "undeclared" else ["--schema", str(tmp_path / "schema.json")]
        words = [sys.executable, "-c", _MEASURED, str(path), str(tmp_path / f"out{rows}"), *options]
        done = subprocess.run([*words, "--lot-size", str(rows // 20)], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout.splitlines()[-1]) / 1024)
    assert path.stat().st_size > 40e6
    assert peaks[1] < peaks[0] + (400 if kind == "undeclared" else 50)  # of values, so many are told apart


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A file is read in pieces: what is alive at once does not grow with it."""
    import tracemalloc

    line = "50,5,A,yes,some padding to make a line longer than its record\n"
    path = write(tmp_path, "age,pay,town,y,name\n" + line * 60_000)
    encoding = Encoding(SCHEMA)
    tracemalloc.start()
    for piece in read(path, SCHEMA.columns, rows=2000):
        encoding.compact(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size


_ODD = st.one_of(
    st.text(st.sampled_from("0123456789.eE+-_ \"'#xinfaNA\t\r\x0b\x1c\x85\u00a0\u0663?"), max_size=6),
    st.floats().map(repr),
    st.integers().map(str),
    st.just("1" * 400),
    st.just("x" * 400),
)


@settings(max_examples=200)
@given(rows=st.lists(st.tuples(_ODD, _ODD, _ODD), min_size=1, max_size=5))
def test_a_row_is_read_alike_whatever_is_beside_it(
    rows: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows without quotation marks take a shorter way through the reader; it may lead nowhere else."""
    column = Number(low=-1e9, high=1e9, missing="own", text="missing")
    lines = "".join(",".join(re.sub('["\r]', "", entry) for entry in row) + "\n" for row in rows)

    def seen(last: str, rows: int | None = None) -> list[tuple[str, ...]]:
        path = write(tmp_path_factory.mktemp("rows"), f"a,b,c\n{lines}{last}\n")
        found = []
        for piece in read(path, "abc", numbers="ab", rows=rows):
            coded = [_code(name, column, piece[name], 1) for name in "ab"]
            found += zip(*(map(repr, part.tolist()) for part in coded), words(piece["c"]).tolist())
        return found

    beside = seen("9,8,7")
    assert beside == seen('9,"8",7') == seen("9,8,7", rows=1)
    assert len(beside) == len(rows) + 1 and beside[-1] == (repr(9e-9), repr(8e-9), "7")


def test_line_numbers_count_on_after_plain_lines_and_entries_of_several_lines(tmp_path: Path) -> None:
    text = "a,b\n1,2\n3,4\n" + '5,"x\ny"\n' + "6,7\n8\n"
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"line 7: 1 fields, not 2"):
        list(read(path, "ab", numbers="a", rows=1))
    pieces = list(read(write(tmp_path, text[:-2]), "ab", numbers="a", rows=2))
    assert [str(value) for piece in pieces for value in piece["b"]] == ["2", "4", "x\ny", "7"]
    assert pieces[0]["a"].dtype == np.float64 and pieces[1]["a"].dtype == object


@pytest.mark.parametrize(
    ("declared", "spelled"),
    [(["true", "false"], ["True", "FALSE"]), (["True", "False"], [True, False]), (["1.0", "2"], [1, 2.0])],
)
def test_files_and_frames_may_spell_truth_and_whole_numbers_each_in_its_way(declared: list, spelled: list) -> None:
    columns = {"k": {"type": "category", "values": declared}, "y": {"type": "category", "values": declared}}
    encoding = Encoding(Schema.from_json({"target": "y", "columns": columns}))
    exact = encoding.compact({"k": np.array(declared), "y": np.array(declared)})
    for entries in (np.array(spelled), np.array([str(one) for one in spelled], dtype=object)):
        assert np.array_equal(encoding.compact({"k": entries, "y": entries}), exact)


def test_values_that_differ_in_case_alone_stay_apart() -> None:
    assert spellings(("True", "true")) == {"True": 0, "true": 1, "TRUE": 0}
    assert "yes" not in spellings(("Yes",))


def test_truth_values_of_frames_are_one_and_zero_in_a_column_of_numbers() -> None:
    columns = {"k": {"type": "number", "low": 0, "high": 1}, "y": {"type": "category", "values": ["0", "1"]}}
    encoding = Encoding(Schema.from_json({"target": "y", "columns": columns}))
    for entries in (np.array(["true", "False", "1"], dtype=object), np.array([True, False, True])):
        assert encoding.compact({"k": entries, "y": np.array(["0"] * 3)})[:, 0].tolist() == [1, -1, 1]
    with pytest.raises(ValueError, match="row 2: 'maybe' is not a number"):
        encoding.compact({"k": np.array(["true", "maybe"], dtype=object), "y": np.array(["0"] * 2)})
