"""Other people's data sets and wrappers: Hugging Face data sets, Lightning Fabric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients.precision import MARGIN


def hugging_face(data: TensorDataset) -> Any:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed (extra 'hf')")
    x, y = data.tensors
    return datasets.Dataset.from_dict(
        {"pixels": x.tolist(), "label": y.tolist(), "text": [f"example {i}" for i in range(len(x))]}
    )


def rows(examples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([example["pixels"] for example in examples]), torch.tensor([e["label"] for e in examples])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["torch", "plain"])
def test_a_hugging_face_data_set_gives_what_the_tensors_give(
    make: Any, silence: Any, data: TensorDataset, form: str, workers: int
) -> None:
    """Everybody in the lot and no noise: the same sums, whatever holds the examples and whoever reads them."""
    dataset = hugging_face(data)
    settings: dict[str, Any] = {"lot_size": 60, "batch_size": 25, "steps": 2}
    ends = []
    for kind in ("tensors", "hugging face"):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        if kind == "tensors":
            run = make(model, **settings)[2]
        elif form == "torch":
            run = make(model, None, dataset.with_format("torch"), num_workers=workers, **settings)[2]
        else:
            run = make(model, None, dataset, num_workers=workers, collate_fn=rows, **settings)[2]
        for batch in run.batches():
            x, y = (batch["pixels"], batch["label"]) if isinstance(batch, dict) else batch
            F.cross_entropy(model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        ends.append(model.weight.detach().clone())
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_lot_of_a_hugging_face_data_set_is_a_step(make: Any, data: TensorDataset, workers: int) -> None:
    model, optimizer, run = make(
        dataset=hugging_face(data).with_format("torch"), lot_size=1, steps=40, num_workers=workers
    )
    sizes = []
    for batch in run.batches():
        assert batch["pixels"].shape[1:] == (4,) and batch["pixels"].dtype == torch.float32
        assert batch["label"].dtype == torch.int64 and len(batch["text"]) == len(batch["label"])
        sizes.append(len(batch["pixels"]))
        F.cross_entropy(model(batch["pixels"]), batch["label"]).backward()
        optimizer.step()
    assert 0 in sizes and run.step == len(run.ledger) == 40  # nobody is in it with chance 0.36; never in 40: 2e-8


ORDERS = ["run first", "wrapped", "inner", "inner model"]


def fabric_run(order: str, data: TensorDataset, precision: str, **settings: Any) -> tuple[Any, Any, Any, Any]:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed (extra 'lightning')")
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
    fabric.launch()
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    inner = torch.optim.SGD(plain.parameters(), lr=0.1)
    chosen = {"lot_size": 60, "batch_size": 25, "steps": 2, "noise_multiplier": 1.0, **settings}
    if order == "run first":
        run = tacit.make_private(plain, inner, data, **chosen)
        model, optimizer = fabric.setup(plain, inner)
    else:
        model, optimizer = fabric.setup(plain, inner)
        of = {"wrapped": (model, optimizer), "inner": (plain, inner), "inner model": (plain, optimizer)}
        run = tacit.make_private(*of[order], data, **chosen)
    return fabric, model, optimizer, run


@pytest.mark.parametrize("order", ORDERS)
def test_a_fabric_loop_releases_what_a_plain_loop_does(noise: Any, data: TensorDataset, order: str) -> None:
    """In whatever order things are wrapped: clipped one by one, noised once, and only then seen by the optimizer."""
    fabric, model, optimizer, run = fabric_run(order, data, "32-true", clipping=tacit.Flat(0.5))
    inner = model.module
    for _ in range(2):
        before = {name: p.detach().clone() for name, p in inner.named_parameters()}
        wanted = {name: torch.zeros_like(p) for name, p in before.items()}
        for gradient in clipped(before, data, 0.5):
            for name, value in gradient.items():
                wanted[name] += value
        noise.added.clear()
        for x, y in run.lot():
            fabric.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        assert len(noise.added) == 2  # weight and bias, once each
        for (name, p), (total, std, values) in zip(inner.named_parameters(), noise.added, strict=True):
            torch.testing.assert_close(total, wanted[name], atol=1e-5, rtol=1e-4)
            assert std == 0.5 * (1 + MARGIN)
            torch.testing.assert_close(p.detach(), before[name] - 0.1 * (total + values) / 60)
    assert run.step == len(run.ledger) == 2


def clipped(weights: dict[str, Tensor], data: TensorDataset, bound: float) -> list[dict[str, Tensor]]:
    """Each example's gradient at the given weights, clipped: the slow and obvious way."""
    found = []
    for x, y in zip(*data.tensors, strict=True):
        own = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(F.linear(x[None], own["weight"], own["bias"]), y[None])
        gradients = torch.autograd.grad(loss, list(own.values()))
        factor = min(1.0, bound / float(torch.cat([g.flatten() for g in gradients]).norm()))
        found.append({name: factor * g for name, g in zip(own, gradients, strict=True)})
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_mixed_precision_does_not_loosen_the_bound(silence: Any, order: str) -> None:
    """One record, far above the clip norm, computed in bfloat16."""
    one = TensorDataset(100 * torch.ones(1, 4), torch.tensor([2]))
    fabric, model, optimizer, run = fabric_run(order, one, "bf16-mixed", clipping=tacit.Flat(0.5), lot_size=1, steps=1)
    for x, y in run.batches():
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
    norm = torch.cat([total.flatten() for total, _, _ in silence.added]).double().norm()
    assert 0.49 < float(norm) <= 0.5


def test_a_loader_that_fabric_has_set_up_gives_its_data_set(make: Any, data: TensorDataset) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed (extra 'lightning')")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    model, optimizer, run = make(dataset=loader, lot_size=20, steps=2)
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 2
