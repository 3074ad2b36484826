"""``tacit account``: what a plan would cost, or what a ledger did cost."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.correlation import BANDS_HELP, GROUPS_HELP, NOISE_HELP, correlation, planned_block
from tacit.cli.output import number, show, whole

if TYPE_CHECKING:
    from tacit.accounting import Guarantee
    from tacit.ledger import Ledger


def account(
    ledger: Annotated[Path | None, typer.Argument(help="A ledger file: account for what was really done.")] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="q: each record is in a lot with this probability."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="z: noise on the sum / clip norm.")
    ] = None,
    steps: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help="T: number of lots.")] = None,
    delta: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="δ, to get ε.")] = None,
    epsilon: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="ε, to get δ.")] = None,
    sampling: Annotated[
        str,
        typer.Option(help="poisson, allocation (1/q steps an epoch) or shuffled (the same; plans only)."),
    ] = "poisson",
    compare: Annotated[
        bool, typer.Option("--compare", help="With --sampling shuffled: what is proved beside what is often claimed.")
    ] = False,
    accountant: Annotated[str, typer.Option(help="pld, rdp, moments or strong.")] = "pld",
    adjacency: Annotated[str, typer.Option(help="add/remove or replace-one (plans only).")] = "add/remove",
    records_per_owner: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="WHOLE", help="An owner has at most so many of the records (plans only)."),
    ] = None,
    noise: Annotated[str, typer.Option(help=f"{NOISE_HELP} For plans only.")] = "gaussian",
    bands: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help=BANDS_HELP)] = None,
    groups: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help=GROUPS_HELP)] = None,
    from_opacus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file with an Opacus accountant's history: check its claim."),
    ] = None,
    group: Annotated[
        int,
        typer.Option(
            parser=whole, metavar="WHOLE", help="Protect so many records together: a family, one person's records."
        ),
    ] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw ε over the steps for several accountants (PNG, PDF, SVG).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A data set's file: what all runs on it cost together (see `tacit budget`).")
    ] = None,
    data_name: Annotated[str | None, typer.Option(help="The data set's name instead of its file.")] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Fail unless the ledger holds the state of this receipt.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print ε (or δ) of a plan, or of what a ledger lists.

    For a ledger it also prints a receipt: the number of steps and a digest.

    Keep the receipt away from the ledger: --expect DIGEST then fails if the file was put back to an older copy.

    \b
    Examples:
      tacit account --sampling-rate 0.01 --noise-multiplier 4 --steps 10000 --delta 1e-5
      tacit account --sampling-rate 0.01 --noise-multiplier 4 --steps 40000 --delta 1e-5 --plot curve.png
      tacit account --sampling-rate 0.01 --noise-multiplier 4 --steps 400 --delta 1e-5 --noise buffered-toeplitz
      tacit account runs/mnist/ledger.jsonl --delta 1e-5
      tacit account runs/mnist/ledger.jsonl --epsilon 1 --json
      tacit account runs/mnist/ledger.jsonl --delta 1e-5 --group 5
      tacit account --sampling-rate 0.01 --noise-multiplier 4 --steps 10000 --delta 1e-5 --records-per-owner 3
      tacit account --from-opacus history.json --delta 1e-5
      tacit account --sampling shuffled --compare --sampling-rate 0.01 --noise-multiplier 1 --steps 100 --delta 1e-5
      tacit account runs/mnist/ledger.jsonl --expect 5b2c…
      tacit account --data people.csv
    """
    from tacit.accounting import guarantee
    from tacit.cli.opacus import history
    from tacit.cli.planned import compared, planned_entries
    from tacit.ledger import Header, Ledger

    planned = {"--sampling-rate": sampling_rate, "--noise-multiplier": noise_multiplier, "--steps": steps}
    given = [name for name, value in planned.items() if value is not None]
    if data is not None or data_name is not None:
        if ledger is not None or given or delta is not None or epsilon is not None or plot is not None:
            raise ValueError("--data adds up whole runs, each at its own δ; leave the other options out.")
        from tacit.cli.budget import summed
        from tacit.tables.registry import Registry

        show(*summed(Registry(data, name=data_name)), as_json=as_json)
        return
    if ledger is not None:
        if from_opacus is not None:
            raise ValueError(f"--from-opacus is given beside the ledger {ledger}; give one of them.")
        given += ["--adjacency"] * (adjacency != "add/remove") + ["--noise"] * (noise != "gaussian")
        given += ["--sampling"] * (sampling != "poisson") + ["--compare"] * compare
        given += ["--records-per-owner"] * (records_per_owner is not None)
        if given:
            raise ValueError(f"{', '.join(given)} is for plans; the ledger {ledger} says it itself.")
        book = Ledger.load(ledger)
        entries, header = list(book.entries), book.header
        receipt, lines = _receipt(book, ledger, expect)
        if expect is not None and delta is None and epsilon is None and plot is None:
            show(receipt, lines, as_json=as_json)
            return
    else:
        if expect is not None:
            raise ValueError("--expect compares a ledger with a receipt; give the ledger file as well.")
        receipt, lines = {}, []
        others = [*given, *["--noise"] * (noise != "gaussian"), *["--sampling"] * (sampling != "poisson")]
        others += ["--compare"] * compare + ["--records-per-owner"] * (records_per_owner is not None)
        if from_opacus is not None and others:
            raise ValueError(f"{', '.join(others)} is for plans; the history {from_opacus} says it itself.")
    if from_opacus is not None:
        entries, header = history(from_opacus), Header(adjacency=adjacency)  # type: ignore[arg-type]
        lines = [
            "read as Opacus charges it: Gaussian noise, Poisson samples. If lots were not drawn so, it does not hold."
        ]
    elif ledger is None:
        if sampling_rate is None or noise_multiplier is None or steps is None:
            missing = [name for name, value in planned.items() if value is None]
            raise ValueError(f"give a ledger file, or a plan: {', '.join(missing)} missing.")
        if not 1 <= steps <= 10**12:
            raise ValueError(f"--steps is {steps}; it must be a whole number from 1 to {10**12}.")
        owned = records_per_owner is not None
        header = Header(adjacency=adjacency, unit="owner" if owned else "example")  # type: ignore[arg-type]
        strategy = correlation(noise, bands, groups)
        if strategy is not None and (compare or sampling != "poisson"):
            raise ValueError(f"--sampling is {sampling!r}; correlated noise has its own: leave it and --compare out.")
        if owned and (strategy is not None or sampling != "poisson"):
            raise ValueError(f"--records-per-owner is {records_per_owner}; it is for Poisson lots of plain noise.")
        if compare:
            if sampling != "shuffled" or delta is None or noise != "gaussian" or plot is not None or group > 1:
                raise ValueError("--compare is for --sampling shuffled and --delta, with Gaussian noise and no plot.")
            show(*compared(sampling_rate, noise_multiplier, steps, delta, accountant=accountant), as_json=as_json)
            return
        if strategy is None:
            entries = planned_entries(
                sampling, sampling_rate, noise_multiplier, steps, noise, adjacency, records_per_owner
            )
        else:
            step = planned_block(strategy, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps)
            entries = [(step, steps)]
    if delta is None and epsilon is None:
        raise ValueError("give --delta (for example 1e-5) to get ε, or --epsilon to get δ.")
    found = guarantee(entries, header, delta=delta, epsilon=epsilon, accountant=accountant, group=group)
    if plot is not None:
        if delta is None:
            raise ValueError("--plot draws ε; give --delta.")
        if group > 1:
            raise ValueError(f"--plot draws ε of one record, not of a group of {group}; leave --group out.")
        from tacit.reports.figures import epsilon_over_steps

        epsilon_over_steps(entries, header, delta=delta, path=plot)
    show(_facts(found) | receipt, [*_lines(found, plot), *lines], as_json=as_json)


