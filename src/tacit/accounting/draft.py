"""A run as it is planned: its ledger entries and guarantee for any lot size, length and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tacit.accounting.guarantee import Guarantee, guarantee
from tacit.accounting.solving import least_noise
from tacit.ledger import events as ev
from tacit.ledger.correlation import Correlation, Fitted


@dataclass(frozen=True)
class Draft:
    """The parts of a plan that are not solved for."""

    records: int
    sampling: str
    adjacency: ev.Adjacency
    accountant: str
    also: tuple[tuple[ev.Step, int], ...] = ()
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
        groups = noise.choices(self.records, lot_size)[-1]
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


def rough_noise(draft: Draft, lot_size: int, steps: int, epsilon: float, delta: float) -> float | None:
    """Return what the Rényi accountant, which is quick, would ask for; None if it has no proof or no bound."""
    quick = replace(draft, accountant="rdp")
    try:
        return least_noise(lambda z: quick.epsilon(lot_size, steps, z, delta), epsilon, 1.0)
    except ValueError:
        return None


def choose_groups(
    noise: Correlation,
    *,
    records: int,
    lot_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: ev.Adjacency = ev.Adjacency.ADD_REMOVE,
) -> Correlation:
    """Return the strategy with the number of groups that leaves the least error of the prefix sums for a budget.

    By the Rényi accountant: the guarantee does not depend on how the number was found.
    """
    choices = noise.choices(records, lot_size)
    best, least, worse = choices[-1], math.inf, 0
    for groups in choices if len(choices) > 1 else ():
        draft = Draft(records, "cyclic", adjacency, "rdp", noise=noise.with_groups(groups))
        if (level := rough_noise(draft, lot_size, steps, epsilon, delta)) is None:
            continue
        error = level * noise.error(noise.fitted(steps, groups, lot_size * groups / records), steps)
        best, least, worse = (groups, error, 0) if error < least else (best, least, worse + 1)
        if worse == 3:  # the error falls, and then rises
            break
    return noise.with_groups(best)


def gradients(noise_multiplier: float, noise: str = "gaussian") -> ev.GaussianSum:
    """Return a sum of this noise multiplier; its scale does not change what it costs. The lattice is the usual one."""
    if noise not in ("gaussian", "discrete"):
        raise ValueError(f"noise is {noise!r}; choose 'gaussian' or 'discrete'.")
    lattice = 2.0**-14 if noise == "discrete" else None
    return ev.GaussianSum(group="gradients", clip_norm=1.0, noise_std=noise_multiplier, noise=noise, lattice=lattice)


def correlated_gradients(noise_multiplier: float, fitted: Fitted) -> ev.GaussianSum:
    """Return a sum whose fresh noise has this noise multiplier, correlated between the steps of a block."""
    strategy, parameters = fitted
    return ev.GaussianSum(
        group="gradients",
        clip_norm=1.0,
        noise_std=noise_multiplier,
        noise="correlated",
        strategy=strategy,
        parameters=parameters,
    )
