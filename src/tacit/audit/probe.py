"""The model, the records and the loop of an audit: the real training path, with canaries among the records.

A *gradient canary* has a coordinate of its own among the parameters and a gradient that is nonzero there alone, and
large: clipped to the clip norm, it moves the noisy sum by all that one record may (the Dirac canary of Nasr et al.
2023). The other records train a small classifier in the same model. A blank record has the gradient zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.accounting import Guarantee, account
from tacit.audit.setting import Setting
from tacit.ledger import GaussianSum, Ledger, Poisson, Step
from tacit.randomness import Floats, Source
from tacit.training import make_private

_LOUD = 1e3  # a canary's gradient in units of nothing in particular: well above any clip norm in use
_FEATURES, _CLASSES = 4, 3


class Probe(nn.Module):
    """A classifier for the ordinary records, and one coordinate for each canary (and one for all that are none)."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.body = nn.Linear(_FEATURES, _CLASSES)
        self.canaries = nn.Embedding(canaries + 1, 1)
        nn.init.zeros_(self.canaries.weight)

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), self.canaries(place).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The releases of one run: the score of every canary, and the ledger, which makes the claim."""

    scores: Floats
    ledger: Ledger


def run_with_canaries(setting: Setting, included: Floats, seed: int | None) -> Transcript:
    """Train once, with the canaries for which ``included`` is not zero, by `make_private` and an ordinary loop.

    The score of a canary is the logarithm of how much likelier the recorded mechanism makes all noisy sums, at its
    coordinate, with the canary than without: the best test there is, if the mechanism is the recorded one.
    """
    model = Probe(included.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_private(
        model,
        optimizer,
        _records(setting, included),
        lot_size=setting.lot_size,
        steps=setting.steps,
        clipping=setting.clipping,
        noise_multiplier=setting.noise_multiplier,
        reduction="sum",
        trial=False,  # this loop is tested, and runs thousands of times
        seed=seed,
    )
    scores = np.zeros(included.size)
    for x, y, place, ordinary, loud in run.batches():
        before = run.step
        logits, coordinate = model(x, place)
        losses = F.cross_entropy(logits, y, reduction="none")
        (losses * ordinary + coordinate * loud).sum().backward()
        optimizer.step()
        if run.step > before:
            scores += _log_ratios(_released(model), run.ledger.entries[-1][0], setting)
        optimizer.zero_grad()
    run.close()
    return Transcript(scores=scores, ledger=run.ledger)


def _released(model: Probe) -> Floats:
    """The noisy mean gradient at the coordinates of the canaries, as the optimizer sees it."""
    gradient = model.canaries.weight.grad
    assert gradient is not None
    return np.asarray(gradient[:-1, 0].double().numpy())


def _log_ratios(means: Floats, step: Step, setting: Setting) -> Floats:
    """log of (density with the canary / density without) at each coordinate, for the recorded step."""
    query = next(
        query
        for query in step.queries
        if isinstance(query, GaussianSum) and query.group in ("gradients", "gradients/canaries")
    )
    rate = step.sampling.rate if isinstance(step.sampling, Poisson) else 1.0
    multiplier = query.noise_std / query.clip_norm
    seen = means * setting.lot_size / query.noise_std
    return log_ratio(seen, rate, multiplier)


def log_ratio(seen: Floats, rate: float, multiplier: float) -> Floats:
    """log of (1 - q) + q N(1/z, 1)(x) / N(0, 1)(x): a sum in units of its noise, with the record sampled at rate q."""
    inside = seen / multiplier - 0.5 / multiplier**2
    if rate == 1:
        return inside
    return np.logaddexp(math.log1p(-rate), math.log(rate) + inside)


def claim_of(ledger: Ledger, delta: float) -> Guarantee:
    """Return the claim of a run's ledger."""
    return account(ledger, delta=delta)


def coins(canaries: int, source: Source) -> Floats:
    """Fair coins: one for in, zero for out."""
    return source.integers(2, canaries).astype(np.float64)


def _records(setting: Setting, included: Floats) -> TensorDataset:
    """The canaries first (loud or blank), then the ordinary records, which are public and always the same."""
    generator = torch.Generator().manual_seed(0)
    records, canaries = setting.records, included.size
    x = torch.randn(records, _FEATURES, generator=generator)
    y = torch.randint(0, _CLASSES, (records,), generator=generator)
    place = torch.arange(records).clamp(max=canaries)
    ordinary = (place == canaries).float()
    loud = torch.zeros(records)
    loud[:canaries] = _LOUD * torch.from_numpy(included).float()
    return TensorDataset(x, y, place, ordinary, loud)
