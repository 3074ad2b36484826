"""Silly and wrong inputs of `make_private`, each with the sentence that a user gets; none is charged for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import data

import tacit

X, Y = torch.zeros(40, 4), torch.zeros(40, dtype=torch.long)


def loader(**settings: Any) -> Any:
    return data.DataLoader(data.TensorDataset(X, Y), **settings)


def optimizer_of_another_model() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


CASES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    # the model and the optimizer
    "the class of the model": (lambda: {"model": nn.Linear}, "model is the class Linear; give the torch.nn.Module"),
    "a function as the model": (lambda: {"model": torch.relu}, "give the torch.nn.Module to train"),
    "no model": (lambda: {"model": None}, "model is of type NoneType; give the torch.nn.Module"),
    "a frozen model": (lambda: {"model": frozen()}, "call requires_grad_(True) on those to train"),
    "batch normalisation": (lambda: {"model": nn.BatchNorm1d(4)}, "tacit.fix"),
    "the class of the optimizer": (
        lambda: {"optimizer": torch.optim.SGD},
        "optimizer is the class SGD; make one first",
    ),
    "a name as the optimizer": (lambda: {"optimizer": "adam"}, "make one first: torch.optim.SGD(model.parameters()"),
    "an optimizer of another model": (
        lambda: {"optimizer": optimizer_of_another_model()},
        "does not hold weight, bias; add them",
    ),
    # the data set
    "a path as the data set": (lambda: {"dataset": "people.csv"}, "read the records first, and give those"),
    "the class of the data set": (lambda: {"dataset": data.TensorDataset}, "make an instance of it"),
    "a dictionary of columns": (lambda: {"dataset": {"x": X, "y": Y}}, "torch.utils.data.TensorDataset(x, y)"),
    "a pair of tensors": (lambda: {"dataset": (X, Y)}, "write torch.utils.data.TensorDataset(x, y)"),
    "a generator": (lambda: {"dataset": (row for row in X)}, "make it map-style: dataset = list(stream)"),
    "an empty data set": (lambda: {"dataset": []}, "the data set is empty (its length is 0)"),
    "a weighted sampler": (
        lambda: {"dataset": loader(sampler=data.WeightedRandomSampler([1.0] * 40, 40))},
        "weight the loss with public class weights",
    ),
    "a sampler of a subset": (
        lambda: {"dataset": loader(sampler=data.SubsetRandomSampler(range(9)))},
        "torch.utils.data.Subset(loader.dataset, indices)",
    ),
    "a loader of whole batches": (lambda: {"dataset": loader(batch_size=None)}, "whose items are single records"),
    # how long, and how large
    "neither epochs nor steps": (lambda: {"steps": None}, "epochs is None and steps is None; give one of them"),
    "epochs and steps": (lambda: {"epochs": 1}, "epochs is 1 and steps is 3; give one of them"),
    "no epochs": (lambda: {"epochs": 0, "steps": None}, "epochs is 0; it must be a finite number above 0"),
    "half a step": (lambda: {"steps": 2.5}, "steps is 2.5; it must be a whole number, at least 1"),
    "an empty lot": (lambda: {"lot_size": 0}, "lot_size is 0; it must be from 1 to the number of records, 40"),
    "a lot larger than the data": (lambda: {"lot_size": 64}, "lot_size is 64; it must be from 1 to the number"),
    "a sampling rate as the lot size": (lambda: {"lot_size": 0.1}, "lot_size is 0.1; it must be a whole number"),
    "a batch of none": (lambda: {"batch_size": 0}, "batch_size is 0; it must be a whole number, at least 1"),
    # clipping, noise, budget
    "no clip norm": (lambda: {"clipping": 0}, "clipping is 0; a clip norm must be a finite number above 0"),
    "a clip norm without end": (lambda: {"clipping": math.inf}, "a clip norm must be a finite number above 0"),
    "the class of a strategy": (lambda: {"clipping": tacit.Flat}, "give a clip norm (clipping=1.0)"),
    "a name as the clipping": (lambda: {"clipping": "flat"}, "give a clip norm (clipping=1.0)"),
    "neither noise nor budget": (lambda: {"noise_multiplier": None}, "give a budget, from which the noise is solved"),
    "no noise": (lambda: {"noise_multiplier": 0.0}, "noise multiplier is 0.0; it must be a finite number above 0"),
    "noise below zero": (lambda: {"noise_multiplier": -1.0}, "noise multiplier is -1.0; it must be a finite number"),
    "noise in words": (lambda: {"noise_multiplier": "1.0"}, "it must be a finite number above 0"),
    "a number as the budget": (lambda: {"budget": 2.0}, "write budget=tacit.Budget(epsilon=2.0, delta=1e-5)"),
    "a pair as the budget": (lambda: {"budget": (2.0, 1e-5)}, "write budget=tacit.Budget(epsilon=2.0, delta=1e-5)"),
    "a budget below zero": (
        lambda: {"budget": tacit.Budget(-1.0, 1e-5)},
        "budget epsilon is -1.0; it must be a finite number",
    ),
    "a delta of two": (lambda: {"budget": tacit.Budget(1.0, 2.0)}, "budget delta is 2.0; it must be in (0, 1)"),
    # keywords of Opacus
    "max_grad_norm": (lambda: {"max_grad_norm": 1.2}, "write clipping=1.2"),
    "target_epsilon": (lambda: {"target_epsilon": 3}, "write budget=tacit.Budget(epsilon=3, delta=1e-5)"),
    "expected_batch_size": (lambda: {"expected_batch_size": 64}, "write lot_size=64"),
    "poisson_sampling": (lambda: {"poisson_sampling": True}, "write sampling='poisson'"),
    "a keyword with a slip": (lambda: {"lotsize": 8}, "write lot_size="),
    # the rest
    "an unknown sampling": (lambda: {"sampling": "uniform"}, "sampling is 'uniform'; choose one of 'poisson'"),
    "an unknown adjacency": (lambda: {"adjacency": "swap"}, "adjacency is 'swap'; choose 'add/remove'"),
    "an unknown accountant": (lambda: {"accountant": "gdp"}, "accountant is 'gdp'; choose one of pld"),
    "users of another number": (
        lambda: {"users": [1, 2], "examples_per_user": 1},
        "users has 2 entries; the data set has 40",
    ),
    "no examples of a user": (
        lambda: {"users": [0] * 40, "examples_per_user": 0},
        "examples_per_user is 0; it must be",
    ),
    "a microbatch of none": (lambda: {"microbatch_size": 0}, "microbatch_size is 0; it must be a whole"),
    "workers below zero": (lambda: {"num_workers": -1}, "num_workers is -1; it must be a whole number, at least 0"),
    "a collate function in words": (lambda: {"collate_fn": "stack"}, "give a function that takes a list of examples"),
    "a number as a metric": (lambda: {"metrics": {"loss": 5.0}}, "write metrics={'loss': tacit.Metric(bound=5.0)}"),
    "a metric without a bound": (lambda: {"metrics": {"loss": tacit.Metric(bound=0.0)}}, "bound of a metric is 0.0"),
    "a switch as parallel": (lambda: {"parallel": True}, "write parallel=tacit.Parallel()"),
    "a text as public buffers": (
        lambda: {"public_buffers": "counter"},
        "give a list of names or patterns: ['counter']",
    ),
    "an unknown reduction": (lambda: {"reduction": "average"}, "choose 'mean', 'sum' or 'none', or leave it out"),
}


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 45


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_gets_its_sentence_and_is_not_charged(name: str, tmp_path: Path) -> None:
    make, sentence = CASES[name]
    model = nn.Linear(4, 3)
    usual: dict[str, Any] = {
        "model": model,
        "optimizer": None,
        "dataset": data.TensorDataset(X, Y),
        "lot_size": 8,
        "steps": 3,
        "clipping": 1.0,
        "noise_multiplier": 1.0,
        "ledger": tmp_path / "ledger.jsonl",
    }

    def try_it() -> None:
        given = usual | make()
        chosen = given["model"] if isinstance(given["model"], nn.Module) else model
        if given["optimizer"] is None:
            given["optimizer"] = torch.optim.SGD(chosen.parameters(), lr=0.1)
        tacit.make_private(**given)

    with pytest.raises((ValueError, TypeError)) as caught:
        try_it()
    said = str(caught.value)
    assert sentence in said
    assert ("\n" in said or said.endswith(".")) and len(said) < 700  # a sentence, or a list of problems
    written = tmp_path / "ledger.jsonl"
    assert not written.exists() or len(tacit.Ledger.load(written)) == 0
    usual["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    tacit.make_private(**usual).close()  # the model is as it was, and the ledger free
