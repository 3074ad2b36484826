"""The kinds of files that hold tables, by their names. It imports nothing heavy: ``tacit --help`` is quick.

A place is a path, or ``FILE::TABLE`` for a table inside a SQLite or DuckDB file.
"""

from __future__ import annotations

from pathlib import Path

_PARQUET, _FEATHER = (".parquet", ".pq"), (".feather", ".arrow", ".ipc")
_LINES = (".jsonl", ".ndjson")
_SQLITE, _DUCKDB = (".db", ".sqlite", ".sqlite3"), (".duckdb", ".ddb")
_TEXT = (".csv", ".tsv", ".tab", ".txt")
SUFFIXES = (*_TEXT, *_PARQUET, *_FEATHER, *_LINES, *_SQLITE, *_DUCKDB)
_OTHERS = {
    ".xlsx": "a spreadsheet; save the sheet as CSV",
    ".xls": "a spreadsheet; save the sheet as CSV",
    ".ods": "a spreadsheet; save the sheet as CSV",
    ".json": "JSON; write one object a line, and name the file .jsonl",
    ".pkl": "a pickle, which can run any program when it is read; write CSV or Parquet from where it was made",
    ".pickle": "a pickle, which can run any program when it is read; write CSV or Parquet from where it was made",
    ".zip": "packed; unpack it, or pack one CSV file with gzip",
    ".zst": "packed with zstd; unpack it, or pack it with gzip",
    ".xz": "packed with xz; unpack it, or pack it with gzip",
    ".bz2": "packed with bzip2; unpack it, or pack it with gzip",
    ".sav": "of SPSS; export it as CSV",
    ".dta": "of Stata; export it as CSV",
    ".sas7bdat": "of SAS; export it as CSV",
    ".rds": "of R; write it with write.csv",
}


def divided(place: Path) -> tuple[Path, str]:
    """Return the file of a place, and the table in it; '' where none is named."""
    text, _, table = str(place).partition("::")
    return Path(text), table


def kind_of(place: Path) -> str:
    """Return ``csv``, ``parquet``, ``feather``, ``jsonl``, ``sqlite`` or ``duckdb``; other files are refused."""
    path, table = divided(place)
    if not path.exists():
        raise ValueError(f"there is no file {path}.")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give a CSV or Parquet file.")
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() or ".csv"
        if suffix not in (*_TEXT, *_LINES):
            raise ValueError(f"{path} is packed, and {suffix} files are read unpacked only; unpack it.")
    if suffix in _OTHERS:
        raise ValueError(f"{path} is {_OTHERS[suffix]}.")
    for kind, suffixes in (("sqlite", _SQLITE), ("duckdb", _DUCKDB)):
        if suffix in suffixes:
            if not table:
                raise ValueError(f"{path} is a database; say which table, as {path}::TABLE.")
            return kind
    if table:
        raise ValueError(f"{path} is no database, so it has no table {table!r}; give the file alone.")
    return (
        "parquet" if suffix in _PARQUET else "feather" if suffix in _FEATHER else "jsonl" if suffix in _LINES else "csv"
    )


def is_file_of_a_table(name: str) -> bool:
    """Return whether a command's argument is a file: by its ending, or because there is one of that name."""
    path, _ = divided(Path(name))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return (bool(suffixes) and (suffixes[-1] in (*SUFFIXES, *_OTHERS, ".gz"))) or path.is_file()
