"""The planner: one HTML page that solves for a run's privacy parameters in the browser, without a network."""

from __future__ import annotations

from importlib import resources

from tacit._version import __version__

MATHEMATICS = ("normal.js", "tilted.js", "accountant.js", "solver.js")
"""The scripts that compute, in the order in which they are put together."""


def mathematics() -> str:
    """Return the scripts that compute, as one text."""
    return "\n".join(_text(name) for name in MATHEMATICS)


def planner_page() -> str:
    """Return the whole page as HTML."""
    style = resources.files("tacit.reports").joinpath("style.css").read_text("utf-8") + _text("planner.css")
    parts = {"style": style, "version": __version__, "mathematics": mathematics(), "page": _text("page.js")}
    page = _text("page.html")
    for name, text in parts.items():
        page = page.replace(f"/*{name}*/", text)
    return page


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")
