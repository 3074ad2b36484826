"""``tacit planner``: the planner as a page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show


def planner(
    output: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("tacit-planner.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the planner: one HTML page that solves for noise, epochs, lot size, ε or δ. It needs no network.

    \b
    Examples:
      tacit planner --open
      tacit planner --output plan.html
    """
    from tacit.reports.planner import planner_page
    from tacit.reports.writing import write

    write(output, planner_page(), keep=())
    if open_page:
        import webbrowser

        webbrowser.open(output.resolve().as_uri())
    show({"page": str(output)}, [f"planner: {output}"], as_json=as_json)
