"""Tables read piece by piece, so that a file larger than memory is no different from a small one."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.tables.arrow import entries, from_arrow
from tacit.tables.columns import Columns
from tacit.tables.formats import names_in, open_text, pieces_of, separator
from tacit.tables.kinds import kind_of

_ENTRIES = 2**18
"""How many are read at once, of what is not a CSV file."""
_TEXT = 1 << 21
"""How many characters of a CSV file are read at once."""
_LONGEST_FIELD = 1 << 20
_BUFFER = 1 << 20
"""Bytes of a column of a Parquet file that are read at once; without it, and with reading ahead (``pre_buffer``), a row
group, which may be the whole file."""


def columns_of(path: Path) -> tuple[str, ...]:
    """The names of the columns of the file at ``path``."""
    kind = kind_of(path)
    if kind == "parquet":
        with _parquet(path) as parquet:
            return _once(path, tuple(parquet.schema_arrow.names))
    if kind != "csv":
        return _once(path, names_in(path, kind))
    with _text(path) as file:
        return _header(path, file)[0]


def measured(path: Path) -> frozenset[str]:
    """Return the columns that the file itself says hold numbers with fractions; a CSV file says nothing of the kind."""
    if kind_of(path) != "parquet":
        return frozenset()
    import pyarrow

    with _parquet(path) as parquet:
        fields = list(parquet.schema_arrow)
    decimal, floating = pyarrow.types.is_decimal, pyarrow.types.is_floating
    return frozenset(field.name for field in fields if floating(field.type) or decimal(field.type))


def check_columns(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names``; a file that lacks one of these columns is refused. No record is read."""
    wanted, held = tuple(names), columns_of(path)
    lacking = [name for name in wanted if name not in held]
    if lacking:
        raise ValueError(f"{path} has no column {', '.join(map(repr, lacking))}; its columns are {', '.join(held)}.")
    return wanted


def read(
    path: Path, names: Iterable[str], *, numbers: Collection[str] = (), rows: int | None = None
) -> Iterator[Columns]:
    """Yield the columns ``names`` of a file, at most ``rows`` rows at a time: what fits in little memory.

    `tacit.tables.formats` says what files are read.

    The columns ``numbers`` may come as numbers or as text that is yet to be read as numbers, whichever is quicker; the
    numbers are the same.
    """
    wanted = check_columns(path, names)
    kind = kind_of(path)
    if kind == "parquet":
        yield from _read_parquet(path, wanted, rows or _rows(wanted))
    elif kind != "csv":
        yield from pieces_of(path, kind, wanted, rows or _rows(wanted))
    else:
        yield from _read_csv(path, wanted, frozenset(numbers), rows)


def read_columns(
    path: Path, sources: Mapping[str, str], *, numbers: Collection[str] = (), rows: int | None = None
) -> Iterator[Columns]:
    """Yield columns of a file under other names: ``sources`` has the file's name of each."""
    others = {source for name, source in sources.items() if name not in numbers}
    for piece in read(path, dict.fromkeys(sources.values()), numbers=set(numbers) - others, rows=rows):
        yield {name: piece[source] for name, source in sources.items()}


def from_columns(table: Columns, names: Iterable[str]) -> Iterator[Columns]:
    """The same for a table that is already in memory."""
    wanted = tuple(names)
    lacking = [name for name in wanted if name not in table]
    if lacking:
        raise ValueError(f"the table has no column {', '.join(map(repr, lacking))}; it has {', '.join(table)}.")
    lengths = {len(table[name]) for name in wanted}
    if len(lengths) > 1:
        raise ValueError("the columns of the table have different lengths; a row is one record.")
    rows = _rows(wanted)
    for start in range(0, lengths.pop() if lengths else 0, rows):
        yield {name: _plain(np.asarray(table[name][start : start + rows])) for name in wanted}


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(str) if values.dtype.kind == "O" else values


