"""Runs with correlated noise: charged as planned, resumed in the same block, refused where there is no proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import GaussianSum
from tacit.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    SparseInverse,
    SquareRoot,
    TreeAggregation,
)
from tacit.training import AdamBC, PrivateRun

F = torch.nn.functional
STRATEGIES = [
    BandedToeplitz(bands=3),
    BandedInverse(bands=3),
    BandedInverse(bands=3, groups=4),
    SparseInverse(growth=2),
    "correlated",
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
        epsilon=3.0,
        delta=1e-5,
        sampling="cyclic",
        noise=SparseInverse() if strategy == "correlated" else strategy,
        accountant="rdp",
    )
    assert planned.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-9)
    assert planned.guarantee.epsilon == pytest.approx(run.guarantee().epsilon, rel=1e-6)
    assert planned.groups == run.ledger.entries[0][0].sampling.groups  # type: ignore[union-attr]
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


def blocks(run: PrivateRun) -> list[tuple[str, int]]:
    return [(step.sampling.block, count) for step, count in run.ledger.entries]  # type: ignore[union-attr]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_resumed_run_goes_on_with_its_block_its_groups_and_its_noise(strategy: Any, tmp_path: Path) -> None:
    """Twelve steps with one interruption, and two steps after the checkpoint that are charged and lost."""
    data, where = people(), tmp_path / "ledger.jsonl"
    run = made(data, strategy, ledger=where)
    train(run, 4)
    run.save(tmp_path / "checkpoint")
    train(run, 2)
    members = [each.tolist() for each in run.sampler._members]  # type: ignore[union-attr]
    run.close()
    again = made(data, strategy, ledger=where)
    again.load(tmp_path / "checkpoint")
    assert again.sampler.position == 6  # type: ignore[union-attr]
    train(again)
    assert again.step == 12
    assert [count for _, count in blocks(again)] == [14]
    assert [each.tolist() for each in again.sampler._members] == members  # type: ignore[union-attr]
    again.close()


def test_a_resumed_run_costs_what_one_block_of_all_its_steps_costs(tmp_path: Path) -> None:
    data, where = people(), tmp_path / "ledger.jsonl"
    whole = made(data, "correlated")
    train(whole)
    run = made(data, "correlated", ledger=where)
    train(run, 5)
    run.save(tmp_path / "checkpoint")
    run.close()
    again = made(data, "correlated", ledger=where)
    again.load(tmp_path / "checkpoint")
    train(again)
    assert again.guarantee(1e-5).epsilon == pytest.approx(whole.guarantee(1e-5).epsilon)
    again.close()


def test_keys_are_in_a_file_for_the_owner_only_from_the_first_checkpoint_to_the_last_step(tmp_path: Path) -> None:
    data, where = people(), tmp_path / "ledger.jsonl"
    secret = tmp_path / "ledger.jsonl.noise-keys"
    run = made(data, "correlated", ledger=where)
    train(run, 3)
    assert not secret.exists()
    run.save(tmp_path / "checkpoint")
    assert secret.stat().st_mode & 0o777 == 0o600
    keys = [key for _, key in run.sampler.keys._keys]  # type: ignore[union-attr]
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != secret:
            content = file.read_bytes()
            assert not any(bytes(key) in content or key.hex().encode() in content for key in keys), file
    train(run)
    run.close()
    assert not secret.exists()


def test_without_its_keys_a_resumed_run_begins_a_new_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, where = people(), tmp_path / "ledger.jsonl"
    run = made(data, BandedInverse(bands=3), ledger=where)
    train(run, 4)
    run.save(tmp_path / "checkpoint")
    run.close()
    (tmp_path / "ledger.jsonl.noise-keys").unlink()
    again = made(data, BandedInverse(bands=3), ledger=where)
    again.load(tmp_path / "checkpoint")
    train(again)
    assert [count for _, count in blocks(again)] == [4, 8]
    assert "begins a new block" in caplog.text
    again.close()


def test_steps_that_differ_are_not_added_to_an_old_block(tmp_path: Path) -> None:
    data, where = people(), tmp_path / "ledger.jsonl"
    run = made(data, "correlated", ledger=where)
    train(run, 4)
    run.save(tmp_path / "checkpoint")
    run.close()
    again = made(data, "correlated", ledger=where, clipping=0.5)
    again.load(tmp_path / "checkpoint")
    train(again)
    assert [count for _, count in blocks(again)] == [4, 8]
    again.close()


def test_a_run_that_goes_back_to_a_checkpoint_keeps_its_place_in_the_block(tmp_path: Path) -> None:
    run = made(people(), "correlated")
    train(run, 4)
    run.save(tmp_path / "checkpoint")
    train(run, 3)
    run.load(tmp_path / "checkpoint")
    assert len(run.sampler.keys) == 2  # type: ignore[union-attr]
    train(run)
    assert [count for _, count in blocks(run)] == [15]
    assert list(tmp_path.glob("*noise-keys")) == []


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
