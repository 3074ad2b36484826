"""``tacit export``: a trained model of a table for programs without Tacit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show


def export(
    model: Annotated[Path, typer.Argument(help="The directory of a run of `tacit train FILE`.")],
    to: Annotated[str, typer.Option(help="sklearn: a Python package with an estimator; onnx: a graph.")] = "sklearn",
    out: Annotated[
        Path | None, typer.Option(help="What to write: a new directory, or a new .onnx file; beside the model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a model for programs without Tacit. It was paid for when it was trained; exporting it costs nothing.

    \b
    Examples:
      tacit export runs/people                       then, in Python: from plain_model import load
      tacit export runs/people --to onnx --out people.onnx
    """
    from tacit.tables.model import TableModel

    if to not in ("sklearn", "onnx"):
        raise ValueError(f"--to is {to!r}; choose sklearn or onnx.")
    trained = TableModel.load(model)
    if to == "sklearn":
        from tacit.tables.export.package import write_package

        place = out or model / "plain_model"
        write_package(trained, place)
        lines = [
            f"a package in {place}; with its parent directory on the path: from {place.name} import load",
            "It needs numpy and scikit-learn (and pyarrow for frames of polars).",
        ]
    else:
        from tacit.tables.export.onnx_graph import write_onnx

        place = out or model / "model.onnx"
        write_onnx(trained, place)
        lines = [f"a graph in {place}"]
    show({"output": str(place), "format": to}, lines, as_json=as_json)
