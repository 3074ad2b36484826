"""The model card section: the same statement in Markdown."""

from __future__ import annotations

import re
from html import escape

from tacit._version import __version__
from tacit.reports import charts, statement
from tacit.reports.findings import Findings, Run
from tacit.reports.page import named

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!]|^[-+=]|(?<=:)//)")


def card(run: Run, facts: Findings) -> str:
    """Return a section to paste into a model card."""
    rows = [("Claim", statement.claim(facts.guarantee)), *statement.lines(run, facts)]
    tested = statement.score(run)
    if tested is not None:
        rows.append((tested.title, f"{tested.value} ({tested.note})"))
    if facts.private:
        powers = zip(charts.RATES, facts.attack_power(charts.RATES), strict=True)
        found = ", ".join(f"{statement.percent(power)} at {100 * rate:g} %" for rate, power in powers)
        rows.append(("Best possible attack", f"true positives at false positives: at most {found}"))
    rows.append(("Software", f"tacit {__version__}; {len(run.ledger)} steps, ledger digest {run.ledger.digest}"))
    parts = [f"## Privacy: {mark(named(run))}", ""]
    for text in (*facts.alarms, *facts.remarks):
        parts += [f"> **{mark(text)}**", ""]
    parts += ["| | |", "|---|---|", *(f"| **{mark(name)}** | {mark(text)} |" for name, text in rows)]
    parts += ["", "Not covered:", "", *(f"- {mark(item)}" for item in statement.uncovered(run)), ""]
    return "\n".join(parts)


def mark(text: str) -> str:
    """Text that means itself in Markdown: on one line, nothing a link, a tag or a table.

    >>> mark("a|b <i> [x](y)")
    'a\\\\|b &lt;i&gt; \\\\[x\\\\](y)'
    """
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()), quote=False))
