"""``tacit audit``: attack the library's own claim or a finished run, and print lower bounds on ε."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import number, show, whole

if TYPE_CHECKING:
    from tacit.audit import Audit, Exposure, Membership, Setting

_ATTACKS = ("runs", "canaries", "inputs", "secrets", "uploads")
_RUN_ATTACKS = ("canaries", "members")
_CANARIES, _RUN_CANARIES = 1000, 5000


def audit(
    run: Annotated[
        Path | None,
        typer.Argument(help="The directory of a finished run, to attack it and its settings; none: the options below."),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="runs (two data sets, many runs), canaries or inputs (one run), or all of these; secrets (a language "
            "model's canaries); uploads (gradient inversion). With RUN: canaries, members (LiRA), or all."
        ),
    ] = "all",
    noise_multiplier: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="z: noise on the sum / clip norm; 0.5.")
    ] = None,
    steps: Annotated[int | None, typer.Option(parser=whole, metavar="WHOLE", help="Lots in a run; 1.")] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="q: each record is in a lot with this probability; 1."),
    ] = None,
    clip: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="The clip norm; 1.")] = None,
    delta: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="δ of the claim; 1e-5.")] = None,
    confidence: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Confidence of each lower bound, at least 0.5.")
    ] = 0.99,
    runs: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="Runs in which the attack tells two data sets apart.")
    ] = 1000,
    canaries: Annotated[
        int | None,
        typer.Option(
            parser=whole, metavar="WHOLE", help="Canaries of the attacks with one run; 1000, or 5000 for RUN."
        ),
    ] = None,
    shadows: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="Shadow models of the attack on members.")
    ] = 8,
    members: Annotated[Path | None, typer.Option(help="Rows that a run on a table was trained on.")] = None,
    others: Annotated[Path | None, typer.Option(help="Other rows of the same population.")] = None,
    by: Annotated[
        str | None, typer.Option(help="The auditor's name, for the report; your user name if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="WHOLE", help="Repeat an audit; the runs are then seeded.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attack a run or its settings: lower bounds on ε.

    Prints them beside the claim; the exit code is 1 if an attack does better than the claim.

    Each attack trains through the library as a user would: real sampling, clipping, noise and ledger. ε from the
    ledger is the claim; what the attack proves is a lower bound. Without assumptions an attack cannot see events as
    rare as δ; the bounds that assume Gaussian noise of unknown size can, and are labelled so.

    With RUN, `canaries` attacks its settings on the training path, and `members` attacks its model: it trains shadow
    models with the same settings and tries to tell the training records from the test records. The results go into the
    run's run.json, and `tacit report RUN` shows them beside the claim: natural records in one row, canaries in
    another.

    \b
    Examples:
      tacit audit
      tacit audit runs/mnist --shadows 16
      tacit audit runs/mnist --attack canaries --canaries 20000
      tacit audit runs/people --members people.csv --others test.csv --by "A. Auditor"
      tacit audit --attack runs --noise-multiplier 1 --sampling-rate 0.25 --steps 4 --runs 2000
      tacit audit --attack canaries --canaries 20000 --noise-multiplier 3.73 --confidence 0.999
      tacit audit --attack secrets --noise-multiplier 1 --steps 60
      tacit audit --attack uploads --json
    """
    fixed = {
        "--noise-multiplier": noise_multiplier,
        "--steps": steps,
        "--sampling-rate": sampling_rate,
        "--clip": clip,
        "--delta": delta,
    }
    if run is not None:
        given = [name for name, value in fixed.items() if value is not None]
        if given:
            raise ValueError(f"{given[0]} is {fixed[given[0]]}; the settings are those of {run}: leave it out.")
        _check_attack(attack, _RUN_ATTACKS)
        _audit_run(run, attack, canaries, shadows, members, others, confidence, seed, by, as_json)
        return
    if members is not None or others is not None or by is not None:
        raise ValueError("--members, --others and --by are for the audit of a run; give its directory.")
    _check_attack(attack, _ATTACKS)
    rate = 1.0 if sampling_rate is None else sampling_rate
    if not 0 < rate <= 1:
        raise ValueError(f"--sampling-rate is {rate!r}; it must be in (0, 1].")
    if attack == "uploads":
        _audit_uploads(seed, as_json)
        return

    from tacit.audit import Setting, input_run, language_run, many_runs, one_run
    from tacit.cli.audit_run import watch
    from tacit.mechanisms import Flat

    def setting(records: int) -> Setting:
        return Setting(
            records=records,
            lot_size=max(1, round(rate * records)),
            steps=1 if steps is None else steps,
            noise_multiplier=0.5 if noise_multiplier is None else noise_multiplier,
            delta=1e-5 if delta is None else delta,
            clipping=Flat(1.0 if clip is None else clip),
            confidence=confidence,
        )

    many = _CANARIES if canaries is None else canaries
    found: list[Audit | Membership | Exposure] = []
    if attack in ("runs", "all"):
        found.append(many_runs(setting(20 if rate == 1 else 100), runs=runs, seed=seed, track=watch))
    if attack in ("canaries", "all"):
        found.append(one_run(setting(many), seed=seed))
    if attack in ("inputs", "all"):
        found.append(input_run(setting(many), seed=seed))
    if attack == "secrets":
        lines = 100 if canaries is None else canaries
        found.append(language_run(setting(2 * lines), canaries=lines, seed=seed))
    _print(found, "", as_json)


def _check_attack(attack: str, known: tuple[str, ...]) -> None:
    if attack not in (*known, "all"):
        raise ValueError(f"--attack is {attack!r}; choose {', '.join(known)} or all.")


def _audit_run(
    run: Path,
    attack: str,
    canaries: int | None,
    shadows: int,
    members: Path | None,
    others: Path | None,
    confidence: float,
    seed: int | None,
    by: str | None,
    as_json: bool,
) -> None:
    from tacit.cli.audit_run import audit_run

    found, note = audit_run(
        run,
        attack=attack,
        canaries=_RUN_CANARIES if canaries is None else canaries,
        shadows=shadows,
        members=members,
        others=others,
        confidence=confidence,
        seed=seed,
        by=by,
    )
    _print(list(found), note, as_json)


def _audit_uploads(seed: int | None, as_json: bool) -> None:
    from tacit.collaboration.inversion import invert_uploads

    found = invert_uploads(seed=seed)
    facts = {"violated": False, "uploads": [vars(each) for each in found]}
    head = "gradient inversion: one record, one local step; likeness 1 is the image, 0 is nothing of it"
    show(facts, [head, *(f"  {each}" for each in found)], as_json=as_json)


def _print(found: list[Audit | Membership | Exposure], note: str, as_json: bool) -> None:
    violated = any(getattr(each, "violated", False) for each in found)
    facts: dict[str, Any] = {"violated": violated, "audits": [each.facts() for each in found]}
    show(facts, ["\n\n".join(map(str, found)), *([f"note: {note}."] if note else [])], as_json=as_json)
    if violated:
        print("tacit: the audited ε is above the claimed ε: the claim is FALSE. Do not release.", file=sys.stderr)
        raise typer.Exit(1)
