"""Lists with one entry for each example (the boxes of images) are cut by example, and never taken for rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import tacit
from tacit.gradients import attach


class Detector(nn.Module):
    """Five boxes an image; each wanted box is compared with the nearest one, which is looked up in Python."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.net, self.shared = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 20)), shared

    def forward(self, images: Tensor | list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
        rows = images if isinstance(images, Tensor) else torch.stack([image.mean(0) for image in images])
        found = self.net(rows).view(-1, 5, 4)
        if self.shared:
            every = torch.cat([target["boxes"] for target in targets]).mean(0)
            return (found - every).square().mean()
        errors = []
        for boxes, target in zip(found, targets):
            nearest = torch.cdist(target["boxes"], boxes.detach()).argmin(1).tolist()
            errors.append(F.l1_loss(boxes[nearest], target["boxes"], reduction="sum"))
        return torch.stack(errors).sum() / sum(len(target["boxes"]) for target in targets)


def images(count: int, most: int = 3, *, ragged: bool = False) -> tuple[Any, list[dict[str, Tensor]]]:
    targets = [{"boxes": torch.randn(1 + i % most, 4)} for i in range(count)]
    return [torch.randn(2 + i % 2, 6) for i in range(count)] if ragged else torch.randn(count, 6), targets


def norms_alone(model: nn.Module, given: Any, targets: Any) -> Tensor:
    found = []
    for i in range(len(targets)):
        model.zero_grad()
        model(given[i : i + 1], targets[i : i + 1]).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())
    model.zero_grad()
    return torch.stack(found)


@pytest.mark.parametrize("ragged", [False, True], ids=["beside rows", "lists only"])
def test_boxes_of_each_image_are_cut_by_image(ragged: bool) -> None:
    torch.manual_seed(0)
    model = Detector()
    batches = [images(6, ragged=ragged), images(3, ragged=ragged), images(4, 1, ragged=ragged)]
    expected = [norms_alone(model, *batch) for batch in batches]
    engine = attach(model)
    for (given, targets), wanted in zip(batches, expected):
        given, targets = engine.trace((given, targets), len(targets))
        model(given, targets).backward()
        torch.testing.assert_close(engine.norms(), wanted, rtol=1e-5, atol=1e-6)
        engine.discard()
    assert engine.isolated == ("",)


def test_an_entry_with_as_many_rows_as_the_batch_has_examples_is_still_one_examples_own() -> None:
    torch.manual_seed(0)
    model = Detector()
    given, targets = torch.randn(4, 6), [{"boxes": torch.randn(4, 4)} for _ in range(4)]
    wanted = norms_alone(model, given, targets)
    engine = attach(model)
    model(*engine.trace((given, targets), 4)).backward()
    torch.testing.assert_close(engine.norms(), wanted, rtol=1e-5, atol=1e-6)


def test_a_model_that_compares_all_examples_with_everybodys_boxes_is_refused() -> None:
    torch.manual_seed(0)
    model = Detector(shared=True)
    engine = attach(model)
    given, targets = engine.trace(images(6), 6)
    with pytest.raises(ValueError, match="influence each other"):
        model(given, targets).backward()


def test_a_loss_in_the_loop_that_uses_another_examples_entry_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    engine = attach(model)
    given, targets = engine.trace(images(6), 6)
    with pytest.raises(ValueError, match="examples"):
        (model(given) - targets[0]["boxes"][0]).square().mean().backward()


class Scenes(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        boxes = torch.randn(1 + index % 3, 4, generator=generator)
        return torch.randn(2 + index % 2, 6, generator=generator), {"boxes": boxes}


def test_a_detection_loop_trains_with_the_collate_function_of_its_tutorial() -> None:
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model, optimizer, Scenes(), lot_size=8, steps=3, clipping=1.0, noise_multiplier=1.0,
        collate_fn=lambda records: tuple(zip(*records)), seed=0,
    )  # fmt: skip
    for given, targets in run.batches():
        model(list(given), list(targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 3 and run.engine.isolated == ("",)
