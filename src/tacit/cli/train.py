"""``tacit train``: from a data set to a private model, its ledger and its report."""

from __future__ import annotations

import math
import shlex
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import number, show, whole
from tacit.cli.table import Target, from_standard_input, is_table, train_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacit.data import Images
    from tacit.ledger import Budget
    from tacit.recipes import Moment, Outcome, Recipe
    from tacit.recipes.train import Progress


def train(
    dataset: Annotated[
        str | None,
        typer.Argument(help="mnist, fashion, cifar10, svhn, digits, adult, pums, or a table: FILE, FILE.db::TABLE, -."),
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
        typer.Option(metavar="LOW HIGH", help="Of a table: predict a number between these; others count as them."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Of a table: the target's classes, rare ones too; found if not.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Of a table: what its columns are; FILE.schema.json if left out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Of a table: a file to test on that is taken to be public.")] = None,
    test_fraction: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Of a table without --test: share tested privately.")
    ] = 0.2,
    data_name: Annotated[
        str | None, typer.Option(help="Of a table: runs on data of this name are added up; by the file if left out.")
    ] = None,
    norms: Annotated[
        bool, typer.Option("--norms", help="Of images: release a histogram of gradient norms as well, and pay for it.")
    ] = False,
    accountant: Annotated[str, typer.Option(help="pld, rdp or moments.")] = "pld",
    out: Annotated[
        Path | None, typer.Option(help="Directory for the run; runs/DATASET, or the next free one, if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run on images in --out.")] = False,
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="For debugging: the run is then NOT private.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train privately within a budget; writes the model, its ledger, run.json and a report.

    Everything learned from the training records is paid for, the features included. The test set is taken to be
    public. Ctrl-C leaves a run on images that --resume goes on with; of a table, what was spent.

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
    if dataset == "-" or (dataset is not None and is_table(dataset)):
        if resume or norms or accountant != "pld" or recipe != "best":
            raise ValueError(f"--resume, --norms, --accountant and --recipe are for images; {dataset} is a table.")
        with from_standard_input() if dataset == "-" else nullcontext(dataset) as file:
            train_table(
                file,
                schema=schema,
                target=Target(name=target, task=task, bounds=target_bounds, classes=classes),
                test=test,
                test_fraction=test_fraction,
                model=model or ("auto" if epochs is None and lot_size is None and clip is None else "linear"),
                epsilon=epsilon,
                delta=delta,
                epochs=epochs,
                lot_size=lot_size,
                clip=clip,
                out=out,
                seed=seed,
                data_name=data_name,
                as_json=as_json,
            )
        return
    if any(option is not None for option in (schema, target, test, task, target_bounds, classes, data_name)):
        raise ValueError(
            "--schema, --target, --test, --task, --target-bounds, --classes and --data-name are for tables; give a "
            "file of one."
        )
    from tacit.ledger import Budget
    from tacit.recipes.catalogue import check_name
    from tacit.recipes.folder import next_free
    from tacit.recipes.train import train as run

    budget = Budget(epsilon=epsilon, delta=delta)
    check_name(recipe)
    if resume and out is None:
        raise ValueError("--resume needs --out, the directory of the run to go on with.")
    images = _images(dataset)
    chosen = _chosen(recipe, images, epsilon, epochs=epochs, lot_size=lot_size, clip=clip, model=model, norms=norms)
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
    norms: bool,
) -> Recipe:
    """The recipe, with what the options change."""
    from tacit.mechanisms import Flat
    from tacit.recipes.catalogue import head
    from tacit.recipes.catalogue import recipe as find
    from tacit.tuning import NormHistogram

    changes: dict[str, Any] = {"epochs": epochs, "lot_size": lot_size}
    changes |= {"clipping": None if clip is None else Flat(clip), "model": None if model is None else head(model)}
    changes |= {"norms": NormHistogram() if norms else None}
    return replace(find(name, images, epsilon), **{key: value for key, value in changes.items() if value is not None})


def _again(dataset: str | None, place: Path) -> str:
    """The command that goes on with the run: the one that was given, with what it lacks."""
    words = sys.argv[1:]
    given = words[words.index("train") :] if "train" in words else ["train", *([dataset] if dataset else [])]
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
def _bar(budget: Budget) -> Iterator[Progress]:
    """On standard error: a bar with epoch and time left, and below it ε spent and left and how good the model is."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
    bar, words = Progress(*columns), Text()
    task = bar.add_task("starting", total=None)

    console = Console(stderr=True)
    live = Live(Group(bar, words), console=console, refresh_per_second=4)

    def tell(moment: Moment) -> None:
        if not live.is_started:
            live.start()  # not before: what is refused at once is refused in one sentence
        if moment.stage == "training":
            description = f"epoch {moment.epoch:.1f} of {moment.epochs:.1f}"
            bar.update(task, description=description, total=moment.steps, completed=moment.step)
            words.plain = _news(moment, budget)
        else:
            bar.update(task, description=moment.stage)

    try:
        yield tell
    finally:
        if live.is_started:
            live.stop()
            if not console.is_terminal:
                console.print()  # in a file the last state has no end of line


def _news(moment: Moment, budget: Budget) -> str:
    """ε spent and left, and every number marked with whether it is private."""
    from tacit.accounting.guarantee import rounded_up

    left = max(math.floor(100 * (budget.epsilon - moment.epsilon)) / 100, 0.0)
    words = [f"ε {rounded_up(moment.epsilon)} spent, {left:.2f} left"]
    for name, entry in moment.metrics.items():
        kind = "private" if entry["private"] else "public" if "note" in entry else "NOT private"
        words.append(f"{name.replace('_', ' ')} {entry['value']:.3f} ({kind})")
    return "  ".join(words)
