"""How long the gradients are, as a histogram with noise: whether the clip norm is a good one can be seen from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import gradients
from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Integers, Source
from tacit.sampling import EveryoneSampler
from tacit.training.arithmetic import exact_arithmetic

_ROWS = 2048  # records worked on at once


@dataclass(frozen=True, kw_only=True)
class NormHistogram:
    """How many records have a gradient norm between each two edges; counts get noise of ``noise_multiplier``."""

    noise_multiplier: float = 50.0
    group: str = "norms/histogram"

    def __post_init__(self) -> None:
        self._query()

    def _query(self) -> SumQuery:
        return SumQuery(group=self.group, clip_norm=1.0, noise_std=self.noise_multiplier)

    def charge(self) -> Step:
        """Return the steps that `release` will record."""
        return Step(Everyone(), (self._query().event(),))

    def release(
        self,
        norms: Callable[[Integers], Tensor],
        edges: Sequence[float],
        *,
        records: int,
        ledger: Ledger,
        source: Source,
    ) -> list[float]:
        """The noisy counts; ``norms`` gives one norm for each of the records it is asked for. Counts may be negative.

        Formal guarantee. A record is one example; all take part. It adds one to one bin: its norm's, the first or last
        if the norm lies beyond the edges, the last if it is not a number. One record more or fewer moves the vector of
        counts by L2 norm 1, and every count gets Gaussian noise of ``noise_multiplier``. ``edges`` must not depend on
        the records. Recorded in the ledger before anybody is looked at.
        """
        if len(edges) < 2 or any(not math.isfinite(e) for e in edges) or list(edges) != sorted(set(edges)):
            raise ValueError(f"edges are {list(edges)}; give two or more finite numbers, each above the one before.")
        receipt = ledger.record(self.charge(), secure=source.secure)
        chosen, bins = EveryoneSampler(records).draw(receipt), len(edges) - 1
        inner, total = torch.tensor(edges[1:-1], dtype=torch.float64), self._query().total((bins,))
        for start in range(0, records, _ROWS):
            found = norms(chosen[start : start + _ROWS]).to(torch.float64).nan_to_num(nan=math.inf, posinf=math.inf)
            total.add(F.one_hot(torch.bucketize(found, inner), bins).to(torch.float64))
        return [float(count) for count in total.release(receipt, source)]


def gradient_norms(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The norm of each example's gradient of the cross entropy: as secret as the examples."""
    with exact_arithmetic(model):
        with gradients.record(model, reduction="mean") as tape:
            torch.autograd.backward(F.cross_entropy(model(x), y))
        return tape.norms().detach().cpu()
