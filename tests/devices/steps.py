"""Launches and synchronisations of a private step on the second device: `python tests/devices/steps.py [--sites]`.

Prints one JSON object: for each model, what an ordinary step and a private step cost. With ``--sites``, where.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from second_device import NAME, Counts, SecondDevice

import tacit

LOT = 4
Case = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


class Block(nn.Module):
    """A residual block with GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)
        short = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs)]
        self.short = nn.Sequential(*short) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.short(x))


def mlp(layers: int = 2) -> Case:
    hidden = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(layers - 2)]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *hidden, nn.Linear(16, 3))
    return model, (torch.randn(64, 8), torch.randint(0, 3, (64,))), _classify


def resnet18(width: int = 8) -> Case:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(2, width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return model, (torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))), _classify


def gpt2(layers: int = 12) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_head=4,
        n_embd=32,
        vocab_size=101,
        n_positions=16,
        attn_implementation="eager",
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config), (torch.randint(0, 101, (64, 8)),), _predict


class Tables(nn.Module):
    """Several tables, one of them also the output matrix, buffers of several types, and widths of no power of two."""

    def __init__(self, words: int = 13, width: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(9, width)
        self.conv, self.norm = nn.Conv1d(width, width, 3, padding=1), nn.LayerNorm(width)
        self.register_buffer("scale", torch.full((width,), 0.5))
        self.register_buffer("narrow", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.ones(words, dtype=torch.bool))
        self.register_buffer("number", torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.words(x) * self.scale + self.places(places)
        hidden = self.norm(hidden + self.conv(hidden.transpose(1, 2)).transpose(1, 2))
        return F.linear(hidden, self.words.weight)


def tables() -> Case:
    return Tables(), (torch.randint(0, 13, (64, 9)),), _next_word


CASES: dict[str, Callable[..., Case]] = {"mlp": mlp, "tables": tables, "resnet18": resnet18, "gpt2": gpt2}


def _classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _next_word(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x)[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1).mean()


def _predict(model: nn.Module, x: Tensor) -> Tensor:
    logits = model(input_ids=x).logits
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1).mean()


def ordinary(device: SecondDevice, case: Case) -> Counts:
    """Count the second step of ordinary training."""
    model, data, loss = case
    model = model.to(NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(2):
        with device.counting() as counts:
            loss(model, *(each[:LOT].to(NAME) for each in data)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(counts)
    return found[-1]


class Sites:
    """Where in Tacit's files the launches and synchronisations come from."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()

    def __call__(self, name: str, times: int, waits: bool) -> None:
        own = [frame for frame in traceback.extract_stack() if "/tacit/" in frame.filename]
        at = " < ".join(f"{f.filename.rpartition('/tacit/')[2]}:{f.lineno}" for f in reversed(own[-3:]))
        (self.syncs if waits else self.launches)[f"{at or 'elsewhere'} {name}"] += times


def private(device: SecondDevice, case: Case, sites: Sites | None = None) -> Counts:
    """Count a private step, one after the trial and the first steps, in which nobody's gradient is out of bounds."""
    model, data, loss = case
    model = model.to(NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(*data),
        lot_size=LOT,
        steps=4,
        clipping=tacit.Flat(1.0),
        noise_multiplier=1.0,
        sampling="fixed-size",
    )
    batches, found = run.batches(), []
    while run.step < run.steps:
        with device.counting(sites if run.step == run.steps - 1 else None) as counts:
            batch = next(batches)
            loss(model, *(each.to(NAME) for each in batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(counts)
    batches.close()
    run.close()
    return found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*CASES])
    parser.add_argument("--sites", action="store_true", help="print where, most first, before the JSON")
    parser.add_argument("--layers", type=int, nargs="*", default=[], help="numbers of layers, for mlp and gpt2")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    device, found = SecondDevice(), {}
    for name, layers in [(name, layers) for name in options.models for layers in options.layers or [None]]:
        sites = Sites() if options.sites else None
        result: dict[str, Any] = {}
        make = functools.partial(CASES[name], layers) if layers else CASES[name]
        for mode, counts in (
            ("ordinary", ordinary(device, make())),
            ("private", private(device, make(), sites)),
        ):
            result[mode] = {
                "launches": counts.launches.total(),
                "synchronisations": counts.syncs.total(),
                "waits": dict(counts.syncs),
            }
        found[f"{name} {layers}" if layers else name] = result
        for kind in (sites.syncs, sites.launches) if sites else ():
            for site, times in kind.most_common(60):
                print(f"{times:6} {site}")
            print()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
