"""Figures 12 and 13 of Shokri & Shmatikov 2015: uploads by sparse vector, at the paper's ε and at the honest one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tacit.collaboration import GaussianPrivacy, Settings, SparseVectorPrivacy, mechanism
from tacit.collaboration.messages import portion
from tacit.mechanisms import SparseVectorQuery
from tacit.recipes.reproduction.collaborations import Found, Job, collaborations, percent_of
from tacit.recipes.reproduction.distributed import PAPER_GAMMA, PAPER_TAU, baselines, levels
from tacit.recipes.reproduction.experiment import Comparison, Line, Panel, Result, Setting, Value, percent
from tacit.recipes.reproduction.plans import UPLOADS, Net, plan
from tacit.recipes.reproduction.remarks import about, rivals

PARAMETERS = {("mnist", "mlp"): 140_106, ("svhn", "mlp"): 402_250, ("mnist", "cnn"): 105_506, ("svhn", "cnn"): 313_546}
"""Table 3."""
AXIS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""ε/c, the axis of Figure 13."""
DELTA = 1e-5
HONEST = (
    "ε/c is what the paper calls the privacy budget per parameter. It bounds nothing that is released: an upload has c "
    "parameters and every epoch another upload. Honest is the ε of all that one participant uploads, from its ledger "
    "(5/9 of the paper's ε for an upload, added over all epochs)."
)


# -- Figure 12 -------------------------------------------------------------------------------------------------------


def figure12(setting: Setting) -> Result:
    """The mechanism itself: what the paper's ε/c costs in honest ε, and how much noise it adds. No training."""
    chosen = plan(setting)
    net = chosen.nets[next(iter(chosen.sparse))]
    size, epochs = PARAMETERS[net.data, net.model], net.noisy_epochs
    table: list[dict[str, Value]] = []
    for upload in reversed(UPLOADS):
        for budget in AXIS:
            query = sparse_query(upload, budget, size)
            charged = query.event()
            whole = (charged.threshold_epsilon + charged.release_epsilon) * epochs * (1 + 1e-12)
            table.append(
                {
                    "upload": upload, "releases": query.releases, "epsilon_per_parameter": budget,
                    "epsilon_per_epoch_paper": query.epsilon, "epochs": epochs, "epsilon_whole": whole,
                    "noise_of_value_over_gamma": math.sqrt(2) * query.release_scale / query.bound,
                    "noise_of_comparison_over_gamma": math.sqrt(2) * 2 * query.threshold_scale / query.bound,
                }
            )  # fmt: skip
    costs = [
        Line(
            label=f"θ_u = {upload:g}",
            x=AXIS,
            y=[float(row["epsilon_whole"] or 0) for row in table if row["upload"] == upload],
        )
        for upload in reversed(UPLOADS)
    ]
    gaussian = [_gaussian_noise(epsilon, epochs, portion(0.1, size)) for epsilon in _EPSILONS]
    noise = [
        Line(
            label="sparse vector, θ_u = 0.1",
            x=_EPSILONS,
            y=[_sparse_noise(e, epochs, size) for e in _EPSILONS],
        ),
        Line(label="Gaussian, θ_u = 0.1", x=_EPSILONS, y=gaussian),
    ]
    comparisons = [
        Comparison(
            what=f"θ_u = {upload:g}, all uploads of one participant",
            paper=budget,
            ours=next(
                float(row["epsilon_whole"] or 0)
                for row in table
                if row["upload"] == upload and row["epsilon_per_parameter"] == budget
            ),
            bound=True,
        )
        for upload in (0.1, 0.001)
        for budget in (0.1, 1.0, 10.0)
    ]
    return Result(
        comparisons=comparisons,
        rows=table,
        columns=("the paper's ε/c", "honest ε"),
        panels=[
            Panel(
                title=f"{net.title}, {epochs} epochs", x="ε/c, as the paper counts", y="honest ε, whole training",
                lines=costs, log_x=True, log_y=True,
            ),
            Panel(
                title="Noise on an uploaded value", x="honest ε, whole training", y="standard deviation / γ",
                lines=noise, log_x=True, log_y=True,
            ),
        ],
        notes=[
            "Figure 12 is pseudocode; this is what it costs. " + HONEST,
            f"c is θ_u of {size:,} parameters. Noise is counted in γ, the bound on each value (the paper's is "
            f"{PAPER_GAMMA:g}, with τ = {PAPER_TAU:g}): at ε/c = 1 the value's noise has a standard deviation of 25 γ.",
            f"Gaussian: the same number of values at random places, as one vector of norm γ√c, for (ε, δ = {DELTA:g}) "
            "over all epochs: both protect a participant's whole data set.",
            "Nothing is trained, and nothing here depends on a data set.",
        ],
    )  # fmt: skip


