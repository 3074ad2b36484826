"""Figure 11 of Shokri & Shmatikov 2015: distributed selective SGD over epochs."""

from __future__ import annotations

from tacit.recipes.reproduction.collaborations import Baseline, Found, Job, collaborations, lonely, percent_of
from tacit.recipes.reproduction.experiment import Line, Panel, Result, Setting, Value, percent
from tacit.recipes.reproduction.plans import plan, repeated
from tacit.recipes.reproduction.remarks import about, seeds


def figure11(setting: Setting) -> Result:
    """Accuracy over epochs at two learning rates, for 30 and 90 participants and for pooled records."""
    chosen = plan(setting)
    nets = [chosen.nets[which] for which in chosen.rates]
    jobs = [
        net.job(participants=people, learning_rate=net.learning_rate / part, selection="largest")
        for net, cells in zip(nets, chosen.rates.values(), strict=True)
        for people, parts in cells.items()
        for part in parts
    ]
    runs: dict[Job, list[Found]] = {}
    alone: dict[Job, list[Baseline]] = {}
    for number, net in enumerate(nets):
        at = [(number + share) / len(nets) for share in (0, 0.4, 0.6, 1)]
        own = [job for job in jobs if (job.data, job.model) == (net.data, net.model)]
        few = [job for job in own if job.settings.participants == 30]
        runs |= collaborations(repeated(setting, net.repeats), few, part=(at[0], at[1]))
        runs |= collaborations(setting, [job for job in own if job not in few], part=(at[1], at[2]))
        alone |= lonely(repeated(setting, net.repeats), few, part=(at[2], at[3]))
    comparisons, panels = [], []
    table: list[dict[str, Value]] = []
    for net in nets:
        epochs = list(range(1, net.epochs + 1))
        lines = []
        for job in (job for job in jobs if (job.data, job.model) == (net.data, net.model)):
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
            "prints no values; its α are 0.01 and 0.001, and the largest changes are uploaded, as here. Pooled are the "
            "records of 30 participants.",
            seeds(setting, nets, baselines=False),
            *about(setting, nets, shown="Accuracies are those after the last epoch."),
        ],
    )
