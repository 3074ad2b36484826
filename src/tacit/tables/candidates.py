"""The settings that tuning on a table tries: of descents, or of boosting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol

from tacit import tuning
from tacit.ledger import Budget, Ledger
from tacit.randomness import Source
from tacit.tables.boosting import BoostSettings, Cells, axes, boost, planned
from tacit.tables.columns import Number
from tacit.tables.encoding import Encoding
from tacit.tables.methods import ByBoosting, ByDescent, Method, check_bins
from tacit.tables.model import TableModel
from tacit.tables.records import Records
from tacit.tables.rule import Settings
from tacit.tables.schema import Schema
from tacit.tables.slopes import descend_with_slopes, trained_size
from tacit.tables.split import Split
from tacit.tuning.plan import least_noise
from tacit.tuning.trials import Base, Trials

_RATES, _CLIPS = (0.3, 1.0, 3.0), (0.5, 1.0)
_MARGIN = 1.0005
"""More noise than is planned for boosting: cut into many looks, one run must still be within its base."""


class Candidates(Protocol):
    """Settings, and how a model is trained with one of them."""

    @property
    def method(self) -> Method: ...

    @property
    def settings(self) -> Sequence[Any]: ...

    def plan(self, trials: Trials, least: Schema, *, budget: Budget, score: Base, also: Base) -> float:
        """Return the noise multiplier with which a selection fits the budget; refuse what is hopeless."""
        ...

    def base(self, found: Schema, score: Base) -> Base:
        """Return what one run does at most, for the schema that was found."""
        ...

    def train(self, setting: Any, found: Schema, split: Split, own: Ledger, *, unknown: bool) -> Trained:
        """Return a model and its settings, and the held-out records that it is compared on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The outcome of one run."""

    model: TableModel
    settings: Settings | BoostSettings
    steps: int
    tested: Records


@dataclass(frozen=True, kw_only=True)
class Descent:
    """A model, and its learning rate and clip norm as multiples of the rule's."""

    kind: str
    rate: float
    clip: float

    def __str__(self) -> str:
        return f"{self.kind}, {self.rate:g} × the rule's learning rate, {self.clip:g} × its clip norm"


class Descents:
    """A linear model or a small network, with learning rates and clip norms around the rule's."""

    settings = tuple(
        Descent(kind=kind, rate=rate, clip=clip) for kind, rate, clip in product(("linear", "mlp"), _RATES, _CLIPS)
    )

    def __init__(self, schema: Schema, records: int, budget: Budget) -> None:
        self.method = ByDescent("linear", schema, records, budget.epsilon, None)
        self._budget, self._noise = budget, 0.0
        self._base: Base = ()

    def plan(self, trials: Trials, least: Schema, *, budget: Budget, score: Base, also: Base) -> float:
        rule = self.method.settings
        found = tuning.plan(
            trials,
            records=self.method.records,
            lot_size=rule.lot_size,
            steps=rule.steps,
            epsilon=budget.epsilon,
            delta=budget.delta,
            score=score,
            also=also,
        )
        self.method.check(least, found.noise_multiplier)
        self._base, self._noise = found.base, found.noise_multiplier
        return self._noise

    def base(self, found: Schema, score: Base) -> Base:
        return self._base

    def train(self, setting: Descent, found: Schema, split: Split, own: Ledger, *, unknown: bool) -> Trained:
        train, tested = split.parts(Encoding(found))
        fresh = TableModel.new(setting.kind, found)
        rule = ByDescent(setting.kind, found, len(train), self._budget.epsilon, None).rule(trained_size(fresh))
        chosen = replace(rule, learning_rate=setting.rate * rule.learning_rate, clip_norm=setting.clip * rule.clip_norm)
        descend_with_slopes(
            fresh,
            train,
            chosen=chosen,
            noise_multiplier=self._noise,
            budget=self._budget,
            ledger=own,
            unknown=unknown,
        )
        return Trained(model=fresh, settings=chosen, steps=chosen.steps, tested=tested)


@dataclass(frozen=True, kw_only=True)
class Boost:
    """Use each ``every``-th edge of the bins that were found, and at most ``pairs`` pairs of columns."""

    every: int
    pairs: int

    def __str__(self) -> str:
        bins = "the rule's bins" if self.every == 1 else f"1/{self.every} of the rule's bins"
        return f"boosted, {bins}, {f'up to {self.pairs}' if self.pairs else 'no'} pairs"


class Boosts:
    """Boosted models with all or some of the bins that were found, with pairs of columns and without."""

    settings = tuple(Boost(every=every, pairs=pairs) for every, pairs in product((1, 2, 4), (10, 0)))

    def __init__(self, schema: Schema, records: int, budget: Budget, source: Source) -> None:
        self.method = ByBoosting(schema, records, budget.epsilon)
        self._declared, self._source, self._noise = schema, source, 0.0
        self._rows: dict[int, tuple[Schema, tuple[Records, Records]]] = {}

    def plan(self, trials: Trials, least: Schema, *, budget: Budget, score: Base, also: Base) -> float:
        columns, (look, _) = len(self._declared.features), score[0]
        found, _ = least_noise(
            trials,
            lambda z: (*planned(z, columns, look.sampling.unit), *score),
            epsilon=budget.epsilon,
            delta=budget.delta,
            also=also,
        )
        self._noise = found * _MARGIN
        check_bins(self._noise, records=self.method.records, columns=columns, epsilon=budget.epsilon)
        return self._noise

    def base(self, found: Schema, score: Base) -> Base:
        look, _ = score[0]
        return (*planned(self._noise * (1 - 1e-8), len(found.features), look.sampling.unit), *score)

    def train(self, setting: Boost, found: Schema, split: Split, own: Ledger, *, unknown: bool) -> Trained:
        if setting.every not in self._rows:  # encoding releases nothing, and is the same for every run
            thinned = self.thinned(found, setting.every)
            self._rows[setting.every] = thinned, split.parts(Encoding(thinned))
        schema, (train, tested) = self._rows[setting.every]
        chosen = replace(self.method.settings, most_pairs=setting.pairs)
        shapes = boost(
            Cells.of(train, axes(schema)),
            len(schema.classes),
            noise_multiplier=self._noise,
            chosen=chosen,
            ledger=own,
            source=self._source,
        )
        model = replace(TableModel.new("boosted", schema), network=shapes)
        return Trained(model=model, settings=chosen, steps=len(own), tested=tested)

    def thinned(self, found: Schema, every: int) -> Schema:
        """Return the schema with every so many-th edge of the bins that were found; declared bins stay."""
        columns = dict(found.columns)
        for name, column in found.features.items():
            declared = self._declared.columns[name]
            if isinstance(column, Number) and not (isinstance(declared, Number) and declared.bins):
                columns[name] = replace(column, bins=column.bins[every // 2 :: every])
        return replace(found, columns=columns)


def candidates_for(model: str, schema: Schema, records: int, budget: Budget, source: Source) -> Candidates:
    """Return the settings to try: boosted ones for ``"boosted"``, otherwise those of descents."""
    return Boosts(schema, records, budget, source) if model == "boosted" else Descents(schema, records, budget)
