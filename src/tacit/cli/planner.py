"""``tacit planner``: the planner as a page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show


def planner(
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("tacit-planner.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a planner for the browser, as one HTML page.

    It solves for noise, epochs, lot size, ε or δ, and needs no network.

    \b
    Examples:
      tacit planner --open
      tacit planner --out plan.html
    """
    from tacit.reports.planner import planner_page
    from tacit.reports.writing import write

    write(out, planner_page(), keep=())
    if open_page:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    show({"page": str(out)}, [f"planner: {out}"], as_json=as_json)
