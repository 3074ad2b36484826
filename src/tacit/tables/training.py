"""Training on a table: undeclared bounds, the model and its test are paid for from one budget, in one ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.accounting import Guarantee, account, plan
from tacit.ledger import Budget, Everyone, Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.tables.descent import Progress, descend
from tacit.tables.discovery import Pieces, discover
from tacit.tables.encoding import Encoding
from tacit.tables.model import TableModel
from tacit.tables.reading import Columns
from tacit.tables.records import Records, encode, held_out
from tacit.tables.rule import Settings, check_enough, settings
from tacit.tables.schema import Category, Schema

DISCOVERY_SHARE = 0.25
"""What of ε undeclared bounds may cost on their own; in composition it takes about 3 % of the budget."""
SLACK_SHARE = 0.1
"""What of δ undeclared values may cost."""
TEST_SHARE = 0.25
"""What of ε a private test may cost on its own."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good the model is on records it has not seen: accuracy, or the mean absolute error in the target's unit.

    ``private``: computed on held-out people, with noise, and paid for. Otherwise the test table was taken to be
    public, and the number is exact.
    """

    name: str
    value: float
    private: bool
    noise_std: float = 0.0
    records: int


@dataclass(frozen=True, kw_only=True)
class TableOutcome:
    """What training on a table gave."""

    model: TableModel
    settings: Settings
    noise_multiplier: float
    steps: int
    guarantee: Guarantee
    score: Score | None
    records: int


def train_table(
    pieces: Pieces,
    schema: Schema,
    *,
    budget: Budget,
    ledger: Ledger,
    model: str = "linear",
    chosen: Callable[[Settings, int], Settings] | None = None,
    test: Iterable[Columns] | None = None,
    test_fraction: float = 0.2,
    seed: int | None = None,
    progress: Progress | None = None,
) -> TableOutcome:
    """Train a model of ``schema``'s target on the table that ``pieces`` reads.

    * ``chosen`` may change the settings of the rule (`tacit.tables.rule`), given them and the number of records.
    * ``test`` is a table taken to be public: the score on it is exact and costs nothing. Without it each record is
      held out with probability ``test_fraction`` and the score is released with noise, from the same budget; 0 for no
      test at all.
    * ``seed`` is for debugging; the ledger must then say that randomness is not secure.

    The number of rows is taken to be public.
    """
    source = _source(seed)
    if source.secure != ledger.header.secure_randomness:
        raise ValueError("a seeded run needs a ledger that says so, and a ledger that says so needs a seed.")
    count = _count(pieces)
    if schema.private:
        noise = _alone(count, DISCOVERY_SHARE, budget)
        slack = SLACK_SHARE * budget.delta
        schema = discover(pieces, schema, noise_multiplier=noise, slack=slack, ledger=ledger, source=source)
        _check_found(schema, count, budget)
    fresh = TableModel.new(model, schema)
    everyone = encode(pieces(), fresh.encoding)
    aside = held_out(len(everyone), 0.0 if test is not None else test_fraction, source)
    train = everyone.part(~aside) if aside.any() else everyone
    if not len(train):
        raise ValueError(f"none of {len(everyone)} records is left to train on; a table needs hundreds.")
    examination = _examination(fresh, len(everyone), int(aside.sum()), budget) if aside.any() else None
    size = sum(parameter.numel() for parameter in fresh.network.parameters())
    rule = settings(records=len(train), parameters=size, epsilon=budget.epsilon)
    final = chosen(rule, len(train)) if chosen is not None else rule
    owed = [] if examination is None else [(Step(Everyone(unit=ledger.header.unit), (examination.event(),)), 1)]
    noise = plan(
        records=len(train),
        lot_size=final.lot_size,
        steps=final.steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
        also=[*ledger.entries, *owed],
    ).noise_multiplier
    check_enough(records=len(train), parameters=size, epsilon=budget.epsilon, noise_multiplier=noise, chosen=final)
    steps = descend(
        fresh.network,
        fresh.outputs,
        train.inputs,
        train.targets.long() if fresh.classes else train.targets,
        chosen=final,
        noise_multiplier=noise,
        budget=budget,
        ledger=ledger,
        seed=seed,
        progress=progress,
    )
    score = None
    if test is not None:
        score = _public_score(fresh, test)
    elif examination is not None:
        score = _private_score(fresh, everyone.part(aside), examination, ledger, source)
    return TableOutcome(
        model=fresh,
        settings=final,
        noise_multiplier=noise,
        steps=steps,
        guarantee=account(ledger, delta=budget.delta),
        score=score,
        records=len(train),
    )


def _source(seed: int | None) -> Source:
    """For all but the descent, which has a source of its own: two streams of one seed must differ."""
    if seed is None:
        return SecureSource()
    source = SeededSource(seed)
    source.branch("table")
    return source


def _check_found(schema: Schema, records: int, budget: Budget) -> None:
    target = schema.columns[schema.target]
    if isinstance(target, Category) and len(target.values or ()) < 2:
        raise ValueError(
            f"fewer than two classes of {schema.target!r} stood out of the noise among {records} records at epsilon "
            f"{budget.epsilon:g}; declare them, or give more records or a larger epsilon."
        )


def _count(pieces: Pieces) -> int:
    rows = sum(len(next(iter(piece.values()))) for piece in pieces())
    if not rows:
        raise ValueError("the table has no rows; it needs one line a record below the column names.")
    return rows


def _errors(model: TableModel, records: Records, rows: slice) -> Tensor:
    """For each record whether it was predicted right, or how far off, as a share of the target's range."""
    with torch.no_grad():
        outputs, targets = model.outputs(records.inputs[rows]), records.targets[rows]
    if model.classes:
        return (outputs.argmax(dim=1) == targets.long()).to(torch.float32)
    return (outputs.clamp(-1, 1) - targets).abs() / 2


