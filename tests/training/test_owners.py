"""Runs whose unit is an owner of records: what one owner can do to a sum, what is charged, what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients.precision import MARGIN
from tacit.ledger import OwnedPoisson

PAIRS = [(i % 20, (7 * i + 3) % 20) for i in range(60)]


def test_the_records_of_an_owner_move_the_sum_by_a_clip_norm_each_and_at_most_so_many(
    make: Any, train: Any, silence: Any
) -> None:
    """Everybody pulls the same way; owner 5 leaves, which empties the records that others share."""
    sums = []
    for gone in (None, 5):
        torch.manual_seed(0)
        silence.added.clear()
        x = torch.full((60, 4), 100.0)
        x[[gone in pair for pair in PAIRS]] = torch.nan  # an empty record: it adds nothing
        data = TensorDataset(x, torch.zeros(60, dtype=torch.long))
        owned = {"owners": PAIRS, "records_per_owner": 3}
        chosen = len(tacit.sampling.bounded_by_owner(PAIRS, 3))
        _, _, run = make(nn.Linear(4, 3), None, data, lot_size=chosen, steps=1, clipping=tacit.Flat(0.5), **owned)
        train(run)
        sums.append(torch.cat([total.flatten() for total, _, _ in silence.added]))
        step = run.ledger.entries[0][0]
        assert step.sampling == OwnedPoisson(rate=1.0, records=chosen, most=3)
        assert step.queries[0].clip_norm == pytest.approx(0.5 * (1 + MARGIN))
    assert float((sums[1] - sums[0]).norm()) == pytest.approx(3 * 0.5, rel=1e-3)


def test_the_owner_is_in_the_guarantee_the_budget_and_the_statement(make: Any, train: Any) -> None:
    budget = tacit.Budget(epsilon=3.0, delta=1e-5)
    owned = {"owners": [[f"p{one}", f"p{two}"] for one, two in PAIRS], "records_per_owner": 2}
    _, _, run = make(lot_size=5, steps=6, budget=budget, noise_multiplier=None, **owned)
    seen: Counter[int] = Counter()
    train(run)
    seen.update(person for number in tacit.sampling.bounded_by_owner(PAIRS, 2) for person in PAIRS[number])
    found = run.guarantee(1e-5)
    assert max(seen.values()) == 2 and found.unit == "owner"
    assert 2.98 <= found.epsilon <= 3.0
    example = tacit.plan(
        records=run.sampler.records, lot_size=5, steps=6, noise_multiplier=run.noise_multiplier, delta=1e-5
    )
    assert found.epsilon > 1.5 * example.guarantee.epsilon
    assert "at most 2 records of each take part; the owners of each record are assumed public" in run.statement(1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"owners": PAIRS}, "records_per_owner is missing"),
        ({"records_per_owner": 2}, "owners is missing"),
        ({"owners": PAIRS[:5], "records_per_owner": 2}, "owners has 5 entries"),
        ({"owners": ["ann"] * 60, "records_per_owner": 2}, r"owners\[0\] is 'ann'"),
        ({"owners": PAIRS, "records_per_owner": 2, "sampling": "allocation"}, "have a proof with Poisson lots"),
        ({"owners": PAIRS, "records_per_owner": 2, "users": list(range(60)), "examples_per_user": 1}, "have a proof"),
        ({"owners": PAIRS, "records_per_owner": 2, "max_lot_size": 20}, "max_lot_size is 20"),
        ({"owners": PAIRS, "records_per_owner": 2, "ownership": "secret"}, "ownership is 'secret'"),
        ({"owners": PAIRS, "records_per_owner": 2, "ownership": "private"}, "some owners have more than 2 records;"),
        ({"ownership": "private"}, "owners is missing"),
    ],
)
def test_wrong_owners_are_refused_in_one_sentence(make: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(lot_size=5, steps=2, **given)


def test_private_ownership_takes_all_records_where_the_promise_holds(make: Any, train: Any) -> None:
    most = max(Counter(person for pair in PAIRS for person in set(pair)).values())
    _, _, run = make(lot_size=5, steps=2, owners=PAIRS, records_per_owner=most, ownership="private")
    train(run)
    event = run.ledger.entries[0][0].sampling
    assert (event.records, event.most, event.ownership) == (60, most, "private")
    assert "the data set is assumed to have no owner with more" in run.statement(1e-5)
