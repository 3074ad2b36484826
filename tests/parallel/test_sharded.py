"""A model cut into shards (`fully_shard`): trained privately by two processes as by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., list[dict[str, Any]]]

MODELS = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

class Words(nn.Module):
    def __init__(self, words=11, width=6, length=5):
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(1, length, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.blocks(self.table(x) + self.places))

torch.manual_seed(11)
if kind == "words":
    model, parts = Words().double(), ("blocks.0", "blocks.1")
    data = torch.utils.data.TensorDataset(torch.randint(0, 11, (200, 5)), torch.randint(0, 11, (200, 5)))
else:
    model, parts = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double(), ("0", "2")

def cut(model):
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for part in parts:
            fully_shard(model.get_submodule(part), mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model

def losses(model, x, y):
    out = model(x)
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape).flatten(1 if y.ndim > 1 else 0)

def whole(tensor):
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
def all_of_it(model):
    return torch.cat([whole(p).flatten() for p in model.parameters()])
"""

TRAIN = (
    MODELS
    + """
tacit.randomness.Source.normal_ = lambda self, tensor, std=1.0: tensor.zero_()  # noise has tests of its own
cut(model)
optimizer = {optimizer}
run = tacit.make_private(
    model, optimizer, data, lot_size=20, batch_size=7, steps=20, clipping=tacit.{clipping}, noise_multiplier=1.0,
    metrics={{"loss": tacit.Metric(bound=3.0)}}, ledger=out / f"ledger-{{world}}.jsonl", seed=3, parallel=parallel,
    {more}
)
for bx, by in run.batches():
    loss = losses(model, bx, by)
    loss = loss.mean(1) if loss.ndim > 1 else loss
    run.observe(loss=loss.detach())
    loss.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
save(weights=all_of_it(model), loss=torch.tensor(run.metrics["loss"]),
     epsilon=torch.tensor(run.guarantee(1e-5).epsilon), steps=torch.tensor(len(run.ledger)))
"""
)

SGD, ADAM = "torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)", "torch.optim.Adam(model.parameters(), lr=0.05)"
KINDS = {
    "flat": ("mlp", "Flat(0.1)", SGD, ""),
    "transformer": ("words", "Flat(0.1)", ADAM, ""),
    "per layer": ("mlp", "PerLayer(total=0.1)", ADAM, ""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_steps_on_shards_are_those_of_one_process(processes: Run, kind: str) -> None:
    model, clipping, optimizer, more = KINDS[kind]
    code = TRAIN.format(clipping=clipping, optimizer=optimizer, more=more)
    (alone,) = processes(code, 1, kind=model)
    first, second = processes(code, 2, kind=model)
    for name in alone:
        assert torch.allclose(first[name], alone[name], rtol=1e-6, atol=1e-6), name
        assert torch.equal(first[name], second[name]), name
