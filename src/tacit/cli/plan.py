"""``tacit plan``: solve for the one parameter of a run that is left out."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.cli.correlation import BANDS_HELP, GROUPS_HELP, NOISE_HELP, correlation
from tacit.cli.output import number, show, whole


def plan(
    records: Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="n: number of records, assumed public.")],
    lot_size: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Expected records in a lot.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="Passes over the data.")] = None,
    steps: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Number of lots, instead of --epochs.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="z: noise on the sum / clip norm.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="ε of the budget.")] = None,
    delta: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="δ of the budget.")] = None,
    sampling: Annotated[
        str, typer.Option(help="poisson, fixed-size, allocation, shuffled; cyclic with correlated noise.")
    ] = "poisson",
    participations: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="Lots of an epoch that a record is in (allocation).")
    ] = 1,
    max_lot_size: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Drop records of larger Poisson lots; adds to δ.")
    ] = None,
    records_per_owner: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="An owner has at most so many of the records.")
    ] = None,
    adjacency: Annotated[str, typer.Option(help="add/remove or replace-one.")] = "add/remove",
    accountant: Annotated[str, typer.Option(help="pld, rdp, moments or strong.")] = "pld",
    noise: Annotated[str, typer.Option(help=NOISE_HELP)] = "gaussian",
    bands: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help=BANDS_HELP)] = None,
    groups: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help=GROUPS_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Solve for the quantity left out: lot, length, noise, ε or δ. The plan never exceeds the budget.

    \b
    Examples:
      tacit plan --records 60000 --lot-size 600 --epochs 40 --epsilon 2 --delta 1e-5
      tacit plan --records 60000 --lot-size 600 --noise-multiplier 4 --epsilon 2 --delta 1e-5
      tacit plan --records 60000 --epochs 40 --noise-multiplier 2 --epsilon 2 --delta 1e-5 --json
      tacit plan --records 60000 --lot-size 600 --epochs 4 --epsilon 2 --delta 1e-5 --noise banded-toeplitz --bands 8
    """
    from tacit.accounting import plan as solve
    from tacit.accounting.advice import budget_advice
    from tacit.accounting.guarantee import rounded_up

    strategy = correlation(noise, bands, groups)
    if strategy is not None and sampling == "poisson":
        sampling = "cyclic"
    found = solve(
        records=records,
        lot_size=lot_size,
        epochs=epochs,
        steps=steps,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        sampling=sampling,
        participations=participations,
        max_lot_size=max_lot_size,
        records_per_owner=records_per_owner,
        adjacency=adjacency,
        accountant=accountant,
        noise=strategy or noise,
    )
    promise = found.guarantee
    (power,) = promise.attack_power([0.01])
    advice = budget_advice(epsilon=promise.epsilon, delta=promise.delta, records=found.records)
    facts = {
        "noise_multiplier": found.noise_multiplier,
        "sampling_rate": found.sampling_rate,
        "lot_size": found.lot_size,
        "records": found.records,
        "steps": found.steps,
        "epochs": found.epochs,
        "epsilon": promise.epsilon,
        "epsilon_lower": promise.epsilon_lower,
        "delta": promise.delta,
        "accountant": promise.accountant,
        "sampling": promise.sampling,
        "adjacency": promise.adjacency,
        "attack_power": power,
        "advice": advice,
        **({} if found.groups is None else {"groups": found.groups}),
    }
    lines = [
        f"noise multiplier  {found.noise_multiplier:.6g}",
        f"sampling rate     {found.sampling_rate:.6g}  (lots of {found.lot_size} of {found.records} records)",
        f"steps             {found.steps}  ({found.epochs:.6g} epochs)",
        *([] if found.groups is None else [f"groups            {found.groups}, which take turns"]),
        f"guarantee         {promise}",
        f"attack            who accuses 1 % of the innocent finds at most {rounded_up(100 * power, 1)} % of members",
        *(f"advice            {sentence}" for sentence in advice),
    ]
    show(facts, lines, as_json=as_json)
