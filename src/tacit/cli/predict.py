"""``tacit predict``: predictions of a trained model of a table for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show


def predict(
    model: Annotated[Path, typer.Argument(help="The directory of a run of `tacit train FILE`.")],
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns the model reads.")],
    proba: Annotated[bool, typer.Option("--proba", help="Write the chance of every class as well.")] = False,
    keep: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns of the table to copy beside the predictions.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; default: TABLE with .predicted.csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the target for every row of a table. Predictions about people who were not trained on cost nothing.

    Values that the model has not seen and missing entries are counted, column by column.

    \b
    Examples:
      tacit predict runs/people new.csv
      tacit predict runs/people new.parquet --out answers.csv
      tacit predict runs/people new.csv --proba --keep id,name
    """
    import csv
    import os
    from collections import Counter

    from tacit.tables.entries import words
    from tacit.tables.model import TableModel
    from tacit.tables.reading import read_columns

    trained = TableModel.load(model)
    schema = trained.encoding.schema
    if proba and not trained.classes:
        raise ValueError(f"--proba is for classes, and {schema.target!r} is a number; leave it out.")
    kept = [name.strip() for name in keep.split(",")] if keep is not None else []
    chances = [f"P({name})" for name in trained.classes] if proba else []
    # The true values may stand beside the predictions, to compare them.
    answer = f"predicted {schema.target}" if schema.target in kept else schema.target
    header = [*kept, answer, *chances]
    if len(set(header)) < len(header):
        raise ValueError(f"the columns of the output would be {', '.join(header)}; keep each once.")
    place = out or table.with_name(f"{table.stem}.predicted.csv")
    if place.exists():
        raise ValueError(f"{place} exists; choose another file with --out.")
    fresh, rows = place.with_name(place.name + ".new"), 0
    unseen: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    try:
        with fresh.open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            sources = {f"keep {name}": name for name in kept} | schema.sources(schema.features)
            for piece in read_columns(table, sources, numbers=schema.numbers):
                found = trained.predicted_columns(piece, first=rows + 1)
                parts = [words(piece[f"keep {name}"]).tolist() for name in kept] + [found.values.tolist()]
                if proba and found.chances is not None:
                    parts += [[f"{chance:.6g}" for chance in column] for column in found.chances.T.tolist()]
                writer.writerows(zip(*parts, strict=True))
                rows += len(found.values)
                unseen.update(found.unseen)
                missing.update(found.missing)
        if not rows:
            raise ValueError(f"{table} has no rows; it needs one line a record below the column names.")
        os.replace(fresh, place)
    finally:
        fresh.unlink(missing_ok=True)
    notes = [
        f"{count} of {rows} entries of {name!r} are values that the model does not know"
        for name, count in unseen.items()
    ]
    notes += [f"{count} of {rows} entries of {name!r} are missing" for name, count in missing.items()]
    facts = {"output": str(place), "rows": rows, "unseen": dict(unseen), "missing": dict(missing)}
    show(facts, [f"{rows} predictions in {place}", *(f"note: {note}." for note in notes)], as_json=as_json)
