"""A black-box attack: canaries are inputs with a wrong label, scored by the losses of the finished model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.audit.bounds import best_guess
from tacit.audit.probe import claim_of, coins
from tacit.audit.result import Audit
from tacit.audit.setting import Setting, check_count
from tacit.randomness import Floats, SecureSource, SeededSource
from tacit.training import make_private

_FEATURES, _CLASSES = 4000, 2
_LENGTH = 10.0  # of an input, so that gradients are longer than the clip norm


def input_run(
    setting: Setting,
    *,
    canaries: int | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    model: Callable[[], nn.Module] | None = None,
    learning_rate: float = 1.0,
    seed: int | None = None,
) -> Audit:
    """Guess which of many mislabelled examples were in a single run, from the losses of its final model alone.

    ``data`` are public inputs and labels, one for each place; without it they are random, in so many dimensions that
    there is little to learn and much to remember. ``model`` makes the classifier; a linear one without. The first
    ``canaries`` examples get the next label instead of their own, and each is in or out by a fair coin. The score is
    how much the loss of a canary fell from the first model to the last.
    """
    canaries = max(10, setting.records // 2) if canaries is None else canaries
    check_count("canaries", canaries, 10, setting.records)
    x, y = _random(setting.records) if data is None else data
    if len(x) != setting.records or len(y) != setting.records:
        raise ValueError(f"data has {len(x)} inputs and {len(y)} labels; the setting has {setting.records} records.")
    classes = max(int(y.max()) + 1, 2)
    net = nn.Linear(x.flatten(1).shape[1], classes) if model is None else model()
    if model is None:
        x = x.flatten(1)
    y = y.clone()
    y[:canaries] = (y[:canaries] + 1) % classes
    included = coins(canaries, SecureSource() if seed is None else SeededSource(seed))
    weights = torch.ones(setting.records)
    weights[:canaries] = torch.from_numpy(included).float()

    before = _losses(net, x[:canaries], y[:canaries])
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    run = make_private(
        net,
        optimizer,
        TensorDataset(x, y, weights),
        lot_size=setting.lot_size,
        steps=setting.steps,
        clipping=setting.clipping,
        noise_multiplier=setting.noise_multiplier,
        reduction="sum",
        seed=None if seed is None else (seed + 1) * 10**8,
    )
    for inputs, labels, present in run.batches():
        (F.cross_entropy(net(inputs), labels, reduction="none") * present).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()

    scores = before - _losses(net, x[:canaries], y[:canaries])
    counts = (max(2, canaries // 8), max(2, canaries // 2), canaries * 3 // 4)
    epsilon, count, right = best_guess(scores, included, counts, setting.delta, 1 - setting.confidence)
    return Audit(
        attack="one run, mislabelled inputs",
        claim=claim_of(run.ledger, setting.delta),
        epsilon=epsilon,
        confidence=setting.confidence,
        details=f"{right} of {count} guesses right about {canaries} canaries",
    )


def _random(records: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, _FEATURES, generator=generator) * (_LENGTH / _FEATURES**0.5)
    return x, torch.randint(0, _CLASSES, (records,), generator=generator)


def _losses(net: nn.Module, x: Tensor, y: Tensor) -> Floats:
    with torch.no_grad():
        return np.asarray(F.cross_entropy(net(x), y, reduction="none").double().numpy())
