"""Figures 9 to 11 of Shokri & Shmatikov 2015: distributed selective SGD without noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tacit.collaboration import Protocol, Settings
from tacit.recipes.reproduction.collaborations import (
    BEST,
    SHARES,
    SIZES,
    TITLES,
    Baseline,
    Found,
    Job,
    collaborations,
    lonely,
    percent_of,
    said,
)
from tacit.recipes.reproduction.experiment import Comparison, Line, Panel, Result, Setting, Value, percent

UPLOADS = (0.001, 0.01, 0.1, 1.0)
TABLE = {
    ("mnist", "cnn"): {"pooled": 99.17, 0.1: 99.14, 0.01: 98.71, 0.001: 96.45, "alone": 93.16},
    ("svhn", "cnn"): {"pooled": 92.99, 0.1: 93.12, 0.01: 89.86, 0.001: 74.81, "alone": 81.82},
    ("mnist", "mlp"): {"pooled": 98.10, 0.1: 98.00, 0.01: 97.07, 0.001: 91.71, "alone": 88.32},
    ("svhn", "mlp"): {"pooled": 84.76, 0.1: 83.94, 0.01: 78.33, 0.001: 65.42, "alone": 51.36},
}
"""Table 4, in per cent: SGD on all records, selective SGD by θ, and training alone."""
ROUND_ROBIN, ASYNCHRONOUS, RANDOM_ORDER = Protocol.ROUND_ROBIN, Protocol.ASYNCHRONOUS, Protocol.RANDOM_ORDER
PAPER_GAMMA, PAPER_TAU = 0.001, 0.0001

Runs = Mapping[Job, Sequence[Found]]
Alone = Mapping[Job, Sequence[Baseline]]


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network on a data set, and how it is trained: epochs and α at M = 32, and γ and τ from public records.

    ``share`` is of the training set, held by each participant, where it is not that of `SHARES`.
    """

    data: str
    model: str
    epochs: int
    learning_rate: float
    bound: float
    threshold: float
    share: float | None = None

    @property
    def title(self) -> str:
        return f"{TITLES[self.data]}, {self.model.upper()}"

    def job(self, **changes: object) -> Job:
        """The usual collaboration, with ``changes``."""
        usual = Settings(
            epochs=self.epochs, learning_rate=self.learning_rate, bound=self.bound, threshold=self.threshold,
            share=self.share or SHARES[self.data],
        )  # fmt: skip
        return Job(data=self.data, model=self.model, settings=replace(usual, **changes))  # type: ignore[arg-type]


QUICK = {
    ("mnist", "mlp"): Net(data="mnist", model="mlp", epochs=12, learning_rate=0.02, bound=0.004, threshold=5.5e-5),
    ("svhn", "mlp"): Net(data="svhn", model="mlp", epochs=10, learning_rate=0.02, bound=0.001, threshold=0.0007),
    ("mnist", "cnn"): Net(
        data="mnist", model="cnn", epochs=4, learning_rate=0.05, bound=0.0114, threshold=0.00216, share=0.002
    ),
}
FULL = {
    ("mnist", "cnn"): Net(data="mnist", model="cnn", epochs=80, learning_rate=0.05, bound=0.0114, threshold=0.00216),
    ("mnist", "mlp"): Net(data="mnist", model="mlp", epochs=80, learning_rate=0.02, bound=0.004, threshold=5.5e-5),
    ("svhn", "cnn"): Net(data="svhn", model="cnn", epochs=80, learning_rate=0.05, bound=0.0075, threshold=0.00074),
    ("svhn", "mlp"): Net(data="svhn", model="mlp", epochs=80, learning_rate=0.02, bound=0.001, threshold=0.0007),
}


def nets(setting: Setting) -> dict[tuple[str, str], Net]:
    return QUICK if setting.quick else FULL


# -- Figure 9 --------------------------------------------------------------------------------------------------------


