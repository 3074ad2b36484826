"""Charts of a model that is a sum of shapes (``shapes.json`` of a run): what each column adds to the score.

The shapes are made from noisy sums that the ledger lists, so showing them costs nothing. The file is read as data of
unknown origin: what does not fit is left out, and every text is escaped where it is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tacit.reports import svg
from tacit.reports.findings import Run
from tacit.reports.said import clean, number
from tacit.reports.svg import Axis, Series

SHAPES = "shapes.json"
_MOST = 12
_MOST_CELLS = 400
_MOST_BARS = 24


def shapes(run: Run) -> list[str]:
    """Return a chart for each of the strongest shapes; none for a run without ``shapes.json``."""
    facts = _load(run)
    terms = facts.get("terms")
    if not isinstance(terms, list):
        return []
    unit, outputs = clean(str(facts.get("unit", ""))), [clean(str(name)) for name in facts.get("outputs") or []]
    ranked = sorted(
        (term for term in terms if isinstance(term, dict)), key=lambda term: -(number(term.get("strength")) or 0)
    )
    strongest = max((number(term.get("strength")) or 0.0 for term in ranked), default=0.0)
    shown = [term for term in ranked if (number(term.get("strength")) or 0.0) > 0.01 * strongest][:_MOST]
    return [figure for place, term in enumerate(shown) if (figure := _figure(f"shape{place}", term, outputs, unit))]


def _strength(term: dict[str, Any]) -> float:
    return number(term.get("strength")) or 0.0


def _load(run: Run) -> dict[str, Any]:
    path = run.place / SHAPES
    if not run.place.is_dir() or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _figure(name: str, term: dict[str, Any], outputs: Sequence[str], unit: str) -> str:
    columns, cells, edges, adds = (term.get(key) for key in ("columns", "cells", "edges", "adds"))
    if not (isinstance(columns, list) and isinstance(cells, list) and isinstance(edges, list)):
        return ""
    if not len(columns) == len(cells) == len(edges) or len(columns) not in (1, 2):
        return ""
    title = " × ".join(clean(str(column)) for column in columns)
    words = f"What {title} adds to the score ({unit}); over the records it varies by ±{_strength(term):.2g}."
    try:
        if len(cells) == 1:
            return _alone(name, title, words, cells[0], edges[0], adds, outputs, unit)
        return _pair(name, title, words, cells, edges, adds, outputs, unit)
    except (TypeError, ValueError, IndexError, KeyError):
        return ""


def _alone(
    name: str, title: str, words: str, cells: Any, edges: Any, adds: Any, outputs: Sequence[str], unit: str
) -> str:
    rows = [[float(value) for value in row] for row in adds[:_MOST_CELLS]]
    if edges is None:
        if len(outputs) > 1:
            order = sorted(range(len(rows)), key=lambda place: -max(map(abs, rows[place])))[: _MOST_BARS // 2]
            pairs = [(f"{cells[at]}, {outputs[k]}", rows[at][k]) for at in order for k in range(len(outputs))]
            pairs = sorted(pairs, key=lambda pair: -abs(pair[1]))[:_MOST_BARS]
        else:
            pairs = [(str(cells[at]), row[0]) for at, row in enumerate(rows)]
            pairs = sorted(pairs, key=lambda pair: -abs(pair[1]))[:_MOST_BARS]
        labels = [clean(label) for label, _ in sorted(pairs, key=lambda pair: pair[1])]
        return svg.signed_bars(
            name=name,
            title=title,
            description=words,
            labels=labels,
            values=sorted(value for _, value in pairs),
            unit=unit,
        )
    first = len(rows) - len(edges) - 1  # a cell for missing entries comes first
    series = [
        Series(
            label=label if len(outputs) > 1 else "", points=_stairs(edges, [row[k] for row in rows[first:]]), style=k
        )
        for k, label in enumerate(outputs[: svg.STYLES])
    ]
    if first == 1:
        words += f" A missing entry adds {', '.join(f'{value:.2g}' for value in rows[0])}."
    return svg.lines(name=name, title=title, description=words, series=series, x=Axis(label=title), y=Axis(label=unit))


def _pair(
    name: str, title: str, words: str, cells: Any, edges: Any, adds: Any, outputs: Sequence[str], unit: str
) -> str:
    if len(outputs) > 1:
        return ""
    sizes = [len(cells[0]), len(cells[1])]
    along = max((place for place in (0, 1) if edges[place] is not None), key=lambda place: sizes[place], default=None)
    if along is None:
        return ""
    across = 1 - along
    first = sizes[along] - len(edges[along]) - 1
    others = list(range(sizes[across]))
    if edges[across] is not None and sizes[across] - len(edges[across]) == 2:
        others = others[1:]  # not the cell for missing entries
    chosen = [others[round(i * (len(others) - 1) / max(svg.STYLES - 1, 1))] for i in range(svg.STYLES)]
    series = []
    for style, other in enumerate(dict.fromkeys(chosen if len(others) > svg.STYLES else others)):
        values = [float((adds[at][other] if along == 0 else adds[other][at])[0]) for at in range(first, sizes[along])]
        series.append(Series(label=clean(str(cells[across][other])), points=_stairs(edges[along], values), style=style))
    axis = Axis(label=title.split(" × ")[along])
    return svg.lines(name=name, title=title, description=words, series=series, x=axis, y=Axis(label=unit))


def _stairs(edges: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a line of steps; the outer cells are shown as wide as their neighbours."""
    inner = [float(edge) for edge in edges]
    if not inner:
        return [(0.0, values[0]), (1.0, values[0])]
    low = inner[0] - ((inner[1] - inner[0]) if len(inner) > 1 else 1.0)
    high = inner[-1] + ((inner[-1] - inner[-2]) if len(inner) > 1 else 1.0)
    ends = [low, *inner, high]
    return [point for at, value in enumerate(values) for point in ((ends[at], value), (ends[at + 1], value))]
