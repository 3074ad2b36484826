"""``tacit tune FILE``: settings of a private model of a table chosen by trying some, and paid for."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import number
from tacit.cli.table_file import Features, Target, from_standard_input, is_table
from tacit.cli.train_table import TableOptions, train_table


def tune(
    table: Annotated[str, typer.Argument(help="A table: FILE, FILE.db::TABLE, -, adult or pums.")],
    model: Annotated[
        str, typer.Option(help="boosted; linear, with small networks as well; auto: by the rule of `tacit train`.")
    ] = "auto",
    trials: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="How many runs there are on average.")
    ] = 8.0,
    epsilon: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="ε of all of it.")] = 2.0,
    delta: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of all of it.")] = 1e-5,
    target: Annotated[str | None, typer.Option(help="The column to predict; the schema's own.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Without a schema: classification, or regression for a number.")
    ] = None,
    target_bounds: Annotated[
        tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="Predict a number between these.")
    ] = None,
    classes: Annotated[str | None, typer.Option(metavar="A,B,…", help="The target's classes; found if not.")] = None,
    ignore: Annotated[str | None, typer.Option(metavar="A,B,…", help="Columns that are not used.")] = None,
    keep_ids: Annotated[
        bool, typer.Option("--keep-ids", help="Use columns named like row numbers: id, Unnamed: 0.")
    ] = False,
    schema: Annotated[Path | None, typer.Option(help="The types of the columns; FILE.schema.json if left out.")] = None,
    test_fraction: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Share of the records that runs are compared on.")
    ] = 0.2,
    data_name: Annotated[str | None, typer.Option(help="Runs on data of this name are added up.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the run; runs/FILE if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose the settings of a table's model, and pay for choosing.

    Tries some of six settings of boosting (bins and pairs of columns), or of twelve of a linear model and a small
    network (learning rate and clip norm); ε covers all of it.

    The number of runs is random, and only the best one is released, so that all of them cost one and a half to three
    times what one does (docs/tuning.md). Every run has more noise than `tacit train` would have: where the rule's
    settings are good, tuning loses.

    \b
    Examples:
      tacit tune people.csv --target employed --classes no,yes --epsilon 3
      tacit tune people.csv --target wage --task regression --target-bounds 0 100 --trials 20
    """
    if table != "-" and not is_table(table):
        raise ValueError(f"{table!r} is no table; give a file of one.")
    if model not in ("auto", "linear", "boosted"):
        raise ValueError(f"--model is {model!r}; tuning takes auto, boosted, or linear (with small networks as well).")
    options = TableOptions(
        schema=schema,
        target=Target(name=target, task=task, bounds=target_bounds, classes=classes),
        features=Features(ignore=ignore, keep_ids=keep_ids),
        test=None,
        test_fraction=test_fraction,
        by=None,
        model=model,
        epsilon=epsilon,
        delta=delta,
        epochs=None,
        lot_size=None,
        clip=None,
        out=out,
        resume=False,
        seed=None,
        data_name=data_name,
        as_json=as_json,
        trials=trials,
    )
    with from_standard_input() if table == "-" else nullcontext(table) as file:
        train_table(file, options)
