"""privacy.json: what the report says, for programs. docs/privacy-json.md has its fields."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit._version import __version__
from tacit.reports import attacks, events, statement
from tacit.reports.findings import Findings, Run
from tacit.reports.page import SIGNOFF
from tacit.reports.said import clean

FORMAT = 1
_LARGEST = 2**16


def twin(run: Run, facts: Findings, signed: Mapping[str, str]) -> dict[str, Any]:
    """Return the report as one JSON object. Every number on privacy is computed from the ledger."""
    found, header, said = facts.guarantee, run.ledger.header, run.said
    rows, more = events.rows(run.ledger.entries)
    tested = statement.score(run)
    return {
        "format": FORMAT,
        "claim": statement.claim(found),
        "private": facts.private,
        "guarantee": None
        if found is None
        else {
            "epsilon": found.epsilon,
            "epsilon_lower": found.epsilon_lower,
            "delta": found.delta,
            "accountant": found.accountant,
            "adjacency": str(found.adjacency),
            "unit": clean(found.unit),
            "sampling": found.sampling,
            "secure_randomness": found.secure_randomness,
        },
        "statement": dict(statement.lines(run, facts)),
        "not_covered": statement.uncovered(run),
        "attacks": [dict(zip(("attack", "on", "found", "how"), row, strict=True)) for row in attacks.rows(run)],
        "attacks_by": attacks.origin(run),
        "alarms": list(facts.alarms),
        "remarks": list(facts.remarks),
        "released": [asdict(row) for row in rows],
        "released_left_out": more,
        "ledger": {
            "steps": len(run.ledger),
            "digest": run.ledger.digest,
            "purpose": clean(header.purpose),
            "written_by": clean(header.library),
        },
        "records": facts.records,
        "score": None if tested is None else {"name": tested.title, "value": tested.value, "paid": tested.paid},
        "score_by_class": said.object("result").object("test_by_class").values,
        "score_by_group": said.object("result").object("test_by_group").values,
        "columns": said.object("columns").values,
        "data": {"identity": clean(header.fingerprint), **said.object("data").values},
        "signoff": {key: signed.get(key) for key in SIGNOFF},
        "written_by": f"tacit {__version__}",
    }


def read_signoff(run: Run, path: Path | None) -> dict[str, str]:
    """Return who answers for a run, from a TOML file: the one given, or signoff.toml in its directory, or nothing."""
    place = path or run.place / "signoff.toml"
    if path is None and not place.is_file():
        return {}
    try:
        data = place.read_bytes()
        if len(data) > _LARGEST:
            raise ValueError(f"it has {len(data)} bytes")
        found = tomllib.loads(data.decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the sign-off in {place}: {error}; it is a small TOML file.") from None
    unknown = sorted(set(found) - set(SIGNOFF))
    if unknown:
        raise ValueError(f"{place} has {', '.join(map(repr, unknown))}; a sign-off has {', '.join(SIGNOFF)}.")
    return {key: str(value) for key, value in found.items()}
