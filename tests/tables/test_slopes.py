"""Straight lines through the knots of numbers: trained beside a linear model's features, and then part of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from tacit.ledger import Budget, Header, Ledger
from tacit.tables.columns import Category, Number
from tacit.tables.encoding import Encoding
from tacit.tables.reading import from_columns
from tacit.tables.schema import Schema
from tacit.tables.slopes import Sloped, straight_lines
from tacit.tables.training import train_table

KNOTS = (0.0, 1.0, 2.0, 3.0, 10.0)
SCHEMA = Schema(
    columns={
        "town": Category(values=("A", "B")),
        "pay": Number(low=0, high=10, knots=KNOTS, missing="own"),
        "y": Category(values=("no", "yes")),
    },
    target="y",
)


def test_a_line_is_the_number_itself_between_the_outer_knots() -> None:
    encoding = Encoding(SCHEMA)
    pay = np.array([0.0, 0.5, 2.7, 6.0, 10.0, 99.0, np.nan])
    features = encoding.expand(encoding.compact({"town": np.array(["A"] * 7), "pay": pay}))
    expected = [-1.0, -0.9, -0.46, 0.2, 1.0, 1.0, 0.0]
    assert np.allclose((features @ straight_lines(encoding))[:, 0], expected, atol=1e-6)


def test_lines_become_part_of_the_features_weights() -> None:
    lines = torch.randn(6, 2).numpy()
    wider, plain, rows = Sloped(lines, 3), nn.Linear(6, 3), torch.rand(10, 6)
    nn.init.normal_(wider.layer.weight)
    nn.init.normal_(wider.layer.bias)
    wider.put_in(plain)
    assert torch.allclose(wider(rows), plain(rows), atol=1e-5)


def test_knots_without_records_follow_the_line() -> None:
    source = np.random.default_rng(0)
    pay = source.choice([0.0, 10.0], 2000)
    rows = {"town": np.array(["A"] * 2000), "pay": pay, "y": np.where(pay > 5, "yes", "no")}
    outcome = train_table(
        lambda: from_columns(rows, SCHEMA.columns),
        SCHEMA,
        budget=Budget(epsilon=8.0, delta=1e-5),
        ledger=Ledger(Header(secure_randomness=False)),
        test_fraction=0.0,
        chosen=lambda rule, records: replace(rule, steps=40),
        seed=1,
    )
    assert isinstance(outcome.model.network, nn.Linear)
    weight = outcome.model.network.weight
    shape = (weight[1] - weight[0])[2:7].tolist()  # of the knots; two towns come before
    assert max(shape[1:4]) < -1 < 1 < shape[4]  # no record is at 1, 2 or 3, and all are below the middle of the line
