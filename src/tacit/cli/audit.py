"""``tacit audit``: attacks the library's own claim, and says how far they get."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.output import number, show, whole

if TYPE_CHECKING:
    from tacit.audit import Audit

_ATTACKS = ("runs", "canaries", "inputs")


def audit(
    attack: Annotated[
        str,
        typer.Option(help="runs (two data sets, many runs), canaries or inputs (one run), or all of them."),
    ] = "all",
    noise_multiplier: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="z: noise on the sum / clip norm.")
    ] = 0.5,
    steps: Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="Lots in a run.")] = 1,
    sampling_rate: Annotated[
        float,
        typer.Option(parser=number, metavar="NUMBER", help="q: each record is in a lot with this probability."),
    ] = 1.0,
    clip: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="The clip norm.")] = 1.0,
    delta: Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of the claim.")] = 1e-5,
    confidence: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Of each lower bound, at least 0.5.")
    ] = 0.99,
    runs: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="How often the two data sets are told apart.")
    ] = 1000,
    canaries: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="Canaries of the attacks with one run.")
    ] = 1000,
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Repeat an audit; the runs are then seeded.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Lower bounds on ε by attack, beside the claim; exit code 1 if the attack does better than the claim.

    Each attack trains through the library as a user would: real sampling, clipping, noise and ledger. ε from the
    ledger is the claim; what the attack proves is a lower bound. Without assumptions an attack cannot see events as
    rare as δ; the bound that assumes Gaussian noise of unknown size can, and is labelled so.

    \b
    Examples:
      tacit audit
      tacit audit --attack runs --noise-multiplier 1 --sampling-rate 0.25 --steps 4 --runs 2000
      tacit audit --attack canaries --canaries 5000 --confidence 0.999
      tacit audit --attack inputs --noise-multiplier 1 --steps 10 --json
    """
    from rich.console import Console
    from rich.progress import track

    from tacit.audit import Setting, input_run, many_runs, one_run
    from tacit.mechanisms import Flat

    if attack not in (*_ATTACKS, "all"):
        raise ValueError(f"--attack is {attack!r}; choose {', '.join(_ATTACKS)} or all.")
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"--sampling-rate is {sampling_rate!r}; it must be in (0, 1].")

    def setting(records: int) -> Setting:
        return Setting(
            records=records,
            lot_size=max(1, round(sampling_rate * records)),
            steps=steps,
            noise_multiplier=noise_multiplier,
            delta=delta,
            clipping=Flat(clip),
            confidence=confidence,
        )

    def watch(numbers: range) -> Iterable[int]:
        screen = Console(stderr=True)
        return track(numbers, "runs", console=screen, disable=not screen.is_terminal, transient=True)

    found: list[Audit] = []
    if attack in ("runs", "all"):
        places = 20 if sampling_rate == 1 else 100
        found.append(many_runs(setting(places), runs=runs, seed=seed, track=watch))
    if attack in ("canaries", "all"):
        found.append(one_run(setting(canaries), seed=seed))
    if attack in ("inputs", "all"):
        found.append(input_run(setting(canaries), seed=seed))
    violated = any(each.violated for each in found)
    facts = {"violated": violated, "audits": [_facts(each) for each in found]}
    lines = ["\n\n".join(map(str, found))]
    show(facts, lines, as_json=as_json)
    if violated:
        print("tacit: the audited ε is above the claimed ε: the claim is FALSE. Do not release.", file=sys.stderr)
        raise typer.Exit(1)


def _facts(found: Audit) -> dict[str, object]:
    return {
        "attack": found.attack,
        "epsilon_claimed": found.claim.epsilon,
        "epsilon_audited": found.epsilon,
        "epsilon_audited_gaussian": found.epsilon_gaussian,
        "delta": found.claim.delta,
        "confidence": found.confidence,
        "violated": found.violated,
        "details": found.details,
    }