def figure9(setting: Setting) -> Result:
    """Accuracy over θ_u: three protocols, numbers of participants, two data sets; and over θ_d."""
    chosen = nets(setting)
    jobs = [job for net in chosen.values() for job in _grid(net, setting)]
    jobs += [chosen["mnist", "mlp"].job(download=share) for share in _DOWNLOADS]
    runs = collaborations(setting, jobs, part=(0, 0.75))
    alone = lonely(setting, jobs, part=(0.75, 1))
    panels = [
        _upload_panel(net, protocol, runs, alone)
        for net in chosen.values()
        for protocol in (ROUND_ROBIN, ASYNCHRONOUS)
        if len(_curve(net, protocol, runs)) > 1
    ]
    return Result(
        comparisons=[*_table4_rows(chosen.values(), runs, alone), *_shape(chosen["mnist", "mlp"], runs, alone)],
        rows=rows(runs, alone),
        panels=[*panels, _download_panel(chosen["mnist", "mlp"], runs)],
        notes=[
            "Beside ours are numbers of the paper's Table 4 (one party, M = 1): SGD on all records, selective SGD with "
            "that θ, and training alone; its text says that round robin is almost as good as that.",
            "Random order, which the paper leaves out because it is as good as round robin, and the sweep over the "
            "download rate θ_d are in the CSV and in the last panel.",
            *about(setting, chosen.values()),
        ],
    )


_DOWNLOADS = (0.1, 0.5, 1.0)


def _grid(net: Net, setting: Setting) -> Iterator[Job]:
    if not setting.quick:
        for participants in (30, 90, 150):
            for protocol in Protocol:
                for upload in UPLOADS:
                    yield net.job(participants=participants, protocol=protocol, upload=upload)
        return
    if net.model == "cnn":
        yield net.job(upload=0.1)
        return
    uploads = UPLOADS if net.data == "mnist" else (0.01, 0.1, 1.0)
    for protocol in (ROUND_ROBIN, ASYNCHRONOUS):
        for upload in uploads if protocol is ROUND_ROBIN or net.data == "mnist" else (0.1,):
            yield net.job(protocol=protocol, upload=upload)
    if net.data == "mnist":
        yield net.job(protocol=RANDOM_ORDER, upload=0.1)
        for protocol in (ROUND_ROBIN, ASYNCHRONOUS):
            yield net.job(participants=90, protocol=protocol, upload=0.1)


def _of(job: Job, net: Net) -> bool:
    return (job.data, job.model) == (net.data, net.model)


def _curve(net: Net, protocol: Protocol, runs: Runs, participants: int = 30) -> dict[float, float]:
    """Accuracy by θ_u, in per cent."""
    found = {
        job.settings.upload: percent_of([run.best for run in every])
        for job, every in runs.items()
        if _of(job, net) and job == net.job(upload=job.settings.upload, protocol=protocol, participants=participants)
    }
    return dict(sorted(found.items()))


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
    pooled, single = levels(alone[net.job()])
    uploads = list(curves["N = 30"])
    lines += [
        Line(label="pooled, N = 30", x=uploads, y=[pooled], style="level"),
        Line(label="standalone", x=uploads, y=[single], style="level"),
    ]
    title = f"{net.title}, {protocol.replace('-', ' ')}"
    return Panel(title=title, x="uploaded share θ_u", y="test accuracy (%)", lines=lines, log_x=True)


def _download_panel(net: Net, runs: Runs) -> Panel:
    found = {share: runs[net.job(download=share)] for share in _DOWNLOADS}
    line = Line(
        label="N = 30, θ_u = 0.1", x=list(found), y=[percent_of([r.best for r in every]) for every in found.values()]
    )
    return Panel(
        title=f"{net.title}, round robin", x="downloaded share θ_d", y="test accuracy (%)", lines=[line], log_x=True
    )


def levels(found: Sequence[Baseline]) -> tuple[float, float]:
    """Pooled (the best epoch) and alone (the last), in per cent."""
    return percent_of([max(run.centralised) for run in found]), percent_of([run.standalone for run in found])


def _table4_rows(chosen: Iterable[Net], runs: Runs, alone: Alone) -> list[Comparison]:
    """Round robin with 30 participants, beside Table 4."""
    comparisons = []
    for net in chosen:
        paper = TABLE[net.data, net.model]
        pooled, single = levels(alone[net.job()])
        comparisons.append(percent(f"{net.title}, pooled records of 30", paper["pooled"], pooled))
        for upload in reversed(UPLOADS):
            job = net.job(upload=upload)
            if job in runs:
                ours = percent_of([run.best for run in runs[job]])
                what = f"{net.title}, N = 30, round robin, θ_u = {upload:g}"
                comparisons.append(percent(what, paper.get(upload), ours))
        gap = percent_of([run.best for run in runs[net.job()]]) - pooled
        comparisons += [
            percent(f"{net.title}, standalone", paper["alone"], single),
            percent(f"{net.title}, θ_u = 0.1 minus pooled", paper[0.1] - paper["pooled"], gap),
        ]
    return comparisons


