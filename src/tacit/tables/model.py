"""A trained model of a table: the schema it reads, the weights it has, and what it predicts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.tables.boosting.shapes import Shapes
from tacit.tables.columns import Category, Columns, Number
from tacit.tables.encoding import Encoding
from tacit.tables.frames import as_columns
from tacit.tables.schema import Schema

HIDDEN = 32
KINDS = ("linear", "mlp", "boosted")
"""``linear`` is logistic regression for a target with classes and least squares for a number; ``mlp`` has a layer;
``boosted`` is a sum of shapes of columns and of pairs of columns (`tacit.tables.boosting`)."""

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions for some rows.

    ``chances`` has a column a class, and is None for a number. ``unseen`` and ``missing`` say of each column how many
    entries have a value that the model does not know, and how many are missing, where the model takes both.
    """

    values: NDArray[Any]
    chances: NDArray[np.float32] | None
    unseen: dict[str, int]
    missing: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """A trained model of a table. It holds the schema, so it needs nothing else to predict."""

    kind: str
    encoding: Encoding
    network: nn.Module
    provenance: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The ``type`` and the ``origin`` (declared, discovered and charged, dropped) of every column of the table."""

    @classmethod
    def new(cls, kind: str, schema: Schema, *, seed: int | None = None) -> TableModel:
        if kind == "boosted":
            return cls(kind=kind, encoding=Encoding(schema), network=Shapes.of(schema))
        encoding, outputs = Encoding(schema), max(len(schema.classes), 1)
        fresh = network(kind, encoding.width, outputs, norm=math.sqrt(len(schema.features)), seed=seed)
        return cls(kind=kind, encoding=encoding, network=fresh)

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def schema(self) -> Schema:
        """Return what the model knows of the columns."""
        return self.encoding.schema

    @property
    def classes(self) -> tuple[str, ...]:
        return self.encoding.schema.classes

    def outputs(self, compact: Tensor) -> Tensor:
        """A score for every class, or the number in [-1, 1]."""
        boosted = isinstance(self.network, Shapes)
        rows = compact if boosted else torch.from_numpy(self.encoding.expand(compact.numpy()))
        scores: Tensor = self.network(rows)
        if boosted and len(self.classes) == 2:  # how much the second is ahead
            return torch.cat([torch.zeros_like(scores), scores], dim=1)
        return scores if self.classes else scores[:, 0]

    def probabilities(self, rows: Any) -> NDArray[np.float32]:
        """Return the chance of every class, one row a record; ``rows`` as for `predict`."""
        chances = self.predicted(rows).chances
        if chances is None:
            raise ValueError(f"{self.encoding.schema.target!r} is a number; it has no classes.")
        return chances

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the class or the number predicted for every row.

        ``rows`` is a pandas or polars frame, a pyarrow table, or a mapping from column names to arrays.
        """
        return self.predicted(rows).values

    def predicted(self, rows: Any) -> Predicted:
        """Return predictions, chances, and how many entries the model does not know; ``rows`` as for `predict`."""
        schema = self.encoding.schema
        sources = schema.sources(schema.features)
        columns = as_columns(rows, dict.fromkeys(sources.values()), schema.date_formats)
        return self.predicted_columns({name: columns[source] for name, source in sources.items()})

    def predicted_columns(self, columns: Columns, *, first: int = 1) -> Predicted:
        """Return the same for the columns of the schema; ``first`` is the number of the first row."""
        schema = self.encoding.schema
        compact = self.encoding.compact(columns, first=first)
        with torch.no_grad():
            scores = self.outputs(torch.from_numpy(compact))
        unseen, missing = unknown_entries(compact, schema)
        if not self.classes:
            numbers: NDArray[np.float32] = scores.clamp(-1, 1).numpy()
            return Predicted(values=self.encoding.unscale(numbers), chances=None, unseen=unseen, missing=missing)
        chances: NDArray[np.float32] = torch.softmax(scores, dim=1).numpy()
        values = np.array(self.classes)[scores.argmax(dim=1).numpy()]
        return Predicted(values=values, chances=chances, unseen=unseen, missing=missing)

    def save(self, directory: Path, stamp: dict[str, str] | None = None) -> None:
        """Write ``model.safetensors``, with the ledger's ``stamp`` in its metadata, and ``model.json``."""
        weights = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        save_file(weights, _weights(directory), metadata=stamp)
        facts: dict[str, Any] = {
            "format": _FORMAT,
            "kind": "table",
            "model": self.kind,
            "schema": self.encoding.schema.to_json(),
            "columns": self.provenance,
        }
        if isinstance(self.network, Shapes):
            facts["terms"] = self.network.structure()
        (directory / "model.json").write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> TableModel:
        """The model in a directory written by `save`."""
        if not (directory / "model.json").is_file():
            raise ValueError(f"there is no model in {directory}; give the directory of a run of `tacit train`.")
        try:
            facts = json.loads((directory / "model.json").read_text(encoding="utf-8"))
            if not isinstance(facts, dict) or facts.get("kind") != "table" or facts.get("format") != _FORMAT:
                raise ValueError("it is not a model of a table written by this version")
            model = cls.new(str(facts.get("model")), Schema.from_json(facts.get("schema")))
            if isinstance(model.network, Shapes):
                terms = Shapes.terms_of(facts.get("terms"), model.network.axes)
                model = replace(model, network=Shapes.of(model.encoding.schema, terms))
            model.network.load_state_dict(load_file(_weights(directory)))
            model = replace(model, provenance=_provenance(facts.get("columns", {})))
        except (ValueError, SafetensorError, RuntimeError, RecursionError) as error:
            raise ValueError(f"{directory} holds no model that can be read: {error}") from None
        model.network.eval()
        return model


def _provenance(facts: Any) -> dict[str, dict[str, str]]:
    if not isinstance(facts, dict) or not all(isinstance(one, dict) for one in facts.values()):
        raise ValueError("where its columns are from is not an object for each column")
    return {str(name): {str(key): str(text) for key, text in one.items()} for name, one in facts.items()}


def unknown_entries(compact: NDArray[np.float32], schema: Schema) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many entries of each column have an unknown value, and how many are missing; only where there are."""
    unseen, missing = {}, {}
    places = Encoding(schema).places
    for name, column in schema.features.items():
        codes = compact[:, places[name].start]
        if isinstance(column, Category) and (count := int((codes >= len(column.values or ())).sum())):
            unseen[name] = count
        scaled = isinstance(column, Number) and not column.bins  # a text without words has no bucket, -1
        if column.missing == "own" and (count := int((np.isnan(codes) if scaled else codes < 0).sum())):
            missing[name] = count
    return unseen, missing


def network(kind: str, width: int, outputs: int, *, norm: float, seed: int | None = None) -> nn.Module:
    """A model of rows of ``width`` features. ``norm`` is how long a row is: a hidden unit starts with a sum about 1."""
    if kind == "linear":
        return zeroed(nn.Linear(width, outputs))
    if kind == "mlp":
        first = nn.Linear(width, HIDDEN)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        nn.init.normal_(first.weight, std=1 / norm, generator=generator)
        nn.init.zeros_(first.bias)
        return nn.Sequential(first, nn.Tanh(), zeroed(nn.Linear(HIDDEN, outputs)))
    raise ValueError(f"model is {kind!r}; choose one of linear, mlp.")


def zeroed(layer: nn.Linear) -> nn.Linear:
    """A layer that starts at zero: all classes alike, so that no step is spent on unlearning a random start."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _weights(directory: Path) -> Path:
    return directory / "model.safetensors"
