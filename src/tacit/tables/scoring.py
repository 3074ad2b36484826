"""How good a model of a table is: on a public table exactly, on held-out people with noise, from the same budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.ledger import Everyone, Ledger, Receipt, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Source
from tacit.tables.columns import Category, Columns
from tacit.tables.encoding import UNKNOWN
from tacit.tables.model import TableModel
from tacit.tables.records import Records, encode
from tacit.tables.schema import Schema

TEST_SHARE = 0.25
"""The share of ε that a private test may cost on its own."""
_BASELINE = 2.0
"""How much louder the baseline is than the score: together they cost about an eighth more ε than the score."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good the model is on records it has not seen: accuracy, or the mean absolute error in the target's unit.

    ``private``: computed on held-out people, with noise, and paid for. Otherwise the test table was taken to be
    public, and the numbers are exact. ``baseline`` is the score of always saying the commonest class, or the mean.
    ``by_class`` has each class's share of the records and the accuracy on them, ``by_group`` each group's share and the
    score on it; noisy where the score is.
    """

    name: str
    value: float
    private: bool
    noise_std: float = 0.0
    records: int
    baseline: float | None = None
    by_class: dict[str, dict[str, float | None]] = field(default_factory=dict)
    by_group: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def chance(self) -> float | None:
        """The standard error of an accuracy on so few records, beside the noise; None for an error of a number."""
        share = self.value * (1 - self.value)
        return math.sqrt(share / self.records) if self.name == "test_accuracy" else None


@dataclass(frozen=True, kw_only=True)
class Examination:
    """One look at held-out people: the score, and with more noise what it is to be compared with.

    Formal guarantee: the record is a row. It adds a number in [0, 1] to the score's sum: sensitivity 1. For classes it
    adds 1 to the count of its class and at most 1 to the count of right answers in it: sensitivity √2. For a number it
    adds its place in [-1, 1] to one sum and its distance from the released mean, at most 1, to another: sensitivity 1
    each. For groups it adds 1 to the count of its group and its score, at most 1, to the group's sum: sensitivity √2.
    The divisor is the number of held-out records, which is taken to be public like the number of all.
    """

    target: SumQuery
    others: tuple[SumQuery, ...]
    by: str | None = None
    """The declared category whose values are the groups."""

    @classmethod
    def planned(cls, schema: Schema, noise_std: float, held: int, by: str | None = None) -> Examination:
        """Return the look with this noise on the score, and no less than makes a tenth of a percent."""
        std = max(noise_std, 1e-3 * held)
        score = SumQuery(group=f"metrics/{score_name(schema)}", clip_norm=1.0, noise_std=std)
        root = math.sqrt(2)
        if isinstance(schema.columns[schema.target], Category):
            names = {"metrics/test_by_class": root}
        else:
            names = {"metrics/test_mean": 1.0, "metrics/test_baseline": 1.0}
        others = [
            SumQuery(group=name, clip_norm=most, noise_std=_BASELINE * root * std) for name, most in names.items()
        ]
        if by is not None:  # asked for, so as loud as the score itself
            others.append(SumQuery(group="metrics/test_by_group", clip_norm=root, noise_std=root * std))
        return cls(target=score, others=tuple(others), by=by)

    def step(self, unit: str) -> Step:
        """Return what it will be in the ledger."""
        return Step(Everyone(unit=unit), tuple(query.event() for query in (self.target, *self.others)))

    def score(self, model: TableModel, held: Records, ledger: Ledger, source: Source) -> Score:
        """Charge the look, and return the score on people who took no part in training."""
        receipt = ledger.record(self.step(ledger.header.unit), secure=source.secure)
        receipt.draw()
        total = self.target.total()
        for inputs, targets in held.slices():
            total.add(_errors(model, inputs, targets))
        mean = float(total.mean(receipt, source, lot_size=len(held)))
        facts: dict[str, Any] = {"baseline": None}
        if model.classes:
            facts = self._classes(model, held, receipt, source)
        else:
            facts["baseline"] = _in_unit(model, self._distance(held, receipt, source))
        if self.by is not None:
            query, names = self.others[-1], group_names(model.encoding.schema, self.by)
            groups = query.total((2, len(names)))
            for inputs, targets in held.slices():
                groups.add_bounded(torch.from_numpy(_by_group(model, self.by, inputs, targets)))
            facts["by_group"] = _grouped(groups.release(receipt, source).numpy(), model, names, query.noise_std)
        return Score(
            name=score_name(model.encoding.schema),
            value=_in_unit(model, min(max(mean, 0.0), 1.0)),
            private=True,
            noise_std=_in_unit(model, self.target.noise_std / len(held)),
            records=len(held),
            **facts,
        )

    def _classes(self, model: TableModel, held: Records, receipt: Receipt, source: Source) -> dict[str, Any]:
        total = self.others[0].total((2, len(model.classes)))
        for inputs, targets in held.slices():
            total.add_bounded(torch.from_numpy(_by_class(model, inputs, targets)))
        return _compared(total.release(receipt, source).numpy(), model, len(held), self.others[0].noise_std)

    def _distance(self, held: Records, receipt: Receipt, source: Source) -> float:
        place, apart = (query.total() for query in self.others[:2])
        for _, targets in held.slices():
            place.add(targets)
        middle = min(max(float(place.mean(receipt, source, lot_size=len(held))), -1.0), 1.0)
        for _, targets in held.slices():
            apart.add((targets - middle).abs() / 2)
        return min(max(float(apart.mean(receipt, source, lot_size=len(held))), 0.0), 1.0)


def public_score(model: TableModel, test: Iterable[Columns], by: str | None = None) -> Score:
    """Return the exact score on a table that is taken to be public, and by the groups of a column."""
    records = encode(test, model.encoding)
    total = sum(float(_errors(model, *pair).sum()) for pair in records.slices())
    facts: dict[str, Any]
    if model.classes:
        counts = np.sum([_by_class(model, *pair) for pair in records.slices()], axis=0)
        facts = _compared(counts, model, len(records), 0.0)
    else:
        targets = torch.cat([wanted for _, wanted in records.slices()]).double()
        facts = {"baseline": _in_unit(model, float((targets - targets.mean()).abs().mean()) / 2)}
    if by is not None:
        sums = np.sum([_by_group(model, by, *pair) for pair in records.slices()], axis=0)
        facts["by_group"] = _grouped(sums, model, group_names(model.encoding.schema, by), 0.0)
    return Score(
        name=score_name(model.encoding.schema),
        value=_in_unit(model, total / len(records)),
        private=False,
        records=len(records),
        **facts,
    )


def score_name(schema: Schema) -> str:
    """Return the name of the score in run.json."""
    return "test_accuracy" if isinstance(schema.columns[schema.target], Category) else "test_mean_absolute_error"


def _errors(model: TableModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each record whether it was predicted right, or how far off, as a share of the target's range.

    A record of an `UNKNOWN` class was not: no model's output is its class.
    """
    with torch.no_grad():
        outputs = model.outputs(inputs)
    if model.classes:
        return (outputs.argmax(dim=1) == targets).to(torch.float32)
    return (outputs.clamp(-1, 1) - targets).abs() / 2


