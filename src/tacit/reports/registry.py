"""The entry of a run in the public registry of deployments, and the privacy block of a Hugging Face model card.

The ledger fills in what it records. Facts that only a person knows come from a TOML file; without them the entry has
marked blanks.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from tacit._version import __version__
from tacit.accounting.guarantee import rounded_up
from tacit.reports import events, statement
from tacit.reports.findings import Findings, Run
from tacit.reports.page import named

BLANK = "TO BE FILLED IN"
PEOPLE_KNOW = (
    "name",
    "data_curators",
    "intended_use",
    "data_product_region",
    "description",
    "publication_date",
    "data_product_sector",
    "registry_authors",
    "data_domain",
    "release_type",
    "data_source_type",
    "justification",
    "sources",
)
"""Fields of the TOML file, which the run cannot know."""


def entry(run: Run, facts: Findings, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry, which fits the registry's schema except where something is still `BLANK`."""
    found = facts.guarantee
    if found is None or not facts.private:
        raise ValueError("this run has no guarantee to register: see the alarms in its report.")
    words = dict(statement.lines(run, facts))
    rows, _ = events.rows(run.ledger.entries)
    released = "; ".join(f"{row.released} ({row.sampling}, {row.noise})" for row in rows[:12])
    basic = {
        "name": told.get("name", named(run)),
        "data_curators": told.get("data_curators", [BLANK]),
        "intended_use": told.get("intended_use", run.ledger.header.purpose or BLANK),
        "data_product_type": "Machine learning model",
        "data_product_region": told.get("data_product_region", BLANK),
        "description": told.get("description", BLANK),
        "publication_date": str(told.get("publication_date", BLANK)),
    }
    if "data_product_sector" in told:
        basic["data_product_sector"] = told["data_product_sector"]
    deployment = {
        "basic": basic,
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": told.get("data_domain", BLANK),
            "unprotected_quantities": words["Taken to be public"],
        },
        "privacy_loss": {
            "privacy_unit": found.unit,
            "privacy_unit_details": words["Protected unit"],
            "privacy_parameters": {"epsilon": float(rounded_up(found.epsilon)), "delta": found.delta},
            "privacy_parameters_details": statement.claim(found),
        },
        "deployment_model": {
            "model_name": "Central",
            "actors": words["Setting and trust"],
            "release_type": told.get("release_type", BLANK),
            "release_type_details": words["Released"],
            "data_source_type": told.get("data_source_type", BLANK),
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Any value computed from the released values alone.",
            "composition": f"{words['Accounting']} {words['Covered']}",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": words["Hyperparameter search"],
            "mechanisms": f"{released}. {words['Randomness']} {words['Arithmetic']} tacit {__version__}.",
            "justification": told.get("justification", BLANK),
        },
        "administrative": {
            "sources": told.get("sources", BLANK),
            "notes": f"Ledger: {len(run.ledger)} steps, digest {run.ledger.digest}.",
            "registry_authors": told.get("registry_authors", [BLANK]),
        },
    }
    slug = re.sub(r"[^a-z0-9]+", "-", str(basic["name"]).lower()).strip("-") or "deployment"
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def blanks(made: Any, place: str = "") -> list[str]:
    """Return the places in an entry that a person must still fill in."""
    if isinstance(made, Mapping):
        return [found for key, value in made.items() for found in blanks(value, f"{place}.{key}".strip("."))]
    if isinstance(made, list):
        return [found for value in made for found in blanks(value, place)]
    return [place] if made == BLANK else []


def metadata(run: Run, facts: Findings) -> dict[str, Any]:
    """Return the ``privacy:`` block for the front matter of a Hugging Face model card."""
    found = facts.guarantee
    if found is None or not facts.private:
        raise ValueError("this run has no guarantee to put in a model card: see the alarms in its report.")
    return {
        "privacy": {
            "epsilon": float(rounded_up(found.epsilon)),
            "delta": found.delta,
            "unit": found.unit,
            "adjacency": str(found.adjacency),
            "sampling": found.sampling,
            "accountant": found.accountant,
            "ledger_digest": run.ledger.digest,
            "ledger_steps": len(run.ledger),
            "library": f"tacit {__version__}",
        }
    }


def read_told(path: Path | None) -> dict[str, Any]:
    """Return the facts in a TOML file, or none without a file."""
    if path is None:
        return {}
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot read {path}: {error}; write a TOML file with the fields that docs/privacy-officers.md shows."
        ) from None
    unknown = sorted(set(told) - set(PEOPLE_KNOW))
    if unknown:
        raise ValueError(f"{path} has {unknown[0]!r}; the fields of this file are {', '.join(PEOPLE_KNOW)}.")
    return told


def check(made: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the first field which the registry's schema does not allow; blanks are allowed."""
    text = resources.files("tacit.reports").joinpath("registry-schema.json").read_text("utf-8")
    _check(made, json.loads(text), "the entry")


_KINDS: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
}


def _check(value: Any, schema: Mapping[str, Any], place: str) -> None:
    if value == BLANK:
        return
    if not isinstance(value, _KINDS[schema["type"]]) or isinstance(value, bool):
        raise ValueError(f"{place} is {value!r}; the registry wants a value of type {schema['type']}.")
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{place} is {value!r}; the registry allows {', '.join(map(str, schema['enum']))}.")
    if schema.get("format") == "date":
        try:
            date.fromisoformat(str(value))
        except ValueError:
            raise ValueError(f"{place} is {value!r}; write it as YYYY-MM-DD.") from None
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            raise ValueError(f"{place} is empty; name at least one.")
        for each in value:
            _check(each, schema["items"], place)
    if isinstance(value, Mapping):
        for key in schema.get("required", ()):
            if key not in value:
                raise ValueError(f"{place} has no {key}; the registry requires it.")
        for key, each in value.items():
            if key not in schema["properties"]:
                raise ValueError(f"{place} has {key!r}, which the registry does not know.")
            _check(each, schema["properties"][key], f"{place}: {key}")


def to_yaml(value: Any, indent: str = "") -> str:
    """Return the value as YAML. Texts are written as JSON writes them, which YAML reads as they are."""
    lines = []
    for key, each in value.items():
        if isinstance(each, Mapping):
            lines.append(f"{indent}{key}:\n{to_yaml(each, indent + '  ')}")
        elif isinstance(each, list):
            lines.append(f"{indent}{key}:\n" + "".join(f"{indent}- {_scalar(item)}\n" for item in each))
        else:
            lines.append(f"{indent}{key}: {_scalar(each)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # YAML 1.1 takes 1e-05 for a text: it wants a point.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