def _shape(net: Net, runs: Runs, alone: Alone) -> list[Comparison]:
    """What the paper says about its figure, on one network."""

    def reached(**changes: object) -> float:
        return percent_of([run.best for run in runs[net.job(**changes)]])

    _, single = levels(alone[net.job()])
    worst = min(percent_of([r.best for r in found]) for job, found in runs.items() if _of(job, net))
    return [
        percent(f"{net.title}: the worst collaboration, minus standalone", None, worst - single),
        percent(
            f"{net.title}: round robin minus asynchronous, θ_u = 0.1", None,
            reached() - reached(protocol=ASYNCHRONOUS),
        ),
        percent(
            f"{net.title}: round robin minus random order, θ_u = 0.1", None,
            reached() - reached(protocol=RANDOM_ORDER),
        ),
        percent(f"{net.title}: N = 90 minus N = 30, θ_u = 0.1", None, reached(participants=90) - reached()),
    ]  # fmt: skip


def rows(runs: Runs, alone: Alone) -> list[dict[str, Value]]:
    """For the CSV: every run, with the baselines of its records."""
    found: list[dict[str, Value]] = []
    for job, every in runs.items():
        s = job.settings
        pooled, single = levels(alone[job])
        found.append(
            {
                "data": job.data, "model": job.model, "participants": s.participants, "epochs": s.epochs,
                "protocol": str(s.protocol), "selection": s.selection, "upload": s.upload, "download": s.download,
                "learning_rate": s.learning_rate, "batch_size": s.batch_size, "bound": s.limit,
                "threshold": s.threshold if s.selection == "threshold" else None,
                "best_epoch_percent": percent_of([run.best for run in every]),
                "last_epoch_percent": percent_of([run.last for run in every]),
                "pooled_percent": pooled, "standalone_percent": single,
                "megabytes_up": every[0].bytes_up / 1e6, "cpu_seconds": round(every[0].cpu_seconds, 1),
            }
        )  # fmt: skip
    return found


def about(setting: Setting, chosen: Iterable[Net], *, shown: str = BEST) -> list[str]:
    """Notes that all of these figures need; ``shown`` says which accuracies there are."""
    notes = [SIZES, shown]
    if setting.quick:
        every = ", ".join(
            f"{net.title}: {net.epochs} epochs with α = {net.learning_rate:g}{_few(net)}" for net in chosen
        )
        notes.append(
            f"Quick: mostly the MLPs, minibatches of 32, one seed; {every}. The paper trains CNNs for 80 epochs and "
            "more, so ours are below its accuracies, most of all on SVHN; what can be compared is the order."
        )
    return [*notes, said(setting)]


def _few(net: Net) -> str:
    return "" if net.share is None else f" and {net.share:.1%} of the images for each participant"


# -- Figure 10 -------------------------------------------------------------------------------------------------------


