"""The likelihood-ratio attack on a finished run on a table: rows that were in it against rows that were not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, repeat
from pathlib import Path

import numpy as np
import torch

from tacit.audit.lira import Mask, attack, log_odds
from tacit.audit.membership import Membership
from tacit.audit.setting import Track
from tacit.ledger import Budget, Header, Ledger
from tacit.randomness import Floats, SecureSource, SeededSource
from tacit.recipes.outcome import read_json
from tacit.tables.columns import Columns
from tacit.tables.model import TableModel
from tacit.tables.reading import from_columns, read_columns
from tacit.tables.training import train_table


def attack_table(
    out: str | Path,
    *,
    members: Path,
    others: Path,
    shadows: int = 8,
    confidence: float = 0.99,
    seed: int | None = None,
    track: Track = iter,
) -> tuple[Membership, Membership]:
    """Attack the run in ``out``, online and offline, with rows that it was trained on and rows that it was not.

    Only the owner can tell them apart: a run keeps no list of its records. Train with ``--test FILE``, so that every
    row of the table is a member and the rows of the test file are the others. Shadows are trained on random halves of
    both with the schema that the run released and its budget.
    """
    place = Path(out)
    facts, target = read_json(place / "run.json"), TableModel.load(place)
    schema = target.schema
    if not target.classes:
        raise ValueError(f"{schema.target!r} is a number; the attack needs the odds of a class.")
    inside, outside = _columns(members, target), _columns(others, target)
    pool = {name: np.concatenate([inside[name], outside[name]]) for name in inside}
    member = np.arange(len(pool[schema.target])) < len(inside[schema.target])
    wanted = torch.from_numpy(target.encoding.targets(pool)).long()
    if bool((wanted < 0).any()):
        raise ValueError(f"a row has a value of {schema.target!r} that the model does not know; leave such rows out.")
    budget = Budget(epsilon=facts["budget"]["epsilon"], delta=facts["budget"]["delta"])

    seeds = repeat(None) if seed is None else count(seed + 1)  # one for each shadow

    def train(mask: Mask) -> Floats:
        half = {name: values[mask] for name, values in pool.items()}

        def pieces() -> Iterable[Columns]:
            return from_columns(half, schema.columns)

        outcome = train_table(
            pieces,
            schema,
            budget=budget,
            ledger=Ledger(Header(secure_randomness=seed is None, purpose="a shadow model")),
            model=target.kind,
            test_fraction=0.0,
            seed=next(seeds),
        )
        return _odds(outcome.model, pool, wanted)

    return attack(
        _odds(target, pool, wanted),
        member,
        train,
        shadows=shadows,
        source=SecureSource() if seed is None else SeededSource(seed),
        delta=budget.delta,
        confidence=confidence,
        track=track,
    )


def _columns(path: Path, model: TableModel) -> Columns:
    """Return all columns of the model's schema, by its names."""
    schema = model.schema
    pieces = list(read_columns(path, schema.sources(), numbers=schema.numbers))
    if not pieces:
        raise ValueError(f"{path} has no rows; it needs one line a record below the column names.")
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


@torch.no_grad()
def _odds(model: TableModel, pool: Columns, wanted: torch.Tensor) -> Floats:
    compact = model.encoding.compact(pool)
    return log_odds(model.outputs(torch.from_numpy(compact)), wanted)
