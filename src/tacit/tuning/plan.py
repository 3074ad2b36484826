"""Planning a selection: how much noise each run needs so that the whole of it fits the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tacit.accounting import Guarantee, guarantee
from tacit.accounting.effort import SEARCH, limited
from tacit.ledger import Adjacency, Everyone, FixedSize, GaussianSum, Header, Poisson, Sampling, Step
from tacit.tuning.trials import Base, Trials

# The base is declared with a little less noise than the runs use: rounding must not stop a run.
_SLACK = 1e-8


@dataclass(frozen=True, kw_only=True)
class TunedPlan:
    """A selection whose runs have ``steps`` steps at this noise multiplier, and what the whole of it guarantees."""

    trials: Trials
    lot_size: int
    steps: int
    noise_multiplier: float
    base: Base
    guarantee: Guarantee


def plan(
    trials: Trials,
    *,
    records: int,
    lot_size: int,
    epsilon: float,
    delta: float,
    epochs: float | None = None,
    steps: int | None = None,
    score: Base = (),
    also: Sequence[tuple[Step, int]] = (),
    sampling: str = "poisson",
    adjacency: str = "add/remove",
    accountant: str = "pld",
) -> TunedPlan:
    """The least noise for the runs of `choose` with which the selection costs at most (``epsilon``, ``delta``).

    ``lot_size`` and ``epochs`` or ``steps`` are the most that any candidate uses. ``score`` lists what a run's score
    costs on the same ledger, ``also`` what else the budget has to pay for, once. The noise is found to within 0.1 %.

    >>> from tacit.tuning import TruncatedNegativeBinomial
    >>> few = TruncatedNegativeBinomial.of_mean(10)
    >>> found = plan(few, records=60_000, lot_size=600, epochs=10, epsilon=2.0, delta=1e-5)
    >>> found.steps, found.guarantee.epsilon <= 2.0
    (1000, True)
    """
    event = _sampling(sampling, lot_size, records)
    count = _steps(epochs, steps, records, lot_size)

    def base(z: float) -> Base:
        query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=z * (1 - _SLACK))
        return ((Step(event, (query,)), count), *score)

    z, promised = least_noise(
        trials, base, epsilon=epsilon, delta=delta, also=also, adjacency=adjacency, accountant=accountant
    )
    return TunedPlan(
        trials=trials, lot_size=lot_size, steps=count, noise_multiplier=z, base=base(z), guarantee=promised
    )


def least_noise(
    trials: Trials,
    base: Callable[[float], Base],
    *,
    epsilon: float,
    delta: float,
    also: Sequence[tuple[Step, int]] = (),
    adjacency: str = "add/remove",
    accountant: str = "pld",
) -> tuple[float, Guarantee]:
    """Return the least noise multiplier, to within 0.1 %, with which a selection fits the budget, and its guarantee.

    ``base`` says what one run does at most with a noise multiplier.

    >>> from tacit.tuning import TruncatedNegativeBinomial
    >>> def one_sum(z: float) -> Base:
    ...     return ((Step(Everyone(), (GaussianSum(group="sum", clip_norm=1.0, noise_std=z),)), 1),)
    >>> z, promised = least_noise(TruncatedNegativeBinomial.of_mean(5), one_sum, epsilon=2.0, delta=1e-5)
    >>> 2 < z < 4, promised.epsilon <= 2.0
    (True, True)
    """
    header = Header(adjacency=Adjacency(adjacency))

    def promise(z: float, by: str) -> Guarantee:
        chosen = Step(Everyone(), (trials.event(base(z)),))
        return guarantee([*also, (chosen, 1)], header, delta=delta, accountant=by)

    z = _least(lambda level: promise(level, "rdp").epsilon, epsilon)
    if accountant != "rdp":
        with limited(SEARCH):
            z = _less(lambda level: promise(level, accountant).epsilon, epsilon, z)
    return z, promise(z, accountant)


def _sampling(sampling: str, lot_size: int, records: int) -> Sampling:
    if sampling == "poisson":
        if not 1 <= lot_size <= records:
            raise ValueError(f"lot_size is {lot_size}; it must be from 1 to the number of records, {records}.")
        return Poisson(rate=lot_size / records, records=records)
    if sampling == "fixed-size":
        return FixedSize(size=lot_size, records=records)
    raise ValueError(f"sampling is {sampling!r}; a selection is planned with 'poisson' or 'fixed-size'.")


def _steps(epochs: float | None, steps: int | None, records: int, lot_size: int) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs is {epochs!r} and steps is {steps!r}; give one of them.")
    if steps is not None:
        return steps
    if epochs is None or not 0 < epochs < math.inf:
        raise ValueError(f"epochs is {epochs!r}; it must be a finite number above 0.")
    return max(1, math.ceil(Fraction(str(epochs)) * records / lot_size))


def _less(epsilon_at: Callable[[float], float], target: float, enough: float) -> float:
    """As `_least`, from a noise multiplier that is enough: by interpolation between logarithms, always from above."""
    if epsilon_at(enough) > target:  # an accountant that never answers with less than rdp
        return _least(epsilon_at, target)
    high, over = enough, math.log(epsilon_at(enough) / target)
    low = high / 1.2
    while (under := math.log(epsilon_at(low) / target)) <= 0 and low > 1e-3:
        high, over, low = low, under, low / 1.2
    while high / low > 1.001:
        part = min(max(over / (over - under), 0.1), 0.9)
        middle = high * (low / high) ** part
        found = math.log(epsilon_at(middle) / target)
        low, under, high, over = (low, under, middle, found) if found <= 0 else (middle, found, high, over)
    return high


def _least(epsilon_at: Callable[[float], float], target: float) -> float:
    """The least noise multiplier with ε at most ``target``, to within 0.1 %; ε falls as the noise grows."""
    if not 0 < target < math.inf:
        raise ValueError(f"epsilon is {target!r}; it must be a finite number above 0.")

    def fits(z: float) -> bool:
        try:
            return epsilon_at(z) <= target
        except ValueError:  # no finite epsilon with so little noise
            return False

    if epsilon_at(1e6) > target:
        raise ValueError(f"epsilon is {target:g}; no noise brings the selection down to it: raise it.")
    low, high = 1.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    while low == high or fits(low):
        low, high = low / 2, low
        if low < 1e-3:
            return high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
