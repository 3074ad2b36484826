"""Every network through the gradient engine, against one example at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import gradients
from tacit.models import abadi, shokri

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "abadi mnist": (abadi.mnist_mlp, (60,)),
    "abadi cifar": (abadi.cifar_cnn, (3, 24, 24)),
    "shokri mnist mlp": (lambda: shokri.mlp(channels=1), (1, 32, 32)),
    "shokri svhn mlp": (lambda: shokri.mlp(channels=3), (3, 32, 32)),
    "shokri mnist cnn": (shokri.mnist_cnn, (1, 32, 32)),
    "shokri svhn cnn": (shokri.svhn_cnn, (3, 32, 32)),
}


class Clip:
    def __init__(self, bound: float) -> None:
        self.bound = bound

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (self.bound / norms).clamp(max=1.0)


@pytest.mark.parametrize("name", CASES)
def test_norms_and_clipped_sum(name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    build, shape = CASES[name]
    model, x, y = build().double(), torch.randn(3, *shape, dtype=torch.float64), torch.tensor([1, 0, 7])
    rows = []
    for i in range(3):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    norms = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])
    with gradients.record(model) as tape:
        F.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(tape.norms().double(), norms, rtol=1e-5, atol=0)
    clip = Clip(float(norms.median()) * 0.9)
    total = tape.clipped_sum(clip)
    for j, (parameter, _) in enumerate(model.named_parameters()):
        wanted = sum(weight * row[j] for weight, row in zip(clip.weights(norms), rows))
        torch.testing.assert_close(total[parameter].double(), wanted, rtol=1e-5, atol=1e-9)
