"""Figures. They need matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from collections.abc import Sequence
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


def epsilon_over_steps(
    entries: Sequence[tuple[Step, int]], header: Header, *, delta: float, path: Path, points: int = 25
) -> None:
    """ε as the steps of a plan or ledger are taken, one curve an accountant (paper 1, Figure 2).

    An accountant that has no proof for the steps is left out and named in the legend.
    """
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"plot file is {str(path)!r}; its name must end in .png, .pdf or .svg.")
    plt = pyplot()
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


def pyplot() -> Any:
    """matplotlib without a screen."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("drawing needs matplotlib; install it with: pip install 'tacit[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
