"""The page of ``tacit describe``: private statistics of a table, as one file without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources

from tacit.accounting.guarantee import rounded_up
from tacit.reports import svg
from tacit.reports.page import POLICY
from tacit.reports.said import clean
from tacit.reports.svg import Axis
from tacit.tables.describe import Description

_MOST_VALUES = 16


def description_page(title: str, found: Description) -> str:
    """Return the whole page. Every text that goes in is escaped."""
    css = resources.files("tacit.reports").joinpath("style.css").read_text("utf-8")
    claim = f"ε ≤ {rounded_up(found.guarantee.epsilon)}, δ = {found.guarantee.delta:g}, {found.guarantee.adjacency}"
    heading = f"Private description of {clean(title)}"
    panels = "".join(
        f'<div class="panel">{_panel(f"column{place}", name, facts)}</div>'
        for place, (name, facts) in enumerate(found.columns.items())
    )
    words = f"{found.records} records, taken to be public. {found.noise} Everything below is noisy and paid for."
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(heading)}</h1></header><p class="claim">{escape(claim)}</p>'
        f'<p class="soft">{escape(words)}</p><section><h2>Columns</h2><div class="charts">{panels}</div></section>'
        f"{_related(found)}</body>\n</html>\n"
    )


def _panel(name: str, title: str, facts: dict[str, object]) -> str:
    title = clean(title)
    if facts["type"] == "number":
        histogram, quantiles = facts["histogram"], facts["quantiles"]
        assert isinstance(histogram, dict) and isinstance(quantiles, dict)
        rows = [("present", f"{facts['present']:.0f}"), ("mean", f"{facts['mean']:.5g} ± {facts['mean_noise']:.1g}")]
        spread = f"below {facts['standard_deviation_at_most']:.3g}"
        if facts["standard_deviation"] is not None:
            spread = f"{facts['standard_deviation']:.3g} ± {facts['standard_deviation_noise']:.1g}"
        held = facts["held_to"]
        assert isinstance(held, list)
        rows += [("standard deviation", spread), ("both of values held to", f"{held[0]:.4g} … {held[1]:.4g}")]
        rows += [(f"{100 * float(share):g} % below", f"{value:.5g}") for share, value in quantiles.items()]
        counts = histogram["counts"]
        if not counts:
            return f"<h3>{escape(title)}</h3><p>Too few entries stood out of the noise.</p>"
        total = sum(max(count, 0.0) for count in counts) or 1.0
        chart = svg.bars(
            name=name,
            title=title,
            description="Share of the records with a value between the edges, noisy.",
            edges=histogram["edges"],
            heights=[max(count, 0.0) / total for count in counts],
            x=Axis(label=title, low=histogram["edges"][0], high=histogram["edges"][-1]),
        )
        return chart + _table(("", ""), rows)
    if facts["type"] == "category":
        values = facts["counts"]
        assert isinstance(values, dict)
        shown = list(values.items())[:_MOST_VALUES]
        more = f" {len(values) - len(shown)} more values are in the JSON file." if len(values) > len(shown) else ""
        return svg.signed_bars(
            name=name,
            title=title,
            description=f"Noisy counts of the values that enough records have.{more}",
            labels=[clean(str(value)) for value, _ in shown],
            values=[float(count) for _, count in shown],
            unit="records",
        )
    return f"<h3>{escape(title)}</h3><p>{escape(str(facts.get('note', '')))}</p>"


def _related(found: Description) -> str:
    names = list(found.correlations)
    if len(names) < 2:
        return ""
    table_of = found.correlations
    rows = [(clean(name), *(_rounded(table_of[name][other]) for other in names)) for name in names]
    table = _table(("", *(clean(name) for name in names)), rows)
    words = "A dash: noise would be most of it. A missing entry counts as the mean."
    return (
        f'<section><h2>Correlations of numbers</h2><p class="soft">{words}</p><div class="wide">{table}</div></section>'
    )


def _rounded(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