def figure10(setting: Setting) -> Result:
    """The largest changes, or random ones above a threshold: at the paper's γ and τ, and at calibrated ones."""
    model = "mlp" if setting.quick else "cnn"
    chosen = [nets(setting)[data, model] for data in TITLES]
    few = {"mnist": (0.01, 0.1), "svhn": (0.1,)}
    uploads = {net: few[net.data] if setting.quick else UPLOADS for net in chosen}
    people = (30,) if setting.quick else (30, 90, 150)
    jobs = [
        net.job(upload=upload, participants=number, **way)
        for net in chosen
        for way in _ways().values()
        for upload in uploads[net]
        for number in people
    ]
    runs = collaborations(setting, jobs, part=(0, 0.8))
    alone = lonely(setting, jobs, part=(0.8, 1))

    def reached(job: Job) -> float:
        return percent_of([run.best for run in runs[job]])

    comparisons, panels = [], []
    for net in chosen:
        pooled, single = levels(alone[net.job()])
        lines = []
        for number in people:
            for words, way in _ways().items():
                curve = [reached(net.job(upload=upload, participants=number, **way)) for upload in uploads[net]]
                label = words if len(people) == 1 else f"{words}, N = {number}"
                lines.append(Line(label=label, x=uploads[net], y=curve))
        lines += [
            Line(label="pooled", x=uploads[net], y=[pooled], style="level"),
            Line(label="standalone", x=uploads[net], y=[single], style="level"),
        ]
        panels.append(Panel(title=net.title, x="uploaded share θ_u", y="test accuracy (%)", lines=lines, log_x=True))
        comparisons += [
            percent(
                f"{net.title}, θ_u = {upload:g}, {words}",
                TABLE[net.data, net.model].get(upload) if words == "largest" and net.model == "cnn" else None,
                reached(net.job(upload=upload, **way)),
            )
            for upload in uploads[net]
            for words, way in _ways().items()
        ]
        worst = min(reached(job) for job in jobs if _of(job, net))
        comparisons.append(percent(f"{net.title}: the worst collaboration, minus standalone", None, worst - single))
    return Result(
        comparisons=comparisons,
        rows=rows(runs, alone),
        panels=panels,
        notes=[
            "The paper says of random ones above τ that fewer than θ_u may be uploaded, so that accuracy is sometimes "
            "lower; it prints no values. Its γ = 0.001 and τ = 0.0001 belong to α = 0.001 and M = 1; calibrated are γ "
            "and τ that `tacit collaborate calibrate` found on public records (see docs/collaboration.md).",
            "Here minibatches have 32 images instead of 1. γ and τ were calibrated for θ_u = 0.1: with a smaller θ_u "
            "so many changes are above τ that the few of them that are uploaded are hardly chosen.",
            *about(setting, chosen),
        ],
    )


def _ways() -> dict[str, dict[str, object]]:
    return {
        "largest": {},
        "random above τ, paper's γ and τ": {
            "selection": "threshold", "bound": PAPER_GAMMA, "threshold": PAPER_TAU,
        },
        "random above τ, calibrated": {"selection": "threshold"},
    }  # fmt: skip


# -- Figure 11 -------------------------------------------------------------------------------------------------------


def figure11(setting: Setting) -> Result:
    """Accuracy over epochs at two learning rates, for 30 and 90 participants and for pooled records."""
    model = "mlp" if setting.quick else "cnn"
    chosen = [nets(setting)[data, model] for data in TITLES]
    jobs = [
        net.job(participants=people, learning_rate=rate)
        for net in chosen
        for people in ((30,) if setting.quick and net.data == "svhn" else (30, 90))
        for rate in _rates(net)[: 1 if setting.quick and people == 90 else 2]
    ]
    runs = collaborations(setting, jobs, part=(0, 0.7))
    alone = lonely(setting, [job for job in jobs if job.settings.participants == 30], part=(0.7, 1))
    comparisons, panels = [], []
    table: list[dict[str, Value]] = []
    for net in chosen:
        epochs = list(range(1, net.epochs + 1))
        lines = []
        for job in (job for job in jobs if _of(job, net)):
            people, rate = job.settings.participants, job.settings.learning_rate
            curves = {f"N = {people}, α = {rate:g}": [run.history for run in runs[job]]}
            if people == 30:
                curves[f"pooled, α = {rate:g}"] = [run.centralised for run in alone[job]]
            for words, histories in curves.items():
                means = [percent_of(values) for values in zip(*histories, strict=True)]
                lines.append(Line(label=words, x=epochs, y=means, style="dashed" if "pooled" in words else "line"))
                comparisons.append(percent(f"{net.title}, {words}, {net.epochs} epochs", None, means[-1]))
                table += [
                    {
                        "data": net.data,
                        "model": net.model,
                        "curve": words,
                        "epoch": epoch,
                        "test_accuracy_percent": value,
                    }
                    for epoch, value in zip(epochs, means, strict=True)
                ]
        panels.append(Panel(title=f"{net.title}, θ_u = 0.1", x="epoch", y="test accuracy (%)", lines=lines))
    return Result(
        comparisons=comparisons,
        rows=table,
        panels=panels,
        notes=[
            "The paper's point: a higher learning rate converges faster, whatever the number of participants. It "
            "prints no values; its α are 0.01 and 0.001. Pooled are the records of 30 participants.",
            *about(setting, chosen, shown="Accuracies are those after the last epoch."),
        ],
    )


def _rates(net: Net) -> tuple[float, float]:
    """That of the other figures and a tenth of it; the paper's, with minibatches of 1, are 0.01 and 0.001."""
    return net.learning_rate, net.learning_rate / 10
