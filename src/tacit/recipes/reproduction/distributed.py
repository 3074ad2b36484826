"""Figure 9 of Shokri & Shmatikov 2015: distributed selective SGD without noise; and what its other figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from tacit.collaboration import Protocol
from tacit.recipes.reproduction.collaborations import (
    Baseline,
    Found,
    Job,
    collaborations,
    fair,
    last_quarter,
    percent_of,
)
from tacit.recipes.reproduction.experiment import Comparison, Line, Panel, Result, Setting, Value, percent
from tacit.recipes.reproduction.plans import ASYNCHRONOUS, RANDOM_ORDER, ROUND_ROBIN, UPLOADS, Net, plan, repeated
from tacit.recipes.reproduction.remarks import about, rivals, seeds, selected, tighter

TABLE = {
    ("mnist", "cnn"): {"pooled": 99.17, 0.1: 99.14, 0.01: 98.71, 0.001: 96.45, "alone": 93.16},
    ("svhn", "cnn"): {"pooled": 92.99, 0.1: 93.12, 0.01: 89.86, 0.001: 74.81, "alone": 81.82},
    ("mnist", "mlp"): {"pooled": 98.10, 0.1: 98.00, 0.01: 97.07, 0.001: 91.71, "alone": 88.32},
    ("svhn", "mlp"): {"pooled": 84.76, 0.1: 83.94, 0.01: 78.33, 0.001: 65.42, "alone": 51.36},
}
"""Table 4, in per cent: SGD on all records, selective SGD by θ, and training alone."""
PAPER_GAMMA, PAPER_TAU = 0.001, 0.0001

Runs = Mapping[Job, Sequence[Found]]
Alone = Mapping[Net, Sequence[Baseline]]
Repeats = Mapping[tuple[str, str], Mapping[float, int]]


def together(
    setting: Setting, cells: Mapping[Net, Sequence[Job]], repeats: Repeats | None = None
) -> tuple[dict[Job, list[Found]], dict[Net, list[Baseline]]]:
    """The jobs of each network, and what 30 participants reach without exchanging anything, or by pooling everything.

    Those with 30 participants run with as many seeds as their network has, or as ``repeats`` has for their θ_u; others
    with the seeds asked for.
    """
    runs: dict[Job, list[Found]] = {}
    alone: dict[Net, list[Baseline]] = {}
    for number, (net, jobs) in enumerate(cells.items()):
        begin, whole = number / len(cells), 1 / len(cells)
        own = (repeats or {}).get((net.data, net.model), {})
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            times = own.get(job.settings.upload, net.repeats) if job.settings.participants == 30 else 1
            groups.setdefault(times, []).append(job)
        for place, (times, group) in enumerate(groups.items()):
            begins, ends = (begin + 0.6 * whole * at / len(groups) for at in (place, place + 1))
            runs |= collaborations(repeated(setting, times), group, part=(begins, ends))
        alone[net] = baselines(setting, net, part=(begin + 0.6 * whole, begin + whole))
    return runs, alone


def baselines(setting: Setting, net: Net, *, part: tuple[float, float] = (0, 1)) -> list[Baseline]:
    """Pooled and alone, each with its best α."""
    return fair(repeated(setting, net.baseline_repeats), net.job(), net.baseline_rates, part=part)


# -- Figure 9 --------------------------------------------------------------------------------------------------------


def figure9(setting: Setting) -> Result:
    """Accuracy over θ_u: three protocols, numbers of participants, two data sets; and over θ_d."""
    chosen = plan(setting)
    cells = {
        chosen.nets[which]: [
            chosen.nets[which].job(protocol=protocol, participants=people, upload=upload)
            for (protocol, people), uploads in exchanges.items()
            for upload in uploads
        ]
        + [chosen.nets[which].job(download=share) for share in chosen.downloads.get(which, ())]
        for which, exchanges in chosen.exchanges.items()
    }
    runs, alone = together(setting, cells, chosen.repeats)
    panels = [
        _upload_panel(net, protocol, runs, alone)
        for net in cells
        for protocol in (ROUND_ROBIN, ASYNCHRONOUS)
        if len(_curve(net, protocol, runs)) > 1
    ]
    panels += [_download_panel(chosen.nets[which], shares, runs) for which, shares in chosen.downloads.items()]
    return Result(
        comparisons=[line for net in cells for line in (*_table4_rows(net, runs, alone), *_shape(net, runs, alone))],
        rows=rows(runs, alone),
        panels=panels,
        notes=[
            "Beside ours are numbers of the paper's Table 4 (one party, M = 1): SGD on all records, selective SGD with "
            "that θ, and training alone; its text says that round robin is almost as good as that.",
            "In the paper all of these upload their largest changes, and nothing is said of a bound γ on them. Here it "
            f"is the selection that was better on public images (docs/collaboration.md): {selected(cells)}; with "
            "θ_u = 1 all are sent.",
            "The sweep over the download rate θ_d is in the last panel; everything, with the lowest and highest of "
            "several seeds, is in the CSV.",
            "In an asynchronous run accuracy dips now and then: half of the participants work on parameters of an "
            "epoch ago. Probably all of them correct again what was corrected since, and overshoot together. The "
            f"tighter γ is, the less it dips{tighter(cells)}. The best epoch, chosen on the test set, flatters what "
            "goes up and down; the mean of the last quarter of the epochs does not.",
            rivals(alone),
            seeds(setting, cells, chosen.repeats),
            *about(setting, cells),
        ],
    )


def _of(job: Job, net: Net) -> bool:
    return (job.data, job.model) == (net.data, net.model)


def best(found: Sequence[Found]) -> float:
    """Return the accuracy of the best epoch, in per cent."""
    return percent_of([run.best for run in found])


def last(found: Sequence[Found]) -> float:
    """Return the accuracy of the last epoch, in per cent."""
    return percent_of([run.last for run in found])


def late(found: Sequence[Found]) -> float:
    """Return the mean accuracy of the last quarter of the epochs, in per cent."""
    return percent_of([run.late for run in found])


def _curve(net: Net, protocol: Protocol, runs: Runs, participants: int = 30) -> dict[float, float]:
    """Accuracy by θ_u, in per cent."""
    wanted = {upload: net.job(upload=upload, protocol=protocol, participants=participants) for upload in UPLOADS}
    return {upload: best(runs[job]) for upload, job in wanted.items() if job in runs}


def _upload_panel(net: Net, protocol: Protocol, runs: Runs, alone: Alone) -> Panel:
    """One protocol; asynchronous runs too few for a panel of their own are marks in that of round robin."""
    curves = {f"N = {people}": _curve(net, protocol, runs, people) for people in (150, 90, 30)}
    other = _curve(net, ASYNCHRONOUS, runs)
    if protocol is ROUND_ROBIN and len(other) == 1:
        curves["asynchronous, N = 30"] = other
    lines = [
        Line(label=words, x=list(curve), y=list(curve.values()), style="line" if len(curve) > 1 else "points")
        for words, curve in curves.items()
        if curve
    ]
    title = f"{net.title}, {protocol.replace('-', ' ')}"
    lines += marks(alone[net], list(curves["N = 30"]))
    return Panel(title=title, x="uploaded share θ_u", y="test accuracy (%)", lines=lines, log_x=True)


def marks(found: Sequence[Baseline], x: Sequence[float]) -> list[Line]:
    """The levels of pooled and of lonely training."""
    pooled, single = levels(found)
    return [
        Line(label="pooled, N = 30", x=x, y=[pooled], style="level"),
        Line(label="standalone", x=x, y=[single], style="level"),
    ]


def _download_panel(net: Net, shares: Sequence[float], runs: Runs) -> Panel:
    line = Line(label="N = 30, θ_u = 0.1", x=shares, y=[best(runs[net.job(download=share)]) for share in shares])
    return Panel(
        title=f"{net.title}, round robin", x="downloaded share θ_d", y="test accuracy (%)", lines=[line], log_x=True
    )


def levels(found: Sequence[Baseline]) -> tuple[float, float]:
    """Pooled (the best epoch) and alone (the last), in per cent."""
    return percent_of([max(run.centralised) for run in found]), percent_of([run.standalone for run in found])


def _table4_rows(net: Net, runs: Runs, alone: Alone) -> list[Comparison]:
    """Round robin with 30 participants, beside Table 4."""
    paper = TABLE[net.data, net.model]
    pooled, single = levels(alone[net])
    curve = _curve(net, ROUND_ROBIN, runs)
    return [
        percent(f"{net.title}, pooled records of 30", paper["pooled"], pooled),
        *(
            percent(f"{net.title}, N = 30, round robin, θ_u = {upload:g}", paper.get(upload), curve[upload])
            for upload in reversed(curve)
        ),
        percent(f"{net.title}, standalone", paper["alone"], single),
        *_behind(net, runs[net.job()], [run.centralised for run in alone[net]], paper[0.1] - paper["pooled"]),
    ]


def _shape(net: Net, runs: Runs, alone: Alone) -> list[Comparison]:
    """Compare with what the paper says about its figure."""
    found = worst(net, runs, alone)
    for protocol in (ASYNCHRONOUS, RANDOM_ORDER):
        for upload in reversed(_curve(net, protocol, runs)):
            other = runs[net.job(protocol=protocol, upload=upload)]
            found += _ahead(net, upload, protocol, runs[net.job(upload=upload)], other)
    more = net.job(participants=90)
    if more in runs:
        same = runs[net.job()][: len(runs[more])]
        found.append(percent(f"{net.title}: N = 90 minus N = 30, θ_u = 0.1", None, best(runs[more]) - best(same)))
    return found


def _behind(net: Net, usual: Sequence[Found], pooled: Sequence[Sequence[float]], paper: float) -> list[Comparison]:
    """θ_u = 0.1 minus pooled records, in the mean of the seeds, and by seed."""
    apart = {
        "": [100 * (run.best - max(history)) for run, history in zip(usual, pooled, strict=True)],
        ", last quarter": [
            100 * (run.late - last_quarter(history)) for run, history in zip(usual, pooled, strict=True)
        ],
        ", last epochs": [100 * (run.last - history[-1]) for run, history in zip(usual, pooled, strict=True)],
    }
    return [
        percent(f"{net.title}, θ_u = 0.1 minus pooled{words}{_each(values)}", None if words else paper, fmean(values))
        for words, values in apart.items()
    ]


def _each(apart: Sequence[float]) -> str:
    """By seed, if there are several."""
    return f" (by seed {', '.join(f'{difference:.2f}' for difference in apart)})" if len(apart) > 1 else ""


def _ahead(
    net: Net, upload: float, protocol: Protocol, usual: Sequence[Found], other: Sequence[Found]
) -> list[Comparison]:
    """Return how far round robin is ahead of another protocol, in the mean of the seeds, and by seed."""
    found = []
    for words, value in (("best epoch", best), ("last quarter", late)):
        apart = [value([one]) - value([two]) for one, two in zip(usual, other, strict=True)]
        title = f"{net.title}: round robin minus {protocol.replace('-', ' ')}, θ_u = {upload:g}, {words}"
        found.append(percent(title + _each(apart), None, fmean(apart)))
    return found


def worst(net: Net, runs: Runs, alone: Alone) -> list[Comparison]:
    """The collaboration of a network that gained least over training alone: by its best epoch, and by its last."""
    single = levels(alone[net])[1]
    return [
        percent(
            f"{net.title}: the worst collaboration, minus standalone, {words}", None,
            min(value(found) for job, found in runs.items() if _of(job, net)) - single,
        )
        for words, value in (("best epoch", best), ("last epoch", last))
    ]  # fmt: skip


def rows(runs: Runs, alone: Alone) -> list[dict[str, Value]]:
    """For the CSV: every run, with the baselines of its records if they are those of 30 participants."""
    found: list[dict[str, Value]] = []
    for net, base in alone.items():
        pooled, single = levels(base)
        for job, every in ((job, every) for job, every in runs.items() if _of(job, net)):
            s = job.settings
            tops = [100 * run.best for run in every]
            found.append(
                {
                    "data": job.data, "model": job.model, "participants": s.participants, "epochs": s.epochs,
                    "protocol": str(s.protocol), "selection": s.selection, "upload": s.upload, "download": s.download,
                    "learning_rate": s.learning_rate, "batch_size": s.batch_size, "bound": s.limit,
                    "threshold": s.threshold if s.selection == "threshold" else None, "seeds": len(every),
                    "best_epoch_percent": best(every), "lowest_best_epoch_percent": min(tops),
                    "highest_best_epoch_percent": max(tops), "last_epoch_percent": last(every),
                    "last_quarter_percent": late(every),
                    "lowest_last_epoch_percent": 100 * min(run.last for run in every),
                    "pooled_percent": pooled if s.participants == 30 else None,
                    "pooled_learning_rate": base[0].centralised_rate if s.participants == 30 else None,
                    "standalone_percent": single, "standalone_learning_rate": base[0].standalone_rate,
                    "megabytes_up": every[0].bytes_up / 1e6, "cpu_seconds": round(every[0].cpu_seconds, 1),
                }
            )  # fmt: skip
    return found
