"""``tacit reproduce``: a paper's table or figure, ours beside theirs."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.output import show, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacit.recipes.reproduction import Experiment, Result
    from tacit.recipes.reproduction.experiment import Tell


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure; left out: the list of them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few values, one seed: minutes instead of hours.")] = False,
    seeds: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Runs of each kind; 1 with --quick, else 3 or 1.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the files.")] = Path("reproduction"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute a table or figure of a paper again.

    Writes NAME.md, NAME.csv and NAME.png, ours beside theirs.

    Runs on public benchmark data, with seeds. Finished runs are kept in OUT/runs: figures share them, and an
    interrupted command continues there.

    \b
    Examples:
      tacit reproduce
      tacit reproduce figure2
      tacit reproduce figure5 --quick --out docs/reproduction
      tacit reproduce headline --json
    """
    from tacit.recipes.reproduction import EXPERIMENTS, Setting, find

    if name is None:
        facts = [
            {"name": e.name, "paper": e.paper, "title": e.title, "minutes_quick": e.minutes[0], "minutes": e.minutes[1]}
            for e in EXPERIMENTS.values()
        ]
        show({"experiments": facts}, _list(list(EXPERIMENTS.values())), as_json=as_json)
        return
    experiment = find(name)
    from tacit.reports.reproduction import write

    if out.exists() and not out.is_dir():
        raise ValueError(f"out is {str(out)!r}, which is a file; give a directory.")
    count = experiment.usual_seeds(quick=quick) if seeds is None else seeds
    started = time.monotonic()
    with _bar(experiment.title) as tell:
        setting = Setting.make(quick=quick, runs=out / "runs", seeds=count, tell=tell)
        result = experiment.run(setting)
    files = write(experiment, result, setting, out, seconds=time.monotonic() - started)
    rows = [
        {"what": c.what, "paper": c.paper, "ours": c.ours, "difference": c.difference, "unit": c.unit}
        for c in result.comparisons
    ]
    places = [str(path) for path in files]
    found = {"name": name, "quick": quick, "comparisons": rows, "notes": list(result.notes), "files": places}
    show(found, _lines(experiment, result, places), as_json=as_json)


def _list(experiments: list[Experiment]) -> list[str]:
    width = max(len(experiment.name) for experiment in experiments)
    return [
        f"{e.name:{width}}  {e.paper}: {e.title} (minutes: {e.minutes[0]:g} with --quick, {e.minutes[1]:g} without)"
        for e in experiments
    ]


def _lines(experiment: Experiment, result: Result, files: list[str]) -> list[str]:
    from tacit.reports.reproduction import number

    width = max(len(c.what) for c in result.comparisons)
    paper, ours = (max(len(head), 12) for head in result.columns)
    lines = [f"{experiment.paper}: {experiment.title}", ""]
    lines += [f"{'':{width}}  {result.columns[0]:>{paper}}  {result.columns[1]:>{ours}}"]
    lines += [
        f"{c.what:{width}}  {number(c.paper, c):>{paper}}  {number(c.ours, c):>{ours}}" for c in result.comparisons
    ]
    return [*lines, "", *result.notes, f"written: {', '.join(files)}"]


@contextmanager
def _bar(title: str) -> Iterator[Tell]:
    """A progress bar on standard error: the current task, and the share of the whole."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda words, share: bar.update(task, description=words, completed=share)
        bar.update(task, description=title, completed=1.0)
