"""Wrong arguments of `make_private`: one sentence each, before anything is charged or written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tacit

DATA = TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3)
NETWORK = nn.Linear(4, 3)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


class OddSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(1, 60, 2))

    def __len__(self) -> int:
        return 30


class ByLength(BatchSampler):
    pass


class Frame:
    """Like a pandas data frame: numbers are names of columns."""

    iloc = None

    def __len__(self) -> int:
        return 60


class Nothing:
    def __len__(self) -> int:
        return 60


def loader(**settings: Any) -> Any:
    return DataLoader(DATA, **settings)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"clipping": 0.0}, "clipping is 0.0; a clip norm must be a finite number above 0"),
    ({"clipping": float("nan")}, "clipping is nan; a clip norm must be"),
    ({"clipping": True}, "clipping is True; give a clip norm (clipping=1.0)"),
    ({"clipping": None}, "clipping is None; give a clip norm"),
    ({"clipping": "flat"}, "clipping is 'flat'; give a clip norm"),
    ({"clipping": tacit.Flat}, "clipping is <class 'tacit.mechanisms.clipping.Flat'>; give a clip norm"),
    ({"clipping": lambda step: 1.0 if step < 3 else -1.0}, "clipping is -1.0 at step 3"),
    ({"clipping": lambda step: tacit.Flat(1.0) if step else None}, "clipping is None at step 0"),
    ({"noise_multiplier": "1.0"}, "noise_multiplier is '1.0'; it must be a finite number above 0"),
    ({"noise_multiplier": lambda step: 1.0 - step / 3}, "noise multiplier is 0.0"),
    ({"budget": 2.0}, "budget is 2.0; write budget=tacit.Budget(epsilon=2.0, delta=1e-5)"),
    ({"budget": (3, 1e-6)}, "write budget=tacit.Budget(epsilon=3, delta=1e-5)"),
    ({"budget": "2"}, "budget is '2'; write budget=tacit.Budget(epsilon=2.0, delta=1e-5)"),
    ({"model": NETWORK.forward}, "model is of type method; give the torch.nn.Module"),
    ({"model": nn.Linear}, "model is the class Linear; give the torch.nn.Module"),
    ({"optimizer": torch.optim.SGD}, "optimizer is the class SGD; make one first"),
    ({"optimizer": 0.1}, "optimizer is of type float; make one first"),
    ({"ledger": 3}, "ledger is of type int; give the path of a file"),
    ({"metrics": ["loss"]}, "metrics is of type list; write metrics={'loss': tacit.Metric(bound=5.0)}"),
    ({"metrics": {"loss": 5.0}}, "metrics has 'loss': 5.0; write metrics={'loss': tacit.Metric(bound=5.0)}"),
    ({"public_buffers": "counter"}, "public_buffers is 'counter'; give a list of names"),
    ({"purpose": 3}, "purpose is 3; it must be text"),
    ({"parallel": True}, "parallel is True; write parallel=tacit.Parallel()"),
    ({"num_workers": -1}, "num_workers is -1; it must be a whole number, at least 0"),
    ({"num_workers": 2.0}, "num_workers is 2.0; it must be"),
    ({"collate_fn": "default"}, "collate_fn is 'default'; give a function"),
    ({"adjacency": "zero-out"}, "adjacency is 'zero-out'; choose 'add/remove' or 'replace-one'"),
    ({"users": ["ann"] * 60, "examples_per_user": 1}, "give each example's user as a number from 0 on"),
    ({"users": [0.5] * 60, "examples_per_user": 1}, "users is float64 of shape (60,)"),
    ({"users": [-1] * 60, "examples_per_user": 1}, "give each example's user as a number from 0 on"),
    ({"users": list(range(60)), "examples_per_user": 1.5}, "examples_per_user is 1.5; it must be a whole number"),
    ({"dataset": DATA.tensors}, "the data set is a tuple of 2 arrays, of which each would be taken for a record"),
    ({"dataset": tuple(t.numpy() for t in DATA.tensors)}, "write torch.utils.data.TensorDataset(x, y)"),
    ({"dataset": {"x": DATA.tensors[0]}}, "the data set is a dict, whose items have names and not numbers"),
    ({"dataset": Frame()}, "the data set is a Frame, whose items are columns and not records"),
    ({"dataset": TensorDataset}, "the data set is the class TensorDataset; make an instance of it"),
    ({"dataset": "people.csv"}, "the data set is the text 'people.csv'; read the records first"),
    ({"dataset": Nothing()}, "the data set (Nothing) has no records by number; private sampling needs dataset[i]"),
    ({"dataset": Stream()}, "the data set (Stream) is a stream: it has no records by number"),
    ({"dataset": (x for x in range(3))}, "the data set (generator) is a stream: it has no records by number"),
    ({"dataset": DataLoader(Stream(), batch_size=4)}, "the data set (Stream) is a stream: it has no records by number"),
    ({"dataset": loader(batch_size=None)}, "the DataLoader has batch_size=None"),
    ({"dataset": loader(sampler=WeightedRandomSampler([1.0] * 60, 60))}, "the DataLoader has a WeightedRandomSampler"),
    ({"dataset": loader(sampler=SubsetRandomSampler([1, 2]))}, "torch.utils.data.Subset(loader.dataset, indices)"),
    ({"dataset": loader(sampler=OddSampler())}, "the DataLoader has a OddSampler, of which make_private cannot tell"),
    (
        {"dataset": loader(batch_sampler=ByLength(SequentialSampler(DATA), 4, False))},
        "the DataLoader has a ByLength, which composes batches by a rule of its own",
    ),
    ({"dataset": loader(num_workers=1, worker_init_fn=print)}, "the DataLoader has a worker_init_fn"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_a_wrong_argument_gets_one_sentence_and_nothing_is_written(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "ledger.jsonl"
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "dataset": DATA,
        "lot_size": 12,
        "steps": 4,
        "clipping": 1.0,
        "noise_multiplier": 1.0,
        "ledger": file,
    } | settings
    with pytest.raises(ValueError) as caught:
        tacit.make_private(**given)
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert not file.exists() or not len(tacit.Ledger.open(file))
    assert not model._forward_pre_hooks and "step" not in vars(optimizer)


OPACUS: list[tuple[dict[str, Any], str]] = [
    ({"max_grad_norm": 1.2}, "max_grad_norm: write clipping=1.2"),
    ({"target_epsilon": 3.0}, "target_epsilon: write budget=tacit.Budget(epsilon=3.0, delta=1e-5)"),
    ({"target_delta": 1e-6}, "target_delta: write budget=tacit.Budget(epsilon=2.0, delta=1e-06)"),
    ({"expected_batch_size": 600}, "expected_batch_size: write lot_size=600"),
    ({"data_loader": [1]}, "data_loader: give the data set (loader.dataset) as the third argument"),
    ({"module": NETWORK}, "module: give the model as the first argument"),
    ({"loss_reduction": "sum"}, "loss_reduction: write reduction='sum'"),
    ({"max_physical_batch_size": 64}, "max_physical_batch_size: write batch_size=64"),
    ({"grad_sample_mode": "hooks"}, "grad_sample_mode: leave it out"),
    ({"workers": 2}, "workers: write num_workers=2"),
    ({"collate": print}, "collate: write collate_fn="),
    ({"lotsize": 2}, "lotsize: write lot_size="),
    ({"frobnicate": 2}, "frobnicate: leave it out"),
    ({"target_epsilon": 3.0, "max_grad_norm": 1.0}, "max_grad_norm: write clipping=1.0"),
]


@pytest.mark.parametrize(("settings", "message"), OPACUS, ids=[" ".join(settings) for settings, _ in OPACUS])
def test_keywords_of_other_libraries_get_what_to_write(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        tacit.make_private(**settings)  # though others are missing
    assert str(caught.value).startswith(f"make_private has no argument {', '.join(settings)}. Instead of ")
    assert message in str(caught.value)


def test_opacus_wrappers_are_refused_by_name(make: Any) -> None:
    opacus = pytest.importorskip("opacus")
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="GradSampleModule belongs to Opacus"):
        make(opacus.GradSampleModule(model), torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("clipping", [0.5, 2, lambda step: 0.5, lambda step: tacit.Flat(0.5)])
def test_a_number_for_clipping_means_flat_clipping(make: Any, clipping: Any) -> None:
    norm = 2.0 if clipping == 2 else 0.5
    plain, strategy = make(clipping=clipping)[2], make(clipping=tacit.Flat(norm))[2]
    assert plain.next_step() == strategy.next_step()


def test_a_budget_takes_its_numbers_in_order(make: Any) -> None:
    assert tacit.Budget(2.0, 1e-5) == tacit.Budget(epsilon=2.0, delta=1e-5)
    assert make(budget=tacit.Budget(2.0, 1e-5), steps=2)[2].budget.epsilon == 2.0


def test_schedules_that_may_depend_on_releases_are_not_asked_ahead(make: Any) -> None:
    asked: list[int] = []

    def clipping(step: int) -> float:
        asked.append(step)
        return 1.0

    make(clipping=clipping, noise_multiplier=1.0, budget=tacit.AdaptiveBudget(5.0, 1e-5))
    assert set(asked) == {0}
    make(clipping=clipping, budget=tacit.Budget(5.0, 1e-5))
    assert set(asked) == {0, 1, 2, 3}


def pairs(rows: list[Any]) -> dict[str, Any]:
    return {"x": torch.stack([x for x, _ in rows]), "y": torch.tensor([int(y) for _, y in rows])}


def test_a_data_loader_gives_its_data_set_and_its_sampler_is_replaced(
    make: Any, train: Any, silence: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    weights = []
    for dataset in (DATA, loader(batch_size=7, shuffle=True), loader(batch_size=7, sampler=RandomSampler(DATA))):
        torch.manual_seed(0)
        model, _, run = make(dataset=dataset, lot_size=60, steps=2)
        train(run)
        weights.append(model.weight.detach())
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    assert "the DataLoader's RandomSampler and batch_size=7 are replaced" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_gives_its_collate_fn_and_workers(make: Any, workers: int) -> None:
    model, optimizer, run = make(dataset=loader(collate_fn=pairs, num_workers=workers), lot_size=30, steps=2)
    for batch in run.batches():
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
    assert run.step == 2 and (run._lots._drawing._reader._loader is not None) == bool(workers)


def test_arguments_win_over_those_of_the_data_loader(make: Any) -> None:
    _, _, run = make(dataset=loader(collate_fn=print, num_workers=2), collate_fn=pairs, num_workers=0, lot_size=60)
    assert set(next(run.batches())) == {"x", "y"} and run._lots._drawing._reader._loader is None


def test_the_remedy_for_a_weighted_sampler_works(make: Any) -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])
    model, optimizer, run = make(steps=2)
    for x, y in run.batches():
        F.cross_entropy(model(x), y, weight=weights, reduction="none").mean().backward()
        optimizer.step()
    assert run.step == 2


def test_the_remedy_for_names_of_users_works(make: Any) -> None:
    names = ["ann", "bob", "eve"] * 20
    _, _, run = make(users=np.unique(names, return_inverse=True)[1], examples_per_user=2, lot_size=2)
    assert run.sampler.records == 3
