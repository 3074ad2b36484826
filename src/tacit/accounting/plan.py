"""Planning a run: of noise, lot size, length, ε and δ, name all but one and the last is solved for.

ε falls with the noise multiplier and with δ and rises with the number of steps and the sampling rate, so each is
found by bracketing and bisection (Illinois steps in logarithms); the answer is always taken from the side that does
not exceed the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tacit.accounting.effort import SEARCH, limited
from tacit.accounting.guarantee import Guarantee, guarantee
from tacit.accounting.tail import check_delta, check_epsilon
from tacit.ledger import events as ev
from tacit.ledger.correlation import Correlation, Fitted

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
    to the lot size; the noise multiplier is that of the fresh noise.
    ``records_per_owner``: an owner has at most so many of the records of Poisson lots, and the unit is the owner.
    ``max_lot_size`` drops records from Poisson lots that are larger, which adds to δ.
    With ``sampling`` "allocation" a record is in ``participations`` of the lots of an epoch.
    ``also`` lists other steps on the same records, all of one unit, that the budget has to pay for.

    >>> plan(records=60_000, lot_size=600, epochs=100, noise_multiplier=4.0, delta=1e-5).guarantee.epsilon < 0.95
    True
    """
    draft = _Draft(
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
            lot_size = _largest(
                lambda size: draft.epsilon(size, length_for(size), z, d) <= e, 1, records, "lot size", e
            )
        if length is None:
            assert noise_multiplier is not None and epsilon is not None and delta is not None
            z, e, d, size = noise_multiplier, epsilon, delta, lot_size
            steps = _largest(
                lambda count: draft.epsilon(size, count, z, d) <= e, 1, _LARGEST_STEPS, "number of steps", e
            )
        total = length_for(lot_size)
        if noise_multiplier is None:
            assert epsilon is not None and delta is not None
            z, e, d, size = _rough_noise(draft, lot_size, total, epsilon, delta), epsilon, delta, lot_size
            noise_multiplier = _least_noise(lambda level: draft.epsilon(size, total, level, d), e, z)
    found = draft.guarantee(lot_size, total, noise_multiplier, delta=delta, epsilon=None if delta else epsilon)
    return Plan(
        records=records,
        lot_size=lot_size,
        steps=total,
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        guarantee=found,
    )


@dataclass(frozen=True)
class _Draft:
    """The parts of a plan that are not solved for."""

    records: int
    sampling: str
    adjacency: ev.Adjacency
    accountant: str
    also: tuple[tuple[ev.Step, int], ...]
    noise: str | Correlation = "gaussian"
    participations: int = 1
    max_lot_size: int | None = None
    records_per_owner: int | None = None
    made: dict[tuple[object, ...], Guarantee] = field(default_factory=dict, compare=False)

    @property
    def unit(self) -> str:
        """That of the other steps; `guarantee` refuses steps of different units."""
        if self.records_per_owner is not None:
            return "owner"
        return self.also[0][0].sampling.unit if self.also else "example"

    def entries(self, lot_size: int, steps: int, noise_multiplier: float) -> list[tuple[ev.Step, int]]:
        if isinstance(self.noise, Correlation):
            return [*self.also, self._block(self.noise, lot_size, steps, noise_multiplier)]
        query = gradients(noise_multiplier, self.noise)
        return [*self.also, *((ev.Step(event, (query,)), count) for event, count in self._events(lot_size, steps))]

    def _block(self, noise: Correlation, lot_size: int, steps: int, z: float) -> tuple[ev.Step, int]:
        if self.sampling != "cyclic":
            raise ValueError(f"sampling is {self.sampling!r}; with correlated noise choose 'cyclic'.")
        groups = noise.groups_of(self.records, lot_size)
        rate = lot_size * groups / self.records
        event = ev.CyclicPoisson(groups=groups, rate=rate, block="planned", records=self.records, unit=self.unit)
        return ev.Step(event, (correlated_gradients(z, noise.fitted(steps, groups, rate)),)), steps

    def _events(self, lot_size: int, steps: int) -> list[tuple[ev.Sampling, int]]:
        if self.sampling == "poisson" and self.records_per_owner is not None:
            rate, most = lot_size / self.records, self.records_per_owner
            return [(ev.OwnedPoisson(rate=rate, records=self.records, most=most), steps)]
        if self.sampling == "poisson" and self.max_lot_size is not None:
            rate, most = lot_size / self.records, self.max_lot_size
            return [(ev.TruncatedPoisson(rate=rate, records=self.records, most=most, unit=self.unit), steps)]
        if self.sampling == "poisson":
            return [(ev.Poisson(rate=lot_size / self.records, records=self.records, unit=self.unit), steps)]
        if self.sampling == "fixed-size":
            return [(ev.FixedSize(size=lot_size, records=self.records, unit=self.unit), steps)]
        if self.sampling == "cyclic":
            raise ValueError(
                "sampling is 'cyclic', which is for correlated noise; name its strategy, or use 'poisson'."
            )
        if self.sampling not in ("shuffled", "allocation"):
            raise ValueError(
                f"sampling is {self.sampling!r}; choose one of 'poisson', 'fixed-size', 'shuffled', 'allocation', "
                "'cyclic'."
            )
        lots = math.ceil(self.records * self.participations / lot_size)
        whole, rest = divmod(steps, lots)
        counts = [lots] * whole + ([rest] if rest else [])
        if len(counts) > 100_000:
            raise ValueError(f"{len(counts)} epochs of {self.sampling} lots; plan at most 100000.")
        first: ev.Shuffled | ev.Allocated
        if self.sampling == "shuffled":
            first = ev.Shuffled(lots=lots, epoch=0, records=self.records, unit=self.unit, assignment="independent")
        else:
            first = ev.Allocated(
                lots=lots, epoch=0, records=self.records, participations=self.participations, unit=self.unit
            )
        return [(replace(first, epoch=epoch), count) for epoch, count in enumerate(counts)]

    def guarantee(
        self, lot_size: int, steps: int, z: float, *, delta: float | None = None, epsilon: float | None = None
    ) -> Guarantee:
        key = self.accountant, lot_size, steps, z, delta, epsilon
        if key not in self.made:
            header = ev.Header(adjacency=self.adjacency, unit=self.unit)
            entries = self.entries(lot_size, steps, z)
            self.made[key] = guarantee(entries, header, delta=delta, epsilon=epsilon, accountant=self.accountant)
        return self.made[key]

    def epsilon(self, lot_size: int, steps: int, z: float, delta: float) -> float:
        return self.guarantee(lot_size, steps, z, delta=delta).epsilon


def gradients(noise_multiplier: float, noise: str = "gaussian") -> ev.GaussianSum:
    """A sum of this noise multiplier; its scale does not change what it costs. The lattice is as coarse as is usual."""
    if noise not in ("gaussian", "discrete"):
        raise ValueError(f"noise is {noise!r}; choose 'gaussian' or 'discrete'.")
    lattice = 2.0**-14 if noise == "discrete" else None
    return ev.GaussianSum(group="gradients", clip_norm=1.0, noise_std=noise_multiplier, noise=noise, lattice=lattice)


def correlated_gradients(noise_multiplier: float, fitted: Fitted) -> ev.GaussianSum:
    """A sum whose fresh noise has this noise multiplier, correlated between the steps of a block."""
    strategy, parameters = fitted
    return ev.GaussianSum(
        group="gradients",
        clip_norm=1.0,
        noise_std=noise_multiplier,
        noise="correlated",
        strategy=strategy,
        parameters=parameters,
    )


def _steps(epochs: float | None, records: int, lot_size: int) -> int:
    """Steps that make at least ``epochs`` passes: nothing is lost to rounding."""
    steps = max(1, math.ceil(Fraction(str(epochs)) * records / lot_size))
    if steps > _LARGEST_STEPS:
        raise ValueError(f"epochs is {epochs!r}; that makes more than {_LARGEST_STEPS} steps.")
    return steps


def _largest(fits: Callable[[int], bool], low: int, high: int, what: str, epsilon: float) -> int:
    """The largest whole number in [low, high] that fits; ``fits`` is true up to some point and false beyond."""
    if not fits(low):
        raise ValueError(f"epsilon is {epsilon:g}; even a {what} of {low} costs more. Raise epsilon or the noise.")
    known, size = low, max(low, 16)
    while size < high and fits(size):
        known, size = size, size * 4
    if size >= high:
        if fits(high):
            return high
        size = high
    while size - known > 1:
        middle = (known + size) // 2 if size < 4 * known else math.isqrt(known * size)
        known, size = (middle, size) if fits(middle) else (known, middle)
    return known


def _rough_noise(draft: _Draft, lot_size: int, steps: int, epsilon: float, delta: float) -> float:
    """Where to begin looking: what the Rényi accountant, which is quick, would ask for; 1 if it has no proof."""
    quick = replace(draft, accountant="rdp")
    try:
        return _least_noise(lambda z: quick.epsilon(lot_size, steps, z, delta), epsilon, 1.0)
    except ValueError:
        return 1.0


def _least_noise(epsilon_at: Callable[[float], float], target: float, guess: float) -> float:
    """The noise multiplier that spends ``target`` to within 0.1 %, never more; looked for from ``guess`` on."""
    if target <= 0:
        raise ValueError(f"epsilon is {target!r}; no finite noise gives 0.")

    def gap(z: float) -> float:
        try:
            return math.log(max(epsilon_at(z), 1e-12) / target)
        except ValueError:
            return math.inf  # no finite epsilon with so little noise

    low = high = guess
    over = under = gap(guess)
    move = 0.2
    while over <= 0 and low > 1e-4:
        high, under, low = low, over, low * math.exp(-move)
        over = gap(low)
        move = _onward(move, -under, -over)
    while under > 0:
        low, over, high = high, under, high * math.exp(move)
        if high > 1e9:
            raise ValueError(f"epsilon is {target:g}; no noise multiplier up to 1e9 reaches it.")
        under = gap(high)
        move = _onward(move, over, under)
    if over <= 0:
        return high
    # Illinois: regula falsi in log z, halving the weight of an end that stays.
    stayed, short = 0, under
    while short < -1e-3 and high / low > 1 + 1e-9:
        slope = over / (over - under) if math.isfinite(over) else 0.5
        middle = math.exp(math.log(low) + min(max(slope, 0.02), 0.98) * math.log(high / low))
        value = gap(middle)
        if value > 0:
            low, over = middle, value
            under, stayed = (under / 2 if stayed == 1 else under), 1
        else:
            high, under, short = middle, value, value
            over, stayed = (over / 2 if stayed == -1 else over), -1
    return high


def _onward(move: float, before: float, after: float) -> float:
    """How far to go on if ``move`` changed what is missing from ``before`` to ``after``: a little beyond zero."""
    if not 0 < after < before < math.inf:
        return 2 * move
    return min(1.2 * after / (before - after) + 0.05, 4.0) * move


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
