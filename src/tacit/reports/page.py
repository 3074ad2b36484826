"""The HTML page: one file that asks nothing of the network and runs no script. Every text that goes in is escaped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources

from tacit._version import __version__
from tacit.accounting.guarantee import rounded_up
from tacit.reports import attacks, charts, checklists, events, shapes, statement
from tacit.reports.findings import Findings, Run
from tacit.reports.html_table import table
from tacit.reports.said import Said, clean

# The browser itself refuses whatever escaping might have missed: no scripts, no frames, nothing from elsewhere.
SIGNOFF = {
    "who": "Responsible",
    "purpose": "Purpose",
    "unit": "Is the protected unit a person?",
    "justification": "Why this ε",
    "date": "Date",
}
"""The fields of a sign-off, and their titles."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(run: Run, facts: Findings, signed: Mapping[str, str] | None = None) -> str:
    """Return the whole report; ``signed`` fills the lines of its sign-off."""
    title = f"Privacy report: {named(run)}"
    css = resources.files("tacit.reports").joinpath("style.css").read_text("utf-8")
    body = "\n".join(
        (
            *(f'<p class="alarm" role="alert">{escape(text)}</p>' for text in facts.alarms),
            *(f'<p class="note">{escape(text)}</p>' for text in facts.remarks),
            f"<header><h1>{escape(title)}</h1>{_subtitle(run)}</header>",
            f'<p class="claim{"" if facts.private else " refused"}">{escape(statement.claim(facts.guarantee))}</p>',
            _tiles(run, facts),
            _statement(run, facts),
            _section("Privacy, from the ledger", _privacy(run, facts)),
            _attacked(run, facts),
            _columns(run),
            _compared(run),
            _model(run),
            _training(run),
            _section("Everything that was released", _events(run)),
            _section("How to check this", _origin(run, facts)),
            _section("Published checklists", _checklists(run, facts)),
            _section("Sign-off", _signoff(signed or {})),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def named(run: Run) -> str:
    """Return the name of the run: data set and recipe, or the ledger's purpose, or the file."""
    names = [run.said.text("dataset", "name"), run.said.text("recipe", "name")]
    return ", ".join(name for name in names if name) or clean(run.ledger.header.purpose or run.place.name)


def _subtitle(run: Run) -> str:
    words = [run.said.text("started") or "", clean(run.ledger.header.purpose)]
    return f'<p class="soft">{escape(" · ".join(word for word in words if word))}</p>' if any(words) else ""


def _tiles(run: Run, facts: Findings) -> str:
    tiles = []
    if facts.guarantee is None or not facts.private:
        tiles.append(("Private", "no", "seeded randomness" if facts.guarantee else "no proof"))
    else:
        power = facts.attack_power([0.01])[0]
        tiles += [
            ("ε at most", rounded_up(facts.guarantee.epsilon), f"at δ = {statement.up(facts.delta)}"),
            ("Best attack finds", statement.percent(power), "of those present, accusing 1 % of the absent"),
        ]
    tested = statement.score(run)
    if tested is not None:
        tiles.append((tested.title, tested.value, tested.note))
    tiles.append(("Steps", f"{len(run.ledger)}", "in the ledger"))
    if facts.records is not None:
        tiles.append(("Records", f"{facts.records}", f"{clean(run.ledger.header.unit)}s, taken to be public"))
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _statement(run: Run, facts: Findings) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{_prose(text)}</dd>" for name, text in statement.lines(run, facts))
    items = "".join(f"<li>{escape(item)}</li>" for item in statement.uncovered(run))
    return _section(
        "What is promised",
        f'<dl class="statement">{pairs}</dl><div class="uncovered"><h3>Not covered</h3><ul>{items}</ul></div>',
    )


def _prose(text: str) -> str:
    """Return a sentence as HTML, with commands between backticks in their type face."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _privacy(run: Run, facts: Findings) -> str:
    seeded = "" if run.ledger.header.secure_randomness else '<p class="alarm">As if the run had not been seeded.</p>'
    return seeded + _panels(charts.privacy(run, facts))


def _attacked(run: Run, facts: Findings) -> str:
    """Return what an audit found, beside the claim; nothing where run.json has none."""
    found = attacks.rows(run)
    if not found:
        return ""
    words = (
        f"{statement.claim(facts.guarantee)}: what is claimed. {attacks.origin(run)} A lower bound proves no safety."
    )
    return _section("What attackers found", f"<p>{escape(words)}</p>{table(attacks.HEADINGS, found)}")


def _columns(run: Run) -> str:
    """Return the type of each column of a table, and the source of the type; nothing for other runs."""
    columns = run.said.object("columns")
    rows = [
        (clean(name), columns.text(name, "type") or "–", columns.text(name, "origin") or "–")
        for name in list(columns.values)[:500]
    ]
    if not rows:
        return ""
    told = run.said.object("data")
    runs, epsilon = told.number("runs"), told.number("epsilon")
    words = ""
    if runs is not None and epsilon is not None:
        words = (
            f"{'This run is the only one' if runs == 1 else f'This run and {runs - 1:.0f} before it'} on this data, by "
            f"this user on this machine; spent in all: ε ≤ {rounded_up(epsilon)} (basic composition)."
        )
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("column", "type", "source of the type"))
    listed = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return _section("The data", f"<p>{escape(words)}</p>{listed}")


def _checklists(run: Run, facts: Findings) -> str:
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in checklists.answers(run, facts)
    )
    head = "<tr><th>asked by</th><th>question</th><th>answer</th></tr>"
    return (
        "<details><summary>What NIST SP 800-226 and the European Data Protection Board ask, and the answers</summary>"
        f'<div class="wide"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div></details>'
    )


def _signoff(signed: Mapping[str, str]) -> str:
    """Return who answers for the run: as the file says, or lines to be filled in by hand."""
    pairs = "".join(
        f"<dt>{escape(title)}</dt><dd>{escape(clean(signed[key])) if signed.get(key) else '_' * 40}</dd>"
        for key, title in SIGNOFF.items()
    )
    return f'<dl class="statement">{pairs}</dl>'


def _compared(run: Run) -> str:
    """Return the score of a table's model beside its baseline, and by class; nothing where run.json has neither."""
    tested, baseline = statement.score(run), run.said.number("result", "test_baseline")
    if tested is None or baseline is None:
        return ""
    accuracy = "accuracy" in tested.title
    shown = f"{100 * baseline:.2f} %" if accuracy else f"{baseline:.4g}"
    same = "the commonest class" if accuracy else "the mean"
    words = f"{tested.title}: {tested.value}. A model that always predicts {same}: {shown}."
    result = run.said.object("result")
    tables = _parts(result.object("test_by_class"), "class", "accuracy", "predicted right", accuracy=True)
    words_by = "predicted right" if accuracy else "mean absolute error"
    tables += _parts(result.object("test_by_group"), "group", "value", words_by, accuracy=accuracy)
    note = "Released with noise, and charged." if tested.paid else "Exact, on a table that is taken to be public."
    return _section("Accuracy", f"<p>{escape(words)} {note}</p>{tables}")


def _parts(parts: Said, word: str, key: str, title: str, *, accuracy: bool) -> str:
    """Return a table of the score on parts of the records: classes, or groups of a declared column."""
    rows = []
    for name in list(parts.values)[:50]:
        share, value, noise = (parts.number(name, field) for field in ("share", key, "noise_std"))
        shown = "below the noise" if value is None else f"{100 * value:.1f} %" if accuracy else f"{value:.4g}"
        if value is not None and noise:
            shown += f" ± {100 * noise:.1f}" if accuracy else f" ± {noise:.2g}"
        cells = (clean(name), "–" if share is None else f"{100 * share:.1f} %", shown)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{text}</th>' for text in (word, "share of the records", title))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""


def _model(run: Run) -> str:
    """Return the shapes of a boosted model, which can be read; nothing for other models."""
    found = shapes.shapes(run)
    words = (
        "The model adds up what each column, and some pairs of columns, say. The shapes were made from the noisy sums "
        "in the ledger, so they may be shown to anybody; all of them are in shapes.json."
    )
    return _section("The model", f'<p class="soft">{words}</p>' + _panels(found)) if found else ""


def _training(run: Run) -> str:
    found = charts.training(run)
    words = []
    if not run.said.values:
        words.append("This report is made from a ledger alone: accuracy and learning rate are not known here.")
    descended = any(group.startswith("gradients") for group in statement.groups(run))
    if descended and not any('id="norms"' in figure for figure in found):
        words.append("Gradient norms of the records were not released privately, so there is no histogram of them.")
    panels = [*found, f'<p class="soft">{escape(" ".join(words))}</p>'] if words else found
    return _section("Training", _panels(panels)) if panels else ""


def _panels(figures: Iterable[str]) -> str:
    """Figures side by side; they come escaped from `tacit.reports.svg`."""
    return '<div class="charts">' + "".join(f'<div class="panel">{figure}</div>' for figure in figures) + "</div>"


def _events(run: Run) -> str:
    found, more = events.rows(run.ledger.entries)
    if not found:
        return "<p>Nothing.</p>"
    head = ("Steps", "Times", "Sample", "Released", "S", "Noise", "z", "z of the step")
    body = "".join(
        f'<tr><td class="number">{escape(row.steps)}</td><td class="number">{row.count}</td>'
        + f"<td>{escape(row.sampling)}</td>"
        + f"<td>{escape(row.released)}</td><td>{escape(row.clip_norm)}</td><td>{escape(row.noise)}</td>"
        + f'<td class="number">{escape(row.multiplier)}</td><td class="number">{escape(row.together)}</td></tr>'
        for row in found
    )
    cells = "".join(f'<th scope="col">{name}</th>' for name in head)
    rest = f"<p>… and {more} more kinds of release, in the ledger file.</p>" if more else ""
    return (
        '<p class="soft">S: the most one record can add to the sum (L2 norm unless said otherwise). σ: standard '
        "deviation of the noise on the sum. z = σ/S; z of the step: all its Gaussian sums as one.</p>"
        f'<div class="wide"><table class="events"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
        + rest
    )


_UNSHOWN = ("fingerprint", "source")
"""Not shown: a person who knows all other records can test for one with their hash; a path describes the machine."""


def _origin(run: Run, facts: Findings) -> str:
    header, said = run.ledger.header, run.said
    ledger = run.files[-1].name  # not where it lies: that says more about the machine than about the run
    rows = [
        ("Steps in the ledger", f"{len(run.ledger)}"),
        ("Ledger digest", run.ledger.digest),
        ("Ledger written by", clean(header.library) or "–"),
        ("Report written by", f"tacit {__version__}"),
        *((f"Version of {name}", value) for name, value in said.flat("versions", most=30)),
        *((f"Data set: {name}", value) for name, value in said.flat("dataset", most=30) if name not in _UNSHOWN),
    ]
    if header.fingerprint:
        rows.append(("Fingerprint in the ledger", clean(header.fingerprint)))
    if said.number("seconds") is not None:
        rows.append(("Running time", f"{said.number('seconds'):.1f} s"))
    recipe = said.flat("recipe")
    notes = said.value("notes")
    noted = [clean(note) for note in notes[:50] if isinstance(note, str)] if isinstance(notes, list) else []
    command = f"tacit account {shlex.quote(clean(ledger))}"
    return (
        f"<p>Account for the ledger again: <code>{escape(command)} --delta {facts.delta:g}</code>. The digest and the "
        "number of steps are a receipt for this very ledger: if the file is changed, replaced or put back to an older "
        f"copy later, <code>{escape(command)} --expect {run.ledger.digest}</code> fails.</p>"
        + _facts(rows)
        + (f"<h3>Recipe</h3>{_facts(recipe)}" if recipe else "")
        + (f"<h3>Notes</h3><ul>{''.join(f'<li>{escape(note)}</li>' for note in noted)}</ul>" if noted else "")
    )


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><code>{escape(value)}</code></td></tr>' for name, value in rows
    )
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"
