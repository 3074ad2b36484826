"""Clipped sums of float64 gradients are the definition's to 1e-9, whatever the strategy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import gradients

STRATEGIES: dict[str, Any] = {
    "flat": tacit.Flat(0.3),
    "per layer": tacit.PerLayer(each=0.2),
    "groups": tacit.Groups({"0.*": 0.2, "2.*": 0.3}),
    "joint": tacit.Joint({"0.*": 1.0, "2.*": 2.0}, clip_norm=0.3),
    "automatic": tacit.Automatic(),
    "adaptive": tacit.Adaptive(initial=0.3),
}


def factors(bound: Any, norms: Tensor) -> Tensor:
    """Return S_g / n_g, at most 1, of every vector, by the definition of a group's norm."""
    columns, start = torch.ones_like(norms), 0
    for group in bound.groups:
        places = range(start, start + len(group.vectors))
        start += len(group.vectors)
        scaled = [norms[:, c] / vector.scale for c, vector in zip(places, group.vectors)]
        joint = torch.stack(scaled).square().sum(0).sqrt()
        clipped = (group.clip_norm / joint).clamp(max=1)
        own = clipped if group.stability is None else group.clip_norm / (joint + group.stability)
        columns[:, list(places)] = own[:, None]
    return columns


@pytest.mark.parametrize("name", STRATEGIES)
def test_float64_clipped_sums_have_no_safety_factor_above_1e_9(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    shapes = {n: p.shape for n, p in model.named_parameters()}
    x, y = torch.randn(6, 8).double(), torch.randint(0, 3, (6,))
    rows = []
    for i in range(6):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    bound = STRATEGIES[name].bind(shapes, lot_size=6)
    engine = gradients.attach(model)
    F.cross_entropy(model(x), y).backward()
    found = engine.clipped_sum(bound)
    parts = bound.partition(shapes)
    norms = torch.stack([torch.stack([torch.cat([r[n].flatten() for n in g]).norm() for g in parts]) for r in rows])
    columns = factors(bound, norms)
    assert (columns < 0.9).any(), "nothing was clipped"
    for column, names in zip(columns.unbind(1), parts):
        for n in names:
            wanted = sum(w * row[n] for w, row in zip(column, rows))
            assert float((found[n] - wanted).norm() / wanted.norm()) < 1e-9  # type: ignore[union-attr]