_EPSILONS = (1.0, 10.0, 100.0, 1000.0)


def sparse_query(upload: float, per_parameter: float, size: int) -> SparseVectorQuery:
    """Figure 12 with the paper's γ and τ, at ε/c."""
    releases = portion(upload, size)
    return SparseVectorQuery(
        group="upload", epsilon=per_parameter * releases, releases=releases, bound=PAPER_GAMMA, threshold=PAPER_TAU
    )


def _sparse_noise(epsilon: float, epochs: int, size: int) -> float:
    per_epoch = SparseVectorPrivacy.whole(epsilon, epochs=epochs).epsilon_per_epoch
    query = sparse_query(0.1, per_epoch / portion(0.1, size), size)
    return math.sqrt(2) * query.release_scale / query.bound


def _gaussian_noise(epsilon: float, epochs: int, releases: int) -> float:
    return GaussianPrivacy(epsilon=epsilon, delta=DELTA, clip_norm=1.0).noise_multiplier(epochs=epochs) * math.sqrt(
        releases
    )


# -- Figure 13 -------------------------------------------------------------------------------------------------------


def figure13(setting: Setting) -> Result:
    """Accuracy over ε/c as in the paper; and over the honest ε, beside Gaussian uploads and DP-SGD."""
    chosen = plan(setting)
    cells = {chosen.nets[which]: sparse for which, sparse in chosen.sparse.items()}
    better = {chosen.nets[which]: others for which, others in chosen.others.items()}
    jobs = {
        (net, upload, budget): _sparse(net, upload, budget)
        for net, sparse in cells.items()
        for upload, budgets in sparse.items()
        for budget in budgets
    }
    others = {
        (net, name, epsilon): _other(net, name, epsilon)
        for net, mechanisms in better.items()
        for name, epsilons in mechanisms.items()
        for epsilon in epsilons
    }
    runs = collaborations(setting, [*jobs.values(), *others.values()], part=(0, 0.9))
    alone = {net: baselines(setting, net, part=(0.9, 1)) for net in cells}

    def reached(job: Job) -> float:
        return percent_of([run.last for run in runs[job]])

    panels, comparisons = [], []
    for net, sparse in cells.items():
        lines = [
            Line(label=f"θ_u = {upload:g}", x=budgets, y=[reached(jobs[net, upload, budget]) for budget in budgets])
            for upload, budgets in sparse.items()
        ]
        title = f"{net.title}, sparse vector, N = 30"
        panels.append(_panel(title, "ε/c, as the paper counts", lines, levels(alone[net])))
        comparisons += [
            percent(
                f"{net.title}, N = 30, θ_u = {upload:g}, ε/c = {budget:g} "
                f"(honest ε = {math.ceil(_epsilon(runs[jobs[net, upload, budget]])):,})",
                None,
                reached(jobs[net, upload, budget]),
            )
            for upload, budgets in sparse.items()
            for budget in budgets
        ]
    for net, mechanisms in better.items():
        upload, budgets = next(iter(cells[net].items()))
        found = [jobs[net, upload, budget] for budget in budgets]
        lines = [
            Line(
                label=f"sparse vector, θ_u = {upload:g} (participant)",
                x=[_epsilon(runs[job]) for job in found],
                y=[reached(job) for job in found],
            )
        ]
        for name, epsilons in mechanisms.items():
            values = {epsilon: reached(others[net, name, epsilon]) for epsilon in epsilons}
            lines.append(Line(label=_WORDS[name], x=list(values), y=list(values.values())))
            comparisons += [
                percent(f"{net.title}, N = 30, {_WORDS[name]}, honest ε = {epsilon:g}", None, value)
                for epsilon, value in values.items()
            ]
        panels.append(_panel(f"{net.title}, N = 30", "honest ε, whole training", lines, levels(alone[net])))
    epochs = ", ".join(f"{net.title}: {net.noisy_epochs}" for net in cells)
    return Result(
        comparisons=comparisons,
        rows=_rows(runs),
        panels=panels,
        notes=[
            HONEST,
            "Beside it, at the honest ε: Gaussian uploads, which like sparse vector protect a participant's whole data "
            f"set, and local DP-SGD, which protects each example; δ = {DELTA:g}. An example is not a participant: the "
            "two cannot be compared as promises, only as what is promised for what accuracy.",
            f"Accuracies with noise are those after the last epoch ({epochs}): looking which was best would cost "
            "something. Pooled and standalone, without noise, are those of Figure 9, with as many epochs as there. γ "
            "and τ come from public records (`tacit collaborate calibrate`), not 0.001 and 0.0001 as in the paper, "
            f"whose learning rate is lower. Seeds of runs with noise: {', '.join(map(str, setting.seeds))}. The paper "
            "prints no values.",
            rivals(alone),
            *about(setting, cells),
        ],
    )


