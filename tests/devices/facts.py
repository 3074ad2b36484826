"""What Tacit computes on the second device beside what it computes on the CPU; prints one JSON object."""

from __future__ import annotations

import json
import logging
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from second_device import NAME, SecondDevice
from steps import CASES, Tables, mlp, tables

import tacit
from tacit import gradients
from tacit.mechanisms.noise import add_gaussian_
from tacit.mechanisms.noise_ahead import PIECE, NoiseAhead
from tacit.randomness import SeededSource

EXAMPLES = 5


def clipped_sums(name: str) -> dict[str, float]:
    """Return how far norms and clipped sums on the device are from those on the CPU, relative to the largest."""
    torch.manual_seed(3)
    model, data, loss = CASES[name]()
    found = []
    for device in ("cpu", NAME):
        model = model.to(device)
        with gradients.record(model) as tape:
            loss(model, *(each[:EXAMPLES].to(device) for each in data)).backward()
        norms = tape.norms()
        clipping = tacit.Flat(float(norms.median())).bind(tape.shapes)
        sums = tape.clipped_sum(clipping)
        found.append((norms.cpu(), torch.cat([each.cpu().reshape(-1) for each in sums.values()])))
    (norms, sums), (other_norms, other_sums) = found
    return {
        "norms": float((norms - other_norms).abs().max() / norms.max()),
        "sums": float((sums - other_sums).abs().max() / sums.abs().max()),
    }


def not_finite() -> list[float]:
    """Return the clipped sum of a batch with an infinite example, and that of the batch without it."""
    torch.manual_seed(4)
    model, (x, y), loss = mlp()
    model = model.to(NAME)
    x, y = x[:EXAMPLES].clone(), y[:EXAMPLES]
    x[2] = math.inf
    found = []
    for rows in (torch.arange(EXAMPLES), torch.tensor([0, 1, 3, 4])):
        with gradients.record(model) as tape:
            loss(model, x[rows].to(NAME), y[rows].to(NAME)).backward()
        sums = tape.clipped_sum(tacit.Flat(1.0).bind(tape.shapes))
        found.append(sum(float(each.cpu().double().sum()) for each in sums.values()))
    return found


def cancelling() -> dict[str, Any]:
    """Return norms and sums of a batch in which one example's large terms cancel, beside those of the CPU."""
    torch.manual_seed(5)
    layer = nn.Linear(40, 24, bias=False)
    x, c = torch.randn(EXAMPLES, 6, 40), torch.randn(EXAMPLES, 6, 24)
    x[0, 1], c[0, 1] = x[0, 0], -c[0, 0]
    c[0, :2] *= 2.0**40
    found = []
    for device in ("cpu", NAME):
        layer = layer.to(device)
        with gradients.record(layer, reduction="sum") as tape:
            (layer(x.to(device)) * c.to(device)).sum().backward()
        norms = tape.norms().cpu()
        found.append((norms, tape.clipped_sum(tacit.Flat(1.0).bind(tape.shapes))["weight"].cpu()))
    (norms, sums), (other_norms, other_sums) = found
    rest = torch.einsum("to,ti->oi", c[0, 2:].double(), x[0, 2:].double())
    return {
        "norms": float(((norms - other_norms).abs() / norms).max()),
        "sums": float((sums - other_sums).abs().max()),
        "first": float(other_norms[0] / rest.norm()),
    }


def _failure(act: Callable[[], Any]) -> str:
    try:
        act()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def written(where: str) -> str:
    """Return how a run refuses a write to a parameter or a buffer between the batch and the step."""
    model, data, loss = tables()
    model = model.to(NAME)
    assert isinstance(model, Tables)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(*data),
        lot_size=4,
        steps=3,
        clipping=1.0,
        noise_multiplier=1.0,
        sampling="fixed-size",
        trial=False,
    )
    tensor = model.get_parameter(where) if where in dict(model.named_parameters()) else model.get_buffer(where)

    def train() -> None:
        for (x,) in run.batches():
            loss(model, x.to(NAME)).backward()
            if run.step == 1:
                tensor.data.view(-1)[0] += 1
            optimizer.step()

    return _failure(train)


def noise_ahead() -> dict[str, Any]:
    """Return what `NoiseAhead` hands out beside the values that its source draws."""
    device, count = torch.device(NAME, 0), 3 * PIECE + 5
    ahead = NoiseAhead(count, torch.float32, device)
    source, same = SeededSource(1), SeededSource(1)
    draws, right = [], True

    def take(many: int) -> torch.Tensor | None:
        return ahead.take(many, torch.float32, device)

    for _ in range(2):
        ahead.draw(source)
        taken = [take(PIECE), take(count - PIECE)]
        values = torch.cat([each.cpu() for each in taken if each is not None])
        wanted = torch.cat([same.normal_(torch.empty(len(piece))) for piece in torch.empty(count).split(PIECE)])
        right = right and torch.equal(values, wanted)
        draws.append(values)
        more = take(1)
        ahead.release()
    ahead.draw(source)
    ahead.discard()
    return {
        "right": right,
        "repeated": bool((draws[0] == draws[1]).float().mean() > 1e-3),
        "more": more is not None,
        "discarded": take(1) is not None,
    }


def noisy_sums() -> dict[str, float]:
    """Return the deviation of noise on sums of two scales, and how far the noisy sums are from their grids."""
    device = torch.device(NAME, 0)
    totals = [torch.full((300, 500), 7.0).to(device), torch.zeros(400, 1000).to(device)]
    ahead = NoiseAhead(sum(total.numel() for total in totals), torch.float32, device)
    source = SeededSource(2)
    ahead.draw(source)
    source.drawn = ahead.take
    add_gaussian_([(totals[0], 3.0), (totals[1], 0.01)], source)
    first, second = (total.cpu().double() for total in totals)
    return {
        "first": float(first.std()) / 3.0,
        "mean": float(first.mean()),
        "second": float(second.std()) / 0.01,
        "left": ahead.take(1, torch.float32, device) is not None,
        "off_grid": float((first * 2**13 - (first * 2**13).round()).abs().max()),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "ieee"  # as a run would
    SecondDevice()
    here, there = torch.ones(3), torch.ones(3).to(NAME)
    print(
        json.dumps(
            {
                "mixed": _failure(lambda: torch.cat([there, here])),
                "sums": {name: clipped_sums(name) for name in ("mlp", "tables", "resnet18")},
                "not_finite": not_finite(),
                "cancelling": cancelling(),
                "written": {where: written(where) for where in ("conv.bias", "narrow", "number")},
                "noise_ahead": noise_ahead(),
                "noisy_sums": noisy_sums(),
            }
        )
    )


if __name__ == "__main__":
    main()
