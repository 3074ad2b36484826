"""Figures. They need matplotlib (the ``plot`` extra)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.accounting import ACCOUNTANTS, Unproved, compose
from tacit.accounting.guarantee import rounded_up
from tacit.ledger import Header, Step
from tacit.reports.findings import first

_STYLES = {
    "strong": ("strong composition", "tab:red", "--"),
    "moments": ("moments accountant (λ ≤ 32)", "tab:blue", "-"),
    "rdp": ("Rényi accountant", "tab:green", "-."),
    "pld": ("privacy loss distribution", "black", "-"),
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of ours, and the paper's numbers for the same thing, which are drawn as crosses beside it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    paper: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A pair of axes with some curves."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    title: str = ""
    log_x: bool = False
    y_range: tuple[float, float] | None = None


def lines(path: Path, panel: Panel) -> None:
    """One panel in a file: accuracy over the epochs, over ε, over δ."""
    panels(path, [panel])


def panels(path: Path, drawn: Sequence[Panel], *, columns: int = 3) -> None:
    """Several panels side by side in one file (the six sweeps of paper 1, Figure 5)."""
    _check_name(path)
    if not drawn or columns < 1:
        raise ValueError(f"there are {len(drawn)} panels in {columns} columns; give at least one of each.")
    plt = _pyplot()
    across = min(columns, len(drawn))
    down = math.ceil(len(drawn) / across)
    size = (6.4, 4.2) if len(drawn) == 1 else (4.0 * across, 3.1 * down)
    figure, grid = plt.subplots(down, across, figsize=size, constrained_layout=True, squeeze=False)
    for axes, panel in zip(grid.flat, drawn, strict=False):
        _draw(axes, panel)
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _draw(axes: Any, panel: Panel) -> None:
    """Ours as lines with points; the paper's as crosses of the same colour, named once in the legend."""
    named = False
    for number, curve in enumerate(panel.curves):
        if len(curve.x) != len(curve.y):
            raise ValueError(f"curve {curve.label!r} has {len(curve.x)} x and {len(curve.y)} y values.")
        colour = f"C{number % 10}"
        axes.plot(curve.x, curve.y, color=colour, marker="o", markersize=3, label=curve.label)
        if curve.paper:
            label = "_" if named else "the paper"
            axes.plot(
                *zip(*curve.paper, strict=True), color=colour, linestyle="", marker="x", markersize=8, label=label
            )
            named = True
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")


def epsilon_over_steps(
    entries: Sequence[tuple[Step, int]], header: Header, *, delta: float, path: Path, points: int = 25
) -> None:
    """ε as the steps of a plan or ledger are taken, one curve an accountant (paper 1, Figure 2).

    An accountant that has no proof for the steps is left out and named in the legend.
    """
    _check_name(path)
    plt = _pyplot()
    total = sum(count for _, count in entries)
    marks = np.unique(np.geomspace(max(total // 1000, 1), total, points).astype(np.int64))
    figure, axes = plt.subplots(figsize=(6.4, 4.2), constrained_layout=True)
    for name, (label, colour, line) in _STYLES.items():
        try:
            values = [
                ACCOUNTANTS[name].epsilon(compose(first(entries, int(mark)), header.adjacency), delta).upper
                for mark in marks
            ]
        except Unproved:
            axes.plot([], [], color=colour, linestyle=line, label=f"{label}: no proof for these steps")
            continue
        axes.plot(marks, values, color=colour, linestyle=line, label=f"{label}: {rounded_up(values[-1])}")
    axes.set(
        xlabel="steps", ylabel="ε", xlim=(0, total), title=f"Privacy spent, δ = {delta:g} ({header.adjacency.value})"
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"plot file is {str(path)!r}; its name must end in .png, .pdf or .svg.")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("drawing needs matplotlib; install it with: pip install 'tacit[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