_WORDS = {"gaussian": "Gaussian (participant)", "dp-sgd": "DP-SGD (example)"}


def _sparse(net: Net, upload: float, per_parameter: float) -> Job:
    releases = portion(upload, PARAMETERS[net.data, net.model])
    privacy = SparseVectorPrivacy(epsilon_per_epoch=per_parameter * releases)
    return net.job(upload=upload, epochs=net.noisy_epochs, privacy=privacy, selection="largest")


def _other(net: Net, name: str, epsilon: float) -> Job:
    job = net.job(epochs=net.noisy_epochs, selection="largest")
    settings: Settings = replace(job.settings, bound=None) if name == "dp-sgd" else job.settings
    return replace(job, settings=replace(settings, privacy=mechanism(name, epsilon=epsilon, settings=settings)))


def _epsilon(runs: Sequence[Found]) -> float:
    return max(run.epsilon or 0.0 for run in runs)


def _panel(title: str, x: str, lines: Sequence[Line], base: tuple[float, float]) -> Panel:
    marks = [value for line in lines for value in line.x]
    pooled, single = base
    more = [
        Line(label="pooled, no privacy", x=marks, y=[pooled], style="level"),
        Line(label="standalone", x=marks, y=[single], style="level"),
    ]
    return Panel(title=title, x=x, y="test accuracy (%)", lines=[*lines, *more], log_x=True)


def _rows(runs: Mapping[Job, Sequence[Found]]) -> list[dict[str, Value]]:
    table: list[dict[str, Value]] = []
    for job, every in runs.items():
        s = job.settings
        table.append(
            {
                "data": job.data, "model": job.model, "participants": s.participants, "epochs": s.epochs,
                "mechanism": type(s.privacy).__name__, "upload": s.upload, "bound": s.limit, "threshold": s.threshold,
                "epsilon_per_parameter_paper": every[0].per_parameter, "epsilon_honest": _epsilon(every),
                "delta": s.delta, "test_accuracy_percent": percent_of([run.last for run in every]),
                "cpu_seconds": round(every[0].cpu_seconds, 1),
            }
        )  # fmt: skip
    return table
