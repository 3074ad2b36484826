"""``tacit audit RUN``: attacks on a finished run, written into its run.json for the report."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.audit import Audit
    from tacit.audit.membership import Membership


def watch(numbers: range) -> Iterable[int]:
    """Show a progress bar if there is a terminal."""
    from rich.console import Console
    from rich.progress import track

    screen = Console(stderr=True)
    return track(numbers, "audit", console=screen, disable=not screen.is_terminal, transient=True)


def audit_run(
    run: Path,
    *,
    attack: str,
    canaries: int,
    shadows: int,
    members: Path | None,
    others: Path | None,
    confidence: float,
    seed: int | None,
    by: str | None,
) -> tuple[list[Audit | Membership], str]:
    """Attack a finished run, write the results into its run.json, and return them with a note on omitted attacks."""
    from tacit.audit import one_run, setting_of
    from tacit.ledger import Ledger
    from tacit.recipes.outcome import read_json, write_json

    place = run / "run.json"
    if not place.is_file():
        raise ValueError(f"there is no run.json in {run}; give the directory of a finished run.")
    facts = read_json(place)
    if not facts.get("finished"):
        raise ValueError(f"the run in {run} is not finished; finish it with --resume, then audit it.")
    found: list[Audit | Membership] = []
    note = ""
    if attack in ("canaries", "all"):
        setting = setting_of(
            Ledger.load(run / "ledger.jsonl"),
            canaries=canaries,
            delta=float(facts["budget"]["delta"]),
            confidence=confidence,
        )
        found.append(one_run(setting, seed=seed))
    if attack in ("members", "all"):
        how: dict[str, Any] = {"shadows": shadows, "confidence": confidence, "seed": seed, "track": watch}
        if str(facts.get("recipe", {}).get("name", "")).startswith("table/"):
            if members is not None and others is not None:
                from tacit.tables.attack import attack_table

                found += attack_table(run, members=members, others=others, **how)
            elif attack == "members":
                raise ValueError("a run on a table keeps no list of its records: give --members and --others.")
            else:
                note = "membership was not attacked: give --members and --others, files with rows of the training data "
            "and other rows"
        else:
            from tacit.recipes.attack import attack_images

            try:
                found += attack_images(run, **how)
            except ValueError as error:  # no data or no model to attack: the canaries stand by themselves
                if attack == "members":
                    raise
                note = f"membership was not attacked: {str(error).rstrip('.')}"
    write_json(place, facts | {"audit": _record(found, seed, by)})
    return found, note


def _record(found: list[Audit | Membership], seed: int | None, by: str | None) -> dict[str, Any]:
    """Return the entry of run.json: auditor, date, method and the attacks."""
    from tacit._version import __version__
    from tacit.audit import Audit

    worst = [each for each in found if isinstance(each, Audit)]
    return {
        "by": by or _user(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "how": shlex.join(["tacit", *sys.argv[1:]]) if sys.argv[1:2] == ["audit"] else "tacit audit",
        "version": __version__,
        "seed": seed,
        "epsilon_lower": max((each.largest for each in worst), default=None),
        "violated": any(each.violated for each in worst),
        "attacks": [each.facts() for each in found],
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this process: a container, say
        return "unknown"
