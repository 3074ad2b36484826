"""Shapes from noisy sums: what costs nothing, what rare classes need, and when noise is remarked on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tacit.ledger import Budget, Header, Ledger
from tacit.tables.boosting import Shapes
from tacit.tables.boosting.loss import Squared, loss_for
from tacit.tables.boosting.smoothing import Prior, bends, neighbours, smoothed
from tacit.tables.column_types import Seen, remark
from tacit.tables.columns import Category, Number, Undeclared
from tacit.tables.histograms import COUNTS, quantile_knots
from tacit.tables.notation import KINDS
from tacit.tables.reading import from_columns
from tacit.tables.schema import Schema
from tacit.tables.scoring import Score
from tacit.tables.training import TableOutcome, train_table


@pytest.mark.parametrize("missing", [False, True])
def test_a_straight_line_costs_nothing_and_a_bend_does(missing: bool) -> None:
    prior = neighbours(12, ordered=True, missing=missing)
    line, bent = np.arange(12.0), np.abs(np.arange(12.0) - 6)
    line[0] = bent[0] = 0.0 if missing else line[0]
    assert line @ prior @ line == pytest.approx(0.0, abs=1e-9) and bent @ prior @ bent > 1
    assert np.linalg.eigvalsh(prior).min() > -1e-9


@pytest.mark.parametrize("missing", [False, True])
def test_only_changes_of_slope_cost_something_under_the_prior_of_bends(missing: bool) -> None:
    prior = bends(12, missing=missing).precision
    line, bent = np.arange(12.0), np.abs(np.arange(12.0) - 6)
    if missing:
        line[0] = bent[0] = 0.0
    assert line @ prior @ line == pytest.approx(0.0, abs=1e-9) and bent @ prior @ bent == pytest.approx(4.0)


def test_the_likelier_prior_is_used_for_curves_and_for_steps() -> None:
    draw, precision = np.random.default_rng(0), np.full(40, 4.0)
    walk, slopes = Prior(neighbours(40, ordered=True, missing=False)), bends(40, missing=False)
    place = np.linspace(-1, 1, 40)[:, None]
    for truth, good, bad in ((4 * np.sin(4 * place), slopes, walk), (5 * np.sign(np.sin(9 * place)), walk, slopes)):
        noisy = [truth + draw.normal(0, 0.5, (40, 1)) for _ in range(20)]
        tried = ([good], [bad], [walk, slopes])
        least, most, both = (
            np.mean([(smoothed(one, precision, priors) - truth) ** 2 for one in noisy]) for priors in tried
        )
        assert least < 0.98 * most and both < 1.02 * least


def test_rough_quantiles_cut_the_outer_parts_where_noise_allows() -> None:
    edges = np.linspace(0, 256, 257)
    even = np.concatenate([np.full(16, 1600.0), np.full(COUNTS - 16, 100.0)])
    plain, rough = (quantile_knots(even, edges, std=1.0, most=9, rough=rough) for rough in (False, True))
    assert set(plain) <= set(rough) and len(rough) > len(plain)
    assert {round(knot, 6) for knot in set(rough) - set(plain)} == {8.0, 16.0, 240.0, 248.0}
    assert len(quantile_knots(even, edges, std=600.0, most=9, rough=True)) == 9  # noise would drown smaller parts


def test_a_look_moves_the_log_odds_of_a_cell_by_four_at_most_and_a_number_by_anything() -> None:
    assert [loss_for(classes).stride for classes in (2, 3)] == [4.0, 4.0] and Squared.stride == math.inf


def boosted(table: dict[str, np.ndarray], schema: Schema, *, epsilon: float, seed: int) -> TableOutcome:
    return train_table(
        lambda: from_columns(table, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=1e-5),
        ledger=Ledger(Header(secure_randomness=False)),
        model="boosted",
        test_fraction=0.0,
        seed=seed,
    )


def debts(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return records of which 3 % are in default, nearly all of them at the upper end of a column."""
    draw = np.random.default_rng(seed)
    balance = draw.normal(835, 480, count).clip(0)
    chance = 1 / (1 + np.exp(10.65 - 0.0055 * balance))
    late = np.where(draw.random(count) < chance, "yes", "no")
    return {"balance": balance, "other": draw.normal(size=count), "late": late}


@pytest.mark.parametrize("classes", [0, 2])
def test_cells_without_records_add_nothing_to_a_score(classes: int) -> None:
    draw, count = np.random.default_rng(1), 3000
    x, code = draw.normal(size=count), draw.choice(["u", "v"], count)
    late = np.where(x + (code == "u") + draw.normal(size=count) > 0, "yes", "no")
    target = Category(values=("no", "yes")) if classes else Number(low=0, high=200)
    columns = {"x": Undeclared(), "code": Category(values=("u", "v", "none", "never")), "y": target}
    table = {"x": x, "code": code, "y": late if classes else (100 + 30 * x + 9 * (code == "u")).clip(0, 200)}
    shapes = boosted(table, Schema(columns=columns, target="y"), epsilon=3.0, seed=1).model.network
    assert isinstance(shapes, Shapes)
    values = shapes.shape([term.name(shapes.axes) for term in shapes.terms].index("code"))[:, 0]
    assert values[0] > 0.02 and (values[2:] == 0).all()  # up to 0.05 log-odds of noise before


def test_boosting_ranks_a_rare_class_by_the_tail_of_a_column() -> None:
    columns = {"balance": Undeclared(), "other": Undeclared(), "late": Category(values=("no", "yes"))}
    schema, new = Schema(columns=columns, target="late"), debts(4000, 99)
    models = [boosted(debts(6000, seed), schema, epsilon=3.0, seed=seed).model for seed in range(4)]
    areas = [roc_auc_score(new["late"] == "yes", model.probabilities(new)[:, 1]) for model in models]
    assert np.mean(areas) > 0.92  # 0.911 with 48 bins and a random walk alone; the best that can be is 0.943


def test_noise_is_not_remarked_on_as_dates_when_there_are_many_columns() -> None:
    bins = np.zeros(103)
    kinds = np.zeros(len(KINDS))
    kinds[list(KINDS).index("date")] = 4.2 * 70  # 4.2 standard deviations: rare in one column, not among fifty
    seen, column = Seen(70.0, bins=bins, kinds=kinds), Number(low=0, high=1, missing="own", text="missing")
    assert "look like dates" in remark("income", seen, column, 8000, 1)
    assert "3.7% of its entries (noise ± 0.9%)" in remark("income", seen, column, 8000, 1)
    assert remark("income", seen, column, 8000, 50) == ""


def test_a_score_says_what_chance_would_change_on_so_few_records() -> None:
    accuracy = Score(name="test_accuracy", value=0.9, private=True, noise_std=0.01, records=900)
    assert accuracy.chance == pytest.approx(0.01)
    assert Score(name="test_mean_absolute_error", value=0.9, private=True, records=900).chance is None