def _by_class(model: TableModel, inputs: Tensor, targets: Tensor) -> Array:
    """Return how many records each class has, and how many of them are predicted right."""
    right = _errors(model, inputs, targets).numpy().astype(np.float64)
    own, count = targets.numpy(), len(model.classes)
    known = own != UNKNOWN
    counts = np.bincount(own[known], minlength=count)
    return np.stack([counts.astype(np.float64), np.bincount(own[known], weights=right[known], minlength=count)])


def check_groups(schema: Schema, by: str | None) -> None:
    """Refuse a column whose values are not declared, or that is predicted: groups that were found might be people."""
    if by is None:
        return
    column = schema.columns.get(by)
    if by == schema.target:
        raise ValueError(f"{by!r} is predicted, and its classes have their errors anyway; name another column.")
    if not isinstance(column, Category) or column.private:
        raise ValueError(
            f"{by!r} is not a category with declared values, so it has no groups; declare it in a schema, for example "
            f'"{by}": {{"type": "category", "values": ["a", "b"], "other": true, "missing": "own"}}.'
        )


def group_names(schema: Schema, by: str) -> list[str]:
    """Return the groups of a column: its values, others, and missing entries, where it has them."""
    column = schema.columns[by]
    assert isinstance(column, Category)
    names = [*(column.values or ()), *(["(other)"] if column.other else [])]
    return [*(["(missing)"] if column.missing == "own" else []), *names]


def _by_group(model: TableModel, by: str, inputs: Tensor, targets: Tensor) -> Array:
    """Return how many records each group has, and the sum of their scores, each in [0, 1]."""
    column = model.encoding.schema.columns[by]
    own = inputs[:, model.encoding.places[by].start].long().numpy() + (column.missing == "own")
    count = len(group_names(model.encoding.schema, by))
    errors = np.clip(_errors(model, inputs, targets).numpy().astype(np.float64), 0.0, 1.0)
    counts = np.bincount(own, minlength=count).astype(np.float64)
    return np.stack([counts, np.bincount(own, weights=errors, minlength=count)])


def _grouped(sums: Array, model: TableModel, names: list[str], std: float) -> dict[str, dict[str, float | None]]:
    """Return each group's share of the records, its score and the noise on that; None for what is below the noise."""
    counts, totals = sums
    everyone = max(float(np.maximum(counts, 0.0).sum()), 1.0)
    found: dict[str, dict[str, float | None]] = {}
    for place, name in enumerate(names):
        clear = counts[place] > max(4 * std, 0.0)
        noise = std / counts[place] if clear else 1.0
        seen = (clear and totals[place] > 2 * std) or (clear and bool(model.classes))
        found[name] = {
            "share": float(np.clip(counts[place] / everyone, 0.0, 1.0)),
            "value": _in_unit(model, float(np.clip(totals[place] / counts[place], 0.0, 1.0))) if seen else None,
            "noise_std": _in_unit(model, float(noise)) if seen else None,
        }
    return found


def _compared(sums: Array, model: TableModel, records: int, std: float) -> dict[str, Any]:
    """Return the baseline and the accuracy by class; None for a class that is not above the noise."""
    counts, right = sums
    shares = np.clip(counts / records, 0.0, 1.0)
    by_class = {
        name: {
            "share": float(shares[place]),
            "accuracy": float(np.clip(right[place] / counts[place], 0, 1)) if counts[place] > 4 * std else None,
            "noise_std": float(std / counts[place]) if counts[place] > 4 * std else None,
        }
        for place, name in enumerate(model.classes)
    }
    return {"baseline": float(shares.max()), "by_class": by_class}


def _in_unit(model: TableModel, share: float) -> float:
    if model.classes:
        return share
    low, high = model.encoding.unscale(np.array([-1.0, 1.0], dtype=np.float32))
    return share * float(high - low)
