"""A clip norm from the data: the private median of the gradients' norms (Abadi et al. 2016, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import gradients
from tacit.ledger import Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import SecureSource, Source
from tacit.sampling import EveryoneSampler, LotReader, PoissonSampler, Sampler
from tacit.training.arithmetic import exact_arithmetic
from tacit.training.buffers import WatchedBuffers


def median_gradient_norm(
    model: nn.Module,
    dataset: Any,
    *,
    ledger: Ledger,
    low: float,
    high: float,
    noise_multiplier: float,
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy,
    quantile: float = 0.5,
    rounds: int = 8,
    lot_size: int | None = None,
    batch_size: int = 256,
    reduction: str | None = None,
    source: Source | None = None,
) -> float:
    """A ``quantile`` of the norms of each example's gradient at the model as it is, between ``low`` and ``high``.

    The record is the example. The norms are computed once, of all examples or of a Poisson sample of ``lot_size`` on
    average, and kept secret; then the range, declared beforehand and public, is halved ``rounds`` times on a
    logarithmic scale, to the side where a noisy count puts the quantile. The result is the middle of what is left: off
    by a factor of at most (high/low)^(2^-rounds/2) from a value whose rank is wrong by the noise of a count.

    **Formal guarantee.** A round asks for Σ (1[norm <= t] - quantile), positive if t is above the quantile; it needs no
    number of records. One record moves it by at most S = max(quantile, 1 - quantile), a gradient that is not finite
    counting as large. The noise is σ = z·sqrt(rounds)·S a round, so that all rounds, which are adaptive Gaussian
    queries of one sample, are one Gaussian sum with the noise multiplier z = ``noise_multiplier`` (McMahan, Andrew et
    al. 2019, Equation 1). It is recorded in ``ledger`` before anybody is drawn. The result is post-processing.

    The rank is then off by about z·sqrt(rounds)·S records; with 1,000 records and z = 10 that is 14.
    """
    _check(low, high, quantile, rounds)
    source = source or SecureSource()
    if ledger.header.unit != "example":
        raise ValueError(f"the ledger's unit is {ledger.header.unit!r}; the norms are those of single examples.")
    records = len(dataset)
    sampler: Sampler = EveryoneSampler(records)
    if lot_size is not None:
        sampler = PoissonSampler(records, lot_size / records, source=source)
    bound = max(quantile, 1 - quantile)
    queries = [
        SumQuery(group=f"norms/{number}", clip_norm=bound, noise_std=noise_multiplier * math.sqrt(rounds) * bound)
        for number in range(rounds)
    ]
    reader = LotReader(dataset, batch_size=batch_size)
    norms, buffers = [], WatchedBuffers(model, ())
    with exact_arithmetic(model):
        receipt = ledger.record(Step(sampler.event(), tuple(query.event() for query in queries)), secure=source.secure)
        try:
            for x, y in reader.read(sampler.draw(receipt)):
                with gradients.record(model, reduction=reduction) as tape:  # type: ignore[arg-type]
                    torch.autograd.backward(loss(model(x), y))
                norms.append(tape.norms().detach().to("cpu", torch.float64))
        finally:  # what a forward pass wrote there is not noisy, whether or not it came to an end
            buffers.check()
    values = torch.cat(norms)
    bottom, top = math.log(low), math.log(high)
    for query in queries:
        middle = (bottom + top) / 2
        total = query.total()
        total.add((values <= math.exp(middle)).to(torch.float64) - quantile)
        bottom, top = (bottom, middle) if float(total.release(receipt, source)) >= 0 else (middle, top)
    return math.exp((bottom + top) / 2)


def _check(low: float, high: float, quantile: float, rounds: int) -> None:
    if not 0 < low < high < math.inf:
        raise ValueError(f"the range is from {low!r} to {high!r}; it must be 0 < low < high, both finite.")
    if not 0 < quantile < 1:
        raise ValueError(f"quantile is {quantile!r}; it must be in (0, 1).")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= 40:
        raise ValueError(f"rounds is {rounds!r}; it must be a whole number from 1 to 40.")
