"""``tacit report``: the guarantee, the cost and the accuracy of a run, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.output import number, show

if TYPE_CHECKING:
    from tacit.reports.findings import Findings, Run


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run (run.json and ledger.jsonl), or a ledger file.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; report.html in the run's directory if not given.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A model card section instead, printed unless --out is given.")
    ] = False,
    signoff: Annotated[
        Path | None, typer.Option(help="TOML file with who, purpose, date and justification; else signoff.toml.")
    ] = None,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry",
            help="The entry of the public registry of deployments instead (YAML), printed unless --out is given.",
        ),
    ] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="The privacy block of a Hugging Face model card instead (YAML).")
    ] = False,
    about: Annotated[Path | None, typer.Option(help="TOML file with facts that only you know, for --registry.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="δ of the claim; the run's own if not given, else 1e-5."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the privacy report of a run.

    One HTML file that opens from disk, or a section for a model card.

    The ledger alone gives every number on privacy; run.json gives names and accuracy. privacy.json, beside the page,
    has the same facts for programs (docs/privacy-json.md).

    \b
    Examples:
      tacit report runs/mnist
      tacit report runs/mnist --out mnist.html --json
      tacit report runs/mnist --markdown >> MODEL_CARD.md
      tacit report old/ledger.jsonl --delta 1e-6
      tacit report runs/people --signoff signed.toml
      tacit report runs/people --registry --about people.toml --out people.yaml
      tacit report runs/people --metadata
    """
    from tacit.reports.findings import Run, find
    from tacit.reports.statement import claim
    from tacit.reports.writing import write, write_page

    if markdown + registry + metadata > 1:
        raise ValueError("--markdown, --registry and --metadata exclude one another; give one of them.")
    if about is not None and not registry:
        raise ValueError(f"--about is {about}; it is for --registry.")

    left = Run.load(run)
    facts = find(left, delta=delta)
    found: dict[str, object] = {
        "report": None,
        "epsilon": facts.epsilon,
        "delta": facts.delta,
        "secure_randomness": left.ledger.header.secure_randomness,
    }
    remarks: list[str] = []
    if markdown or registry or metadata:
        kind = "markdown" if markdown else "registry" if registry else "metadata"
        text, remarks = _text(kind, left, facts, about)
        if out is None:
            show(found | {kind: text} | ({"blanks": remarks} if registry else {}), [text], as_json=as_json)
            return
        write(out, text, keep=left.files)
        path = out
    else:
        path = write_page(left, facts, out, signoff=signoff)
    lines = [*facts.alarms, claim(facts.guarantee), f"report: {path}"]
    if remarks:
        fields = ", ".join(name.rpartition(".")[2] for name in remarks)
        lines.append(f"to be filled in, there or with --about FILE.toml: {fields}")
    show(found | {"report": str(path)} | ({"blanks": remarks} if registry else {}), lines, as_json=as_json)


def _text(kind: str, run: Run, facts: Findings, about: Path | None) -> tuple[str, list[str]]:
    """Return the text that was asked for, and what a person must still fill in."""
    from tacit.reports import registry
    from tacit.reports.card import card

    if kind == "markdown":
        return card(run, facts), []
    if kind == "metadata":
        return f"---\n{registry.to_yaml(registry.metadata(run, facts))}---\n", []
    entry = registry.entry(run, facts, registry.read_told(about))
    registry.check(entry)
    return registry.to_yaml(entry), registry.blanks(entry)