def _rows(names: Sequence[str]) -> int:
    return max(_ENTRIES // max(len(names), 1), 1)


def _text(path: Path) -> Any:
    return open_text(path)


def _header(path: Path, file: Any) -> tuple[tuple[str, ...], str, int]:
    """Return the names of the columns, what separates fields, and how many lines the header takes."""
    names: tuple[str, ...] = ()
    mark, taken = ",", 0
    try:
        if first := file.readline(_LONGEST_FIELD):
            mark = separator(path, first)
            reader = csv.reader(chain([first], file), strict=True, delimiter=mark)
            names, taken = tuple(name.strip() for name in next(reader)), reader.line_num
    except StopIteration:
        names = ()
    except UnicodeDecodeError as error:
        raise _undecoded(path, 0, error) from None
    except (csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}; save it as one.") from None
    if not names:
        raise ValueError(f"{path} is empty; it needs a line of column names and one line a record.")
    return _once(path, names), mark, taken


def _once(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice == [""]:
        raise ValueError(f"{path} has {names.count('')} columns without a name; name them in the first line.")
    if twice:
        raise ValueError(f"{path} has more than one column called {', '.join(map(repr, twice))}; rename or remove one.")
    return names


def _read_csv(path: Path, wanted: Sequence[str], numbers: Collection[str], rows: int | None) -> Iterator[Columns]:
    csv.field_size_limit(_LONGEST_FIELD)
    with _text(path) as file:
        names, mark, passed = _header(path, file)
        places = [names.index(name) for name in wanted]
        pick = itemgetter(*places, 0)  # one more, so that it is always a tuple
        while lines := _lines(path, file, passed, rows):
            plain = _plain_lines(lines, len(names), wanted, places, numbers, mark)
            if plain is not None:
                passed += len(lines)
                yield plain
                continue
            piece: list[tuple[str, ...]] = []
            reader = csv.reader(
                chain(lines, file), strict=True, delimiter=mark
            )  # an entry may go on beyond the last line
            try:
                for line in reader:
                    if line and len(line) != len(names):
                        there = f"{len(line)} fields, not {len(names)}"
                        at = passed + reader.line_num
                        raise ValueError(f"{path}, line {at}: {there}; there must be one a column.")
                    if line:
                        piece.append(pick(line))
                    if reader.line_num >= len(lines):
                        break
            except UnicodeDecodeError as error:
                raise _undecoded(path, passed + reader.line_num, error) from None
            except csv.Error as error:
                at = passed + reader.line_num
                raise ValueError(f"{path}, line {at}: {error}; is a quotation mark not closed?") from None
            passed += reader.line_num
            if piece:
                yield {name: entries(column, name in numbers) for name, column in zip(wanted, zip(*piece))}


def _lines(path: Path, file: Any, passed: int, rows: int | None) -> list[str]:
    try:
        return file.readlines(_TEXT) if rows is None else list(islice(file, rows))
    except UnicodeDecodeError as error:
        raise _undecoded(path, passed, error) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is broken off or damaged after line {passed}: {error}; pack it again.") from None


def _undecoded(path: Path, line: int, error: UnicodeDecodeError) -> ValueError:
    place = f", after line {line}," if line else ""
    return ValueError(
        f"{path}{place} is not in UTF-8: {error}; convert it, for example: iconv -f CP1252 -t UTF-8 {path} > new.csv"
    )


def _plain_lines(
    lines: list[str], fields: int, wanted: Sequence[str], places: Sequence[int], numbers: Collection[str], mark: str
) -> Columns | None:
    """The columns of lines without quotation marks whose numbers are all there: four times as fast. Others: None.

    It must say of each row what the other way says: a row's neighbours in the file decide which way is taken.
    """
    text = "".join(lines)
    if fields < 2 or '"' in text or "\0" in text or max(map(len, lines)) > _LONGEST_FIELD:
        return None
    if any(line.count(mark) != fields - 1 for line in lines):
        return None
    kinds = [(f"f{place}", np.float64 if name in numbers else object) for place, name in enumerate(wanted)]
    try:
        table = np.loadtxt(lines, dtype=kinds, comments=None, delimiter=mark, usecols=places, ndmin=1, encoding=None)
    except ValueError:
        return None
    columns = {name: table[kind] for name, (kind, _) in zip(wanted, kinds)}
    if len(table) != len(lines) or not all(np.isfinite(columns[name]).all() for name in wanted if name in numbers):
        return None
    return {name: column if name in numbers else entries(column.tolist(), False) for name, column in columns.items()}


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow; install it with: pip install 'tacit[sklearn]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a whole Parquet file: {_sentence(error)}") from None


def _read_parquet(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    import pyarrow

    with _parquet(path) as file:
        batches = file.iter_batches(batch_size=rows, columns=list(wanted))
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{path} is not a whole Parquet file: {_sentence(error)}") from None
            if batch is None:
                return
            yield {name: from_arrow(batch.column(name), name) for name in wanted}


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."
