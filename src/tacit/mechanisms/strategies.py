"""Strategies for correlated noise, fitted to the number of steps and to how often a record comes back.

`make_private(noise=BandedToeplitz(bands=8), sampling="cyclic", ...)` fits the strategy to the run. It minimises the
error of the prefix sums of the gradients, which is where SGD's parameters come from: its mean square over the
steps (or, with ``objective="max"``, its largest), times the square of the sensitivity. A fit changes how useful the
noise is and never what is promised: the ledger has the coefficients, and the accountants read them there.

Records are divided into ``groups``, which take turns. Fewer groups are amplified more by sampling, and more groups let
the noise be taken back over more steps. Where a strategy does not need a number of its own and the noise is solved for
from a budget, the number that leaves the least error is chosen (`tacit.accounting.plan`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from tacit.ledger.correlation import Fitted
from tacit.mechanisms.strategy_fits import (
    Objective,
    fit_banded,
    fit_buffered,
    fit_inverse,
    prefix_sum_error,
    sampled,
)

_S = TypeVar("_S", bound="_Strategy")


@dataclass(frozen=True, kw_only=True)
class _Strategy:
    """Base of the strategies: the number of groups, as many as lots in an epoch if none is given."""

    groups: int | None = None

    def __post_init__(self) -> None:
        _check("groups", self.groups)

    def choices(self, records: int, lot_size: int) -> tuple[int, ...]:
        return (_enough(self.groups or records // lot_size, records, lot_size),)

    def with_groups(self: _S, groups: int) -> _S:
        return replace(self, groups=groups)

    def error(self, fitted: Fitted, steps: int) -> float:
        return prefix_sum_error(fitted, steps, getattr(self, "objective", "mean"))


@dataclass(frozen=True, kw_only=True)
class _Inverse(_Strategy):
    """C^-1 has few coefficients, and any number of groups will do."""

    objective: Objective = "mean"

    def choices(self, records: int, lot_size: int) -> tuple[int, ...]:
        if self.groups is not None:
            return super().choices(records, lot_size)
        lots = records // lot_size
        return (*(1 << power for power in range(lots.bit_length()) if 1 << power < lots), lots)

    def _fit(self, lags: tuple[int, ...], steps: int, groups: int, rate: float) -> tuple[float, ...]:
        return fit_inverse(lags, steps, groups, sampled(rate), self.objective)


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz(_Strategy):
    """C is a Toeplitz matrix of ``bands`` bands, with amplification by sampling (Choquette-Choo et al. 2023).

    The records are divided into as many groups as there are bands (or into ``groups``, if more are given). One band is
    DP-SGD. More bands cancel more of the noise and leave less of the amplification. Memory: bands - 1 copies of the
    model, because each step's noise depends on all earlier fresh noise; `SparseInverse` needs none.
    """

    bands: int
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("bands", self.bands)
        if self.groups is not None and self.groups < self.bands:
            raise ValueError(f"groups is {self.groups}; it must be at least the number of bands, {self.bands}.")

    def choices(self, records: int, lot_size: int) -> tuple[int, ...]:
        return (_enough(self.groups or self.bands, records, lot_size),)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "banded", fit_banded(min(self.bands, steps), steps, self.objective)


@dataclass(frozen=True, kw_only=True)
class BandedInverse(_Inverse):
    """C^-1 is a Toeplitz matrix of ``bands`` bands: the noise is made of the fresh noise of the last ``bands`` steps.

    The fresh noise of past steps is made again from the key of the block (Kalinin et al. 2025 call the factorisation
    banded inverse). Memory: a key of 32 bytes, whatever the size of the model; time: ``bands`` times the noise. By
    default each record takes part once an epoch; with fewer ``groups`` it takes part at random, and what the noise has
    in common beyond the group's next turn is charged (`tacit.accounting.correlated`).
    """

    bands: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("bands", self.bands)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        lags = tuple(range(1, min(self.bands, steps)))
        return "banded-inverse", (1.0, *self._fit(lags, steps, groups, rate))


@dataclass(frozen=True, kw_only=True)
class SparseInverse(_Inverse):
    """C^-1 is a Toeplitz matrix with few coefficients: for the fresh noise of 1, growth, growth², ... steps ago.

    What `noise="correlated"` means. Near lags take back most of the last steps' noise, far ones the slow rest, which a
    band of as many neighbouring lags cannot reach: with ``growth`` 4, seven coefficients are within 2.5 % of the best
    Toeplitz matrix for 1,000 steps, and with 2, eleven within 0.6 %. The fresh noise of past steps is made again from
    the key of the block. Memory: a key of 32 bytes, whatever the size of the model and the number of steps; time:
    log(steps) / log(growth) times the noise. Sampling and ``groups`` as with `BandedInverse`.
    """

    growth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("growth", self.growth)
        if self.growth < 2:
            raise ValueError(f"growth is {self.growth}; it must be at least 2: use BandedInverse for lags in a row.")

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        lags = [1] if steps > 1 else []
        reach = groups if sampled(rate) else steps - 1  # what reaches further has to be paid for, and gains nothing
        while lags and lags[-1] < steps / 2 and lags[-1] * self.growth <= min(reach, steps - 1):
            lags.append(lags[-1] * self.growth)
        return "sparse-inverse", (*self._fit(tuple(lags), steps, groups, rate), *map(float, lags))


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitz(_Strategy):
    """C is a buffered linear Toeplitz matrix: its coefficients are a sum of ``buffers`` decaying exponentials.

    Close to the best Toeplitz matrix with three to five buffers, at a cost that does not depend on the number of
    steps (Dvijotham et al. 2024, McMahan, Xu & Zhang 2024). Memory: one copy of the model for each buffer.
    """

    buffers: int = 4
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("buffers", self.buffers)

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "buffered", fit_buffered(self.buffers, steps, groups, self.objective)


@dataclass(frozen=True, kw_only=True)
class SquareRoot(_Strategy):
    """C is the square root of the matrix of prefix sums: the least largest error of a Toeplitz matrix for one turn.

    Memory: a key of 32 bytes; time: the noise of all steps so far, at every step. For comparison and for short runs;
    `BufferedToeplitz` comes within a percent of it.
    """

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "square-root", ()


@dataclass(frozen=True, kw_only=True)
class TreeAggregation(_Strategy):
    """The noise of binary tree aggregation (Kairouz et al. 2021), the baseline of the others.

    Memory: a key of 32 bytes; time: twice the noise on average.
    """

    def fitted(self, steps: int, groups: int, rate: float) -> Fitted:
        return "tree", ()


def _check(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
    if value is not None and name != "groups" and value > 1024:
        raise ValueError(f"{name} is {value}; use at most 1024.")


def _enough(groups: int, records: int, lot_size: int) -> int:
    if groups * lot_size > records:
        raise ValueError(
            f"{groups} groups of {records} records have fewer than {lot_size} records each, the size of a lot; use at "
            f"most {records // lot_size} groups (and bands), or smaller lots."
        )
    return groups
