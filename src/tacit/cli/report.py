"""``tacit report``: what a run promises, what it cost and what it reached, in one file for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import number, show


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run (run.json and ledger.jsonl), or a ledger file.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write; report.html in the run's directory if not given.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A model card section instead, printed unless --output is given.")
    ] = False,
    signoff: Annotated[
        Path | None, typer.Option(help="TOML file with who, purpose, date and justification; else signoff.toml.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="δ of the claim; the run's own if not given, else 1e-5."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The privacy report of a run: one HTML file that opens from disk, or a model card section.

    Every number on privacy is computed anew from the ledger; run.json is only asked for names and accuracy. Beside the
    page, privacy.json says the same to programs (docs/privacy-json.md).

    \b
    Examples:
      tacit report runs/mnist
      tacit report runs/mnist --output mnist.html --json
      tacit report runs/mnist --markdown >> MODEL_CARD.md
      tacit report old/ledger.jsonl --delta 1e-6
      tacit report runs/people --signoff signed.toml
    """
    from tacit.reports.card import card
    from tacit.reports.findings import Run, find
    from tacit.reports.statement import claim
    from tacit.reports.writing import write, write_page

    left = Run.load(run)
    facts = find(left, delta=delta)
    found: dict[str, object] = {
        "report": None,
        "epsilon": facts.epsilon,
        "delta": facts.delta,
        "secure_randomness": left.ledger.header.secure_randomness,
    }
    if markdown:
        text = card(left, facts)
        if output is None:
            show(found | {"markdown": text}, [text], as_json=as_json)
            return
        write(output, text, keep=left.files)
        path = output
    else:
        path = write_page(left, facts, output, signoff=signoff)
    lines = [*facts.alarms, claim(facts.guarantee), f"report: {path}"]
    show(found | {"report": str(path)}, lines, as_json=as_json)
