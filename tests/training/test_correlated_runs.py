"""Runs with correlated noise: charged as planned, resumed with new noise, refused where there is no proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import CyclicPoisson, GaussianSum
from tacit.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, SquareRoot, TreeAggregation
from tacit.training import AdamBC, PrivateRun

F = torch.nn.functional
STRATEGIES = [
    BandedToeplitz(bands=3),
    BandedInverse(bands=3),
    BandedInverse(bands=3, groups=4),
    BufferedToeplitz(buffers=2),
    SquareRoot(),
    TreeAggregation(),
]


def people(records: int = 400) -> TensorDataset:
    x = torch.randn(records, 5)
    return TensorDataset(x, (x[:, 0] > 0).long())


def made(dataset: TensorDataset, noise: Any, **others: Any) -> PrivateRun:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    optimizer = others.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    given = {"lot_size": 40, "steps": 12, "clipping": 1.0, "noise_multiplier": 2.0, "sampling": "cyclic", **others}
    return tacit.make_private(model, optimizer, dataset, noise=noise, **given)


def train(run: PrivateRun, steps: int = 10**6) -> None:
    for x, y in run.batches():
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.lot_finished and not run.in_trial and (steps := steps - 1) == 0:
            break


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_run_costs_what_its_plan_says(strategy: Any) -> None:
    run = made(
        people(), strategy, noise_multiplier=None, budget=tacit.Budget(epsilon=3.0, delta=1e-5), accountant="rdp"
    )
    train(run)
    assert run.step == 12
    assert 2.9 < run.guarantee().epsilon <= 3.0
    planned = tacit.plan(
        records=400,
        lot_size=40,
        steps=12,
        noise_multiplier=run.noise_multiplier,
        delta=1e-5,
        sampling="cyclic",
        noise=strategy,
        accountant="rdp",
    )
    assert planned.guarantee.epsilon == pytest.approx(run.guarantee().epsilon, rel=1e-3)
    assert len(run.ledger.entries) == 1
    run.close()


def released(run: PrivateRun) -> list[torch.Tensor]:
    """The gradients that the optimizer gets, times the lot size, as one vector a step."""
    found = []

    def keep(optimizer: Any, *_: Any) -> None:
        found.append(torch.cat([p.grad.reshape(-1) for p in run.model.parameters()]).clone() * 40)

    handle = run.optimizer.register_step_post_hook(keep)
    train(run)
    handle.remove()
    return found


def test_the_gradients_of_a_run_carry_noise_of_the_charged_covariance() -> None:
    """A model whose gradients are zero: all that is released is noise."""
    x = torch.zeros(400, 2000)
    model = torch.nn.Linear(2000, 10, bias=False)
    run = tacit.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(x),
        lot_size=40,
        steps=5,
        clipping=1.0,
        noise_multiplier=2.0,
        noise=BandedInverse(bands=3),
        sampling="cyclic",
    )
    rows = []
    for (batch,) in run.batches():
        model(batch).square().sum(1).mean().backward()
        run.optimizer.step()
        if run.lot_finished and not run.in_trial:
            rows.append(model.weight.grad.reshape(-1).double() * 40)
        run.optimizer.zero_grad()
    (query,) = run.ledger.entries[0][0].queries
    assert isinstance(query, GaussianSum) and query.parameters is not None
    c = torch.linalg.inv(sum(torch.diag(torch.full((5 - i,), d), -i) for i, d in enumerate(query.parameters)).double())
    fresh = c @ torch.stack(rows) / query.noise_std
    assert torch.allclose(fresh @ fresh.T / fresh.shape[1], torch.eye(5).double(), atol=0.05)


def test_a_resumed_run_begins_a_new_block_and_writes_no_keys(tmp_path: Path) -> None:
    data, where = people(), tmp_path / "ledger.jsonl"
    run = made(data, BandedInverse(bands=3), ledger=where)
    train(run, 4)
    run.save(tmp_path / "checkpoint")
    train(run, 3)  # what is released after the checkpoint stays charged
    keys = [bytes(key) for key in run._sums._noise._state._keys]  # type: ignore[attr-defined]
    run.close()
    run.ledger.close()
    again = made(data, BandedInverse(bands=3), ledger=where)
    again.load(tmp_path / "checkpoint")
    train(again)
    assert again.step == 12
    blocks = [
        (step.sampling.block, count) for step, count in again.ledger.entries if isinstance(step.sampling, CyclicPoisson)
    ]
    assert [count for _, count in blocks] == [7, 8]
    assert blocks[0][0] != blocks[1][0]
    again.ledger.close()
    assert len(keys) == 3
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(key in content or key.hex().encode() in content for key in keys), file


def test_a_lot_left_half_way_keeps_turns_and_noise_in_step() -> None:
    run = made(people(), BandedToeplitz(bands=3), steps=6)
    train(run, 2)
    for _ in run.lot():
        break
    assert run.abandoned == 1
    train(run)
    assert run.step == 6
    assert sum(count for _, count in run.ledger.entries) == 7
    noise = run._sums._noise  # type: ignore[attr-defined]
    assert noise._position == run.sampler.position == 7  # type: ignore[union-attr]


def test_metrics_and_users_and_corrected_adam_work_with_correlated_noise() -> None:
    data = people()
    run = made(
        data,
        BandedToeplitz(bands=2),
        metrics={"loss": tacit.Metric(bound=2.0, noise_multiplier=20.0)},
        optimizer=AdamBC,
        users=[i // 2 for i in range(400)],
        examples_per_user=2,
        lot_size=20,
        accountant="rdp",
    )
    for x, y in run.batches():
        losses = F.cross_entropy(run.model(x), y, reduction="none")
        run.observe(loss=losses)
        losses.mean().backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert run.step == 12
    assert run.guarantee(1e-5).unit == "user"


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"sampling": "poisson"}, "sampling='cyclic'"),
        ({"clipping": tacit.Adaptive(initial=1.0)}, "adaptive"),
        ({"clipping": lambda step: 1.0}, "clipping is a function"),
        ({"noise_multiplier": lambda step: 2.0}, "noise_multiplier is a function"),
        ({"lot_size": lambda step: 40}, "lot_size is a function"),
        ({"budget": tacit.AdaptiveBudget(epsilon=1.0, delta=1e-5)}, "AdaptiveBudget"),
        ({"noise": "proportional"}, "for correlated noise"),
        ({"noise": "discrete"}, "for correlated noise"),
        ({"noise": BandedToeplitz(bands=11)}, "at most 10 groups"),
    ],
)
def test_correlated_noise_refuses_unproved_settings_before_charging_the_ledger(
    others: dict[str, Any], word: str
) -> None:
    ledger = tacit.Ledger()
    given = {"noise": BandedToeplitz(bands=3), **others}
    with pytest.raises(ValueError, match=word):
        made(people(), ledger=ledger, **given)
    assert not len(ledger)
