"""Figure 10 of Shokri & Shmatikov 2015: which changes are uploaded."""

from __future__ import annotations

from typing import Any

from tacit.recipes.reproduction.distributed import (
    PAPER_GAMMA,
    PAPER_TAU,
    TABLE,
    best,
    levels,
    marks,
    rows,
    together,
    worst,
)
from tacit.recipes.reproduction.experiment import Line, Panel, Result, Setting, percent
from tacit.recipes.reproduction.plans import plan
from tacit.recipes.reproduction.remarks import about, rated, rivals, seeds

_PAPERS = "random above τ, paper's γ and τ"
_WAYS: dict[str, dict[str, Any]] = {
    "largest": {"selection": "largest"},
    _PAPERS: {"selection": "threshold", "bound": PAPER_GAMMA, "threshold": PAPER_TAU},
    "random above τ, calibrated": {"selection": "threshold"},
}


def figure10(setting: Setting) -> Result:
    """The largest changes, or random ones above a threshold: at the paper's γ and τ, and at calibrated ones."""
    chosen = plan(setting)
    cells = {chosen.nets[which]: uploads for which, uploads in chosen.selections.items()}
    jobs = {
        net: {(words, upload): net.job(upload=upload, **way) for words, way in _WAYS.items() for upload in uploads}
        for net, uploads in cells.items()
    }
    runs, alone = together(setting, {net: list(ways.values()) for net, ways in jobs.items()})
    comparisons, panels = [], []
    for net, uploads in cells.items():
        reached = {which: best(runs[job]) for which, job in jobs[net].items()}
        lines = [Line(label=words, x=uploads, y=[reached[words, upload] for upload in uploads]) for words in _WAYS]
        lines += marks(alone[net], uploads)
        panels.append(Panel(title=net.title, x="uploaded share θ_u", y="test accuracy (%)", lines=lines, log_x=True))
        comparisons += [
            percent(
                f"{net.title}, θ_u = {upload:g}, {words}",
                TABLE[net.data, net.model].get(upload) if words == "largest" and net.model == "cnn" else None,
                reached[words, upload],
            )
            for upload in uploads
            for words in _WAYS
        ]
        comparisons.append(percent(f"{net.title}, standalone", None, levels(alone[net])[1]))
        fitting = {job for (words, _), job in jobs[net].items() if words != _PAPERS}
        comparisons += worst(net, {job: runs[job] for job in fitting}, alone)
    return Result(
        comparisons=comparisons,
        rows=rows(runs, alone),
        panels=panels,
        notes=[
            "The paper says of random ones above τ that fewer than θ_u may be uploaded, so that accuracy is sometimes "
            "lower; it prints no values. Its γ = 0.001 and τ = 0.0001 belong to α = 0.001 and M = 1, and are here only "
            "to show that they do not fit minibatches of 32: the worst collaboration is among the others.",
            "Calibrated are γ and τ that were found on public records, for each θ_u by itself (see "
            "docs/collaboration.md): the smaller θ_u, the larger τ has to be. Else so many changes are above it that "
            f"the few of them that are uploaded are hardly chosen.{rated(cells)}",
            rivals(alone),
            seeds(setting, cells),
            *about(setting, cells),
        ],
    )