_DIGEST = re.compile(r"[0-9a-f]{64}")


def _receipt(book: Ledger, path: Path, expect: str | None) -> tuple[dict[str, object], list[str]]:
    """The ledger's receipt and the notes about it, as facts and as lines; refused if it never was as expected."""
    facts: dict[str, object] = {"steps": len(book), "digest": book.digest, "notes": list(book.notes)}
    lines = [f"receipt: {len(book)} steps, digest {book.digest}", *(f"note: {note}." for note in book.notes)]
    if expect is None:
        return facts, lines
    digest = expect.strip().lower()
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"--expect is {expect!r}; it must be a receipt's digest, 64 hexadecimal digits.")
    then = book.steps_at(digest)
    if then is None:
        raise ValueError(
            f"{path} never had the digest {digest}: it has {len(book)} steps now, and was put back to an older copy or "
            "is another ledger. Restore the newest copy, and charge again what was released after it was made."
        )
    since = len(book) - then
    lines.append(
        f"expected: found after {then} steps" + (f"; {since} were recorded since." if since else ", the newest.")
    )
    return facts | {"expected_steps": then}, lines


def _facts(found: Guarantee) -> dict[str, object]:
    names = (
        "epsilon",
        "epsilon_lower",
        "delta",
        "accountant",
        "sampling",
        "adjacency",
        "unit",
        "secure_randomness",
        "group",
    )
    return {name: getattr(found, name) for name in names}


def _lines(found: Guarantee, plot: Path | None) -> list[str]:
    from tacit.accounting.guarantee import rounded_up

    lines = [str(found)]
    if found.epsilon_lower is not None:
        lines.append(f"certified: {math.floor(found.epsilon_lower * 1e6) / 1e6} ≤ ε ≤ {rounded_up(found.epsilon, 6)}")
    return [*lines, f"plot: {plot}"] if plot is not None else lines
