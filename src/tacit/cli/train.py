"""``tacit train``: from a data set to a private model, its ledger and its report."""

from __future__ import annotations

import math
import shlex
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import number, show, whole
from tacit.cli.table import is_table, train_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacit.data import Images
    from tacit.recipes import Outcome, Recipe
    from tacit.recipes.train import Progress


def train(
    dataset: Annotated[
        str | None,
        typer.Argument(help="mnist, fashion, cifar10, svhn, digits, adult, pums or a CSV or Parquet file; else MNIST."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="How to train; an unknown name gives the list.")] = "best",
    epsilon: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="ε of the budget.")] = 2.0,
    delta: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of the budget.")] = 1e-5,
    epochs: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Passes over the data; the recipe's own.")
    ] = None,
    lot_size: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Expected records in a lot; the recipe's own.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Clip norm of a whole gradient.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Network: linear, or mlp:300 (mlp:256,64 for two layers). For a table: linear or mlp."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column to predict; the schema's own.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Of a table: what its columns are; FILE.schema.json if left out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Of a table: a file to test on that is taken to be public.")] = None,
    test_fraction: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Of a table without --test: share tested privately.")
    ] = 0.2,
    accountant: Annotated[str, typer.Option(help="pld, rdp or moments.")] = "pld",
    out: Annotated[
        Path | None, typer.Option(help="Directory for the run; runs/DATASET, or the next free one, if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="For debugging: the run is then NOT private.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train privately within a budget; writes the model, its ledger, run.json and a report.

    Everything learned from the training records is paid for, the features included. The test set is taken to be
    public. Ctrl-C leaves a run that --resume goes on with.

    \b
    Examples:
      tacit train
      tacit train mnist --epsilon 0.5 --out runs/careful
      tacit train cifar10 --epsilon 3 --epochs 40 --json
      tacit train mnist --recipe abadi --accountant moments
      tacit train people.csv --target employed --epsilon 1
      tacit train --out runs/careful --epsilon 0.5 --resume
    """
    if dataset is not None and is_table(dataset):
        if resume or accountant != "pld" or recipe != "best":
            raise ValueError(f"--resume, --accountant and --recipe are for images; {dataset} is a table.")
        train_table(
            dataset,
            schema=schema,
            target=target,
            test=test,
            test_fraction=test_fraction,
            model=model or "linear",
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            lot_size=lot_size,
            clip=clip,
            out=out,
            seed=seed,
            as_json=as_json,
        )
        return
    if schema is not None or target is not None or test is not None:
        raise ValueError("--schema, --target and --test are for tables; give a CSV or Parquet file.")
    from tacit.ledger import Budget
    from tacit.recipes.catalogue import check_name
    from tacit.recipes.folder import next_free
    from tacit.recipes.train import train as run

    budget = Budget(epsilon=epsilon, delta=delta)
    check_name(recipe)
    if resume and out is None:
        raise ValueError("--resume needs --out, the directory of the run to go on with.")
    images = _images(dataset)
    chosen = _chosen(recipe, images, epsilon, epochs=epochs, lot_size=lot_size, clip=clip, model=model)
    place = out or next_free(Path("runs"), images.name)
    try:
        with _bar(budget) as progress:
            outcome = run(
                chosen,
                images,
                budget=budget,
                out=place,
                seed=seed,
                resume=resume,
                progress=progress,
                accountant=accountant,
            )
    except KeyboardInterrupt:
        if not (place / "run.json").exists():
            print("stopped before anything was written.", file=sys.stderr)
        else:
            print(f"stopped; nothing is lost. Go on with: {_again(dataset, place)}", file=sys.stderr)
        raise typer.Exit(130) from None
    from tacit.reports import report

    page = report(place)
    facts = {"dataset": images.name, "recipe": chosen.name, **outcome.result()}
    show(facts | {"out": str(place), "report": str(page)}, _lines(outcome, images, page), as_json=as_json)


def _images(dataset: str | None) -> Images:
    """The named data set; without a name MNIST, or the digits inside scikit-learn where it cannot be had."""
    from tacit.data import load

    if dataset is not None:
        return load(dataset, fetch=True)
    try:
        return load("mnist", fetch=True)
    except (ValueError, OSError) as error:
        print(f"MNIST cannot be had, training on scikit-learn's small digits instead: {error}", file=sys.stderr)
        return load("digits")


def _chosen(
    name: str,
    images: Images,
    epsilon: float,
    *,
    epochs: float | None,
    lot_size: int | None,
    clip: float | None,
    model: str | None,
) -> Recipe:
    """The recipe, with what the options change."""
    from tacit.mechanisms import Flat
    from tacit.recipes.catalogue import head
    from tacit.recipes.catalogue import recipe as find

    changes: dict[str, Any] = {"epochs": epochs, "lot_size": lot_size}
    changes |= {"clipping": None if clip is None else Flat(clip), "model": None if model is None else head(model)}
    return replace(find(name, images, epsilon), **{key: value for key, value in changes.items() if value is not None})


def _again(dataset: str | None, place: Path) -> str:
    """The command that goes on with the run: the one that was given, with what it lacks."""
    given = [*sys.argv[1:]] if sys.argv[1:2] == ["train"] else ["train", *([dataset] if dataset else [])]
    if not any(word == "--out" or word.startswith("--out=") for word in given):
        given += ["--out", str(place)]
    if "--resume" not in given:
        given.append("--resume")
    return shlex.join(["tacit", *given])


def _lines(outcome: Outcome, images: Images, page: Path) -> list[str]:
    accuracy = math.floor(1e4 * outcome.test_accuracy) / 100
    noise = f"noise multiplier {outcome.noise_multiplier:.4g}"
    return [
        f"test accuracy  {accuracy:.2f} %  (public test set, {len(images.test)} images of {images.name})",
        f"privacy        {outcome.guarantee}",
        f"training       {outcome.steps} steps, {noise}, {outcome.seconds:.0f} s in all",
        f"run            {outcome.out}",
        f"report         {page}",
    ]


@contextmanager
def _bar(budget: Any) -> Iterator[Progress]:
    """A progress bar on standard error: epoch, ε spent and left, what is known of the model, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tacit.accounting.guarantee import rounded_up
    from tacit.recipes import Moment

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def tell(moment: Moment) -> None:
            if moment.stage != "training":
                bar.update(task, description=moment.stage)
                return
            left = max(budget.epsilon - moment.epsilon, 0.0)
            words = [f"epoch {moment.epoch:.1f}/{moment.epochs:.1f}"]
            words.append(f"ε {rounded_up(moment.epsilon)} spent, {math.floor(100 * left) / 100:.2f} left")
            for name, entry in moment.metrics.items():
                kind = "private" if entry["private"] else "public test set" if "test" in name else "NOT private"
                words.append(f"{name.removeprefix('test_')} {entry['value']:.3f} ({kind})")
            bar.update(task, description="  ".join(words), total=moment.steps, completed=moment.step)

        yield tell
