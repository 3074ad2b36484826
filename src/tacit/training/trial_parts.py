"""Measure some records in the trial, and compare two measurements of the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.gradients.guard.same_values import are_equal, is_same, tolerance


@dataclass
class Part:
    """Some records of the trial, and their measurements."""

    records: Sequence[int]
    sign: int
    """The factor of its sum in the comparison W - A - B; zero for the second measurement of W."""
    norms: Tensor = field(default_factory=lambda: torch.empty(0))  # [records, parameters]
    names: tuple[str, ...] = ()  # of the parameters; none before it was measured
    dtype: torch.dtype = torch.float64
    observed: dict[str, Tensor] = field(default_factory=dict)
    penalties: Sequence[Tensor] = ()


def difference(together: Part, parts: Sequence[Part], sums: Mapping[str, Tensor]) -> str | None:
    """Return the differences between the records together and in parts, for a message.

    ``sums`` has, for each parameter, the sum of the gradients together minus the sums of the parts.
    """
    for part in parts:
        found = own_differences(together, part)
        if found is not None:
            return found
    relative, absolute = tolerance(_coarser(together, *parts))
    largest = float(together.norms.nan_to_num(0, 0, 0).max())
    sizes = together.norms.nan_to_num(0, 0, 0).sum(0).tolist()
    for (name, rest), size in zip(sums.items(), sizes, strict=True):
        if float(torch.linalg.vector_norm(rest.double())) > relative * size + absolute * largest:
            return f"the gradients of the examples for {name!r} added up to another sum"
    return None


def own_differences(whole: Part, part: Part) -> str | None:
    """Return the differences of the records of ``part`` from the same records in ``whole``, for a message."""
    records, coarsest = list(part.records), _coarser(whole, part)
    if not are_equal(whole.penalties, part.penalties):
        return "a penalty on the parameters changed with the number of examples"
    mine = whole.norms[records]
    if not is_same(mine, part.norms, coarsest=coarsest):
        off = (mine - part.norms).abs().nan_to_num(0, 0, 0).amax(0)
        return f"the gradient of an example for {whole.names[int(off.argmax())]!r} changed with the other examples"
    for name, values in part.observed.items():
        before = whole.observed.get(name)
        if before is None or not is_same(before[records], values, coarsest=coarsest):
            return f"the value of an example that was observed as {name!r} changed with the other examples"
    return None


def _coarser(*parts: Part) -> torch.dtype:
    return max((part.dtype for part in parts), key=lambda dtype: torch.finfo(dtype).eps)