def _examination(model: TableModel, records: int, held: int, budget: Budget) -> SumQuery:
    """A count with as much noise as its share of ε asks for, and no less than makes a tenth of a percent."""
    return SumQuery(
        group=f"metrics/{_score_name(model)}",
        clip_norm=1.0,
        noise_std=max(_alone(records, TEST_SHARE, budget), 1e-3 * held),
    )


def _alone(records: int, share: float, budget: Budget) -> float:
    """The noise multiplier of one look at everyone that would cost this share of ε if it were all."""
    return plan(
        records=records, lot_size=records, steps=1, epsilon=share * budget.epsilon, delta=budget.delta
    ).noise_multiplier


def _private_score(model: TableModel, held: Records, query: SumQuery, ledger: Ledger, source: Source) -> Score:
    """The score on people who took no part in training.

    Formal guarantee: the record is a row; it adds a number in [0, 1] to one sum, so its sensitivity is 1. The noise is
    the recorded one. The divisor is the number of held-out records, which is taken to be public like the number of all.
    """
    receipt = ledger.record(Step(Everyone(unit=ledger.header.unit), (query.event(),)), secure=source.secure)
    receipt.draw()
    total = query.total()
    for rows in _slices(len(held)):
        total.add(_errors(model, held, rows))
    mean = float(total.mean(receipt, source, lot_size=len(held)))
    value, std = _in_unit(model, min(max(mean, 0.0), 1.0)), _in_unit(model, query.noise_std / len(held))
    return Score(name=_score_name(model), value=value, private=True, noise_std=std, records=len(held))


def _public_score(model: TableModel, test: Iterable[Columns]) -> Score:
    records = encode(test, model.encoding)
    total = sum(float(_errors(model, records, rows).sum()) for rows in _slices(len(records)))
    value = _in_unit(model, total / len(records))
    return Score(name=_score_name(model), value=value, private=False, records=len(records))


def _slices(count: int, size: int = 65_536) -> Sequence[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _score_name(model: TableModel) -> str:
    return "test_accuracy" if model.classes else "test_mean_absolute_error"


def _in_unit(model: TableModel, share: float) -> float:
    return share if model.classes else share * _range(model.encoding)


def _range(encoding: Encoding) -> float:
    low, high = encoding.unscale(torch.tensor([-1.0, 1.0]).numpy())
    return float(high - low)
