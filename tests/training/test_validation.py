"""`tacit.validate` lists every problem of a model; `tacit.fix` replaces what has a private counterpart."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tacit
from tacit.training import PrivateBatchNorm


class Network(nn.Module):
    """A model with a problem of every kind that can be seen in its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, max_norm=1.0, scale_grad_by_freq=True)
        self.norm = nn.BatchNorm1d(8)
        self.instance = nn.InstanceNorm1d(8, track_running_stats=True)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.table(x).mean(1))
        h = self.instance(h.unsqueeze(-1).expand(-1, -1, 4)).mean(-1)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)  # type: ignore[no-any-return]


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(self.norm(x))
        return h - h.mean(0)


def small_run(model: nn.Module, x: Tensor, **settings: Any) -> Any:
    data = torch.utils.data.TensorDataset(x, torch.arange(len(x)) % 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model, optimizer, data, lot_size=len(x) // 2, steps=2, clipping=1.0, noise_multiplier=1.0, **settings
    )
    for a, b in run.batches():
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    return run


def test_all_problems_of_the_modules_are_listed_at_once() -> None:
    found = tacit.validate(Network())
    assert [problem.partition(" ")[0] for problem in found] == ["table", "table", "norm", "instance"] + [
        f"blocks.{i}.1" for i in range(2)
    ]
    assert "tacit.fix(model)" in next(problem for problem in found if "norm (" in problem)


@pytest.mark.parametrize("kind", ["group", "private"])
def test_a_fixed_model_is_valid_and_trains(kind: Any) -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = tacit.fix(model, batch_norm=kind)
    assert len(done) == 6 and all(": " in sentence for sentence in done)
    words = torch.randint(10, (40, 5))
    assert tacit.validate(model, words[:8]) == []
    assert tacit.fix(model, batch_norm=kind) == []
    assert {id(p) for p in model.parameters()} <= {id(p) for group in optimizer.param_groups for p in group["params"]}
    small_run(model, words).close()


def test_groups_divide_the_channels_and_weights_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48, eps=1e-3), nn.Conv2d(48, 5, 1), nn.BatchNorm2d(5))
    nn.init.uniform_(model[1].weight)
    weight, bias = model[1].weight, model[1].bias
    tacit.fix(model)
    assert isinstance(model[1], nn.GroupNorm) and (model[1].num_groups, model[1].eps) == (8, 1e-3)
    assert model[1].weight is weight and model[1].bias is bias
    assert isinstance(model[3], nn.GroupNorm) and model[3].num_groups == 1
    model(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize("layers", [(nn.Linear(8, 32), nn.BatchNorm1d(32)), (nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32))])
def test_a_fixed_normalisation_without_pixels_still_tells_examples_apart(layers: Any) -> None:
    model = nn.Sequential(*layers)
    tacit.fix(model)
    x = torch.randn(6, 8) if isinstance(layers[0], nn.Linear) else torch.randn(6, 8, 1, 1)
    found = model(x).flatten(1)
    assert found.std(0).min() > 0.05 and found.abs().unique().numel() > 100
    model(x[:1])  # PyTorch refuses a single value in each group


def test_a_batch_normalisation_with_a_forward_of_its_own_is_left_to_its_user() -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(x))

    model = nn.Sequential(nn.Conv2d(3, 8, 1), Activated(8))
    assert ["replace it by hand" in sentence for sentence in tacit.fix(model)] == [True]
    assert isinstance(model[1], Activated)


def test_activations_inside_the_normalisations_of_timm_stay() -> None:
    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self) -> None:
            super().__init__(8)
            self.drop, self.act = nn.Identity(), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]

    BatchNormAct2d.__module__ = "timm.layers.norm_act"
    model = nn.Sequential(nn.Conv2d(3, 8, 1), BatchNormAct2d())
    weight = model[1].weight
    tacit.fix(model)
    assert [type(layer) for layer in model[1]] == [nn.GroupNorm, nn.Identity, nn.ReLU] and model[1][0].weight is weight
    assert model(torch.randn(2, 3, 4, 4)).min() == 0


def test_private_batch_normalisation_keeps_what_pretraining_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model(torch.randn(64, 4))
    before = copy.deepcopy(model).eval()
    lost = tacit.fix(copy.deepcopy(model))
    assert "statistics it had are lost" in lost[0] and "batch_norm='private'" in lost[0]
    done = tacit.fix(model, batch_norm="private")
    assert isinstance(model[1], PrivateBatchNorm) and "must be of public data" in done[0]
    x = torch.randn(5, 4)
    torch.testing.assert_close(model.eval()(x), before(x))


def test_frozen_layers_stay_and_a_model_in_evaluation_mode_is_judged_as_in_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()
    assert tacit.validate(model) == [] and tacit.fix(model) == [] and isinstance(model[1], nn.BatchNorm1d)
    model.eval()
    assert len(tacit.validate(model)) == 1 and not model.training
    assert len(tacit.fix(model)) == 1 and isinstance(model[1], nn.GroupNorm) and not model[1].training


def test_a_layer_in_two_places_stays_one_layer() -> None:
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    assert len(tacit.fix(model)) == 1 and model[0] is model[2]


def test_a_batch_shows_operations_that_mix_examples_behind_other_problems() -> None:
    model = Mixing()
    before = copy.deepcopy(model.state_dict())
    found = tacit.validate(model, torch.randn(8, 4))
    assert len(found) == 2 and "BatchNorm1d" in found[0] and "quantity of the whole batch" in found[1]
    assert type(model.norm) is nn.BatchNorm1d and not model._forward_pre_hooks
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert len(tacit.validate(model)) == 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        (nn.LazyLinear(2), "has no shape yet"),
        (nn.Linear(2, 2, device="meta"), "on 'meta' and has no values"),
        (nn.DataParallel(nn.Linear(2, 2)), "is or has a DataParallel"),
        (nn.SyncBatchNorm(3), "is or has a SyncBatchNorm"),
    ],
)
def test_other_problems_are_listed_too(model: nn.Module, words: str) -> None:
    assert any(words in problem for problem in tacit.validate(model))


def test_synchronised_batch_normalisation_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.SyncBatchNorm(4))
    tacit.fix(model)
    assert tacit.validate(model, torch.randn(8, 2)) == []


def test_compiled_modules_are_no_problem() -> None:
    """They run uncompiled in private training."""
    model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2))
    model[1].compile(backend="eager")
    assert tacit.validate(model) == [] and tacit.fix(model) == []
    assert tacit.validate(model, torch.randn(8, 2)) == []


def test_other_kinds_of_normalisation_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_norm is 'layer'; choose 'group' or 'private'"):
        tacit.fix(nn.Linear(2, 2), batch_norm="layer")  # type: ignore[arg-type]


def test_make_private_names_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"tacit\.fix\(model\)"):
        small_run(Mixing(), torch.randn(20, 4))
