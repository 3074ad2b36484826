"""The two ways to train on a table, noisy gradient descent and private boosting, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tacit.accounting import guarantee, plan
from tacit.ledger import Budget, Ledger, Step
from tacit.randomness import Source
from tacit.tables.binning import binned
from tacit.tables.boosting import (
    BoostSettings,
    Cells,
    axes,
    boost,
    boost_settings,
    planned,
    stage_kept,
    weight_left,
)
from tacit.tables.columns import Category, Text
from tacit.tables.kept import Kept
from tacit.tables.model import TableModel
from tacit.tables.records import Records
from tacit.tables.rule import Settings, check_enough, most_knots, most_parameters, settings, text_buckets
from tacit.tables.schema import Schema
from tacit.tables.slopes import descend_with_slopes, trained_size
from tacit.tables.split import Progress

Chosen = Callable[[Settings, int], Settings]
Owed = Sequence[tuple[Step, int]]


class Method(Protocol):
    """How a model is trained. `plan` comes first; it refuses what public numbers show to be hopeless."""

    noise_multiplier: float
    knots: int
    """How many knots a column of numbers may have."""
    bins: bool
    """True if declared numbers without bins need private bins."""
    texts: bool
    """True if the method uses columns of free text."""

    @property
    def settings(self) -> Settings | BoostSettings: ...

    def plan(self, least: Schema, *, budget: Budget, ledger: Ledger, owed: Owed, kept: Kept) -> None:
        """Find the noise for what is left of the budget beside ``owed``, for a schema that has ``least`` features.

        A run that goes on has its ledger's steps behind it, those included whose answers an interruption lost: the
        steps that are left share what the budget has left, with a little more noise each.
        """
        ...

    def settle(self, classes: int) -> None:
        """Choose the settings for a target of which so many classes were found."""
        ...

    def fits(self, schema: Schema) -> bool:
        """Return whether a model of this schema has few enough parameters."""
        ...

    def encoded(self, schema: Schema) -> Schema:
        """Return the schema that rows are encoded by."""
        ...

    def fit(
        self,
        schema: Schema,
        train: Records,
        *,
        budget: Budget,
        ledger: Ledger,
        source: Source,
        unknown: bool,
        seed: int | None,
        progress: Progress | None,
        kept: Kept,
    ) -> tuple[TableModel, int]:
        """Return the trained model and the steps that were taken."""
        ...


class ByDescent:
    """A linear model or a small network, by noisy gradient descent with the settings of the rule."""

    bins, texts = False, True

    def __init__(self, kind: str, schema: Schema, records: int, epsilon: float, chosen: Chosen | None) -> None:
        self.kind, self.records, self.epsilon, self.chosen = kind, records, epsilon, chosen
        self._classes = isinstance(schema.columns[schema.target], Category)
        self._columns, self._texts = len(schema.features), bool(schema.texts)
        self._outputs = outputs = max(len(schema.classes), 2 if self._classes else 1)
        self.knots = most_knots(records=records, epsilon=epsilon, outputs=outputs, columns=self._columns)
        self.noise_multiplier = math.inf
        self.settings: Settings = self.rule(1)

    def rule(self, parameters: int) -> Settings:
        """Return the settings for a model of so many parameters."""
        found = settings(
            records=self.records,
            parameters=parameters,
            epsilon=self.epsilon,
            squared=None if self._classes else self._columns,
            hidden=self.kind != "linear",
            texts=self._columns if self._texts else None,
        )
        return self.chosen(found, self.records) if self.chosen is not None else found

    def plan(self, least: Schema, *, budget: Budget, ledger: Ledger, owed: Owed, kept: Kept) -> None:
        fewest = trained_size(TableModel.new(self.kind, self.encoded(least)))
        self.settings = self.rule(fewest)
        if kept.step >= self.settings.steps:
            return
        self.noise_multiplier = plan(
            records=self.records,
            lot_size=self.settings.lot_size,
            steps=self.settings.steps - kept.step,
            epsilon=budget.epsilon,
            delta=budget.delta,
            also=[*ledger.entries, *owed],
        ).noise_multiplier
        if not len(ledger):
            self.check(least, self.noise_multiplier)

    def check(self, least: Schema, noise_multiplier: float) -> None:
        """Refuse noise that would drown every record of a model of ``least`` features."""
        self.noise_multiplier = noise_multiplier
        fewest = trained_size(TableModel.new(self.kind, self.encoded(least)))
        check_enough(
            records=self.records,
            parameters=fewest,
            epsilon=self.epsilon,
            noise_multiplier=noise_multiplier,
            chosen=self.settings,
        )

    def settle(self, classes: int) -> None:
        pass  # knots were chosen for two classes, and lots do not depend on them

    def fits(self, schema: Schema) -> bool:
        most = most_parameters(noise_multiplier=self.noise_multiplier, chosen=self.settings)
        return trained_size(TableModel.new(self.kind, self.encoded(schema))) <= most

    def encoded(self, schema: Schema) -> Schema:
        """Return the schema with as many buckets as the rule says for texts that declare none."""
        if not schema.texts:
            return schema
        self._texts = True  # declared, or found
        buckets = text_buckets(
            records=self.records, epsilon=self.epsilon, outputs=self._outputs, texts=len(schema.texts)
        )
        columns = {
            name: replace(column, buckets=column.buckets or buckets) if isinstance(column, Text) else column
            for name, column in schema.columns.items()
        }
        return replace(schema, columns=columns)

    def fit(
        self,
        schema: Schema,
        train: Records,
        *,
        budget: Budget,
        ledger: Ledger,
        source: Source,
        unknown: bool,
        seed: int | None,
        progress: Progress | None,
        kept: Kept,
    ) -> tuple[TableModel, int]:
        fresh = TableModel.new(self.kind, schema, seed=seed)
        known = self.rule(trained_size(fresh))
        self.settings = replace(self.settings, learning_rate=known.learning_rate, clip_norm=known.clip_norm)
        if len(schema.classes) == 1:
            return fresh, 0
        steps = descend_with_slopes(
            fresh,
            train,
            chosen=self.settings,
            noise_multiplier=self.noise_multiplier,
            budget=budget,
            ledger=ledger,
            unknown=unknown,
            seed=seed,
            progress=progress,
            checkpoint=kept.checkpoint,
        )
        return fresh, steps


class ByBoosting:
    """A sum of shapes of columns and pairs of columns, by private boosting."""

    bins, texts = True, False

    def __init__(self, schema: Schema, records: int, epsilon: float) -> None:
        if schema.texts:
            raise ValueError(f"boosting does not read text ({', '.join(schema.texts)}); use the model linear or mlp.")
        self.records, self._columns = records, len(schema.features)
        self.epsilon, self.noise_multiplier = epsilon, math.inf
        self.settle(len(schema.classes))

    def settle(self, classes: int) -> None:
        self.settings: BoostSettings = boost_settings(
            records=self.records, columns=self._columns, epsilon=self.epsilon, classes=classes
        )
        self.knots = self.settings.bins

    def plan(self, least: Schema, *, budget: Budget, ledger: Ledger, owed: Owed, kept: Kept) -> None:
        stage = stage_kept(kept)
        if not weight_left(self._columns, stage):
            return
        self.noise_multiplier = one_look(self._columns, budget=budget, ledger=ledger, owed=owed, stage=stage)
        if len(ledger):
            return
        check_bins(self.noise_multiplier, records=self.records, columns=self._columns, epsilon=budget.epsilon)

    def fits(self, schema: Schema) -> bool:
        return True  # rare values are drawn to zero by the prior; they cost nothing

    def encoded(self, schema: Schema) -> Schema:
        return binned(schema)

    def fit(
        self,
        schema: Schema,
        train: Records,
        *,
        budget: Budget,
        ledger: Ledger,
        source: Source,
        unknown: bool,
        seed: int | None,
        progress: Progress | None,
        kept: Kept,
    ) -> tuple[TableModel, int]:
        fresh = TableModel.new("boosted", schema)
        if len(schema.classes) == 1:
            return fresh, 0
        self.settle(len(schema.classes))
        before = len(ledger)
        shapes = boost(
            Cells.of(train, axes(schema)),
            len(schema.classes),
            noise_multiplier=self.noise_multiplier,
            chosen=self.settings,
            ledger=ledger,
            source=source,
            progress=progress,
            kept=kept,
        )
        return replace(fresh, network=shapes), len(ledger) - before


def method_for(kind: str, schema: Schema, *, records: int, epsilon: float, chosen: Chosen | None) -> Method:
    """Return how a model of this ``kind`` is trained. ``chosen`` may change the settings of a descent."""
    if kind == "boosted":
        return ByBoosting(schema, records, epsilon)
    return ByDescent(kind, schema, records, epsilon, chosen)


def one_look(columns: int, *, budget: Budget, ledger: Ledger, owed: Owed = (), stage: int = 0) -> float:
    """Return the noise multiplier of one Gaussian sum, cut into the looks of boosting, so that all cost what is left.

    After ``stage`` stages a part of the looks is left, and that part costs it.
    """
    also = [*ledger.entries, *owed]
    rest = plan(records=1, lot_size=1, steps=1, epsilon=budget.epsilon, delta=budget.delta, also=also).noise_multiplier
    noise = rest * math.sqrt(weight_left(columns, stage))
    for _ in range(60):  # the looks add up to the one look but for rounding; whatever is computed must fit
        steps = [*also, *planned(noise, columns, ledger.header.unit, stage)]
        if guarantee(steps, ledger.header, delta=budget.delta).epsilon <= budget.epsilon:
            return noise
        noise *= 1.0005
    raise ValueError(f"epsilon {budget.epsilon:g} is too small for boosting; use model linear, or a larger epsilon.")


def check_bins(
    noise_multiplier: float, *, records: int, columns: int, epsilon: float, word: str = "records to train on"
) -> None:
    """Refuse a budget under which the noise on a bin of an eighth of the records would be what they can add at most."""
    needed = math.ceil(8 * noise_multiplier * math.sqrt(columns * 20 / 3))
    if records < needed:
        raise ValueError(
            f"{records} {word} are too few for boosting {columns} columns at epsilon {epsilon:g}: noise "
            f"would drown every bin. About {needed} are needed, or a larger epsilon, or fewer columns."
        )
