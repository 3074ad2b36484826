"""``tacit train``: from a data set to a private model, its ledger and its report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import number, whole
from tacit.cli.table_file import Features, Target, from_standard_input, is_table
from tacit.cli.train_images import ImageOptions, train_images
from tacit.cli.train_table import TableOptions, train_table

_FOR_TABLES = (
    *("schema", "target", "test", "task", "target_bounds", "classes", "ignore", "keep_ids", "test_fraction"),
    *("by", "data_name"),
)
_FOR_IMAGES = ("recipe", "norms", "accountant")


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Argument(help="mnist, fashion, cifar10, svhn, digits, adult, pums, or a table: FILE, FILE.db::TABLE, -."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="How to train; an unknown name gives the list.")] = "best",
    epsilon: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="ε of the budget.")] = 2.0,
    delta: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of the budget.")] = 1e-5,
    epochs: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="Passes over the data; the recipe's own if left out."),
    ] = None,
    lot_size: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="WHOLE", help="Expected records in a lot; the recipe's own if left out."),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Clip norm of a whole gradient.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Network: linear, or mlp:300 (mlp:256,64 for two layers). For a table: auto, linear, mlp, boosted."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column to predict; the schema's own.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Of a table without a schema: classification, or regression for a number.")
    ] = None,
    target_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LOW HIGH", help="Of a table: predict a number in this range; numbers outside count as its ends."
        ),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Of a table: the target's classes, rare ones too; found if not.")
    ] = None,
    ignore: Annotated[str | None, typer.Option(metavar="A,B,…", help="Of a table: columns that are not used.")] = None,
    keep_ids: Annotated[
        bool, typer.Option("--keep-ids", help="Of a table: use columns named like row numbers: id, Unnamed: 0.")
    ] = False,
    schema: Annotated[
        Path | None, typer.Option(help="Of a table: the types of its columns; FILE.schema.json if left out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Of a table: a public file to test on.")] = None,
    test_fraction: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Of a table without --test: share tested privately.")
    ] = 0.2,
    by: Annotated[
        str | None,
        typer.Option(
            help="Of a table: also release the score for each value of this declared category, and pay for it."
        ),
    ] = None,
    data_name: Annotated[
        str | None,
        typer.Option(help="Of a table: name of the data for the budget of all runs on it; by the file if left out."),
    ] = None,
    norms: Annotated[
        bool, typer.Option("--norms", help="Of images: also release a histogram of gradient norms, and pay for it.")
    ] = False,
    accountant: Annotated[str, typer.Option(help="pld, rdp or moments.")] = "pld",
    out: Annotated[
        Path | None, typer.Option(help="Directory for the run; runs/DATASET, or the next free one, if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in --out.")] = False,
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="For debugging: the run is then NOT private.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a private model within a budget.

    Writes the model, its ledger, run.json and a report. The budget pays for everything learned from the training
    records, features included. The test set is assumed public. Ctrl-C leaves a run that --resume continues.

    \b
    Examples:
      tacit train
      tacit train mnist --epsilon 0.5 --out runs/careful
      tacit train cifar10 --epsilon 3 --epochs 40 --json
      tacit train mnist --recipe abadi --accountant moments
      tacit train people.csv --target employed --epsilon 1
      tacit train people.csv --target wage --task regression --target-bounds 0 100
      tacit train --out runs/careful --epsilon 0.5 --resume
    """
    if resume and out is None:
        raise ValueError("--resume needs --out, the directory of the run to go on with.")
    if dataset == "-" or (dataset is not None and is_table(dataset)):
        _refuse(context, _FOR_IMAGES, f"images, and {dataset} is a table")
        with from_standard_input() if dataset == "-" else nullcontext(dataset) as file:
            options = TableOptions(
                schema=schema,
                target=Target(name=target, task=task, bounds=target_bounds, classes=classes),
                features=Features(ignore=ignore, keep_ids=keep_ids),
                test=test,
                test_fraction=test_fraction,
                by=by,
                model=model or ("auto" if epochs is None and lot_size is None and clip is None else "linear"),
                epsilon=epsilon,
                delta=delta,
                epochs=epochs,
                lot_size=lot_size,
                clip=clip,
                out=out,
                resume=resume,
                seed=seed,
                data_name=data_name,
                as_json=as_json,
            )
            train_table(file, options)
        return
    _refuse(context, _FOR_TABLES, "tables; give a file of one")
    train_images(
        ImageOptions(
            dataset=dataset,
            recipe=recipe,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            lot_size=lot_size,
            clip=clip,
            model=model,
            norms=norms,
            accountant=accountant,
            out=out,
            resume=resume,
            seed=seed,
            as_json=as_json,
        )
    )


def _refuse(context: typer.Context, names: tuple[str, ...], words: str) -> None:
    """Refuse options that are given and of no use here."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [f"--{name.replace('_', '-')}" for name, source in sources.items() if source and source.name != "DEFAULT"]
    if given:
        raise ValueError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for {words}.")
