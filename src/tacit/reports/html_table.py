"""Tables of a report as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def details(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The numbers of a chart, for those who cannot see it or want to copy them."""
    return f"<details><summary>The numbers</summary>{table(head, rows)}</details>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, which are escaped; it scrolls where it is too wide."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{_cells(row, len(head))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[str], columns: int) -> str:
    """A short row's last cell spans what is left."""
    *others, last = row
    wide = f' colspan="{columns - len(others)}"' if len(row) < columns else ""
    return "".join(f"<td>{escape(text)}</td>" for text in others) + f"<td{wide}>{escape(last)}</td>"
