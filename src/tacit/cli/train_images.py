"""``tacit train mnist``: private models of images."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli.output import again, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacit.data import Images
    from tacit.ledger import Budget
    from tacit.recipes import Moment, Outcome, Recipe
    from tacit.recipes.train import Progress


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The command line's options of a run on images."""

    dataset: str | None
    recipe: str
    epsilon: float
    delta: float
    epochs: float | None
    lot_size: int | None
    clip: float | None
    model: str | None
    norms: bool
    accountant: str
    out: Path | None
    resume: bool
    seed: int | None
    as_json: bool


def train_images(options: ImageOptions) -> None:
    """Train on the data set and write model, ledger, run.json and the report to ``out``."""
    from tacit.ledger import Budget
    from tacit.recipes.catalogue import check_name
    from tacit.recipes.folder import next_free
    from tacit.recipes.train import train as run

    budget = Budget(epsilon=options.epsilon, delta=options.delta)
    check_name(options.recipe)
    images = _images(options.dataset)
    chosen = _chosen(options, images)
    place = options.out or next_free(Path("runs"), images.name)
    try:
        with _bar(budget) as progress:
            outcome = run(
                chosen,
                images,
                budget=budget,
                out=place,
                seed=options.seed,
                resume=options.resume,
                progress=progress,
                accountant=options.accountant,
            )
    except KeyboardInterrupt:
        if not (place / "run.json").exists():
            print("stopped before anything was written.", file=sys.stderr)
        else:
            print(f"stopped; nothing is lost. Resume with: {again(options.dataset, place)}", file=sys.stderr)
        raise typer.Exit(130) from None
    from tacit.reports import report

    page = report(place)
    facts = {"dataset": images.name, "recipe": chosen.name, **outcome.result()}
    lines = _lines(outcome, images, page)
    show(facts | {"out": str(place), "report": str(page)}, lines, as_json=options.as_json)


def _images(dataset: str | None) -> Images:
    """Return the named data set; without a name MNIST, or scikit-learn's digits if MNIST is not available."""
    from tacit.data import load

    if dataset is not None:
        return load(dataset, fetch=True)
    try:
        return load("mnist", fetch=True)
    except (ValueError, OSError) as error:
        print(f"MNIST is not available, so this trains on scikit-learn's small digits: {error}", file=sys.stderr)
        return load("digits")


def _chosen(options: ImageOptions, images: Images) -> Recipe:
    """Return the recipe with the changes of the options."""
    from tacit.mechanisms import Flat
    from tacit.recipes.catalogue import head, recipe
    from tacit.tuning import NormHistogram

    changes: dict[str, Any] = {"epochs": options.epochs, "lot_size": options.lot_size}
    changes |= {"clipping": None if options.clip is None else Flat(options.clip)}
    changes |= {"model": None if options.model is None else head(options.model)}
    changes |= {"norms": NormHistogram() if options.norms else None}
    found = recipe(options.recipe, images, options.epsilon)
    return replace(found, **{key: value for key, value in changes.items() if value is not None})


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
    """Show a bar on standard error with epoch and time left, and below it ε spent and left and the metrics."""
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
    """Return ε spent and left, and every metric with its mark as private or not."""
    from tacit.accounting.guarantee import rounded_up

    left = max(math.floor(100 * (budget.epsilon - moment.epsilon)) / 100, 0.0)
    words = [f"ε {rounded_up(moment.epsilon)} spent, {left:.2f} left"]
    for name, entry in moment.metrics.items():
        kind = "private" if entry["private"] else "public" if "note" in entry else "NOT private"
        words.append(f"{name.replace('_', ' ')} {entry['value']:.3f} ({kind})")
    return "  ".join(words)
