"""Planning a run: of noise, lot size, length, ε and δ, name all but one and the last is solved for.

ε falls with the noise multiplier and with δ and rises with the number of steps and the sampling rate, so each is
found by bracketing and bisection (Illinois steps in logarithms); the answer is always taken from the side that does
not exceed the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tacit.accounting.draft import Draft, choose_groups, gradients, rough_noise
from tacit.accounting.effort import SEARCH, limited
from tacit.accounting.guarantee import Guarantee
from tacit.accounting.solving import largest, least_noise
from tacit.accounting.tail import check_delta, check_epsilon
from tacit.ledger import events as ev
from tacit.ledger.correlation import Correlation

_LARGEST_STEPS = 10**12


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run's privacy parameters, all solved for, and the guarantee they give if carried out."""

    records: int
    lot_size: int
    steps: int
    noise_multiplier: float
    sampling: str
    guarantee: Guarantee
    groups: int | None = None
    """With correlated noise: the number of groups of records that take turns."""

    @property
    def sampling_rate(self) -> float:
        return self.lot_size / self.records

    @property
    def epochs(self) -> float:
        return self.steps * self.lot_size / self.records


def plan(
    *,
    records: int,
    lot_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    sampling: str = "poisson",
    adjacency: str = "add/remove",
    accountant: str = "pld",
    noise: str | Correlation = "gaussian",
    participations: int = 1,
    max_lot_size: int | None = None,
    records_per_owner: int | None = None,
    also: Sequence[tuple[ev.Step, int]] = (),
) -> Plan:
    """Solve for the one of lot size, length (epochs or steps), noise multiplier, ε and δ that is left out.

    ``noise`` is "gaussian" or "discrete"; the noise multiplier of the latter is that of the sum after rounding. A
    strategy for correlated noise (`tacit.mechanisms.strategies`) is fitted to the length, which must then be given, and
    to the lot size; the noise multiplier is that of the fresh noise. Where that is solved for, so is the strategy's
    number of groups, if it was left open (`choose_groups`).
    ``records_per_owner``: an owner has at most so many of the records of Poisson lots, and the unit is the owner.
    ``max_lot_size`` drops records from Poisson lots that are larger, which adds to δ.
    With ``sampling`` "allocation" a record is in ``participations`` of the lots of an epoch.
    ``also`` lists other steps on the same records, all of one unit, that the budget has to pay for.

    >>> plan(records=60_000, lot_size=600, epochs=100, noise_multiplier=4.0, delta=1e-5).guarantee.epsilon < 0.95
    True
    """
    draft = Draft(
        records,
        sampling,
        ev.Adjacency(adjacency),
        accountant,
        tuple(also),
        noise,
        participations,
        max_lot_size,
        records_per_owner,
    )
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs is {epochs!r} and steps is {steps!r}; give one of them.")
    length = epochs if epochs is not None else steps
    given = {"lot_size": lot_size, "epochs or steps": length, "noise_multiplier": noise_multiplier}
    given |= {"epsilon": epsilon, "delta": delta}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        named = ", ".join(missing) if missing else "none"
        raise ValueError(f"exactly one of {', '.join(given)} is left out to be solved for; left out: {named}.")
    _check(records, lot_size, epochs, steps, noise_multiplier, epsilon, delta)
    if max_lot_size is not None and sampling != "poisson":
        raise ValueError(f"max_lot_size is {max_lot_size!r}; it is for sampling 'poisson' only.")
    if records_per_owner is not None and (sampling != "poisson" or max_lot_size is not None):
        raise ValueError(
            f"records_per_owner is {records_per_owner!r}; it is for sampling 'poisson', and not with max_lot_size."
        )
    if participations != 1 and sampling != "allocation":
        raise ValueError(f"participations is {participations!r}; it is for sampling 'allocation' only.")
    if not isinstance(noise, Correlation):
        gradients(1.0, noise)
    elif missing[0] in ("lot_size", "epochs or steps"):
        raise ValueError(f"{missing[0]} is left out; correlated noise is fitted to it: leave out something else.")

    def length_for(size: int) -> int:
        return steps if steps is not None else _steps(epochs, records, size)

    with limited(SEARCH):  # where it runs out, bounds are looser, and so is what is found; it fits all the same
        if lot_size is None:
            assert noise_multiplier is not None and epsilon is not None and delta is not None
            z, e, d = noise_multiplier, epsilon, delta
            lot_size = largest(lambda size: draft.epsilon(size, length_for(size), z, d) <= e, 1, records, "lot size", e)
        if length is None:
            assert noise_multiplier is not None and epsilon is not None and delta is not None
            z, e, d, size = noise_multiplier, epsilon, delta, lot_size
            steps = largest(
                lambda count: draft.epsilon(size, count, z, d) <= e, 1, _LARGEST_STEPS, "number of steps", e
            )
        total = length_for(lot_size)
        if noise_multiplier is None:
            assert epsilon is not None and delta is not None
            e, d, size = epsilon, delta, lot_size
            if isinstance(noise, Correlation):
                noise = choose_groups(
                    noise,
                    records=records,
                    lot_size=size,
                    steps=total,
                    epsilon=e,
                    delta=d,
                    adjacency=ev.Adjacency(adjacency),
                )
                draft = replace(draft, noise=noise, made={})
            z = rough_noise(draft, size, total, e, d) or 1.0
            noise_multiplier = least_noise(lambda level: draft.epsilon(size, total, level, d), e, z)
    found = draft.guarantee(lot_size, total, noise_multiplier, delta=delta, epsilon=None if delta else epsilon)
    return Plan(
        records=records,
        lot_size=lot_size,
        steps=total,
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        guarantee=found,
        groups=noise.choices(records, lot_size)[-1] if isinstance(noise, Correlation) else None,
    )


def _steps(epochs: float | None, records: int, lot_size: int) -> int:
    """Steps that make at least ``epochs`` passes: nothing is lost to rounding."""
    steps = max(1, math.ceil(Fraction(str(epochs)) * records / lot_size))
    if steps > _LARGEST_STEPS:
        raise ValueError(f"epochs is {epochs!r}; that makes more than {_LARGEST_STEPS} steps.")
    return steps


def _check(
    records: int,
    lot_size: int | None,
    epochs: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float | None,
) -> None:
    for name, value in {"records": records, "lot_size": lot_size, "steps": steps}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
    if lot_size is not None and lot_size > records:
        raise ValueError(f"lot_size is {lot_size}; it must be at most the number of records, {records}.")
    if steps is not None and steps > _LARGEST_STEPS:
        raise ValueError(f"steps is {steps}; it must be at most {_LARGEST_STEPS}.")
    for name, number in {"epochs": epochs, "noise_multiplier": noise_multiplier}.items():
        plain = isinstance(number, int | float) and not isinstance(number, bool)
        if number is not None and not (plain and 0 < number < math.inf):
            raise ValueError(f"{name} is {number!r}; it must be a finite number above 0.")
    if epsilon is not None:
        check_epsilon(epsilon)
    if delta is not None:
        check_delta(delta)
