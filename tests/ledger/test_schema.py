"""The schema of a ledger: its copy in the package is current, and real ledgers meet it."""

import copy
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tacit.ledger import (
    Allocated,
    CyclicPoisson,
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    OwnedPoisson,
    Poisson,
    Selection,
    Shuffled,
    SparseVector,
    Step,
    ThresholdedCounts,
    TruncatedPoisson,
)
from tacit.ledger.schema import ledger_schema

SCHEMA = json.loads(files("tacit.ledger").joinpath("schema.json").read_text())
SUM = GaussianSum(group="a", clip_norm=1.0, noise_std=2.0)
DISCRETE = GaussianSum(group="a", clip_norm=1.0, noise_std=2.0, noise="discrete", lattice=0.01)
STEPS = [
    Step(Everyone(), (SUM, LaplaceSum(group="b", clip_norm=1.0, scale=2.0, dimension=3))),
    Step(Everyone(), (ThresholdedCounts(group="c", noise_std=2.0, threshold=20.0),)),
    Step(Everyone(), (SparseVector(group="s", threshold_epsilon=1, release_epsilon=0.5, releases=2),)),
    Step(Everyone(), (Selection(group="t", trials="poisson", mean=8.0, candidate=((Step(Everyone(), (SUM,)), 3),)),)),
    Step(Poisson(rate=0.1, records=10), (DISCRETE,)),
    Step(TruncatedPoisson(rate=0.1, records=10, most=5), (SUM,)),
    Step(OwnedPoisson(rate=0.1, records=10, most=3, ownership="private", unit="example"), (SUM,)),
    Step(FixedSize(size=2, records=10), (SUM,)),
    Step(Shuffled(lots=2, epoch=0, records=10), (SUM,)),
    Step(Allocated(lots=4, epoch=1, records=10, participations=2), (SUM,)),
    Step(CyclicPoisson(groups=2, rate=0.5, block="b", records=10), ()),
]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}


def meets(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value meets a schema, by the words that this schema uses, and no others."""
    known = {"type", "properties", "required", "additionalProperties", "const", "enum", "oneOf", "items", "prefixItems"}
    known |= {"minItems", "maxItems", "minimum", "pattern", "$ref", "$schema", "$defs", "title"}
    assert schema.keys() <= known
    if "$ref" in schema:
        return meets(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "oneOf" in schema:
        return sum(meets(value, option) for option in schema["oneOf"]) == 1
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if kind in ("integer", "number"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return (whole or (kind == "number" and isinstance(value, float))) and value >= schema.get("minimum", value)
    if not isinstance(value, TYPES[kind]) or (kind == "string" and not re.search(schema.get("pattern", ""), value)):
        return False
    if kind == "object":
        named = schema["properties"]
        fits = value.keys() <= named.keys() and set(schema["required"]) <= value.keys()
        return fits and all(meets(part, named[name]) for name, part in value.items())
    if kind == "array" and "prefixItems" in schema:
        shapes = schema["prefixItems"]
        return len(value) == len(shapes) and all(meets(*pair) for pair in zip(value, shapes, strict=True))
    return kind != "array" or all(meets(part, schema["items"]) for part in value)


def lines(path: Path) -> list[dict[str, Any]]:
    with Ledger.open(path, Header(purpose="schema")) as ledger:
        for step in STEPS:
            ledger.record(step)
            ledger.record(step)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_copy_in_the_package_is_current() -> None:
    assert ledger_schema() == SCHEMA


def test_a_ledger_with_every_kind_of_event_meets_the_schema(tmp_path: Path) -> None:
    written = lines(tmp_path / "ledger.jsonl")
    assert len(written) == 3 + len(STEPS)
    for line in written:
        assert meets(line, SCHEMA), line
    kinds = {line["sampling"]["kind"] for line in written[3:]} | {
        q["kind"] for line in written[3:] for q in line["queries"]
    }
    assert kinds == SCHEMA["$defs"].keys() - {"step"}


@pytest.mark.parametrize("harm", ["kind", "missing", "more", "type", "hash"])
def test_lines_that_are_not_of_a_ledger_do_not_meet_it(tmp_path: Path, harm: str) -> None:
    line = copy.deepcopy(lines(tmp_path / "ledger.jsonl")[7])
    if harm == "kind":
        line["sampling"]["kind"] = "uniform"
    elif harm == "missing":
        del line["sampling"]["rate"]
    elif harm == "more":
        line["queries"][0]["colour"] = "blue"
    elif harm == "type":
        line["queries"][0]["noise_std"] = "2"
    else:
        line["hash"] = "0"
    assert not meets(line, SCHEMA)
