"""``tacit budget``: how much all runs on one data set may cost together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import number, show

if TYPE_CHECKING:
    from tacit.tables.registry import Registry


def budget(
    data: Annotated[
        Path | None, typer.Argument(help="The file of the data set, as it is given to `tacit train`.")
    ] = None,
    name: Annotated[str | None, typer.Option("--data-name", help="The data set's name instead of its file.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="ε of all runs together; set once.")
    ] = None,
    delta: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="δ of all runs together: each run's own adds to it.")
    ] = 1e-4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Set the budget of a data set, or show what is left of it.

    It can be set once; without --epsilon it is shown.

    Runs on the same file (or --data-name) are added up, failed and interrupted ones included; a run that the budget
    does not allow is refused before it begins.

    \b
    Examples:
      tacit budget people.csv --epsilon 3
      tacit budget people.csv
      tacit budget --data-name survey-2026 --epsilon 1
    """
    from tacit.ledger import Budget
    from tacit.tables.registry import Registry

    if data is None and name is None:
        raise ValueError("give the file of the data set, or its --data-name.")
    registry = Registry(data, name=name)
    if epsilon is not None:
        registry.set_budget(Budget(epsilon=epsilon, delta=delta))
    facts, lines = summed(registry)
    show(facts, lines, as_json=as_json)


def summed(registry: Registry) -> tuple[dict[str, Any], list[str]]:
    """Return what runs on a data set cost together, as facts and as lines."""
    from tacit.accounting.guarantee import rounded_up

    costs, whole = registry.costs(), registry.budget
    epsilon, delta = registry.spent()
    facts: dict[str, Any] = {
        "data": registry.title,
        "identity": registry.identity,
        "epsilon": epsilon,
        "delta": delta,
        "budget": None if whole is None else {"epsilon": whole.epsilon, "delta": whole.delta},
        "runs": [
            {"ledger": one.ledger, "started": one.started, "epsilon": one.epsilon, "delta": one.delta, "note": one.note}
            for one in costs
        ],
    }
    lines = [
        f"{one.started}  ε {rounded_up(one.epsilon)}, δ {one.delta:g}  {one.ledger}"
        + (f"  ({one.note})" if one.note else "")
        for one in costs
    ]
    count = f"{len(costs)} run" + "s" * (len(costs) != 1)
    lines.append(f"{count} on {registry.title}: ε ≤ {rounded_up(epsilon)}, δ ≤ {delta:.3g} (basic composition)")
    if whole is None:
        lines.append("no budget is set for this data set; `tacit budget FILE --epsilon E` sets one.")
    else:
        left = max(whole.epsilon - epsilon, 0.0)
        lines.append(
            f"budget: ε {whole.epsilon:g}, δ {whole.delta:g}; left: ε {left:.4g}, δ {max(whole.delta - delta, 0):.3g}"
        )
    return facts, lines
