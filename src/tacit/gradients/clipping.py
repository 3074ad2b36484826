"""The engine's interface to a clipping strategy.

The strategies themselves live elsewhere; anything with these two methods will do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Clipping(Protocol):
    """How much of every example's gradient enters the sum.

    Proof obligation of an implementation: for all norms n ≥ 0, weights(n)[i, g] · n[i, g] is at most the bound S_g it
    claims. The engine passes upper bounds of the true norms (see `Tape.norms`), finite ones only, so the claimed bound
    then holds for the tensors it sums.
    """

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        """The norm groups: tuples of parameter names that cover every trainable parameter exactly once."""
        ...

    def weights(self, norms: Tensor) -> Tensor:
        """A factor ≥ 0 for every example and group; norms and factors are [batch, groups] and on the CPU."""
        ...


def checked_partition(groups: Sequence[tuple[str, ...]], shapes: Mapping[str, torch.Size]) -> list[tuple[str, ...]]:
    """Refuse a partition that leaves a parameter unclipped or counts it twice."""
    named = [name for group in groups for name in group]
    if len(named) == len(shapes) and shapes.keys() == set(named):
        return list(groups)
    twice = sorted({name for name in named if named.count(name) > 1}) if len(named) != len(set(named)) else []
    missing = sorted(set(shapes) - set(named))
    unknown = sorted(set(named) - set(shapes))
    if twice or missing or unknown:
        raise ValueError(
            "the norm groups must cover every trainable parameter exactly once: "
            f"missing {missing}, unknown {unknown}, in two groups {twice}"
        )
    return [tuple(group) for group in groups]


def checked_weights(weights: Tensor, norms: Tensor) -> Tensor:
    """Refuse factors that are of the wrong shape, negative or not finite."""
    if weights.shape != norms.shape:
        raise ValueError(
            f"the clipping strategy returned weights of {weights.ndim} dimensions and another shape than the norms, "
            f"which are [examples, {norms.shape[1]}]; it must return one factor per example and group"
        )
    least, most = weights.aminmax() if weights.numel() else (0.0, 0.0)
    if not (float(least) >= 0 and float(most) < math.inf):  # a NaN is both, and neither comparison holds
        raise ValueError("the clipping strategy returned a weight that is negative, infinite or not a number")
    return weights.to(norms.dtype)
