"""``tacit describe``: private statistics of a table, as a page with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import number, show


def describe(
    table: Annotated[Path, typer.Argument(help="A file of a table, as for `tacit train`.")],
    epsilon: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="ε of the description.")],
    delta: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of the description.")] = 1e-5,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns to describe; fewer have less noise. All if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to; runs/TABLE-description if left out.")] = None,
    data_name: Annotated[
        str | None, typer.Option(help="Runs on data of this name are added up; by the file if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print private statistics of a table, within a budget.

    Counts, means, quantiles, histograms and correlations, all with noise.

    The types of the columns are found privately too. Writes description.html, description.json and the ledger; the cost
    is added up with that of other runs on the same file (see `tacit budget`).

    \b
    Examples:
      tacit describe people.csv --epsilon 0.5
      tacit describe people.csv --epsilon 0.2 --columns age,income --out runs/look
    """
    from contextlib import nullcontext
    from dataclasses import asdict

    from tacit._files import write_whole
    from tacit.accounting import Filter
    from tacit.ledger import Budget, Header, Ledger
    from tacit.randomness import SecureSource
    from tacit.recipes.folder import Folder, next_free
    from tacit.recipes.outcome import write_json
    from tacit.reports.description import description_page
    from tacit.tables.describe import describe as release
    from tacit.tables.kinds import divided
    from tacit.tables.reading import check_columns, columns_of, read
    from tacit.tables.registry import registry_for

    budget = Budget(epsilon=epsilon, delta=delta)
    names = check_columns(table, [name.strip() for name in columns.split(",")]) if columns else columns_of(table)
    folder = Folder(out or next_free(Path("runs"), f"{divided(table)[0].stem}-description"))
    folder.check()
    registry = registry_for(table, data_name)
    if registry is not None:
        registry.check(budget)
    records = sum(len(piece[names[0]]) for piece in read(table, names))
    if not records:
        raise ValueError(f"{table} has no rows; it needs one line a record below the column names.")
    folder.make()
    header = Header(purpose=f"describe {table.name}", fingerprint="" if registry is None else registry.identity)
    reserved = nullcontext(None) if registry is None else registry.reserved(folder.ledger, budget)
    with reserved, Ledger.open(folder.ledger, header) as ledger:
        ledger.guard(Filter(budget))
        found = release(
            lambda: read(table, names),
            names,
            records=records,
            budget=budget,
            ledger=ledger,
            source=SecureSource(),
        )
    facts = asdict(found) | {"guarantee": None, "epsilon": found.guarantee.epsilon, "delta": delta}
    facts.pop("guarantee")
    write_json(folder.out / "description.json", facts)
    page = folder.out / "description.html"
    write_whole(page, description_page(table.name, found).encode())
    lines = [f"{found.guarantee}", *(_line(name, column) for name, column in found.columns.items()), f"page  {page}"]
    show(facts | {"out": str(folder.out), "page": str(page)}, lines, as_json=as_json)


def _line(name: str, facts: dict[str, object]) -> str:
    if facts["type"] == "number":
        spread = f"below {facts['standard_deviation_at_most']:.3g}"
        if facts["standard_deviation"] is not None:
            spread = f"{facts['standard_deviation']:.3g} ± {facts['standard_deviation_noise']:.1g}"
        held = facts["held_to"]
        assert isinstance(held, list)
        return (
            f"{name}: mean {facts['mean']:.5g} ± {facts['mean_noise']:.1g}, standard deviation {spread} (± noise; "
            f"values held to {held[0]:.4g} … {held[1]:.4g})"
        )
    if facts["type"] == "category":
        counts = facts["counts"]
        assert isinstance(counts, dict)
        return f"{name}: {', '.join(f'{value} {count:.0f}' for value, count in list(counts.items())[:5])} (noisy)"
    return f"{name}: {facts['note']}"
