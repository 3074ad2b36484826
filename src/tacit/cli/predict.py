"""``tacit predict``: what a trained model of a table says about new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show


def predict(
    model: Annotated[Path, typer.Argument(help="The directory of a run of `tacit train FILE`.")],
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns the model reads.")],
    output: Annotated[Path | None, typer.Option(help="CSV file to write; default: TABLE with .predicted.csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the target for every row of a table. Predictions about people who were not trained on cost nothing.

    \b
    Examples:
      tacit predict runs/people new.csv
      tacit predict runs/people new.parquet --output answers.csv
    """
    import csv
    import os

    from tacit.tables.model import TableModel
    from tacit.tables.reading import read

    trained = TableModel.load(model)
    schema = trained.encoding.schema
    place = output or table.with_name(f"{table.stem}.predicted.csv")
    if place.exists():
        raise ValueError(f"{place} exists; choose another file with --output.")
    fresh, rows = place.with_name(place.name + ".new"), 0
    try:
        with fresh.open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([schema.target])
            for piece in trained.predict_pieces(read(table, schema.features, numbers=schema.numbers)):
                writer.writerows([value] for value in piece.tolist())
                rows += len(piece)
        if not rows:
            raise ValueError(f"{table} has no rows; it needs one line a record below the column names.")
        os.replace(fresh, place)
    finally:
        fresh.unlink(missing_ok=True)
    show({"output": str(place), "rows": rows}, [f"{rows} predictions in {place}"], as_json=as_json)
