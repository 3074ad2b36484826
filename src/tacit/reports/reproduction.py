"""A reproduced table or figure as files: NAME.png, NAME.csv, and NAME.md with the paper's numbers beside ours."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.accounting.guarantee import rounded_up
from tacit.recipes.outcome import versions
from tacit.recipes.reproduction import Comparison, Experiment, Line, Panel, Result, Setting
from tacit.reports.figures import pyplot

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "black", "tab:purple", "tab:brown")
_MOST_TICKS, _WIDEST = 12, 1e6  # with more, or a wider range, on a logarithmic axis the powers of ten are marked
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"marker": ".", "markersize": 4},
    "dashed": {"linestyle": "--"},
    "points": {"linestyle": "none", "marker": "x", "markersize": 7, "zorder": 5},
}


def write(experiment: Experiment, result: Result, setting: Setting, directory: Path, *, seconds: float) -> list[Path]:
    """The files of one experiment; a figure only if it has one."""
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{experiment.name}.md", directory / f"{experiment.name}.csv"]
    if result.panels:
        files.append(directory / f"{experiment.name}.png")
        draw(result.panels, files[-1], title=f"{experiment.paper}: {experiment.title}")
    files[0].write_text(markdown(experiment, result, setting, seconds=seconds), encoding="utf-8")
    files[1].write_text(table(result), encoding="utf-8")
    return files


def markdown(experiment: Experiment, result: Result, setting: Setting, *, seconds: float) -> str:
    """The page: what it is, the table, what has to be said about it, and where and when it was made."""
    usual = experiment.usual_seeds(quick=setting.quick)
    command = f"tacit reproduce {experiment.name}{' --quick' if setting.quick else ''}"
    command += f" --seeds {len(setting.seeds)}" if len(setting.seeds) != usual else ""
    lines = [f"# {experiment.paper}: {experiment.title}", ""]
    if result.panels:
        lines += [f"![{experiment.title}]({experiment.name}.png)", ""]
    lines += [f"| | {' | '.join(result.columns)} | difference |", "|---|---:|---:|---:|"]
    lines += [f"| {c.what} | {number(c.paper, c)} | {number(c.ours, c)} | {_signed(c)} |" for c in result.comparisons]
    lines += ["", *(f"- {note}" for note in result.notes)]
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines += [
        "",
        f"All values: [{experiment.name}.csv]({experiment.name}.csv). Made by `{command}` on "
        f"{datetime.now(UTC):%Y-%m-%d} in {seconds:.0f} s (without runs that were there already) on "
        f"{_machine()}, with {made}.",
        "",
    ]
    return "\n".join(lines)


def table(result: Result) -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(result.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
        for row in result.rows
    )
    return text.getvalue()


def number(value: float | None, comparison: Comparison) -> str:
    """A number as it stands in the table; a bar where the paper has none."""
    if value is None:
        return "–"
    if comparison.bound and value == comparison.ours:
        return f"{rounded_up(value)} {comparison.unit}".strip()
    digits = 0 if comparison.unit == "epochs" else 2
    text = f"{value:.{digits}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{text} {comparison.unit}".strip()


def _signed(comparison: Comparison) -> str:
    value = comparison.difference
    if value is None:
        return "–"
    if comparison.unit == "epochs":
        return f"{value:+.0f}"
    return f"{value:+.2f}" if abs(value) >= 0.1 else f"{value:+.2g}"


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def draw(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """The panels side by side, at most three in a row."""
    plt = pyplot()
    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    down = -(-len(panels) // columns)
    size = (max(4.4 * columns, 6.4), 3.6 * down + 0.4)
    figure, grid = plt.subplots(down, columns, figsize=size, squeeze=False, constrained_layout=True)
    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines if line.style != "points")
    colours = {label: _COLOURS[place % len(_COLOURS)] for place, label in enumerate(labels)}
    for axes, panel in zip(grid.flat, panels, strict=False):
        _axes(axes, panel, colours)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _axes(axes: Any, panel: Panel, colours: Mapping[str, str]) -> None:
    for line in panel.lines:
        _line(axes, line, colours.get(line.label, "tab:red"))
    if panel.log_x:
        axes.set_xscale("log")
        marks = sorted({x for line in panel.lines for x in line.x})
        if len(marks) <= _MOST_TICKS and marks[-1] < _WIDEST * marks[0]:
            axes.set_xticks(marks, [f"{mark:g}" for mark in marks], rotation=45 if len(marks) > 6 else 0)
        axes.minorticks_off()
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no epoch 1.5
    if panel.log_y:
        axes.set_yscale("log")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.grid(alpha=0.3)
    axes.legend(framealpha=0.7, edgecolor="none", fontsize="small")


def _line(axes: Any, line: Line, colour: str) -> None:
    if line.style == "level":
        axes.axhline(line.y[0], label=f"{line.label}: {line.y[0]:.1f}", color=colour, linestyle=":")
        return
    look = {"color": colour} | _STYLES[line.style]
    axes.plot(line.x, line.y, label=line.label, **look)
