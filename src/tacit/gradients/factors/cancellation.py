"""Upper bounds of the squared norms of all parameters, and the examples whose terms cancel.

The parameters are worked on together: a few kernels for all of them, and the host waits once, whatever the model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Rounding, cancelled, largest_mass, row_squares
from tacit.gradients.factors.uses import Uses, instantiate
from tacit.gradients.precision import NORM_SHARE


def bounded_squares(several: Sequence[Uses]) -> list[Tensor]:
    """Return upper bounds of |Σ_parts G_i|², up to `Uses.relative`, infinite where a term is; sets `Uses.apart`."""
    measured, result = [uses.measured() for uses in several], list[Tensor]()
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place, (found, sizes, _) in enumerate(measured):
        result.append(found)
        if sizes is not found:
            alike.setdefault((found.dtype, found.device), []).append(place)
    for places in alike.values():
        enlarged = _enlarged([several[p] for p in places], *zip(*(measured[p] for p in places)))
        for place, row in zip(places, enlarged.unbind(0)):
            result[place] = row
    return result


def _enlarged(
    several: Sequence[Uses], found: Sequence[Tensor], sizes: Sequence[Tensor], errors: Sequence[Rounding]
) -> Tensor:
    """Enlarge squares by what the rounding of terms of these sizes may have taken: one row for each parameter.

    Each operation is one rounding an entry, by IEEE 754: no example's bits depend on its place or on the others.
    """
    squares, masses = torch.stack(list(found)), torch.stack(list(sizes))
    column = functools.partial(_column, dtype=squares.dtype, device=squares.device)
    mask = cancelled(squares, masses, column(tuple(largest_mass(uses.positions) for uses in several)))
    own = masses.sqrt().mul_(column(tuple(uses.unit * e.own for uses, e in zip(several, errors))))
    above = masses.mul_(_gram(several, errors, squares)).add_(squares).sqrt_().add_(own).mul_(1 - NORM_SHARE)
    enlarged = torch.maximum(squares, above.square_())
    for place, example in mask.cpu().nonzero().tolist():
        uses = several[place]
        uses.apart.append(example)
        enlarged[place, example] = row_squares(instantiate(uses.parts, uses.shape, example, example + 1))[0]
    return enlarged


def _gram(several: Sequence[Uses], errors: Sequence[Rounding], squares: Tensor) -> Tensor:
    """The errors of squared norms, in units of M²: public, or each example's own."""
    public = tuple(0.0 if isinstance(e.gram, Tensor) else uses.unit * e.gram for uses, e in zip(several, errors))
    column = _column(public, squares.dtype, squares.device)
    if not any(isinstance(e.gram, Tensor) for e in errors):
        return column
    whole = column.expand(squares.shape).contiguous()
    for row, uses, e in zip(whole.unbind(0), several, errors):
        if isinstance(e.gram, Tensor):
            row.copy_(e.gram * uses.unit)
    return whole


@functools.lru_cache(maxsize=256)
def _column(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that follow from shapes, one for each parameter; kept on the device, since copying them makes it wait."""
    return torch.tensor(values, dtype=dtype).unsqueeze(1).to(device)
